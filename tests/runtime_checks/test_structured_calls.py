"""Calls of a loaded file with the arguments and results of the model's own call."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from project import ARTIFACTS, skip_checks
from torch import nn
from torch.utils import _pytree as pytree

import torchferry
from exporter.common.errors import UsageError
from torchferry.cli.app import run

F = torch.float64
Pair = namedtuple("Pair", "h c")


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.5, dtype=F))

    def forward(self, x, state, *, scale=2.0, unused=None):
        h = torch.tanh(scale * self.gain * x + state["h"])
        c = state["layers"][0] * h + state["layers"][1].c - state["layers"][1].h
        return {"state": {"h": h, "layers": [c, Pair(c, h)]}, "y": (h * c, None)}


class Plain(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x):
        results = (x + 1, x * 2, [x - 1])[: self.count]
        return results[0] if self.count == 1 else results


class Optional(nn.Module):
    def forward(self, x, a=None, b=None, *, c=None):
        return x if b is None else x - b + (0 if c is None else c)


class Variadic(nn.Module):
    def forward(self, x, *rest, **named):
        return x + rest[0] - named["z"]


def make_call(rows: int) -> dict[str, Any]:
    x = torch.linspace(-1, 1, 3 * rows, dtype=F).reshape(rows, 3)
    return {"x": x, "state": {"h": 2 * x, "layers": [x + 1, Pair(x, 3 * x)]}, "scale": 3.0}


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cell") / "cell.pt"
    with skip_checks():
        torchferry.export(Cell(), inputs=make_call(4), output=path, formats=["pt", "onnx"], renames=["state.h:hidden"])
    return path


@pytest.mark.parametrize("engine", ["torchscript", "interpreter", "onnx"])
def test_the_user_gets_the_own_structure_back(cell, engine):
    model = torchferry.load(cell.with_suffix(".onnx")) if engine == "onnx" else torchferry.load(cell, engine=engine)
    call = make_call(7)
    expected = Cell()(**call)
    for result in (model.call_as_module(**call), model.call_as_module(call["x"], call["state"])):
        assert (type(result), list(result), list(result["state"])) == (dict, ["state", "y"], ["h", "layers"])
        assert isinstance(result["y"], tuple)
        assert result["y"][1] is None
        # The class is the model's own, and absent.
        assert result["state"]["layers"][1]._fields == ("h", "c")
        pairs = zip(pytree.tree_leaves(result), pytree.tree_leaves(expected), strict=True)
        assert all(a is b is None or torch.allclose(a, b, rtol=1e-13, atol=1e-13) for a, b in pairs)
        assert torch.equal(result["state"]["layers"][1].h, result["state"]["layers"][0])


def test_a_result_is_a_tensor_or_a_tuple_where_the_model_has_that(tmp_path):
    x = torch.linspace(0, 1, 4, dtype=F)
    kinds = {1: torch.Tensor, 2: tuple, 3: tuple}
    for count, kind in kinds.items():
        with skip_checks():
            (exported,) = torchferry.export(Plain(count), inputs={"x": x}, output=tmp_path / f"{count}.pt")
        result, expected = torchferry.load(exported.path).call_as_module(x), Plain(count)(x)
        assert isinstance(result, kind)
        assert pytree.tree_structure(result) == pytree.tree_structure(expected)
        assert all(map(torch.equal, pytree.tree_leaves(result), pytree.tree_leaves(expected)))
        assert bool(exported.contract.results) == (count == 3)


def test_a_parameter_of_each_element_is_an_argument_of_its_own(tmp_path):
    with skip_checks():
        (exported,) = torchferry.export(Cell(), inputs=make_call(4), output=tmp_path / "cell.pt", per_element="gain")
    gain = torch.tensor([1.0, 1.5, 2.0], dtype=F)
    call = make_call(3)
    result = torchferry.load(exported.path).call_as_module(**call, gain=gain)
    expected = torch.tanh(3.0 * gain[:, None] * call["x"] + call["state"]["h"])
    torch.testing.assert_close(result["state"]["h"], expected, rtol=1e-13, atol=0)


def test_gradients_are_no_part_of_it(tmp_path):
    class Energy(nn.Module):
        def forward(self, state):
            return {"energy": (state["F"] ** 3).sum((-1, -2))}

    strain = torch.linspace(0.5, 1.5, 36, dtype=F).reshape(4, 3, 3)
    with skip_checks():
        (exported,) = torchferry.export(
            Energy(), inputs={"state": {"F": strain}}, output=tmp_path / "e.pt", derivatives="energy:state.F,state.F"
        )
    assert len(exported.contract.outputs) == 2
    result = torchferry.load(exported.path).call_as_module({"F": strain})
    assert list(result) == ["energy"]
    torch.testing.assert_close(result["energy"], (strain**3).sum((-1, -2)), rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda call: call.pop("state"), "argument 'state' is missing"),
        (lambda call: call.update(scale=2.0), "'scale' is fixed in the file(.|\n)*got: 2.0"),
        (lambda call: call.update(unused=1), "there is no argument 'unused'"),
        (lambda call: call["state"].pop("h"), "'state' has another structure(.|\n)*dict with layers"),
        (lambda call: call["state"]["layers"].pop(), "'state.layers' has another structure"),
        (lambda call: call["state"].update(h=3), "'hidden'(.|\n)*int"),
    ],
)
def test_another_call_is_refused(cell, change, says):
    call = make_call(2)
    change(call)
    with pytest.raises(UsageError, match=says):
        torchferry.load(cell).call_as_module(**call)


def test_arguments_by_position():
    model = torchferry.load(ARTIFACTS / "rates.pt")
    values = [torch.full((2,), float(i), dtype=F) for i in range(8)]
    assert all(map(torch.equal, model.call_as_module(*values), model(*values)))
    with pytest.raises(UsageError, match="too many arguments"):
        model.call_as_module(*values, values[0])
    with pytest.raises(UsageError, match="'a' is given twice"):
        model.call_as_module(*values, a=values[0])


def test_an_argument_that_was_left_out_shifts_no_other(tmp_path):
    x, b = torch.linspace(0, 1, 4, dtype=F), torch.linspace(2, 3, 4, dtype=F)
    with skip_checks():
        (exported,) = torchferry.export(Optional(), inputs={"x": x, "b": b, "c": 2 * b}, output=tmp_path / "o.pt")
    model = torchferry.load(exported.path)
    assert torch.equal(model.call_as_module(x, b=b, c=b), Optional()(x, b=b, c=b))
    with pytest.raises(UsageError, match=r"too many(.|\n)*expected: 1: x(.|\n)*by name"):
        model.call_as_module(x, b, c=b)


def test_arguments_of_any_number_go_by_the_names_that_they_have_in_forward(tmp_path):
    x = torch.linspace(0, 1, 4, dtype=F)
    inputs = {"x": x, "rest": (2 * x,), "named": {"z": x + 1}}
    with skip_checks():
        (exported,) = torchferry.export(Variadic(), inputs=inputs, output=tmp_path / "v.pt")
    model = torchferry.load(exported.path)
    assert torch.equal(model.call_as_module(x, rest=(3 * x,), named={"z": x}), Variadic()(x, 3 * x, z=x))
    with pytest.raises(UsageError, match="too many"):
        model.call_as_module(x, 3 * x, named={"z": x})


def test_own_names_stay_where_variables_are_renamed(tmp_path):
    x = torch.linspace(0, 1, 4, dtype=F)
    with skip_checks():
        (exported,) = torchferry.export(Plain(2), inputs={"x": x}, output=tmp_path / "p.pt", renames=["x:strain"])
    model = torchferry.load(exported.path)
    for result in (model.call_as_module(x), model.call_as_module(x=x)):
        assert all(map(torch.equal, result, Plain(2)(x)))


def test_people_see_it(cell, capfd):
    assert run(["inspect", str(cell)]) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "Arguments: {'x': x, 'state': {'h': hidden, 'layers': [state.layers.0, NamedTuple(h=" in shown
    assert "'scale': 3.0}" in shown
    assert "Returns: {'state': {'h': hidden," in shown
