"""Inputs of extreme magnitude: the farthest with finite outputs, and none that a model has no end for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchferry
from exporter.archive import pt_archive
from exporter.model.eager import extreme_inputs


class Polygamma(nn.Module):
    """torch adds a term for each whole number between a negative input and 9."""

    def forward(self, x):
        return torch.polygamma(2, x)


class Bounded(nn.Module):
    def forward(self, x):
        return torch.exp(x)


X = torch.linspace(0.1, 0.4, 6, dtype=torch.float64).reshape(2, 3)


def list_cases(model, path, **inputs):
    torchferry.export(model, inputs=inputs, output=path, batch="no", jobs=1)
    return {case.name for case in pt_archive.read(path).cases()}


@pytest.mark.thorough
def test_a_loop_over_the_data_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(extreme_inputs, "PATIENCE", 0.5)
    names = list_cases(Polygamma(), tmp_path / "m.pt", x=-X - 0.0123)
    assert "small_1e-12" in names
    assert not {"large_1e+12", "large_1e+9"} & names
    assert "large_1e+3" in names


def test_the_farthest_decade_with_finite_outputs(tmp_path):
    assert list_cases(Bounded(), tmp_path / "m.pt", x=X * 10) >= {"small_1e-12", "large_1e+1"}
