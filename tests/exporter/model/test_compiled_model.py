"""Models that are TorchScript already: the file's own code, and the function that stands in for it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from foreign_files import BufferWriter, Counter, Halving, Network, Potential, Structured

from exporter.common.tensors import bitwise_equal
from exporter.common.torch_hooks import ignore_deprecations, swap_parameters
from exporter.model.compiled_model import takes_gradients, wrap_compiled

F = torch.float64


def compile_module(module):
    with ignore_deprecations():
        return torch.jit.script(module.double())


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=F)


def test_tensors_have_their_names_and_arguments_theirs():
    model = wrap_compiled(compile_module(Structured()))
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in Structured().named_parameters()]
    assert [n for n, _ in model.named_buffers()] == ["mean"]
    parameters = inspect.signature(model.forward).parameters
    assert list(parameters) == ["data", "extra", "times"]
    assert parameters["times"].default == 2.0
    assert parameters["data"].default is inspect.Parameter.empty
    assert not any(m.training for m in model.modules())


@pytest.mark.parametrize("module", [Network(), Halving()], ids=["network", "loop"])
def test_the_function_equals_the_file_to_the_bit(module):
    """Where a tensor is replaced by its copy, the function runs; else the file itself."""
    compiled = compile_module(module)
    model, x = wrap_compiled(compiled), draw(7, 3)
    expected = compiled(x)
    assert bitwise_equal(model(x), expected)
    with swap_parameters(model, {n: p.clone() for n, p in model.named_parameters()}):
        assert bitwise_equal(model(x), expected)


def test_a_replaced_tensor_counts():
    """The control: the file alone would go on with its own."""
    model, x = wrap_compiled(compile_module(Network())), draw(5, 3)
    with swap_parameters(model, {"last.bias": torch.full((2,), 7.0, dtype=F)}):
        shifted = model(x)
    assert torch.allclose(shifted - model(x), 7.0 - model.get_parameter("last.bias"))


def test_structures_and_defaults():
    compiled = compile_module(Structured())
    model, data = wrap_compiled(compiled), {"a": draw(4, 3), "b": draw(4, 3) + 1}
    for keywords in ({}, {"extra": draw(4, 3)}, {"times": 3.0}):
        assert all(map(bitwise_equal, model(data, **keywords), compiled(data, **keywords)))
        with swap_parameters(model, {"mean": model.get_buffer("mean").clone()}):
            assert all(map(bitwise_equal, model(data, **keywords), compiled(data, **keywords)))


def test_a_trace_holds_the_operations_and_not_a_call():
    model = wrap_compiled(compile_module(Halving()))
    with ignore_deprecations():
        traced: Any = torch.jit.trace(model, draw(4, 3), check_trace=False)
    assert traced.inlined_graph.findNode("prim::Loop", True) is not None


def test_gradients_and_state_are_seen():
    assert takes_gradients(wrap_compiled(compile_module(Potential())))
    assert not takes_gradients(wrap_compiled(compile_module(Network())))
    with pytest.raises(RuntimeError):
        wrap_compiled(compile_module(Counter()))
    # A write in place is no change of an attribute: the gate sees it.
    wrap_compiled(compile_module(BufferWriter()))


def test_names_that_torch_has_itself():
    """TorchScript files may have parts of any name."""

    class Strange(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.run = torch.nn.Linear(3, 3)
            self.forward_weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor, places: float = 2.0) -> torch.Tensor:
            return self.run(x * self.forward_weight) * places

    compiled, x = compile_module(Strange()), draw(4, 3)
    assert bitwise_equal(wrap_compiled(compiled)(x), compiled(x))
