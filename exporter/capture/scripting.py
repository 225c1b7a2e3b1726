"""Submodules that are compiled instead of traced: ``jit="script"``.

``torch.jit.script`` reads the source of a submodule, so that its branches and loops on data are preserved; the rest of
the model is traced around it. To the soundness gate such a submodule is one operation, which runs as in eager mode."""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import torch
from torch import nn

from exporter.archive.contract import Finding
from exporter.capture.value_reads import restore_constant_factories
from exporter.common.errors import CaptureError, summarize_error
from exporter.model.jit_marks import EITHER, get_mark

# Results of ``explain_not_compilable``, which processes forked from here reuse.
_EXPLANATIONS: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()


def find_marked_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the submodules to be compiled, by path, the outermost of nested ones.

    Raises ``CaptureError`` if the whole model is marked."""
    modules: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        is_nested = any(path.startswith(f"{outer}.") for outer in modules)
        mark = get_mark(module)
        if not is_nested and (mark == "script" or (mark == EITHER and is_compilable(module))):
            if not path:
                mend = "wrap it in a module that calls it, or mark the submodule with the branch"
                what = "the whole model is marked to be compiled"
                raise CaptureError(what, check="script", expected="a mark on a submodule", mend=mend)
            modules[path] = module
    return modules


def compile_submodule(path: str, module: nn.Module) -> torch.jit.ScriptModule:
    """Compile a submodule without its hooks: those of the submodule run around it.

    Raises ``CaptureError`` with TorchScript's own message if it cannot read the source."""
    no_hooks = {name: OrderedDict[int, Any]() for name in ("_forward_hooks", "_forward_pre_hooks")}
    try:
        with restore_constant_factories(), mock.patch.dict(vars(module), no_hooks):
            return torch.jit.script(module)
    except Exception as error:
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        file = next((line.split('"')[1] for line in lines if line.strip().startswith('File "')), "")
        number = next((line.split("line ")[1].split(",")[0] for line in lines if 'File "' in line), "")
        code = getattr(type(module).forward, "__code__", None)
        where = f"{file}:{number}" if file else f"{code.co_filename}:{code.co_firstlineno}" if code else ""
        raise CaptureError(
            f"submodule {path!r} is marked with jit='script' and TorchScript cannot compile it",
            check="script",
            where=where,
            got=lines[0] if lines else summarize_error(error),
            expected="Python that torch.jit.script supports: typed arguments, tensors, numbers, lists, loops",
            mend="annotate its arguments, or move the branch to a small submodule of its own",
        ) from error


def is_compilable(module: nn.Module) -> bool:
    """Return whether TorchScript can read the module's source. The soundness gate compares what it computes."""
    return not explain_not_compilable(module)


def forget_explanations() -> None:
    """Forget which modules can be compiled: their owner may have changed them."""
    _EXPLANATIONS.clear()


def explain_not_compilable(module: nn.Module) -> str:
    """Return why TorchScript cannot read the module's source; nothing if it can."""
    if module not in _EXPLANATIONS:
        _EXPLANATIONS[module] = ""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                compile_submodule("", module)
            except CaptureError as error:
                _EXPLANATIONS[module] = f"{error.details.get('got', '')} ({error.details.get('where', '')})"
    return _EXPLANATIONS[module]


def scripting_findings(paths: Iterable[str]) -> list[Finding]:
    """Return a finding for each submodule that is compiled from its source."""
    reason = "it is marked with jit='script'"
    return [Finding("script", f"submodule {path!r} is compiled from its source", reason=reason) for path in paths]


class _OpaqueCall(torch.autograd.Function):
    """One node in a recorded run, whose inputs and outputs the tracer knows."""

    stays_a_call = True

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], *inputs: Any) -> Any:
        return run(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError


def make_opaque(module: nn.Module, quietly: Callable[[], Any]) -> Callable[..., Any]:
    """Build a forward that is one operation of a recorded run; reads inside it, under ``quietly``, are not recorded."""
    forward = module.forward

    def run(*inputs: Any, **keywords: Any) -> Any:
        with quietly():
            return forward(*inputs, **keywords)

    def call_opaque(*inputs: Any, **keywords: Any) -> Any:
        values = [*inputs, *keywords.values()]
        lengths = [len(x) if isinstance(x, list) else None for x in values]

        def call_unflattened(*flat: Any) -> Any:
            rest = iter(flat)
            restored = [next(rest) if n is None else [next(rest) for _ in range(n)] for n in lengths]
            named = zip(keywords, restored[len(inputs) :], strict=True)
            return run(*restored[: len(inputs)], **dict(named))

        # The tracer does not look inside lists.
        return _OpaqueCall.apply(call_unflattened, *(t for x in values for t in (x if isinstance(x, list) else [x])))

    return call_opaque
