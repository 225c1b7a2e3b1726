"""Two runs on numbers say what a function computes at every batch size, or that they do not say it."""

from __future__ import annotations

import pytest
import torch

from exporter.capture import batch_recording
from exporter.capture.batch_recording import (
    BATCH,
    BATCHES,
    BatchSize,
    NotRecordedError,
    ValueShape,
    record_batch_program,
)
from exporter.capture.fx_tracing import FxProgram, trace_to_fx
from exporter.capture.torchscript_writer import emit_torchscript
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


FUNCTIONS = {
    "sizes": lambda x, k: (x.reshape(x.shape[0] * 3) * k, torch.ones(2 * x.shape[0] + 1, dtype=F).sum()[None] * k),
    "constants": lambda x, k: (x * WEIGHTS + torch.tensor([1.0, 2.0, 3.0], dtype=F) * k, torch.eye(3, dtype=F) @ x.mT),
    "a gradient": differentiate,
    "in place": write_in_place,
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
    for rows in (1, 2, 5, 11, 13, 100):
        inputs = torch.rand(rows, 3, dtype=F), torch.tensor(1.3, dtype=F)
        for results in (program.graph(*inputs), run_script(program, inputs)):
            for actual, expected in zip(results, function(*inputs), strict=True):
                assert bitwise_equal(actual, expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_operations_are_those_of_a_symbolic_trace(name):
    inputs = [torch.rand(4, 3, dtype=F), torch.tensor(0.7, dtype=F)]
    recorded, traced = record_batch_program(FUNCTIONS[name], inputs, [0]), trace_to_fx(FUNCTIONS[name], inputs)
    # A trace of torch keeps the aliases of its own tensors.
    assert recorded.operations <= traced.operations


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


REFUSED = {
    "a value": lambda x, k: (x * x.sum().item(),),
    "a branch on a value": lambda x, k: (x if bool((x > 0).all()) else -x,),
    "a value of a parameter": lambda x, k: (x * k.item(),),
    "NumPy": read_by_numpy,
    "a list": lambda x, k: (x * x.tolist()[0][0],),
    "a size that hangs on values": lambda x, k: (x[x > 0.5],),
    "chance": lambda x, k: (x * torch.rand(3, dtype=F),),
    "the square of the batch": lambda x, k: (x.new_ones(x.shape[0] * x.shape[0]),),
    "half of the batch": lambda x, k: (x[: x.shape[0] // 2],),
    "a branch on the batch": branch_on_size,
    "memory": remember,
    "a constant of the batch": lambda x, k: (x + torch.from_numpy(torch.arange(float(len(x))).numpy())[:, None],),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_two_runs_do_not_say_is_not_recorded(name):
    with pytest.raises(NotRecordedError):
        record_batch_program(REFUSED[name], [torch.rand(4, 3, dtype=F), torch.tensor(0.7, dtype=F)], [0])


def test_an_error_of_the_function_is_its_own():
    def fail(x, k):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        record_batch_program(fail, [torch.rand(4, 3, dtype=F), torch.tensor(0.7, dtype=F)], [0])


def test_a_tensor_that_is_lost_from_sight_is_found_out(monkeypatch):
    """A result that the recorder does not know would be a constant: the second run has other values."""
    keep = batch_recording._Recorder._keep

    def forget(self, tensor, node):
        if node.op == "placeholder" or "sin" not in str(node.target):
            keep(self, tensor, node)

    function = lambda x, k: (x.sin() * k,)  # noqa: E731
    inputs = [torch.rand(4, 3, dtype=F), torch.tensor(0.7, dtype=F)]
    record_batch_program(function, inputs, [0])
    monkeypatch.setattr(batch_recording._Recorder, "_keep", forget)
    with pytest.raises(NotRecordedError, match="differs from call to call"):
        record_batch_program(function, inputs, [0])
