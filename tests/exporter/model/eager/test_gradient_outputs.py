"""Gradients that become outputs for second derivatives: which ones, and what bad requests get."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from exporter.archive.derivative_request import DerivativeRequest
from exporter.common.errors import CaptureError, UnsupportedError, UsageError
from exporter.frontends import python_factory
from exporter.model.eager.evaluation import eager_context, evaluate
from exporter.model.eager.gradient_outputs import add_gradients
from torchferry import ImplicitUpdate, Signature

F = torch.float64


class Mixed(nn.Module):
    """``n`` is a whole number, ``low`` has another dtype, ``k`` occurs to the first power alone."""

    signature = Signature.of({"x": (2,), "t": (), "k": ()}, {"e": (), "v": (2,)})

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.tensor(3.0, dtype=F))

    def forward(self, x, t, k):
        return {"e": self.c * (x**2).sum(-1) * torch.exp(t) + 3 * k, "v": x * t[..., None]}


def load(module=None):
    return python_factory.source_from_module(module or Mixed(), "m", None, "here")


def add(*blocks, module=None, **options):
    return add_gradients(load(module), DerivativeRequest(blocks, **options), 0)


def test_without_second_derivatives_nothing_changes():
    source, request = load(), DerivativeRequest(("e:x", "all"), symmetric=("e:x",))
    assert add_gradients(source, request, 0) == (source, request)


def test_a_gradient_is_one_more_output():
    source, request = add("e:x,x", "e:x,t", "v:t", "e:x,c", jvp=True)
    assert [(s.name, s.shape) for s in source.outputs] == [("e", ()), ("v", (2,)), ("d_e_d_x", (2,))]
    assert request.blocks == ("v:t", "d_e_d_x:x", "d_e_d_x:t", "d_e_d_x:c")
    assert request.symmetric == ("d_e_d_x:x",)
    assert request.jvp
    x, t, k = torch.randn(5, 2, dtype=F), torch.randn(5, dtype=F), torch.randn(5, dtype=F)
    with eager_context(source):
        outputs = evaluate(source, (x, t, k))
    torch.testing.assert_close(outputs["d_e_d_x"], 6 * x * torch.exp(t)[:, None])
    assert not outputs["d_e_d_x"].requires_grad
    assert not x.requires_grad


def test_globs_select_what_has_a_gradient():
    source, request = add("*:*,*")
    # What is linear in k has a gradient by it, and no second derivative.
    assert [s.name for s in source.outputs][2:] == ["d_e_d_x", "d_e_d_t"]
    assert set(request.blocks) == {f"d_e_d_{wrt}:{other}" for wrt in "xt" for other in "xtc"}
    assert request.symmetric == ("d_e_d_x:x", "d_e_d_t:t")
    assert add("e:*,x")[1].blocks == ("d_e_d_x:x", "d_e_d_t:x")
    assert add("e:x,*")[1].symmetric == ("d_e_d_x:x",)


def test_outputs_without_a_signature():
    class Net(nn.Module):
        def forward(self, x):
            return (x**3).sum()

    source = python_factory.source_from_module(Net(), "m", {"x": torch.rand(3, dtype=F)}, "here")
    source = dataclasses.replace(source, batch_ndim=0)
    extended, request = add_gradients(source, DerivativeRequest(("output:x,x",)), 0)
    assert request.blocks == ("d_output_d_x:x",)
    x = torch.rand(3, dtype=F)
    with eager_context(extended):
        torch.testing.assert_close(evaluate(extended, (x,))["d_output_d_x"], 3 * x**2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v:x,x", "'v' has shape [2] for each element"),
        ("e:k,k", "its gradient does not depend on 'k'"),
        ("e:x,k", "its gradient does not depend on 'k'"),
        ("e:x,y", "no input or parameter matches 'y'"),
        ("e:y,x", "no input matches 'y'"),
        ("e:c,x", "no input matches 'c'"),
        ("f:x,x", "no output matches 'f'"),
        ("v:*,*", "no second derivative is left"),
        ("e:k,*", "no second derivative is left"),
    ],
)
def test_what_bad_requests_get(text, message):
    with pytest.raises(UsageError) as caught:
        add(text)
    assert message in str(caught.value)
    assert repr(text) in str(caught.value)


class Given(nn.Module):
    """A model of a function and its variables; without ``outputs`` they have the names of the dict."""

    def __init__(self, function, inputs, outputs) -> None:
        super().__init__()
        self.function, self.signature = function, Signature.of(inputs, outputs)

    def forward(self, *tensors):
        return self.function(*tensors)


def square(x):
    return (x**2).sum(-1)


REFUSED = {
    "a name that is taken": (
        Given(lambda x: {"e": square(x), "d_e_d_x": x}, {"x": (2,)}, {"e": (), "d_e_d_x": (2,)}),
        ("e:x,x", "a variable 'd_e_d_x' already"),
    ),
    "a name that only a run tells": (
        Given(lambda x: {"e": square(x), "d_e_d_x": x}, {"x": (2,)}, {}),
        ("e:x,x", "a variable 'd_e_d_x' already"),
    ),
    "two gradients of one name": (
        Given(lambda b, c: {"e": b**2 * c**2, "e_d_b": b**3 * c**2}, {"b_d_c": (), "c": ()}, {"e": (), "e_d_b": ()}),
        ("*:*,*", "'d_e_d_b_d_c' already"),
    ),
    "whole numbers": (Given(lambda x: {"n": (x > 0).sum(-1)}, {"x": (2,)}, {"n": ()}), ("n:x,x", "'n' is int64")),
    "no batch": (Given(lambda x: {"e": (x**3).sum()}, {"x": (2,)}, {"e": ()}), ("e:x,x", "--batch no")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_are_refused(name):
    module, (text, message) = REFUSED[name]
    with pytest.raises(UsageError, match=message):
        add(text, module=module)


class Stress(nn.Module):
    """A model that takes a gradient itself, and keeps its graph or not."""

    signature = Signature.of({"x": (2,)}, {"e": (), "s": (2,)})

    def __init__(self, *, keeps_graph: bool) -> None:
        super().__init__()
        self.keeps_graph = keeps_graph

    def forward(self, x):
        x.requires_grad_()
        e = (x**3).sum(-1)
        (s,) = torch.autograd.grad(e.sum(), x, create_graph=self.keeps_graph)
        return {"e": e, "s": s}


def test_a_model_that_takes_gradients_itself():
    source = dataclasses.replace(load(Stress(keeps_graph=True)), uses_autograd=True)
    extended, request = add_gradients(source, DerivativeRequest(("e:x,x",)), 0)
    assert request.blocks == ("d_e_d_x:x",)
    x = torch.rand(4, 2, dtype=F)
    with eager_context(extended):
        outputs = evaluate(extended, (x,))
    torch.testing.assert_close(outputs["d_e_d_x"], 3 * x**2)
    source = dataclasses.replace(load(Stress(keeps_graph=False)), uses_autograd=True)
    with pytest.raises(CaptureError, match="'e' cannot be differentiated"):
        add_gradients(source, DerivativeRequest(("e:x,x",)), 0)


class Residual(nn.Module):
    signature = Signature.of({"x": (), "t": ()}, {"x_residual": ()})

    def forward(self, x, t):
        return {"x_residual": x**3 + x - t}


def test_models_whose_gradients_are_not_torchs():
    source = load()
    neml2 = dataclasses.replace(source, origin=dataclasses.replace(source.origin, kind="neml2"))
    with pytest.raises(UnsupportedError, match="of a NEML2 model"):
        add_gradients(neml2, DerivativeRequest(("e:x,x",)), 0)

    with pytest.raises(UnsupportedError, match="of an implicit model"):
        add("x:t,t", module=ImplicitUpdate(Residual(), ["x"]))
