"""Where the operations of a captured backward pass come from."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_functions import program_of

import torchferry
from exporter.capture.autograd_detection import detect_inner_autograd
from exporter.capture.joint_graph import trace_joint_graph
from exporter.capture.origin_tracking import get_origin
from exporter.capture.symbolic_guards import SIZE_COMPARISON
from exporter.frontends import python_factory
from exporter.model.eager.evaluation import eager_context
from exporter.model.function_model import FunctionModule
from exporter.saved_code.origin import AFTER, BACKWARD, FORWARD, HOOK, Origin

F = torch.float64


names = st.text(st.characters(codec="ascii", categories=("L", "N"), include_characters="._<>"), min_size=1)
origins = st.one_of(
    st.builds(Origin, st.sampled_from([FORWARD, AFTER]), st.just(""), names | st.just(""), names | st.just("")),
    st.builds(Origin, st.sampled_from([BACKWARD, HOOK]), names, names | st.just(""), names | st.just("")),
)


@given(origins)
def test_origins_round_trip(origin):
    assert Origin.parse(origin.to_text()) == origin


@pytest.mark.parametrize("text", ["", "a comment", "forwards | a | b", "forward | a"])
def test_what_is_no_origin(text):
    assert Origin.parse(text) is None


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *gradients):
        return 2 * gradients[0]


def test_what_lies_between_two_backward_passes():
    def two(x):
        z = x.requires_grad_()
        first = torch.autograd.grad(Doubled.apply(z).sin().sum(), z)[0]
        second = torch.autograd.grad((first * z).cos().sum(), z)[0]
        return second * 3

    result = [get_origin(n) for n in program_of(two).graph.graph.nodes]
    parts = [origin.part for origin in result if origin is not None]
    last = max(i for i, part in enumerate(parts) if part == BACKWARD)
    assert AFTER not in parts[:last]
    assert parts[last + 1 :].count(AFTER) == len(parts) - last - 1 >= 1
    assert FORWARD in parts[parts.index(BACKWARD) :]
    assert {o.of for o in result if o is not None and "test_origin_tracking.py:" in o.where and "Doubled" in o.of}
    assert HOOK not in parts


def test_what_python_asks_of_sizes_is_noted():
    def asks(x):
        z = x.requires_grad_()
        factor = 2 if x.shape[0] > 100 else 1
        return torch.autograd.grad((z**2).sum() * factor, z)[0]

    asks.__dict__["signature"] = torchferry.Signature.of({"x": ("n", 2)})
    source = detect_inner_autograd(python_factory.source_from_module(FunctionModule(asks), "asks", None, "here"), 0)
    assert source.uses_autograd
    with eager_context(source):
        program = trace_joint_graph(source, (torch.rand(5, 2, dtype=F),))
    (read,) = program.size_reads
    assert read.kind == SIZE_COMPARISON
    assert "> 100 is False" in read.value
    assert read.where.endswith(f"test_origin_tracking.py:{asks.__code__.co_firstlineno + 2}")
