"""Operators that no file may call: rewritten by a table, or rejected by name.

A graph may call torch's operators that compute from their arguments alone (``exporter/common/operators.txt``). One of
a source library could be saved, but loaded nowhere else; one that writes files or starts threads is no part of a model.
To support another operator, add a row to ``OPERATOR_REWRITES``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from exporter.common.errors import OperatorError
from exporter.common.script_loading import OPERATORS, iterate_nodes
from exporter.common.torch_internals import merge_subexpressions, remove_dead_code, rewrite_pattern
from exporter.graph.torch_nodes import find_location, iterate_graphs

# Where torch's own operators are.
NAMESPACES = ("aten", "prim")
# Names of ranges (``torch.profiler.record_function``), which compute nothing.
PROFILER_MARKS = ("profiler::_record_function_enter_new", "profiler::_record_function_exit")
# A call back into Python: it runs where it was traced and nowhere else.
PYTHON_CALLS = ("prim::PythonOp",)


@dataclass(frozen=True)
class Rewrite:
    """A rule that turns ``operator`` into ``replacement``: TorchScript graphs with the same inputs and outputs."""

    operator: str
    pattern: str
    replacement: str
    reason: str


OPERATOR_REWRITES = (
    Rewrite(
        "neml2::opaque_pow",
        "graph(%base, %exponent):\n  %y = neml2::opaque_pow(%base, %exponent)\n  return (%y)",
        "graph(%base, %exponent):\n  %y : Tensor = aten::pow(%base, %exponent)\n  return (%y)",
        "neml2/types/functions.py defines it as torch.pow behind a barrier against Inductor's fusion",
    ),
)


def rewrite_operators(module: torch.jit.ScriptModule) -> None:
    """Replace the operators of ``OPERATOR_REWRITES`` in all graphs, and leave out marks for a profiler."""
    for _, _, graph in iterate_graphs(module):
        # The last first: what ends a range takes what began it.
        for node in reversed([node for node in iterate_nodes(graph) if node.kind() in PROFILER_MARKS]):
            node.destroy()
        for rewrite in OPERATOR_REWRITES:
            rewrite_pattern(rewrite.pattern, rewrite.replacement, graph)


def list_operators(module: torch.jit.ScriptModule) -> tuple[str, ...]:
    """Return the operators that the graphs call, sorted; raises ``OperatorError`` for the first foreign one."""
    names: set[str] = set()
    for path, _, graph in iterate_graphs(module):
        for node in iterate_nodes(graph):
            name = node.kind()
            if name not in OPERATORS:
                raise _make_operator_error(node, path)
            names.add(name)
    return tuple(sorted(names))


def _make_operator_error(node: Any, path: str) -> OperatorError:
    name = f"{node.kind()} {node.pyname()}" if node.kind() in PYTHON_CALLS else node.kind()
    is_foreign = node.kind() in PYTHON_CALLS or name.split("::")[0] not in NAMESPACES
    what = f"the graph calls {name}, which " + (
        "exists only where its library is imported" if is_foreign else "acts on something else than its arguments"
    )
    mend = (
        "write the operation with torch's own operators, or add a row to OPERATOR_REWRITES in "
        "exporter/capture/operator_rewrites.py"
    )
    return OperatorError(
        what,
        check="operators",
        where=find_location(node) + (f", in submodule {path!r}" if path else ""),
        got=name,
        expected=" and ".join(f"{space}::" for space in NAMESPACES) + " operators only, which compute",
        mend=mend if is_foreign else "leave it to the host: a model computes outputs from inputs",
    )


def eliminate_common_subexpressions(module: torch.jit.ScriptModule) -> None:
    """Compute repeated expressions of a graph once, as in a chain rule; torch's pass respects in-place writes."""
    for _, _, graph in iterate_graphs(module):
        merge_subexpressions(graph)
        remove_dead_code(graph)
