"""Hooks of torch's backward pass, and whether they change a gradient.

A file computes the gradient of its operations. A hook that the user has registered with a module, a parameter or a
tensor is called by torch's engine in eager mode alone, as are functions for saved tensors: where one changes a
gradient, the derivatives of the file are not those of the model."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd import graph
from torch.nn.modules import module as modules

from exporter.common.errors import summarize_error
from exporter.common.tensors import all_close
from exporter.common.user_code import INTERNAL_PATH_PREFIXES, user_source_location
from exporter.model.eager.derivatives import list_differentiable_parameters, requires_grad
from exporter.model.eager.evaluation import evaluate
from exporter.model.source import Inputs, Source

# As many are named as a user will mend at once.
MAX_FOUND = 10


@dataclass(frozen=True)
class GradientHook:
    """A hook that changes a gradient: ``what`` it is, its line, and what was seen."""

    what: str
    where: str
    evidence: str


def may_have_hooks(source: Source) -> bool:
    """Return whether hooks of a model could change derivatives of the file.

    A model that takes gradients itself is captured with its hooks, and NEML2 has a chain rule of its own."""
    return not source.uses_autograd and source.origin.kind != "neml2"


def has_hooks(source: Source, inputs: Inputs) -> bool:
    """Return whether a call of the model has hooks of the backward pass that are the user's."""
    if not may_have_hooks(source):
        return False
    with _Hooks(source) as hooks, contextlib.suppress(Exception):
        _run_forward(source, inputs)
    return bool(hooks.labels)


def find_gradient_hooks(source: Source, inputs: Inputs, wrt: Collection[str] | None = None) -> tuple[GradientHook, ...]:
    """Return the hooks that change a gradient at these inputs: by the inputs and parameters ``wrt``, or by any.

    Call it under ``eager_context`` in a forked process: ``.grad`` of parameters is written."""
    first = _compute_gradients(source, inputs, lambda index: True, wrt)
    if not first.labels:
        return ()
    search = _Search(source, inputs, wrt)
    if hooks := search.find_changing(range(len(first.labels)), first.labels):
        return hooks
    # What a hook does may depend on how often it was called: one may act at first, and never again.
    evidence = search.describe(first)
    return (GradientHook(*first.labels[0], evidence),) if evidence else ()


class _Search:
    """A search for the hooks that change gradients, in as many runs as those take that halve a list; it ends with the
    first ``MAX_FOUND``."""

    def __init__(self, source: Source, inputs: Inputs, wrt: Collection[str] | None) -> None:
        self._arguments, self._wrt = (source, inputs), wrt
        self._plain = _compute_gradients(source, inputs, lambda index: False, wrt)
        self._count = 0

    def describe(self, gradients: _Gradients) -> str:
        """Describe the difference from gradients without hooks; empty if there is none, or none can be seen."""
        return "" if self._plain.failure else gradients.describe_difference(self._plain)

    def find_changing(self, indices: Sequence[int], labels: Sequence[tuple[str, str]]) -> tuple[GradientHook, ...]:
        """Return those of these hooks that change a gradient where they run without the others."""
        if self._plain.failure or self._count == MAX_FOUND:
            return ()
        evidence = self.describe(_compute_gradients(*self._arguments, indices.__contains__, self._wrt))
        if not evidence:
            return ()
        if len(indices) == 1:
            self._count += 1
            return (GradientHook(*labels[indices[0]], evidence),)
        middle = len(indices) // 2
        halves = [self.find_changing(part, labels) for part in (indices[:middle], indices[middle:])]
        # Together they may do what none of them does alone.
        return (*halves[0], *halves[1]) or (GradientHook(*labels[indices[0]], evidence),)


@dataclass(frozen=True)
class _Gradients:
    """Gradients of all outputs together by name, or the error of the backward pass."""

    values: dict[str, torch.Tensor | None]
    labels: list[tuple[str, str]]
    failure: str = ""

    def describe_difference(self, other: _Gradients) -> str:
        if self.failure:
            return "" if self.failure == other.failure else f"the backward pass raises {self.failure}"
        for name, value in self.values.items():
            without = other.values.get(name)
            if value is None or without is None:
                if value is not without:
                    return f"the gradient by {name!r} is there with it alone, or without it alone"
            elif not all_close(value, without):
                largest = int((value - without).abs().flatten().argmax())
                pair = value.flatten()[largest].item(), without.flatten()[largest].item()
                return f"the gradient by {name!r} is {pair[0]:g}, and {pair[1]:g} without it"
        return ""


def _run_forward(source: Source, inputs: Inputs) -> tuple[Inputs, list[torch.Tensor]]:
    """Return copies of the inputs that require gradients, and the outputs that have one."""
    with requires_grad(list_differentiable_parameters(source)):
        leaves = tuple(t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs)
        outputs = evaluate(source, leaves, attached=True)
    return leaves, [value for value in outputs.values() if value.requires_grad]


def _compute_gradients(
    source: Source, inputs: Inputs, is_active: Callable[[int], bool], wrt: Collection[str] | None
) -> _Gradients:
    parameters = list_differentiable_parameters(source)
    for parameter in parameters.values():
        parameter.grad = None
    with _Hooks(source, is_active) as hooks, requires_grad(parameters):
        try:
            leaves, outputs = _run_forward(source, inputs)
            seeds = [torch.linspace(0.5, 1.5, value.numel()).reshape(value.shape).to(value) for value in outputs]
            if outputs:
                torch.autograd.backward(outputs, seeds)
        except Exception as error:
            return _Gradients({}, hooks.labels, summarize_error(error))
    gradients = {spec.name: leaf.grad for spec, leaf in zip(source.inputs, leaves, strict=True)}
    gradients |= {name: p.grad for name, p in parameters.items()}
    return _Gradients({n: g for n, g in gradients.items() if wrt is None or n in wrt}, hooks.labels)


# Of torch/autograd/graph.py.
_JOINT = "register_multi_grad_hook"


class _Hooks:
    """The user's hooks of a backward pass, of which those run that are active, by the number of their ``labels``."""

    def __init__(self, source: Source, is_active: Callable[[int], bool] = lambda index: True) -> None:
        self.labels: list[tuple[str, str]] = []
        self._source, self._is_active = source, is_active
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> _Hooks:
        for what, registry in _list_registries(self._source.parameter_module):
            self._stack.enter_context(self._replace_hooks(what, registry))
        for owner, name, wrap in (
            (torch.Tensor, "register_hook", self._wrap_register),
            (torch.Tensor, "register_post_accumulate_grad_hook", self._wrap_register),
            (graph.saved_tensors_hooks, "__init__", self._wrap_saved),
        ):
            self._stack.enter_context(_patch(owner, name, wrap))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def _replace_hooks(self, what: str, registry: MutableMapping[Any, Any]) -> Iterator[None]:
        originals = dict(registry)
        for key, hook in originals.items():
            registry[key] = self._wrap(what, hook)
        try:
            yield
        finally:
            registry.update(originals)

    def _wrap(self, what: str, hook: Callable[..., Any], place: str = "") -> Callable[..., Any]:
        """Return the hook, or what does nothing in its place. ``place`` is where it was registered."""
        self.labels.append((what, _find_line(hook) or place))
        return hook if self._is_active(len(self.labels) - 1) else lambda *arguments: None

    def _wrap_register(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def register(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
            caller = sys._getframe(1)
            # torch makes a hook of several tensors of one for each, in a generator.
            is_of_several = _JOINT in [frame.f_code.co_name for frame in (caller, caller.f_back) if frame]
            if _is_torchs(caller) and not is_of_several:
                return original(tensor, hook)
            what = "a hook of several tensors" if is_of_several else "a hook of a tensor"
            return original(tensor, self._wrap(what, hook, user_source_location()))

        return register

    def _wrap_saved(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(context: Any, pack_hook: Callable[..., Any], unpack_hook: Callable[..., Any]) -> None:
            if not _is_torchs(sys._getframe(1)):
                place = _find_line(pack_hook) or _find_line(unpack_hook) or user_source_location()
                self.labels.append(("a hook for saved tensors", place))
                if not self._is_active(len(self.labels) - 1):
                    pack_hook = unpack_hook = _return_same
            original(context, pack_hook, unpack_hook)

        return initialize


def _is_torchs(frame: types.FrameType) -> bool:
    return frame.f_code.co_filename.startswith(INTERNAL_PATH_PREFIXES)


def _return_same(value: Any) -> Any:
    return value


@contextlib.contextmanager
def _patch(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _list_registries(model: nn.Module) -> Iterator[tuple[str, MutableMapping[Any, Any]]]:
    """Yield torch's own dicts of hooks that are registered before a call."""
    for name in ("_global_backward_pre_hooks", "_global_backward_hooks"):
        yield "a hook of all modules", getattr(modules, name)
    for path, part in model.named_modules():
        what = f"a hook of submodule {path!r}" if path else "a hook of the model"
        yield what, part._backward_pre_hooks
        yield what, part._backward_hooks
    for name, parameter in model.named_parameters():
        for registry in (parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None)):
            if registry:
                yield f"a hook of parameter {name!r}", registry


def _find_line(hook: Callable[..., Any]) -> str:
    """Return where the user's code of a hook begins; empty for torch's own."""
    function: Any = hook
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if code is None or code.co_filename.startswith(INTERNAL_PATH_PREFIXES):
        return ""
    return f"{code.co_filename}:{code.co_firstlineno}"
