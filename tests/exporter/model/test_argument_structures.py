"""Arguments and outputs that hold several tensors."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree

import torchferry
from exporter.common.errors import CaptureError, TorchferryError, UsageError
from exporter.model.argument_structures import ArgumentStructures

F = torch.float64
Pair = namedtuple("Pair", "left right")
ROWS = torch.linspace(-1, 1, 15, dtype=F).reshape(5, 3)

tensors = st.integers(0, 9).map(lambda n: torch.full((2,), n))
leaves = st.one_of(tensors, st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3))
keys = st.text("abc", min_size=1, max_size=3)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(keys, inner, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=8,
)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(keys, values, min_size=1, max_size=3))
def test_a_call_gets_what_was_given(arguments):
    structures = ArgumentStructures(arguments, "the test")
    call = structures.bind(lambda *given: dict(zip(arguments, given, strict=True)))
    assert equal(call(*structures.tensors.values()), arguments)
    assert not set(structures.tensors) & set(structures.fixed)


def test_a_value_that_no_contract_holds_leaves_the_structure_out():
    assert ArgumentStructures({"x": [ROWS, 2.0]}, "the test").describe()
    for value in (1j, b"bytes", float("nan")):
        assert ArgumentStructures({"x": [ROWS, value]}, "the test").describe() == ()


def test_a_number_of_numpy_is_fixed_in_the_structure_too():
    structures = ArgumentStructures({"x": ROWS, "scale": numpy.float64(2)}, "the test")
    assert [node.kind for node in structures.describe()] == ["dict", "variable", "fixed"]


def test_places_are_names():
    arguments = {
        "x": ROWS,
        "state": {"h": ROWS, "layers": [ROWS, Pair(ROWS, ROWS)], "scale": 2.0},
        "counts": [[1, 2], [3, 4]],
        "mask": [True, False],
        "array": numpy.ones(3),
        "mode": "fast",
        "none": (None,),
    }
    structures = ArgumentStructures(arguments, "the test")
    places = [
        "x",
        "state.h",
        "state.layers.0",
        "state.layers.1.left",
        "state.layers.1.right",
        "counts",
        "mask",
        "array",
    ]
    assert list(structures.tensors) == places
    assert structures.fixed == {"state.scale": 2.0, "mode": "fast", "none.0": None}
    assert not structures.is_flat
    assert ArgumentStructures({"x": ROWS, "n": numpy.ones(3)}, "the test").is_flat


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": ROWS, "state": [object()]}, r"'state.0' is of a type that holds no tensors(.|\n)*register_dataclass"),
        ({"x": {"a.b": ROWS, "a": {"b": ROWS}}}, "two values have the name 'x.a.b'"),
    ],
)
def test_what_has_no_names(arguments, message):
    with pytest.raises(UsageError, match=message):
        ArgumentStructures(arguments, "the test")


class Cell(nn.Module):
    def forward(self, x, state, gates, mode="slow", mask=None):
        assert mask is None
        assert mode == "fast"
        h = torch.tanh(x + 2 * state["h"] - gates[1])
        return {"y": h * gates[0], "state": [{"h": h}, Pair(state["c"] + h, None)]}


EXAMPLES = {"mode": "fast", "mask": None, "gates": (ROWS, ROWS + 1), "state": {"c": ROWS, "h": -ROWS}, "x": ROWS}


def test_a_file_takes_and_gives_each_tensor_by_its_place(tmp_path):
    (exported,) = torchferry.export(Cell(), inputs=EXAMPLES, output=tmp_path / "m.pt")
    contract = exported.contract
    assert [s.name for s in contract.inputs] == ["x", "state.c", "state.h", "gates.0", "gates.1"]
    assert [s.name for s in contract.outputs] == ["y", "state.0.h", "state.1.left"]
    assert {f.what: f.reason for f in contract.findings if f.check == "arguments"} == {
        "'mode' is fixed": "it is 'fast', and no tensor",
        "'mask' is fixed": "it is None, and no tensor",
    }
    inputs = {s.name: torch.randn(7, 3, dtype=F) for s in contract.inputs}
    got = torchferry.load(exported.path).call("forward", inputs)
    h = torch.tanh(inputs["x"] + 2 * inputs["state.h"] - inputs["gates.1"])
    expected = {"y": h * inputs["gates.0"], "state.0.h": h, "state.1.left": inputs["state.c"] + h}
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-14, atol=1e-14)


def test_arguments_without_names_of_their_own(tmp_path):
    class Variadic(nn.Module):
        def forward(self, x, *rest, scale, **more):
            return {"y": scale * (x + 2 * rest[1] - rest[0] * more["shift"])}

    examples = {"x": ROWS, "scale": ROWS, "rest": (ROWS, ROWS), "more": {"shift": ROWS}}
    (exported,) = torchferry.export(Variadic(), inputs=examples, output=tmp_path / "m.pt")
    names = [s.name for s in exported.contract.inputs]
    assert sorted(names) == ["more.shift", "rest.0", "rest.1", "scale", "x"]
    inputs = {name: torch.randn(4, 3, dtype=F) for name in names}
    got = torchferry.load(exported.path).call("forward", inputs)["y"]
    expected = inputs["scale"] * (inputs["x"] + 2 * inputs["rest.1"] - inputs["rest.0"] * inputs["more.shift"])
    torch.testing.assert_close(got, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("pick", "names"),
    [
        (lambda x: (x, None), ["output_0"]),
        (lambda x: (x, (2 * x, 3 * x)), ["output_0", "output_1.0", "output_1.1"]),
        (lambda x: [[x, {"k": 2 * x}]], ["output_0.0", "output_0.1.k"]),
    ],
)
def test_a_tuple_that_holds_others(pick, names, tmp_path):
    class Returning(nn.Module):
        def forward(self, x):
            return pick(x)

    (exported,) = torchferry.export(Returning(), inputs={"x": ROWS}, output=tmp_path / "m.pt")
    assert [s.name for s in exported.contract.outputs] == names
    got = torchferry.load(exported.path).call("forward", {"x": ROWS})
    assert [float(t[0, 0] / ROWS[0, 0]) for t in got.values()] == [1.0, 2.0, 3.0][: len(names)]


def test_torchs_own_recurrent_network(tmp_path):
    model = nn.LSTM(3, 4, batch_first=True).double()
    examples = {"input": torch.rand(5, 7, 3, dtype=F)}
    (exported,) = torchferry.export(model, inputs=examples, output=tmp_path / "m.pt", batch="no")
    got = torchferry.load(exported.path).call("forward", examples)
    output, (h, c) = model(examples["input"])
    for value, expected in zip(got.values(), (output, h, c), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    "pick", [lambda x: {"a": {"b": x}, "a.b": 2 * x}, lambda x: {"a": {1: x, "1": 2 * x}}, lambda x: {"a": {"": x}}]
)
def test_outputs_without_names_of_their_own(pick, tmp_path):
    class Returning(nn.Module):
        def forward(self, x):
            return pick(x)

    with pytest.raises(TorchferryError, match=r"two outputs have the name 'a\.|a key in 'a' is no name"):
        torchferry.export(Returning(), inputs={"x": ROWS}, output=tmp_path / "m.pt")


def test_arguments_that_forward_does_not_name(tmp_path):
    class Positional(nn.Module):
        def forward(self, *args):
            return args[0]["a"] - 2 * args[1]

    examples = {"first": {"a": ROWS}, "second": ROWS}
    (exported,) = torchferry.export(Positional(), inputs=examples, output=tmp_path / "m.pt")
    inputs = {"first.a": torch.randn(4, 3, dtype=F), "second": torch.randn(4, 3, dtype=F)}
    got = torchferry.load(exported.path).call("forward", inputs)["output"]
    torch.testing.assert_close(got, inputs["first.a"] - 2 * inputs["second"], rtol=1e-14, atol=1e-14)


class Unnamed:
    """A pytree whose parts have no names."""

    def __init__(self, value):
        self.value = value


def test_a_class_without_names_for_its_parts():
    pytree.register_pytree_node(Unnamed, lambda node: ([node.value], None), lambda values, _: Unnamed(*values))
    with pytest.raises(UsageError, match=r"the parts of 'p' have no names(.|\n)*flatten_with_keys_fn"):
        ArgumentStructures({"p": Unnamed(ROWS)}, "the test")


def test_an_output_in_a_list_that_is_no_tensor(tmp_path):
    class Counting(nn.Module):
        def forward(self, x):
            return {"y": x, "rest": [x, 3]}

    with pytest.raises(CaptureError, match=r"not a tensor(.|\n)*'rest.1'(.|\n)*got: int"):
        torchferry.export(Counting(), inputs={"x": ROWS}, output=tmp_path / "m.pt")
