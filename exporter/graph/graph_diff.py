"""What differs between two saved graphs: nodes added, gone and changed, each with its place, and tensors."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal as OneOf

import torch

from exporter.graph.canonical_text import method_text
from exporter.graph.ir import Graph, Held, Input, Literal, Node
from exporter.graph.listing import node_text
from exporter.graph.node_matching import Flat, constant, flat, matched
from exporter.graph.reader import Saved
from exporter.graph.recursion import deep

Kind = OneOf["added", "gone", "changed"]


@dataclass(frozen=True)
class Change:
    """``module`` and ``where`` are the node's, in the file that has it (the second, where both do)."""

    kind: Kind
    method: str
    what: str
    module: str = ""
    where: str = ""


@dataclass(frozen=True)
class Tensor:
    """A tensor that both files hold, with other bytes: how many of its numbers differ, and by how much at most."""

    name: str
    kind: str
    largest: float
    differ: int
    where: str = ""


@dataclass(frozen=True)
class Changes:
    nodes: tuple[Change, ...]
    tensors: tuple[Tensor, ...]


@deep
def changes(one: Saved, other: Saved) -> Changes:
    """What ``other`` has that ``one`` has not, and the other way round; empty only for equal canonical texts."""
    nodes: list[Change] = []
    tensors: dict[str, Tensor] = {}
    for name in sorted({*one.graphs, *other.graphs}):
        if name not in other.graphs:
            nodes.append(Change("gone", name, f"the method, of {len(one.graphs[name])} operations"))
        elif name not in one.graphs:
            nodes.append(Change("added", name, f"the method, of {len(other.graphs[name])} operations"))
        else:
            compared = _Compared(one.graphs[name], other.graphs[name], one.tensors, other.tensors)
            nodes += compared.nodes
            tensors.update(compared.tensors)
    return Changes(tuple(nodes), tuple(tensors.values()))


class _Compared:
    """One method."""

    def __init__(
        self, one: Graph, other: Graph, tensors: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]
    ) -> None:
        self._values = tensors, others
        self.nodes: list[Change] = []
        self.tensors: dict[str, Tensor] = {}
        self._method = one.method
        if one.types != other.types:
            said = [", ".join(g.types) for g in (one, other)]
            self.nodes.append(Change("changed", self._method, f"takes {said[1]}; it took {said[0]}"))
        self._a, self._b = flat(one), flat(other)
        self._pairs = matched(self._a, self._b)
        self._inputs = dict(zip(one.body.inputs, other.body.inputs, strict=False))
        for at, node in enumerate(self._a.nodes):
            if at not in self._pairs:
                self._say("gone", node, node_text(node))
        taken = set(self._pairs.values())
        for at, node in enumerate(self._b.nodes):
            if at not in taken:
                self._say("added", node, node_text(node))
        for a, b in sorted(self._pairs.items(), key=lambda pair: pair[1]):
            self._node(a, b)
        self._order()
        for i, text in self._arguments(one.body.outputs, other.body.outputs):
            self.nodes.append(Change("changed", self._method, f"output {i} {text}"))
        if not self.nodes and not self.tensors and method_text(one) != method_text(other):
            self.nodes.append(Change("changed", self._method, "which of equal operations gives which value"))

    def _say(self, kind: Kind, node: Node, what: str) -> None:
        self.nodes.append(Change(kind, self._method, what, node.origin.module, node.origin.where))

    def _node(self, a: int, b: int) -> None:
        x, y = self._a.nodes[a], self._b.nodes[b]
        if x.kind != y.kind:
            self._say("changed", y, f"{node_text(y)}; it was {node_text(x)}")
            return
        if x.operator != y.operator:
            self._say("changed", y, f"{y.operator}; it was {x.operator}")
        elif x.types != y.types:
            self._say("changed", y, f"{y.operator} gives {', '.join(y.types)}; it gave {', '.join(x.types)}")
        for i, text in self._arguments(x.inputs, y.inputs, y):
            self._say("changed", y, f"{y.operator}: argument {_argument(y, i)} {text}")
        for j, (p, q) in enumerate(zip(x.blocks, y.blocks, strict=False)):
            for i, text in self._arguments(p.outputs, q.outputs, y):
                self._say("changed", y, f"{y.operator}: block {j} gives, as {i}, what {text}")
        if len(x.blocks) != len(y.blocks):
            self._say("changed", y, f"{y.operator} has {len(y.blocks)} blocks; it had {len(x.blocks)}")

    def _order(self) -> None:
        """Effects in another order, and reads of memory that was written to before, or no more."""
        acting = [a for a in self._pairs if self._a.effects[a] and self._b.effects[self._pairs[a]]]
        for a, c in itertools.pairwise(sorted(acting)):
            if self._pairs[c] < self._pairs[a]:
                x, y = self._b.nodes[self._pairs[a]], self._a.nodes[c]
                self._say("changed", x, f"{x.operator} stands behind {y.operator}, in another order")
        # Writes that were added or lost shift all that is behind them, and are said themselves.
        if sum(bool(n.writes) for n in self._a.nodes) == sum(bool(n.writes) for n in self._b.nodes):
            for a, b in self._pairs.items():
                then, now = self._a.versions[a], self._b.versions[b]
                if then != now and min(then, now) >= 0 and not self._a.effects[a]:
                    node = self._b.nodes[b]
                    self._say("changed", node, f"{node.operator} reads memory after {now} writes; it was after {then}")

    def _arguments(
        self, before: tuple[Input, ...], now: tuple[Input, ...], node: Node | None = None
    ) -> list[tuple[int, str]]:
        """Position, and what is there instead of what."""
        found = []
        if len(before) != len(now):
            found.append((min(len(before), len(now)), f"to the last: there are {len(now)}; there were {len(before)}"))
        for i, (v, w) in enumerate(zip(before, now, strict=False)):
            if isinstance(v, int) and isinstance(w, int):
                if self._same(v, w):
                    continue
            elif isinstance(v, Held) and isinstance(w, Held) and (v.name, v.kind()) == (w.name, w.kind()):
                if v.digest != w.digest:
                    self._tensor(v, w, node)
                continue
            elif v == w:
                continue
            found.append((i, f"is {self._text(self._b, w)}; it was {self._text(self._a, v)}"))
        return found

    def _same(self, v: int, w: int) -> bool:
        made, other = self._a.made.get(v), self._b.made.get(w)
        if made is None or other is None:
            return made is other and self._inputs.get(v) == w
        return self._pairs.get(made[0]) == other[0] and made[1] == other[1]

    def _text(self, of: Flat, value: Input) -> str:
        if isinstance(value, Literal):
            return value.text
        if isinstance(value, Held):
            return f"the tensor {value.name or constant(value)[:24].strip()}"
        if value not in of.made:
            return f"input {of.graph.body.inputs.index(value)}"
        at, which = of.made[value]
        node = of.nodes[at]
        place = f" of {node.origin.module}" if node.origin.module else ""
        first = which if len(node.outputs) != 1 or not which.startswith("output") else "what"
        return f"{first} {node.operator}({', '.join(self._brief(v) for v in node.inputs)}){place} gives"

    def _brief(self, value: Input) -> str:
        if isinstance(value, Held):
            return f"${value.name or value.kind()}"
        return value.text if isinstance(value, Literal) else f"%{value}"

    def _tensor(self, v: Held, w: Held, node: Node | None) -> None:
        one, other = _plain(self._values[0][v.key]), _plain(self._values[1][w.key])
        name = w.name or f"{v.digest[:12]} -> {w.digest[:12]}"
        where = node.origin.where if node is not None else ""
        largest, differ = _largest(one, other), int((~_alike(one, other)).sum())
        self.tensors[name] = Tensor(name, w.kind(), largest, differ, where)


@functools.cache
def _names(schema: str) -> tuple[str, ...]:
    return tuple(a.name for a in torch._C.parse_schema(schema).arguments)


def _argument(node: Node, at: int) -> str:
    """Its name, where the operator has one for it."""
    names = _names(node.schema) if node.schema else ()
    return f"{names[at]!r}" if at < len(names) else str(at)


def _plain(value: torch.Tensor) -> torch.Tensor:
    """Dense, of a dtype that can be computed with."""
    value = value.detach()
    if value.is_meta:
        return torch.empty(0)
    dense = value.dequantize() if value.is_quantized else value if value.layout == torch.strided else value.to_dense()
    return dense.to(torch.float64) if dense.is_floating_point() else dense


def _alike(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """To the bit, but for which NaN it is: 0.0 and -0.0 are two numbers."""
    same = (one == other) | (one.isnan() & other.isnan())
    real = one.is_floating_point()
    return same & (one.signbit() == other.signbit()) if real else same


def _largest(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest absolute difference; NaN where one has NaN and the other none, which is no small difference."""
    if not one.numel():
        return 0.0
    wide = torch.complex128 if one.is_complex() else torch.float64
    difference = (one.detach().to(wide) - other.detach().to(wide)).abs()
    difference = difference.masked_fill(_alike(one, other), 0.0)
    return float("nan") if bool(difference.isnan().any()) else float(difference.max())
