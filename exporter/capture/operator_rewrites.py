"""Operators that exist only where a source library is imported: rewritten by one table, or refused by name.

A graph may call ``aten::`` and ``prim::``; whatever else it calls would save well and then load nowhere else.
To teach torchferry an operator, add a row to ``REWRITES``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from exporter.common.errors import OperatorError
from exporter.graph.torch_nodes import graphs, location, nodes

ALLOWED_NAMESPACES = ("aten", "prim")
# A call back into Python: it runs where it was traced and nowhere else.
PYTHON_CALLS = ("prim::PythonOp",)


@dataclass(frozen=True)
class Rewrite:
    """``operator`` becomes ``replacement``; both are TorchScript graphs with the same inputs and outputs."""

    operator: str
    pattern: str
    replacement: str
    reason: str


REWRITES = (
    Rewrite(
        "neml2::opaque_pow",
        "graph(%base, %exponent):\n  %y = neml2::opaque_pow(%base, %exponent)\n  return (%y)",
        "graph(%base, %exponent):\n  %y : Tensor = aten::pow(%base, %exponent)\n  return (%y)",
        "neml2/types/functions.py defines it as torch.pow behind a barrier against Inductor's fusion",
    ),
)


def rewrite_operators(module: torch.jit.ScriptModule) -> None:
    for _, _, graph in graphs(module):
        for row in REWRITES:
            torch._C._jit_pass_custom_pattern_based_rewrite_graph(row.pattern, row.replacement, graph)


def operators(module: torch.jit.ScriptModule) -> tuple[str, ...]:
    """The operators that the graphs call, sorted; raises ``OperatorError`` for the first foreign one."""
    kinds: set[str] = set()
    for path, _, graph in graphs(module):
        for node in nodes(graph):
            kind = node.kind()
            if kind in PYTHON_CALLS or kind.split("::")[0] not in ALLOWED_NAMESPACES:
                raise _foreign(node, path)
            kinds.add(kind)
    return tuple(sorted(kinds))


def _foreign(node: Any, path: str) -> OperatorError:
    name = f"{node.kind()} {node.pyname()}" if node.kind() in PYTHON_CALLS else node.kind()
    return OperatorError(
        f"the graph calls {name}, which exists only where its library is imported",
        check="operators",
        where=location(node) + (f", in submodule {path!r}" if path else ""),
        got=name,
        expected=" and ".join(f"{space}::" for space in ALLOWED_NAMESPACES) + " operators only",
        mend="write the operation with torch's own operators, or add a row to REWRITES in "
        "exporter/capture/operator_rewrites.py",
    )


def share(module: torch.jit.ScriptModule) -> None:
    """Compute once what a graph computes twice, as the chain rule does; torch's pass minds what is written in place."""
    for _, _, graph in graphs(module):
        torch._C._jit_pass_cse(graph)
        torch._C._jit_pass_dce(graph)
