import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from exporter.archive.tensor_spec import TensorSpec
from exporter.capture.batch_chunking import emit_chunked_source
from exporter.capture.forward_wrapper import emit_forward_source, make_argument_names

F = torch.float64


class Axpy(nn.Module):
    """y = a x + b over rows, and the sum of y: what a trace at one batch dimension computes."""

    def forward_batch(self, a: torch.Tensor, x: torch.Tensor, b: torch.Tensor):
        y = a[:, None] * x + b
        return y, y.sum(1)


def compiled(batched: bool = True, shape: tuple[int, ...] = (3,)) -> torch.jit.ScriptModule:
    rows = (torch.zeros(5, dtype=F), torch.zeros(5, 3, dtype=F), torch.zeros(5, 3, dtype=F))
    module = torch.jit.trace_module(Axpy(), {"forward_batch": rows})
    specs = [TensorSpec("a~1"), TensorSpec("state/x", shape), TensorSpec("b", shape)]
    module.define(emit_forward_source(specs, 2, batched))
    return module


MODULE = compiled()


def expected(a, x, b):
    y = a[..., None] * x + b
    return y, y.sum(-1)


batches = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@settings(deadline=None)
@given(batches, batches, batches)
def test_any_batches_broadcast_as_torch_does(first, second, third):
    inputs = (torch.rand(first, dtype=F), torch.rand((*second, 3), dtype=F), torch.rand((*third, 3), dtype=F))
    try:
        batch = torch.broadcast_shapes(first, second, third)
    except RuntimeError:
        with pytest.raises(torch.jit.Error, match="do not broadcast"):
            MODULE(*inputs)
        return
    y, total = MODULE(*inputs)
    assert y.shape == (*batch, 3)
    assert total.shape == batch
    wanted = expected(*inputs)
    torch.testing.assert_close(y, wanted[0].expand(y.shape), rtol=0, atol=0)
    torch.testing.assert_close(total, wanted[1].expand(batch), rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("shape", [(4,), (5, 4), (), (2, 5, 1)])
def test_a_wrong_own_shape_names_the_input(shape):
    with pytest.raises(torch.jit.Error, match=r"input 1 \(state/x\): got shape .*, expected \[\*batch, 3\]"):
        MODULE(torch.rand(5, dtype=F), torch.rand(shape, dtype=F), torch.rand(5, 3, dtype=F))


def test_strides_do_not_matter():
    a, x, b = torch.rand(4, dtype=F), torch.rand(3, 8, dtype=F).T[::2], torch.rand(1, 3, dtype=F).expand(4, 3)
    torch.testing.assert_close(MODULE(a, x, b), expected(a, x, b), rtol=0, atol=0)


def test_fixed_shapes_are_whole():
    specs = [TensorSpec("a", (5,)), TensorSpec("x", (5, 3)), TensorSpec("b", (5, 3))]
    rows = (torch.zeros(5, dtype=F), torch.zeros(5, 3, dtype=F), torch.zeros(5, 3, dtype=F))
    module = torch.jit.trace_module(Axpy(), {"forward_batch": rows})
    module.define(emit_forward_source(specs, 2, batched=False))
    assert module(*rows)[0].shape == (5, 3)
    with pytest.raises(torch.jit.Error, match=r"input 0 \(a\): got shape \[6\], expected \[5\]"):
        module(torch.zeros(6, dtype=F), *rows[1:])


@pytest.mark.parametrize("batched", [True, False])
def test_the_trace_is_called_at_one_place(batched):
    """torch inlines each call, so that the time of the first calls grows with their number."""
    specs = [TensorSpec("a"), TensorSpec("x", (3,)), TensorSpec("b", (3,))]
    assert emit_forward_source(specs, 2, batched).count("self.forward_batch(") == 1
    assert emit_chunked_source("forward_slices_batch", "forward_batch", ["a", "x"], 2, 8).count("self.") == 1


def test_without_inputs():
    class Constant(nn.Module):
        def forward_batch(self):
            return (torch.ones(3),)

    module = torch.jit.trace_module(Constant(), {"forward_batch": ()}, check_trace=False)
    module.define(emit_forward_source([], 1, batched=False))
    assert module()[0].tolist() == [1.0, 1.0, 1.0]


@given(st.lists(st.text(min_size=1, max_size=6), max_size=6, unique=True))
def test_argument_names_are_unique_identifiers(names):
    result = make_argument_names(names)
    assert len(set(result)) == len(names)
    assert all(name.isidentifier() and name.isascii() for name in result)


@pytest.mark.parametrize(
    "names", [["self", "batch", "lambda", "a~1"], ["1st", "ü", "", "a b"], ['quo"te', "{x}", "\\"]]
)
def test_awkward_names_compile(names):
    specs = [TensorSpec(n, (2,)) for n in names]

    class Sum(nn.Module):
        def forward_batch(self, *xs: torch.Tensor):
            return (sum(xs[1:], xs[0]),)

    rows = tuple(torch.ones(3, 2) for _ in names)
    module = torch.jit.trace_module(Sum(), {"forward_batch": rows})
    module.define(emit_forward_source(specs, 1, batched=True))
    assert module(*(r[0] for r in rows))[0].tolist() == [len(names)] * 2
    with pytest.raises(torch.jit.Error):
        module(*(r[:, :1] for r in rows))
