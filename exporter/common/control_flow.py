"""torch's control flow of higher order in eager mode and in captures: ``cond``, ``map``, ``scan``, ``while_loop``.

torch itself compiles such a call, also in eager mode, which no trace can follow. Here it is what its definition says:
``cond`` runs one branch, and in a capture both of them, of whose outputs one is chosen; ``map`` and scans are loops
over the rows that there are. Source: torch/_higher_order_ops."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch

from exporter.common.errors import CaptureError, TorchferryError, summarize_error
from exporter.common.tensors import count_writes
from exporter.common.torch_internals import (
    CONTROL_FLOW,
    count_dispatch_modes,
    get_functorch_level,
    get_tracing_state,
    pytree,
)
from exporter.common.user_code import user_source_location, user_traceback_location

CHECK = "control flow"
# Operators by module, each with the function that is its definition.
_DEFINITIONS = {
    "map": ("map_impl", "map_dense"),
    "scan": ("scan_op", "scan_op_dense"),
    "associative_scan": ("associative_scan_op", "associative_scan_op_dense"),
}
# Modules that ask whether torch compiles: those of these operators, and one of what they share.
_ASKING = {f"{CONTROL_FLOW}{name}" for name in ("utils", "cond", "while_loop", *_DEFINITIONS)}
_SCRIPT = 'compile the submodule from its source: torchferry.mark(..., jit="script")'


@contextlib.contextmanager
def run_control_flow() -> Iterator[None]:
    """Run control flow of higher order by its definition, without torch's compiler."""
    original = torch.compiler.is_dynamo_compiling

    def is_compiling() -> bool:
        # What is asked there is whether to call the operator itself.
        return sys._getframe(1).f_globals.get("__name__") in _ASKING or original()

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.compiler, "is_dynamo_compiling", is_compiling))
        # All are imported with torch.
        stack.enter_context(mock.patch.object(sys.modules[f"{CONTROL_FLOW}cond"], "cond_op", _run_branches))
        for name, (operator, definition) in _DEFINITIONS.items():
            module = sys.modules.get(CONTROL_FLOW + name)
            # Other versions of torch may have other names; such a call is then refused as one that is compiled.
            if hasattr(module, operator) and hasattr(module, definition):
                stack.enter_context(mock.patch.object(module, operator, getattr(module, definition)))
        loops: Any = sys.modules[f"{CONTROL_FLOW}while_loop"]
        stack.enter_context(mock.patch.object(loops, "while_loop_op", functools.partial(_run_loop, loops)))
        yield


def _run_loop(operators: Any, *arguments: Any) -> Any:
    if _is_captured():
        what, got = "torch.while_loop runs as often as data say", "a capture, which would keep one number"
        expected, mend = "a number of steps that is the same for all data", f"write a Python loop, and {_SCRIPT}"
        raise CaptureError(what, check=CHECK, where=user_source_location(), got=got, expected=expected, mend=mend)
    return operators.while_loop_dense(*arguments)


def _run_branches(
    predicate: Any, true_branch: Callable[..., Any], false_branch: Callable[..., Any], operands: Sequence[Any] = ()
) -> Any:
    """Run the branch that a predicate chooses; both, where a capture has to serve all data."""
    if isinstance(predicate, torch.Tensor) and predicate.numel() != 1:
        got, expected = f"shape {list(map(int, predicate.shape))}", "a single element"
        what, mend = "the predicate of torch.cond has several elements", "torch.where, or predicate.any()"
        raise CaptureError(what, check=CHECK, where=user_source_location(), got=got, expected=expected, mend=mend)
    if not isinstance(predicate, torch.Tensor) or not _is_captured():
        return true_branch(*operands) if predicate else false_branch(*operands)
    results = [pytree.tree_flatten(_run_branch(branch, operands)) for branch in (true_branch, false_branch)]
    (true_leaves, structure), (false_leaves, other_structure) = results
    descriptions = [[_describe(leaf) for leaf in leaves] for leaves, _ in results]
    if structure != other_structure or descriptions[0] != descriptions[1]:
        raise CaptureError(
            "the branches of torch.cond give different outputs",
            check=CHECK,
            where=user_source_location(),
            got=" and ".join(", ".join(texts) or "none" for texts in descriptions),
            expected="tensors of one shape and dtype from both branches",
            mend="convert what a branch returns: .to(dtype), .expand(shape)",
        )
    chosen = predicate.reshape(()).to(torch.bool)
    pairs = zip(true_leaves, false_leaves, strict=True)
    leaves = [torch.where(chosen, a, b) if isinstance(a, torch.Tensor) else a for a, b in pairs]
    return pytree.tree_unflatten(leaves, structure)


def _run_branch(branch: Callable[..., Any], operands: Sequence[Any]) -> Any:
    tensors = [leaf for leaf in pytree.tree_leaves(operands) if isinstance(leaf, torch.Tensor)]
    versions = [*map(count_writes, tensors)]
    try:
        result = branch(*operands)
        if versions != [*map(count_writes, tensors)]:
            what, got = "a branch of torch.cond writes to an operand", "a capture, in which both branches run"
            expected, mend = "branches that return what they compute", "work on a copy: x = x.clone()"
            raise CaptureError(what, check=CHECK, where=user_source_location(), got=got, expected=expected, mend=mend)
        return result
    except TorchferryError:
        raise
    except Exception as error:
        what, expected = "a branch of torch.cond fails on data of the other", "branches that run on all data"
        where, mend = user_traceback_location(error), f"make both safe: torch.where, clamp; or {_SCRIPT}"
        raise CaptureError(
            what, check=CHECK, where=where, got=summarize_error(error), expected=expected, mend=mend
        ) from error


def _describe(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"{list(map(int, leaf.shape))} {str(leaf.dtype).removeprefix('torch.')}"
    return repr(leaf)


def _is_captured() -> bool:
    """Return whether a graph is recorded, or tensors have no values."""
    return get_tracing_state() is not None or count_dispatch_modes() > 0 or get_functorch_level() is not None
