"""Hooks of the backward pass that change a gradient: found by line, named in the contract, refused for derivatives."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.modules import module as modules

import torchferry
from exporter.common.errors import UnsoundError, WarmupError
from exporter.common.forking import run_in_fork
from exporter.frontends import python_factory
from exporter.model.eager.evaluation import eager_context
from exporter.model.eager.gradient_hooks import find_gradient_hooks, has_hooks

F = torch.float64
X = torch.linspace(-1, 1, 15, dtype=F).reshape(5, 3)


def double(value):
    return value * 2


class CountingHook:
    """It changes nothing when it is called first."""

    count = 0

    def __call__(self, gradient):
        self.count += 1
        return gradient * self.count


class FirstHook:
    """It changes a gradient when it is called first, and never again."""

    count = 0

    def __call__(self, gradient):
        self.count += 1
        return gradient * 2 if self.count == 1 else gradient


class Network(nn.Module):
    """``tensor_hook`` is registered with an intermediate result, ``saved`` are functions for saved tensors."""

    def __init__(self, tensor_hook=None, saved=None) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4, dtype=F), nn.Linear(4, 2, dtype=F)
        self.tensor_hook, self.saved = tensor_hook, saved

    def forward(self, x):
        context = torch.autograd.graph.saved_tensors_hooks(*self.saved) if self.saved else contextlib.nullcontext()
        with context:
            h = torch.tanh(self.first(x))
        if self.tensor_hook and h.requires_grad:
            h.register_hook(self.tensor_hook)
        return self.last(h)


class Joined(Network):
    def forward(self, x):
        h = torch.tanh(self.first(x))
        if h.requires_grad:
            torch.autograd.graph.register_multi_grad_hook((h,), cast("Any", self.tensor_hook), mode="any")
        return self.last(h)


class Imported(Network):
    def forward(self, x):
        h = torch.tanh(self.first(x))
        if h.requires_grad:
            register_multi_grad_hook(tensors=(h,), fn=cast("Any", self.tensor_hook), mode="any")
        return self.last(h)


def full_backward():
    model = Network()
    model.first.register_full_backward_hook(
        lambda module, inner, outer: tuple(g if g is None else g * 2 for g in inner)
    )
    return model


def full_backward_pre():
    model = Network()
    model.first.register_full_backward_pre_hook(lambda module, outer: tuple(map(double, outer)))
    return model


def of_parameter():
    model = Network()
    model.first.weight.register_hook(double)
    return model


def after_accumulation():
    model = Network()

    def clip(parameter):
        parameter.grad.clamp_(-0.01, 0.01)

    model.first.weight.register_post_accumulate_grad_hook(clip)
    return model


CHANGING = {
    "a hook of submodule 'first'": full_backward,
    "a hook of submodule 'first' before": full_backward_pre,
    "a hook of parameter 'first.weight'": of_parameter,
    "a hook of parameter 'first.weight' after": after_accumulation,
    "a hook of a tensor": lambda: Network(tensor_hook=double),
    "a hook for saved tensors": lambda: Network(saved=(lambda t: t, double)),
    "a hook of a tensor by torch's own function": lambda: Network(tensor_hook=torch.neg),
    "a hook of a tensor that counts": lambda: Network(tensor_hook=CountingHook()),
    "a hook of a tensor at first": lambda: Network(tensor_hook=FirstHook()),
    "a hook of several tensors by its other name": lambda: Imported(lambda gradient: gradient.mul_(2)),
    "a hook of several tensors": lambda: Joined(lambda gradient: gradient.mul_(2)),
}


def watching():
    """Hooks that look, and change nothing."""
    model = Network(tensor_hook=lambda gradient: None, saved=(lambda t: t.clone(), lambda t: t))
    model.first.register_full_backward_hook(lambda module, inner, outer: None)
    model.last.weight.register_hook(lambda gradient: gradient * 1.0)
    return model


def forward_hooks():
    model = Network()
    model.first.register_forward_hook(lambda module, inputs, output: double(output))
    model.last.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    return model


def source_of(model):
    return python_factory.source_from_module(model, "net", {"x": X}, "here")


def find(model):
    def look():
        source = source_of(model)
        with eager_context(source):
            return has_hooks(source, (X,)), find_gradient_hooks(source, (X,))

    return run_in_fork(look)


@pytest.mark.parametrize("name", CHANGING)
def test_a_hook_is_found_by_its_line(name):
    is_there, (hook,) = find(CHANGING[name]())
    assert is_there
    assert name.startswith(hook.what)
    assert hook.where.startswith(f"{__file__}:")
    assert " without it" in hook.evidence


@pytest.mark.parametrize(("make", "is_there"), [(watching, True), (forward_hooks, False), (Network, False)])
def test_the_twins_that_change_nothing(make, is_there):
    assert find(make()) == (is_there, ())


def test_each_of_several_is_named():
    model = full_backward()
    model.last.weight.register_hook(double)
    model.last.bias.register_hook(lambda gradient: None)
    _, hooks = find(model)
    assert [hook.what for hook in hooks] == ["a hook of submodule 'first'", "a hook of parameter 'last.weight'"]


def test_one_of_many_is_found():
    model = Network()
    for _ in range(30):
        model.last.weight.register_hook(lambda gradient: None)
    model.last.weight.register_hook(double)
    _, (hook,) = find(model)
    line = double.__code__.co_firstlineno
    assert hook.where == f"{__file__}:{line}"


def test_a_hook_of_torchs_own_at_a_parameter():
    """It has no line; the parameter says where it is."""
    model = Network()
    model.first.weight.register_hook(functools.partial(torch.clamp, min=-1e-3, max=1e-3))
    _, (hook,) = find(model)
    assert (hook.what, hook.where) == ("a hook of parameter 'first.weight'", "")


def test_hooks_of_all_modules_are_found_and_stay():
    handle = modules.register_module_full_backward_hook(
        lambda module, inner, outer: tuple(map(double, inner)) if isinstance(module, nn.Linear) else None
    )
    try:
        registered = dict(modules._global_backward_hooks)
        _, (hook,) = find(Network())
        assert hook.what == "a hook of all modules"
        assert dict(modules._global_backward_hooks) == registered
    finally:
        handle.remove()


def test_a_hook_that_fails_is_found():
    def fail(gradient):
        raise ValueError("as planted")

    for model in (Network(tensor_hook=fail), Joined(fail)):
        _, (hook,) = find(model)
        assert "as planted" in hook.evidence


def test_without_derivatives_the_contract_says_it(tmp_path, without_verification):
    (exported,) = torchferry.export(full_backward(), inputs={"x": X}, output=tmp_path / "net.pt")
    (finding,) = [f for f in exported.contract.findings if f.check == "hook"]
    assert "gradients" in finding.what
    assert "test_gradient_hooks.py:" in finding.where
    (plain,) = torchferry.export(watching(), inputs={"x": X}, output=tmp_path / "plain.pt")
    assert not [f for f in plain.contract.findings if f.check == "hook"]


@pytest.mark.parametrize("asked", [{"derivatives": "all"}, {"jvp": True}, {"differentiable": True}], ids=str)
def test_derivatives_are_refused(asked, tmp_path):
    message = r"a hook of submodule 'first' changes them(.|\n)*test_gradient_hooks\.py:\d+"
    with pytest.raises(UnsoundError, match=message):
        torchferry.export(full_backward(), inputs={"x": X}, output=tmp_path / "net.pt", **asked)
    assert list(tmp_path.iterdir()) == []


def test_derivatives_that_a_hook_does_not_change(tmp_path, without_verification):
    """A frozen weight is no reason to refuse derivatives by the inputs."""
    model = Network()
    model.first.weight.register_hook(lambda gradient: gradient * 0)
    (exported,) = torchferry.export(model, inputs={"x": X}, output=tmp_path / "net.pt", derivatives="output:x")
    assert [f.check for f in exported.contract.findings] == ["hook"]
    with pytest.raises(UnsoundError, match=r"a hook of parameter 'first\.weight' changes them"):
        torchferry.export(model, inputs={"x": X}, output=tmp_path / "other.pt", derivatives="output:first.weight")


def test_a_hook_that_fails_is_named_where_derivatives_are_asked_for(tmp_path):
    def fail(gradient):
        raise ValueError("as planted")

    with pytest.raises(UnsoundError, match=r"a hook of a tensor changes them(.|\n)*test_gradient_hooks\.py:\d+"):
        torchferry.export(
            Network(tensor_hook=fail), inputs={"x": X}, output=tmp_path / "net.pt", derivatives="output:x"
        )


def test_derivatives_beside_hooks_that_change_nothing(tmp_path):
    (exported,) = torchferry.export(watching(), inputs={"x": X}, output=tmp_path / "net.pt", derivatives="all")
    assert exported.report.passed


def test_a_hook_without_a_guard():
    class Unguarded(Network):
        def forward(self, x):
            h = self.first(x)
            h.register_hook(double)
            return self.last(h)

    with pytest.raises(WarmupError, match=r"if x\.requires_grad: x\.register_hook"):
        torchferry.export(Unguarded(), inputs={"x": X}, output="never.pt")
