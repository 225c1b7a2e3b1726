"""Submodules that are compiled instead of traced: ``jit="script"``.

``torch.jit.script`` reads the source of a submodule, so that its branches and loops on data stay what they are; the
rest of the model is traced around it. To the soundness gate such a submodule is one operation, which runs as it does in
eager mode.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from exporter.archive.contract import Finding
from exporter.common.errors import CaptureError, first_line
from exporter.model.jit_marks import EITHER, mark_of

# Answers of ``can_be_compiled``, which the processes that are forked from here need not find again.
_READABLE: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


def marked(named: nn.Module) -> dict[str, nn.Module]:
    """Submodules to be compiled, by path, the outermost of nested ones.

    Raises ``CaptureError`` where that is the whole model.
    """
    found: dict[str, nn.Module] = {}
    for path, module in named.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in found)
        how = mark_of(module)
        if not inside and (how == "script" or (how == EITHER and can_be_compiled(module))):
            if not path:
                raise CaptureError(
                    "the whole model is marked to be compiled",
                    check="script",
                    expected="a mark on a submodule",
                    mend="put it into a module that calls it, or mark the submodule that has the branch",
                )
            found[path] = module
    return found


def compiled(path: str, module: nn.Module) -> torch.jit.ScriptModule:
    """Raises ``CaptureError`` with TorchScript's own words where it cannot read the source."""
    try:
        return torch.jit.script(module)
    except Exception as error:
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        at = next((line.split('"')[1] for line in lines if line.strip().startswith('File "')), "")
        number = next((line.split("line ")[1].split(",")[0] for line in lines if 'File "' in line), "")
        code = getattr(type(module).forward, "__code__", None)
        where = f"{at}:{number}" if at else f"{code.co_filename}:{code.co_firstlineno}" if code else ""
        raise CaptureError(
            f"submodule {path!r} is marked with jit='script' and TorchScript cannot compile it",
            check="script",
            where=where,
            got=lines[0] if lines else first_line(error),
            expected="the part of Python that torch.jit.script knows: typed arguments, tensors, numbers, lists, loops",
            mend="annotate its arguments, or keep the branch in a small submodule of its own",
        ) from error


def can_be_compiled(module: nn.Module) -> bool:
    """Whether TorchScript can read the module's source. What it computes is for the soundness gate to compare."""
    if module not in _READABLE:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                compiled("", module)
            except CaptureError:
                _READABLE[module] = False
            else:
                _READABLE[module] = True
    return _READABLE[module]


def said_of(paths: Iterable[str]) -> list[Finding]:
    return [
        Finding("script", f"submodule {path!r} is compiled from its source", reason="it is marked with jit='script'")
        for path in paths
    ]


class _AsOne(torch.autograd.Function):
    """One node in a recorded run, whose inputs and outputs the tracer knows."""

    stays_a_call = True

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], *inputs: Any) -> Any:
        return run(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError


def as_one(module: nn.Module, quietly: Callable[[], Any]) -> Callable[..., Any]:
    """``module``'s forward as one operation of a recorded run; what it reads, under ``quietly``, is its own affair."""
    forward = module.forward

    def run(*inputs: Any) -> Any:
        with quietly():
            return forward(*inputs)

    def called(*inputs: Any) -> Any:
        lengths = [len(x) if isinstance(x, list) else None for x in inputs]

        def unpacked(*flat: Any) -> Any:
            rest = iter(flat)
            return run(*(next(rest) if n is None else [next(rest) for _ in range(n)] for n in lengths))

        # The tracer does not look into lists.
        return _AsOne.apply(unpacked, *(t for x in inputs for t in (x if isinstance(x, list) else [x])))

    return called
