"""Runs on numbers say what a function computes at every batch size, or that they do not say it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from exporter.capture import batch_recording
from exporter.capture.batch_recording import (
    BATCH,
    BATCHES,
    BatchSize,
    NotRecordedError,
    ValueShape,
    describe_traced_sizes,
    record_batch_program,
    trace_batch_program,
)
from exporter.capture.fx_tracing import FxProgram, trace_to_fx
from exporter.capture.origin_tracking import get_origin
from exporter.capture.torchscript_writer import emit_torchscript
from exporter.common.errors import CaptureError
from exporter.common.tensors import bitwise_equal

F = torch.float64
WEIGHTS = torch.linspace(0.5, 1.5, 3, dtype=F)


def differentiate(x: torch.Tensor, k: torch.Tensor):
    """A function with a gradient of its own."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        value = (leaf.sin() * k).square().sum(-1)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), gradient


def write_in_place(x: torch.Tensor, k: torch.Tensor):
    result = torch.zeros_like(x)
    result[:, 1:] = x[:, 1:] * k
    result[:, 0].add_(x[:, 2])
    return (result,)


def write_to_constants(x: torch.Tensor, k: torch.Tensor):
    weights, shift = torch.tensor([1.0, 2.0, 3.0], dtype=F), torch.as_tensor(2.0, dtype=F)
    weights.mul_(2.0)
    weights += 1
    return (x * weights + shift.add_(1.0) * k,)


FUNCTIONS = {
    "sizes": lambda x, k: (x.reshape(x.shape[0] * 3) * k, torch.ones(2 * x.shape[0] + 1, dtype=F).sum()[None] * k),
    "constants": lambda x, k: (x * WEIGHTS + torch.tensor([1.0, 2.0, 3.0], dtype=F) * k, torch.eye(3, dtype=F) @ x.mT),
    "a gradient": differentiate,
    "in place": write_in_place,
    "constants that are written to": write_to_constants,
    "whole numbers as indices": lambda x, k: (x[:, [2, 0]] * k, WEIGHTS[torch.tensor([0, 2])] * x[:, :2]),
    "out": lambda x, k: (torch.mul(x, k, out=torch.empty_like(x)),),
    "complex numbers": lambda x, k: (torch.complex(x, x * k).abs(),),
    "several results": lambda x, k: (*torch.linalg.eigh(x[:, :, None] * x[:, None] + k), *torch.split(x, 1, -1)),
    "a Jacobian": lambda x, k: (torch.func.vmap(torch.func.jacrev(lambda row: row.square() * k))(x),),
    "a size as a number": lambda x, k: (x / x.shape[0] * k,),
    "a number of a constant": lambda x, k: (x * WEIGHTS[1].item() * k,),
}


def run_script(program: FxProgram, inputs):
    """Run the program as a file holds it."""
    places = {name: f"constant_{i}" for i, name in enumerate(program.constants)}
    text = emit_torchscript(program, "run", ["x", "k"], places, [(0, 0)], list(places.values()))
    unit = torch.jit.CompilationUnit(text.replace("(self, ", "(", 1))
    return unit.run(*inputs, *program.constants.values())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_graph_is_the_function_at_any_batch(name):
    function = FUNCTIONS[name]
    program = record_batch_program(function, [torch.rand(4, 3, dtype=F), torch.tensor(0.7, dtype=F)], [0])
    for rows in (0, 1, 2, 5, 11, 13, 100):
        inputs = torch.rand(rows, 3, dtype=F), torch.tensor(1.3, dtype=F)
        for results in (program.graph(*inputs), run_script(program, inputs)):
            for actual, expected in zip(results, function(*inputs), strict=True):
                assert bitwise_equal(actual, expected)


def count_operators(program: FxProgram) -> Counter[str]:
    """Count the operators; sizes, aliases and views of fixed sizes are the tracer's own."""
    calls = [n for n in program.graph.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    names = [n.target.overloadpacket.__name__ for n in calls]
    return Counter(n for n in names if n not in ("sym_size", "detach", "alias", "view", "_unsafe_view", "slice"))


@pytest.mark.parametrize(
    "name", [name for name in FUNCTIONS if name not in ("in place", "a Jacobian", "a number of a constant")]
)
def test_the_operations_are_those_of_a_symbolic_trace(name):
    inputs = [torch.rand(4, 3, dtype=F), torch.tensor(0.7, dtype=F)]
    recorded, traced = record_batch_program(FUNCTIONS[name], inputs, [0]), trace_to_fx(FUNCTIONS[name], inputs)
    assert count_operators(recorded) == count_operators(traced)


class Gradient(torch.nn.Module):
    """A model that takes a gradient, in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Tanh()

    def forward(self, x: torch.Tensor):
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self.inner(leaf).square().sum(), leaf)
        return (gradient,)


def test_origins_are_those_of_a_symbolic_trace():
    model, inputs = Gradient(), [torch.rand(4, 3, dtype=F)]
    recorded, traced = record_batch_program(model, inputs, [0], model), trace_to_fx(model, inputs, model=model)
    for program in (recorded, traced):
        calls = [n for n in program.graph.graph.nodes if "tanh" in str(n.target)]
        origins = [get_origin(node) for node in calls]
        assert [(o.part, o.module) for o in origins if o] == [("forward", "inner"), ("backward", "inner")]
        assert all(o is not None and o.where.startswith(__file__) for o in origins)


def test_sizes_stand_beside_each_operation():
    program = record_batch_program(FUNCTIONS["sizes"], [torch.rand(4, 3, dtype=F), torch.ones((), dtype=F)], [0])
    shapes = [n.meta["val"].shape for n in program.graph.graph.nodes if isinstance(n.meta.get("val"), ValueShape)]
    assert (BATCH, 3) in shapes
    assert (BatchSize(3, 0),) in shapes
    assert (BatchSize(2, 1),) in shapes
    assert BatchSize(2, 1).evaluate(100) == 201


def read_by_numpy(x, k):
    return (x * float(x.detach().numpy().sum()),)


calls = []


def remember(x, k):
    calls.append(None)
    return (x * len(calls),)


def branch_on_size(x, k):
    return (x * k if x.shape[0] < BATCHES[1] else x.exp(),)


def read_through_a_view(x, k):
    """A branch on values that reach the tensor by writes to its elements."""
    limits = torch.zeros(2, dtype=F)
    limits[0], limits[1] = x.min(), x.max()
    return (x if float((limits * 1.0)[1]) > 10.0 else x * k,)


def go_through_chunks(x, k):
    return (torch.cat([x[i : i + 8] * k for i in range(0, x.shape[0], 8)]),)


REFUSED = {
    "a value": lambda x, k: (x * x.sum().item(),),
    "a branch on a value": lambda x, k: (x if bool((x > 0).all()) else -x,),
    "a value of a parameter": lambda x, k: (x * k.item(),),
    "NumPy": read_by_numpy,
    "a list": lambda x, k: (x * x.tolist()[0][0],),
    "a value behind a view": read_through_a_view,
    "a constant made of values": lambda x, k: (x * torch.tensor([k > 0.8, True, False]),),
    "a constant made of whole numbers": lambda x, k: (x * torch.tensor([k.round().long(), 1, 2]),),
    "a mask": lambda x, k: (x[x[:, 0] > 0.5],),
    "a mask that selects all": lambda x, k: (x[x[:, 0] > -1.0],),
    "a remainder of the batch": lambda x, k: (x[: x.shape[0] % 2 + 1],),
    "another remainder": lambda x, k: (x * (x.shape[0] % 3),),
    "chunks": go_through_chunks,
    "a size that hangs on values": lambda x, k: (x[x > 0.5],),
    "chance": lambda x, k: (x * torch.rand(3, dtype=F),),
    "the square of the batch": lambda x, k: (x.new_ones(x.shape[0] * x.shape[0]),),
    "half of the batch": lambda x, k: (x[: x.shape[0] // 2],),
    "a branch on the batch": branch_on_size,
    "memory": remember,
    "a constant of the batch": lambda x, k: (x + torch.from_numpy(torch.arange(float(len(x))).numpy())[:, None],),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_runs_do_not_say_is_not_recorded(name):
    with pytest.raises(NotRecordedError):
        record_batch_program(REFUSED[name], [torch.rand(4, 3, dtype=F), torch.tensor(0.7, dtype=F)], [0])


def read_where_a_result_was(x, k):
    """A branch on constants, of memory that a result had before: its size is that of no other tensor."""
    limits = torch.ones(1237, dtype=F)
    for _ in range(20):
        result = limits.clone()
        result.add_(k)
        del result
        if bool((limits.clone() < 0).clone().double().sum() > 0):
            return (x,)
    return (x * limits[0],)


def test_memory_that_is_used_again_hangs_on_nothing():
    inputs = [torch.rand(4, 3, dtype=F), torch.tensor(0.7, dtype=F)]
    program = record_batch_program(read_where_a_result_was, inputs, [0])
    x = torch.rand(9, 3, dtype=F)
    assert torch.equal(program.graph(x, inputs[1])[0], x)


def test_a_constant_that_is_read_beside_a_write_stays_one():
    def function(x, k):
        limits, total = torch.ones(3, dtype=F), k.expand(3).clone()
        total.add_(limits)
        return (x * total if bool(limits.all()) else x,)

    inputs = [torch.rand(4, 3, dtype=F), torch.tensor(0.7, dtype=F)]
    program = record_batch_program(function, inputs, [0])
    assert torch.equal(program.graph(*inputs)[0], inputs[0] * 1.7)


def test_what_is_not_recorded_is_traced():
    inputs = [torch.rand(4, 3, dtype=F), torch.tensor(0.7, dtype=F)]
    program = trace_batch_program(REFUSED["the square of the batch"], inputs, [0], ("k",), model=torch.nn.Identity())
    assert program.parameters == ("k",)
    assert program.graph(torch.rand(9, 3, dtype=F), inputs[1])[0].shape == (81,)
    recorded = trace_batch_program(FUNCTIONS["sizes"], inputs, [0], ("k",), model=torch.nn.Identity())
    assert recorded.parameters == ("k",)


def test_a_trace_tells_why_a_function_cannot_be_captured():
    def fail(x, k):
        raise ZeroDivisionError("mine")

    inputs = [torch.rand(4, 3, dtype=F), torch.tensor(0.7, dtype=F)]
    with pytest.raises(CaptureError, match="mine"):
        trace_batch_program(fail, inputs, [0], model=torch.nn.Identity())
    with pytest.raises(CaptureError, match="depends on data"):
        trace_batch_program(REFUSED["a branch on a value"], inputs, [0], model=torch.nn.Identity())


def test_a_sample_without_rows_is_not_recorded():
    with pytest.raises(NotRecordedError, match="no rows"):
        record_batch_program(FUNCTIONS["sizes"], [torch.rand(0, 3, dtype=F), torch.tensor(0.7, dtype=F)], [0])


def test_a_traced_program_is_described_as_a_recorded_one():
    inputs = [torch.rand(4, 3, dtype=F), torch.tensor(0.7, dtype=F)]
    described = describe_traced_sizes(trace_to_fx(FUNCTIONS["sizes"], inputs), 0)
    shapes = [n.meta["val"].shape for n in described.graph.graph.nodes if isinstance(n.meta.get("val"), ValueShape)]
    assert {(BATCH, 3), (BatchSize(3, 0),), (BatchSize(2, 1),)} <= set(shapes)
    assert not any(isinstance(n.meta.get("val"), torch.Tensor) for n in described.graph.graph.nodes)
    for name in ("the square of the batch", "a mask"):
        program = trace_to_fx(REFUSED[name], inputs)
        assert describe_traced_sizes(program, 0) is program


@pytest.mark.parametrize("function", [lambda x, k: (x.sin() * k,), lambda x, k: (x * k.sin(),)])
def test_a_tensor_that_is_lost_from_sight_is_found_out(monkeypatch, function):
    """A result that the recorder does not know would be a constant: the other runs have other values."""
    keep = batch_recording._Recorder._keep

    def forget(self, tensor, node):
        if node.op == "placeholder" or "sin" not in str(node.target):
            keep(self, tensor, node)

    inputs = [torch.rand(4, 3, dtype=F), torch.tensor(0.7, dtype=F)]
    record_batch_program(function, inputs, [0])
    monkeypatch.setattr(batch_recording._Recorder, "_keep", forget)
    with pytest.raises(NotRecordedError, match="differs from call to call"):
        record_batch_program(function, inputs, [0])
