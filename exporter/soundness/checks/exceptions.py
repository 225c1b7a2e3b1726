"""Check of exceptions as control flow: ``try: cholesky(a) except: ...`` loses its second way in a trace.

Operations that may fail for their data, inside a ``try`` that catches, are made to fail: where the model goes on and
returns outputs, a trace would have lost how."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import resolve_name

from exporter.archive.contract import Finding
from exporter.common.torch_hooks import FunctionHook
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import EagerContext, make_refusal, run_eager
from exporter.soundness.footprint import is_user_file, parse_file

CHECK = "exception"
_MEND = "compute both ways and pick by torch.where: torch.linalg.cholesky_ex and inv_ex return whether they failed"
_ALGEBRA = re.compile(r"(cholesky|inv|inverse|solve|lstsq|eig|svd|qr|lu|pinv|matrix_power|ldl)")
_INDEXING = re.compile(r"(__getitem__|index|gather|take|embedding|one_hot|scatter|multinomial|bincount)")
_NEVER_FAILS = re.compile(r"_ex$|__setitem__")
MAX_CALLS = 20
# The stubs of torch.linalg lack this name.
LinAlgError: type[RuntimeError] = getattr(torch.linalg, "LinAlgError")  # noqa: B009


def check(context: EagerContext) -> list[Finding]:
    """Check that no exception decides what the model computes."""
    return context.room(_check, context.inputs)


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    with FailingCalls() as recorder:
        if isinstance(run_eager(source, inputs), str):
            return []
    for index, (name, where) in enumerate(recorder.calls[:MAX_CALLS]):
        with FailingCalls(fails=index):
            outputs = run_eager(source, inputs)
        if not isinstance(outputs, str):
            evidence = f"where {name} fails, the model goes on another way and returns outputs"
            return [make_refusal(CHECK, "an exception decides what is computed", where, evidence, _MEND)]
    return []


class FailingCalls(FunctionHook):
    """Calls inside a ``try`` that catches, without which the check has nothing to do; the one at ``fails`` raises."""

    def __init__(self, fails: int = -1) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []
        self._fails = fails

    def intercept(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        name = resolve_name(func) or getattr(func, "__name__", "")
        last = name.rpartition(".")[2]
        error_type = LinAlgError if _ALGEBRA.search(name) else IndexError if _INDEXING.search(last) else None
        if error_type is not None and not _NEVER_FAILS.search(last) and _may_fail(last, args):
            where = _find_catching_line()
            if where:
                self.calls.append((name, where))
                if len(self.calls) - 1 == self._fails:
                    raise error_type("made to fail by torchferry's soundness gate")
        return func(*args, **kwargs)


def _may_fail(name: str, args: tuple[Any, ...]) -> bool:
    """Return whether a call may fail for its data: indexing with numbers and slices fails for shapes only."""
    if name != "__getitem__":
        return True
    parts = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(isinstance(p, torch.Tensor) and p.dtype != torch.bool for p in parts)


def _find_catching_line() -> str:
    """Return the user's line in whose ``try`` the call is made; empty where nothing catches."""
    frame, innermost = sys._getframe(3), ""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            innermost = innermost or f"{file}:{frame.f_lineno}"
            if frame.f_lineno in _find_try_lines(file):
                return innermost
        frame = frame.f_back
    return ""


@functools.cache
def _find_try_lines(file: str) -> frozenset[int]:
    lines: set[int] = set()
    for node in ast.walk(parse_file(file)):
        if isinstance(node, ast.Try) and node.handlers:
            for statement in node.body:
                lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return frozenset(lines)
