"""Elimination of repeated expressions, for graphs that are run many times in one call."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch.fx import Graph, Node

from exporter.capture.fx_tracing import FxProgram, find_memory_roots, list_written_arguments


def eliminate_duplicates(program: FxProgram) -> FxProgram:
    """Compute repeated expressions once and drop ``detach``; linear in the number of operations."""
    graph = copy.deepcopy(program.graph.graph)
    written_nodes = _find_written(graph)
    first_nodes: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.detach.default and node not in written_nodes:
            node.replace_all_uses_with(node.args[0])
        elif (
            node.op == "call_function"
            and not node.is_impure()
            and written_nodes.isdisjoint((node, *node.all_input_nodes))
        ):
            first = first_nodes.setdefault(_make_key((node.target, node.args, node.kwargs)), node)
            if first is not node:
                node.replace_all_uses_with(first)
    graph.eliminate_dead_code()
    return dataclasses.replace(program, graph=torch.fx.GraphModule(program.graph, graph))


def _find_written(graph: Graph) -> set[Node]:
    """Return the nodes whose memory some operation writes to, by way of a view too."""
    roots = find_memory_roots(graph)
    written = (list_written_arguments(node.target, node.args, node.kwargs) for node in roots)
    written_roots = {roots[value] for pairs in written for _, value in pairs if value in roots}
    return {node for node, root in roots.items() if root in written_roots}


def _make_key(value: Any) -> Any:
    """Return a key that is equal for equal expressions: 1 is not 1.0 nor True, and 0.0 is not -0.0."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_make_key, value))
    if isinstance(value, dict):
        return tuple((name, _make_key(part)) for name, part in sorted(value.items()))
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    return value if isinstance(value, Node) else (type(value), value)
