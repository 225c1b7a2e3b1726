"""Parameters that the file offers to be set: those whose every use is in the graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchferry

F = torch.float64
X = torch.tensor([[0.1], [0.2]], dtype=F)


class Law(nn.Module):
    """A model of one expression, with parameters of several sorts; ``live`` is used as it should be."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.live = nn.Parameter(torch.tensor(1.5, dtype=F))
        self.other = nn.Parameter(torch.tensor(2.0, dtype=F))
        self.zero = nn.Parameter(torch.zeros(2, dtype=F))
        self.count = nn.Parameter(torch.tensor(2), requires_grad=False)
        self.is_on = nn.Parameter(torch.tensor(True), requires_grad=False)

    def forward(self, x):
        used = 0.0 * (self.other + self.zero.sum() + self.count + self.is_on)
        return {"y": self.live * self.function(self, x) + used}


def branch(m, x):
    return x * m.other if m.other > 0 else x - m.other


def close(m, x):
    return x if torch.isclose(m.other, m.live) else x / (m.other - m.live)


@pytest.mark.parametrize(
    ("function", "constants"),
    [
        (lambda m, x: x * m.other, []),
        (lambda m, x: x + m.zero.sum() * m.count, []),
        (lambda m, x: torch.where(m.is_on, x, 2 * x), []),
        (lambda m, x: x + m.zero[0].item(), ["zero"]),
        (lambda m, x: x + m.zero.data.sum(), ["zero"]),
        (lambda m, x: x * m.count.data, ["count"]),
        (lambda m, x: x * m.is_on.data, ["is_on"]),
        (lambda m, x: x * sum(range(int(m.count))), ["count"]),
        (lambda m, x: x * sum(range(round(float(m.other)))), ["other"]),
        (branch, ["other"]),
        (close, ["live", "other"]),
        (lambda m, x: x * max(m.other, m.zero[0]), ["other", "zero"]),
        (lambda m, x: x + 10.0 if torch.is_nonzero(m.is_on) else x, ["is_on"]),
    ],
    ids=["live", "zero and whole", "flag", "item", "data", "whole data", "flag data", "range", "round", "branch",
         "close", "max", "is_nonzero"],
)  # fmt: skip
def test_what_python_reads_is_not_offered(function, constants, tmp_path):
    (exported,) = torchferry.export(Law(function), inputs={"x": X}, output=tmp_path / "m.pt")
    names = ["live", "other", "zero", "count", "is_on"]
    assert [p.name for p in exported.contract.parameters] == [name for name in names if name not in constants]
    texts = [f.what for f in exported.contract.findings if f.check == "parameters" and "is a constant" in f.what]
    assert sorted(texts) == sorted(
        f"parameter {name!r} is a constant in the file, which does not offer it as settable" for name in constants
    )


def test_the_line_of_a_read_is_named(tmp_path):
    (exported,) = torchferry.export(Law(branch), inputs={"x": X}, output=tmp_path / "m.pt")
    (finding,) = [f for f in exported.contract.findings if f.check == "parameters"]
    line = branch.__code__.co_firstlineno + 1
    assert finding.reason == f"Python reads its numbers at test_settable_parameters.py:{line}"


def test_what_stays_settable_gives_eager_modes_numbers(tmp_path):
    model = Law(lambda m, x: x * m.other + m.zero.sum() * m.count)
    (exported,) = torchferry.export(model, inputs={"x": X}, output=tmp_path / "m.pt")
    loaded = torchferry.load(exported.path)
    for name, value in {"other": -3.0, "zero": [1.0, 2.0], "count": 5}.items():
        parameter = model.get_parameter(name)
        parameter.data = torch.as_tensor(value, dtype=parameter.dtype)
        loaded.set_parameter(name, parameter.data)
    assert torch.equal(loaded.call("forward", {"x": X})["y"], model(X)["y"].detach())


class Logged(nn.Module):
    """Python reads sizes, and numbers that an input goes into: neither fixes a parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 2, dtype=F))
        self.seen = []

    def forward(self, x):
        y = x @ self.weight
        if y.shape[0] > 10**6:
            raise ValueError("too many rows")
        self.seen = [f"{y.max().item():g}"]
        return {"y": y / float(y.shape[-1])}


def test_sizes_and_logs_fix_no_parameter(tmp_path):
    (exported,) = torchferry.export(Logged(), inputs={"x": X}, output=tmp_path / "m.pt")
    assert [p.name for p in exported.contract.parameters] == ["weight"]
    assert not [f for f in exported.contract.findings if f.check == "parameters"]
