import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import torchferry
from exporter.archive.tensor_spec import Signature, TensorSpec
from exporter.common.errors import UsageError
from exporter.model.composition import ComposedModel, Part

F = torch.float64


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *xs):
        return self.function(*xs)


def part(name, inputs, outputs, function=lambda *xs: sum(xs)):
    return Part(Function(function), inputs, outputs, name=name)


def chain():
    return [
        part("double", {"x": (2,)}, {"y": (2,)}, lambda x: 2 * x),
        part("sum", {"y": (2,), "z": ()}, {"s": ()}, lambda y, z: y.sum(-1) + z),
        part("split", {"s": ()}, {"low": (), "high": ()}, lambda s: (s - 1, s + 1)),
    ]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_of_the_list_does_not_matter(order):
    parts = chain()
    model = ComposedModel([parts[i] for i in order])
    assert [s.name for s in model.signature.inputs] == ["x", "z"]
    assert [s.name for s in model.signature.outputs] == ["low", "high"]
    low, high = model(torch.tensor([[1.0, 2.0]], dtype=F), torch.tensor([10.0], dtype=F))
    assert (low.item(), high.item()) == (15.0, 17.0)


def test_printing_shows_names_and_order():
    text = str(ComposedModel(chain(), name="chain"))
    assert "Name: chain" in text
    assert "Inputs: x: Tensor[2] float64; z: Tensor[] float64" in text
    assert "Outputs: low: Tensor[] float64; high: Tensor[] float64" in text
    assert "Order of evaluation: double -> sum -> split" in text


def test_additional_outputs():
    model = ComposedModel(chain(), additional_outputs=["y"])
    assert [s.name for s in model.signature.outputs] == ["y", "low", "high"]
    with pytest.raises(UsageError, match="produced by no module"):
        ComposedModel(chain(), additional_outputs=["Y"])


def test_a_composition_is_a_part_of_another():
    inner = ComposedModel(chain()[:2], name="inner")
    outer = ComposedModel([chain()[2], inner], name="outer")
    assert [s.name for s in outer.signature.outputs] == ["low", "high"]


def test_a_cycle_names_modules_and_variables():
    parts = [part("first", {"b": ()}, {"a": ()}), part("second", {"a": ()}, {"b": ()})]
    with pytest.raises(UsageError, match="cycle") as error:
        ComposedModel(parts)
    assert "'first' gives 'a' to 'second'" in str(error.value)
    assert "'second' gives 'b' to 'first'" in str(error.value)


def test_two_producers_name_both():
    parts = [part("first", {"x": ()}, {"a": ()}), part("second", {"x": ()}, {"a": ()})]
    with pytest.raises(UsageError, match=r"'a' has two producers(.|\n)*'first' and 'second'"):
        ComposedModel(parts)


@pytest.mark.parametrize("spec", [(3,), TensorSpec("", (2,), "float32")])
def test_a_shape_or_dtype_that_does_not_fit(spec):
    parts = [part("giver", {"x": ()}, {"a": (2,)}), part("taker", {"a": spec}, {"b": ()})]
    with pytest.raises(UsageError, match=r"'a' does not fit(.|\n)*'giver' and 'taker'"):
        ComposedModel(parts)


def test_units_that_differ():
    def compose(*units):
        names = [("x", "stress"), ("stress", "y"), ("stress", "z")]
        specs = [(TensorSpec(a, unit=u if a == "stress" else ""), TensorSpec(b, unit=u if b == "stress" else ""))
                 for (a, b), u in zip(names, units, strict=True)]  # fmt: skip
        parts = [
            Part(nn.Identity(), {a.name: a}, {b.name: b}, name=name) for name, (a, b) in zip("abc", specs, strict=True)
        ]
        return ComposedModel(parts, additional_outputs=["stress"]).signature.outputs[0].unit

    assert compose("MPa", "N/mm^2", "") == "MPa"
    assert compose("", "N/mm^2", "MPa") == "N/mm^2"
    assert compose("", "MPa", "MPa") == "MPa"
    with pytest.raises(UsageError, match=r"'stress' has two units(.|\n)*Pa in 'b'(.|\n)*MPa as in 'a'"):
        compose("MPa", "Pa", "")
    with pytest.raises(UsageError, match=r"Pa in 'c'(.|\n)*MPa as in 'b'"):
        compose("", "MPa", "Pa")


def test_the_unit_does_not_depend_on_the_order():
    def compose(modules):
        composed = ComposedModel(modules, additional_outputs=["stress"])
        return {s.name: s.unit for s in (*composed.signature.inputs, *composed.signature.outputs)}

    def make(name, taken, given, *units):
        sides = ({n: TensorSpec(n, unit=u)} for n, u in zip((taken, given), units, strict=True))
        return Part(nn.Identity(), *sides, name=name)

    modules = [
        make("a", "x", "stress", "mm", "N/mm^2"),
        make("b", "stress", "y", "MPa", ""),
        make("c", "x", "z", "millimeter", "1"),
    ]
    units = [compose(order) for order in itertools.permutations(modules)]
    assert units == [{"x": "mm", "stress": "N/mm^2", "y": "", "z": "1"}] * 6


def test_the_first_of_the_list_says_how_values_are_drawn():
    draws = [torchferry.Sampling("uniform", 0.0, 1.0), torchferry.Sampling("uniform", 5.0, 9.0)]
    parts = [
        Part(nn.Identity(), {"x": TensorSpec("x", sampling=draw)}, {name: ()}, name=name)
        for name, draw in zip("za", draws, strict=True)
    ]
    assert ComposedModel(parts).signature.inputs[0].sampling == draws[0]
    assert ComposedModel(parts[::-1]).signature.inputs[0].sampling == draws[1]


def test_two_takers_must_agree():
    parts = [part("one", {"x": (2,)}, {"a": ()}), part("two", {"x": (3,)}, {"b": ()})]
    with pytest.raises(UsageError, match="'x' does not fit"):
        ComposedModel(parts)


def test_a_module_without_a_signature():
    with pytest.raises(UsageError, match=r"'Linear' declares no variables(.|\n)*Part\("):
        ComposedModel([nn.Linear(1, 1)])


def test_equal_labels_are_told_apart():
    model = ComposedModel([part("p", {"x": ()}, {"a": ()}), part("p", {"x": ()}, {"b": ()})])
    assert set(dict(model.named_children())) == {"p", "p_2"}


def test_a_declared_output_that_does_not_come():
    model = ComposedModel([part("p", {"x": ()}, {"a": (), "b": ()}, lambda x: x)])
    with pytest.raises(UsageError, match="does not return the outputs that it declares"):
        model(torch.zeros(1, dtype=F))


def test_dict_outputs_go_by_name():
    class Named(nn.Module):
        signature = Signature.of({"x": ()}, {"a": (), "b": ()})

        def forward(self, x):
            return {"b": x + 1, "a": x}

    a, b = ComposedModel([Named()])(torch.zeros(1, dtype=F))
    assert (a.item(), b.item()) == (0.0, 1.0)


@settings(deadline=None)
@given(st.permutations(range(6)), st.data())
def test_any_acyclic_graph_is_ordered(order, data):
    """Part i takes the variables of some parts before it; the value is the number of paths, whatever the order."""
    takes = [data.draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set() for i in range(6)]
    parts = [
        part(f"p{i}", {"x": (), **{f"v{j}": () for j in sorted(takes[i])}}, {f"v{i}": ()}, lambda *xs: sum(xs))
        for i in range(6)
    ]
    model = ComposedModel([parts[i] for i in order], additional_outputs=[f"v{i}" for i in range(6)])
    outputs = dict(zip((s.name for s in model.signature.outputs), model(torch.ones(1, dtype=F)), strict=True))
    values: list[float] = []
    for i in range(6):
        values.append(1.0 + sum(values[j] for j in takes[i]))
        assert outputs[f"v{i}"].item() == values[i]


def test_a_part_that_gives_another_shape_than_it_declares():
    model = ComposedModel([part("p", {"x": (3,)}, {"y": (6,)}, lambda x: x[:, :1])])
    with pytest.raises(UsageError, match=r"'p' does not give the 'y' that it declares(.|\n)*\[1, 1\]"):
        model(torch.zeros(1, 3, dtype=F))


@pytest.mark.parametrize("label", ["label", "signature", "double", "forward"])
def test_awkward_labels(label):
    model = ComposedModel([part(label, {"x": ()}, {"y": ()})])
    assert f"Order of evaluation: {label}" in str(model)
    assert model(torch.ones(2, dtype=F))[0].tolist() == [1.0, 1.0]
