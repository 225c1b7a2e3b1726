"""Differences between two saved graphs: nodes added, gone and changed, each with its place, and tensors."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal as OneOf

import torch

from exporter.common.recursion import with_deep_recursion
from exporter.common.torch_internals import parse_schema
from exporter.graph.canonical_text import format_method
from exporter.graph.listing import format_node
from exporter.graph.node_matching import FlatGraph, flatten_graph, format_constant, match_nodes
from exporter.saved_code.ir import Graph, Input, Literal, Node, SavedGraphs, TensorConstant

ChangeType = OneOf["added", "gone", "changed"]


@dataclass(frozen=True)
class NodeChange:
    """One difference between two graphs; ``module`` and ``where`` are the node's (the second file's, if in both)."""

    kind: ChangeType
    method: str
    what: str
    module: str = ""
    where: str = ""


@dataclass(frozen=True)
class TensorChange:
    """A tensor with other bytes in each file: how many of its numbers differ, and by how much at most."""

    name: str
    kind: str
    largest: float
    differ: int
    where: str = ""


@dataclass(frozen=True)
class GraphDiff:
    """All differences between the graphs of two files."""

    nodes: tuple[NodeChange, ...]
    tensors: tuple[TensorChange, ...]


@with_deep_recursion
def diff_graphs(old: SavedGraphs, new: SavedGraphs) -> GraphDiff:
    """Return what ``new`` has that ``old`` does not, and vice versa; empty only for equal canonical texts."""
    nodes: list[NodeChange] = []
    tensors: dict[str, TensorChange] = {}
    for name in sorted({*old.graphs, *new.graphs}):
        if name not in new.graphs:
            nodes.append(NodeChange("gone", name, f"the method, of {len(old.graphs[name])} operations"))
        elif name not in old.graphs:
            nodes.append(NodeChange("added", name, f"the method, of {len(new.graphs[name])} operations"))
        else:
            method_diff = _MethodDiff(old.graphs[name], new.graphs[name], old.tensors, new.tensors)
            nodes += method_diff.nodes
            tensors.update(method_diff.tensors)
    return GraphDiff(tuple(nodes), tuple(tensors.values()))


class _MethodDiff:
    """The differences of one method."""

    def __init__(
        self, old: Graph, new: Graph, old_tensors: Mapping[str, torch.Tensor], new_tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self._values = old_tensors, new_tensors
        self.nodes: list[NodeChange] = []
        self.tensors: dict[str, TensorChange] = {}
        self._method = old.method
        if old.types != new.types:
            signatures = [", ".join(g.types) for g in (old, new)]
            self.nodes.append(NodeChange("changed", self._method, f"takes {signatures[1]}; it took {signatures[0]}"))
        self._a, self._b = flatten_graph(old), flatten_graph(new)
        self._pairs = match_nodes(self._a, self._b)
        self._inputs = dict(zip(old.body.inputs, new.body.inputs, strict=False))
        for index, node in enumerate(self._a.nodes):
            if index not in self._pairs:
                self._add_change("gone", node, format_node(node))
        paired = set(self._pairs.values())
        for index, node in enumerate(self._b.nodes):
            if index not in paired:
                self._add_change("added", node, format_node(node))
        for a, b in sorted(self._pairs.items(), key=lambda pair: pair[1]):
            self._compare_nodes(a, b)
        self._compare_order()
        for i, text in self._compare_arguments(old.body.outputs, new.body.outputs):
            self.nodes.append(NodeChange("changed", self._method, f"output {i} {text}"))
        if not self.nodes and not self.tensors and format_method(old) != format_method(new):
            self.nodes.append(NodeChange("changed", self._method, "which of equal operations gives which value"))

    def _add_change(self, change_type: ChangeType, node: Node, what: str) -> None:
        self.nodes.append(NodeChange(change_type, self._method, what, node.origin.module, node.origin.where))

    def _compare_nodes(self, a: int, b: int) -> None:
        x, y = self._a.nodes[a], self._b.nodes[b]
        if x.kind != y.kind:
            self._add_change("changed", y, f"{format_node(y)}; it was {format_node(x)}")
            return
        if x.operator != y.operator:
            self._add_change("changed", y, f"{y.operator}; it was {x.operator}")
        elif x.types != y.types:
            self._add_change("changed", y, f"{y.operator} gives {', '.join(y.types)}; it gave {', '.join(x.types)}")
        for i, text in self._compare_arguments(x.inputs, y.inputs, y):
            self._add_change("changed", y, f"{y.operator}: argument {_describe_argument(y, i)} {text}")
        for j, (p, q) in enumerate(zip(x.blocks, y.blocks, strict=False)):
            for i, text in self._compare_arguments(p.outputs, q.outputs, y):
                self._add_change("changed", y, f"{y.operator}: block {j} gives, as {i}, what {text}")
        if len(x.blocks) != len(y.blocks):
            self._add_change("changed", y, f"{y.operator} has {len(y.blocks)} blocks; it had {len(x.blocks)}")

    def _compare_order(self) -> None:
        """Add effects in another order, and memory reads with another number of writes before them."""
        effect_pairs = [a for a in self._pairs if self._a.effects[a] and self._b.effects[self._pairs[a]]]
        for a, c in itertools.pairwise(sorted(effect_pairs)):
            if self._pairs[c] < self._pairs[a]:
                x, y = self._b.nodes[self._pairs[a]], self._a.nodes[c]
                self._add_change("changed", x, f"{x.operator} stands behind {y.operator}, in another order")
        # Added or lost writes shift everything after them, and are reported themselves.
        if sum(bool(n.writes) for n in self._a.nodes) == sum(bool(n.writes) for n in self._b.nodes):
            for a, b in self._pairs.items():
                before, now = self._a.versions[a], self._b.versions[b]
                if before != now and min(before, now) >= 0 and not self._a.effects[a]:
                    node = self._b.nodes[b]
                    change = f"{node.operator} reads memory after {now} writes; it was after {before}"
                    self._add_change("changed", node, change)

    def _compare_arguments(
        self, before: tuple[Input, ...], now: tuple[Input, ...], node: Node | None = None
    ) -> list[tuple[int, str]]:
        """Return the position of each differing argument, and what it is instead of what."""
        differences = []
        if len(before) != len(now):
            lengths = f"to the last: there are {len(now)}; there were {len(before)}"
            differences.append((min(len(before), len(now)), lengths))
        for i, (v, w) in enumerate(zip(before, now, strict=False)):
            if isinstance(v, int) and isinstance(w, int):
                if self._is_same_value(v, w):
                    continue
            elif (
                isinstance(v, TensorConstant)
                and isinstance(w, TensorConstant)
                and (v.name, v.kind()) == (w.name, w.kind())
            ):
                if v.digest != w.digest:
                    self._compare_tensors(v, w, node)
                continue
            elif v == w:
                continue
            differences.append((i, f"is {self._describe_value(self._b, w)}; it was {self._describe_value(self._a, v)}"))
        return differences

    def _is_same_value(self, v: int, w: int) -> bool:
        old_producer, new_producer = self._a.producers.get(v), self._b.producers.get(w)
        if old_producer is None or new_producer is None:
            return old_producer is new_producer and self._inputs.get(v) == w
        return self._pairs.get(old_producer[0]) == new_producer[0] and old_producer[1] == new_producer[1]

    def _describe_value(self, flat_graph: FlatGraph, value: Input) -> str:
        if isinstance(value, Literal):
            return value.text
        if isinstance(value, TensorConstant):
            return f"the tensor {value.name or format_constant(value)[:24].strip()}"
        if value not in flat_graph.producers:
            return f"input {flat_graph.graph.body.inputs.index(value)}"
        index, slot = flat_graph.producers[value]
        node = flat_graph.nodes[index]
        location = f" of {node.origin.module}" if node.origin.module else ""
        first = slot if len(node.outputs) != 1 or not slot.startswith("output") else "what"
        return f"{first} {node.operator}({', '.join(self._format_brief(v) for v in node.inputs)}){location} gives"

    def _format_brief(self, value: Input) -> str:
        if isinstance(value, TensorConstant):
            return f"${value.name or value.kind()}"
        return value.text if isinstance(value, Literal) else f"%{value}"

    def _compare_tensors(self, v: TensorConstant, w: TensorConstant, node: Node | None) -> None:
        old, new = _to_dense(self._values[0][v.key]), _to_dense(self._values[1][w.key])
        name = w.name or f"{v.digest[:12]} -> {w.digest[:12]}"
        where = node.origin.where if node is not None else ""
        largest, differ = _compute_max_difference(old, new), int((~_compare_elements(old, new)).sum())
        self.tensors[name] = TensorChange(name, w.kind(), largest, differ, where)


@functools.cache
def _list_argument_names(schema: str) -> tuple[str, ...]:
    return tuple(a.name for a in parse_schema(schema).arguments)


def _describe_argument(node: Node, index: int) -> str:
    """Return the argument's name if the operator has one for it, else its position."""
    names = _list_argument_names(node.schema) if node.schema else ()
    return f"{names[index]!r}" if index < len(names) else str(index)


def _to_dense(value: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor of a dtype that supports arithmetic."""
    value = value.detach()
    if value.is_meta:
        return torch.empty(0)
    dense = value.dequantize() if value.is_quantized else value if value.layout == torch.strided else value.to_dense()
    return dense.to(torch.float64) if dense.is_floating_point() else dense


def _compare_elements(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Compare elements bitwise, except that all NaN are equal: 0.0 and -0.0 are two numbers."""
    same = (left == right) | (left.isnan() & right.isnan())
    real = left.is_floating_point()
    return same & (left.signbit() == right.signbit()) if real else same


def _compute_max_difference(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the largest absolute difference; NaN if exactly one of two elements is NaN, which is no small one."""
    if not left.numel():
        return 0.0
    wide = torch.complex128 if left.is_complex() else torch.float64
    difference = (left.detach().to(wide) - right.detach().to(wide)).abs()
    difference = difference.masked_fill(_compare_elements(left, right), 0.0)
    return float("nan") if bool(difference.isnan().any()) else float(difference.max())
