"""Inputs of extreme magnitude: the farthest with finite outputs, and none that a model has no end for."""

from __future__ import annotations

import torch
from torch import nn

import torchferry
from exporter.archive import pt_archive
from exporter.model.eager import extreme_inputs


class Polygamma(nn.Module):
    """torch adds a term for each whole number between a negative input and 9."""

    def forward(self, x):
        return torch.polygamma(2, x)


class Cancelled(nn.Module):
    """The difference has no digit left where the numbers are large, and the sum all of them."""

    def forward(self, x):
        return {"y": (x + 1.0) * (x + 1.0) - x * x - 2.0 * x, "sum": x.sum()}


class Bounded(nn.Module):
    def forward(self, x):
        return torch.exp(x)


X = torch.linspace(0.1, 0.4, 6, dtype=torch.float64).reshape(2, 3)


def list_cases(model, path, **inputs):
    torchferry.export(model, inputs=inputs, output=path, batch="no", jobs=1)
    return {case.name for case in pt_archive.read(path).cases()}


def test_a_loop_over_the_data_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(extreme_inputs, "PATIENCE", 0.5)
    names = list_cases(Polygamma(), tmp_path / "m.pt", x=-X - 0.0123)
    assert "small_1e-12" in names
    assert not {"large_1e+12", "large_1e+9"} & names
    assert "large_1e+3" in names


def test_the_farthest_decade_with_finite_outputs(tmp_path):
    assert list_cases(Bounded(), tmp_path / "m.pt", x=X * 10) >= {"small_1e-12", "large_1e+1"}


def test_rounding_errors_are_no_cases(tmp_path):
    names = list_cases(Cancelled(), tmp_path / "m.pt", x=X)
    assert "small_1e-12" in names
    assert not {"large_1e+12", "large_1e+9"} & names
    assert "large_1e+6" in names


def test_zeros_and_whole_numbers_stay():
    for dtype in (torch.float64, torch.float32):
        tensor = torch.tensor([[1.0, 0.0], [-2.0, 3.0]], dtype=dtype)
        moved = extreme_inputs._move_last_digits(tensor)
        assert moved.tolist()[0][1] == 0.0
        assert (moved - tensor).sign().tolist() == [[1.0, 0.0], [1.0, -1.0]]
