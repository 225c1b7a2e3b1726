"""Numbers that code may compare data with."""

from __future__ import annotations

import torch
from torch import nn

from exporter.frontends import python_factory
from exporter.model.eager.evaluation import eager_context
from exporter.soundness.check_context import run_eager
from exporter.soundness.code_numbers import collect_numbers, list_values_between
from exporter.soundness.footprint import Footprint

LIMIT = 1357.77


class Table(nn.Module):
    low = 700.0

    def __init__(self):
        super().__init__()
        self.keys, self.sizes = {"300": 2.0, "iron": 3.0}, {(50, 1): 0.5}
        self.bounds: torch.Tensor
        self.register_buffer("bounds", torch.tensor([273.15, 273.17], dtype=torch.float64))
        self.layer = nn.Linear(91, 93)
        self.register_buffer("sparse", torch.eye(3).to_sparse())

    def forward(self, x):
        in_band = 4.95 < float(x.mean()) < LIMIT and x.shape[0] in {60, 17}
        return x * self.low if in_band else x * len(self.keys) * self.bounds[0] * len(self.sizes)


def test_numbers_of_source_and_state():
    x = torch.rand(3, 2, dtype=torch.float64)
    source = python_factory.source_from_module(Table(), "m", {"x": x}, "here")
    with eager_context(source), Footprint() as footprint:
        run_eager(source, (x,))
    numbers = collect_numbers(source.parameter_module, footprint)
    assert numbers == collect_numbers(source.parameter_module, footprint)
    assert {4.95, LIMIT, 60.0, 17.0, 700.0, 273.15, 273.17, 300.0, 50.0} <= {*numbers}
    assert not {91.0, 93.0} & {*numbers}, "widths of layers are no thresholds"


def test_values_between_are_those_nearest():
    assert list_values_between([700.0, 720.0, 5.0], 30.0, 2) == [5.0, 352.5]
    assert 710.0 in list_values_between([700.0, 720.0], 30.0, 9)
