"""What the order of a graph's nodes matters for: writes to memory, errors, output, random numbers, attributes.

Everything else is free to move. Which values share memory is taken from torch's schemas (``Tensor(a!)``, as
aten/src/ATen/native/README.md defines them); what has no schema is taken to share it with all that it is given.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable

import torch

from exporter.graph.values import Block, Graph, Held, Input, Node, free_values

_EFFECTS = ("prim::RaiseException", "prim::Print", "prim::SetAttr", "prim::fork", "aten::wait", "aten::manual_seed")
# Types whose values are never written to.
_PLAIN = ("int", "float", "bool", "str", "NoneType", "Device", "complex", "number", "Scalar", "Generator")


def with_effects(graph: Graph, called: Callable[[str], bool]) -> Graph:
    """The graph with ``effect`` and ``touches`` of each node. ``called``: whether the method of a name has effects."""
    shared = _Shared(graph, called)
    return dataclasses.replace(graph, body=shared.marked(graph.body))


@dataclasses.dataclass(frozen=True)
class _Alias:
    """By position: the inputs that are written to; for each output the inputs whose memory it may share."""

    writes: tuple[int, ...]
    shares: tuple[tuple[int, ...], ...]


@functools.cache
def _alias(schema: str) -> _Alias:
    parsed = torch._C.parse_schema(schema)
    sets = [a.alias_info for a in parsed.arguments]
    writes = tuple(i for i, a in enumerate(sets) if a is not None and a.is_write)
    shares = []
    for made in parsed.returns:
        names = set(made.alias_info.before_set) | set(made.alias_info.after_set) if made.alias_info else set()
        shares.append(
            tuple(
                i
                for i, a in enumerate(sets)
                if a is not None and (names & (set(a.before_set) | set(a.after_set)) or (names and "*" in a.after_set))
            )
        )
    # What is put into a list shares its memory from then on.
    held = tuple(i for i, a in enumerate(sets) if a is not None and "*" in a.after_set)
    return _Alias(writes, tuple((*s, *held) if s else s for s in shares))


class _Shared:
    """Values that may share memory, as sets (union-find), and which of the sets are written to."""

    def __init__(self, graph: Graph, called: Callable[[str], bool]) -> None:
        self._called = called
        self._parent: dict[int | str, int | str] = {}
        self._plain: set[int] = {i for i, t in zip(graph.body.inputs, graph.types, strict=True) if t in _PLAIN}
        self._written: set[int | str] = set()
        self._join_block(graph.body)
        self._written = {self._root(v) for v in self._written}

    def marked(self, block: Block) -> Block:
        return dataclasses.replace(block, nodes=tuple(self._marked(node) for node in block.nodes))

    def _marked(self, node: Node) -> Node:
        blocks = tuple(map(self.marked, node.blocks))
        inner = [n for b in blocks for n in b.nodes]
        effect = node.effect or self._acts(node) or any(n.effect for n in inner)
        read = [*node.inputs, *(v for b in blocks for v in free_values(b))]
        touches = node.kind == "prim::GetAttr" or any(n.touches for n in inner)
        touches = touches or any(k is not None and self._root(k) in self._written for k in map(self._key, read))
        return dataclasses.replace(node, blocks=blocks, effect=effect, touches=touches)

    def _acts(self, node: Node) -> bool:
        if node.kind == "prim::CallMethod":
            return self._called(node.operator.partition("name='")[2].partition("'")[0])
        return node.kind in _EFFECTS or bool(node.schema and _alias(node.schema).writes)

    def _key(self, value: Input) -> int | str | None:
        if isinstance(value, Held):
            return value.key
        return value if isinstance(value, int) and value not in self._plain else None

    def _root(self, key: int | str) -> int | str:
        while (parent := self._parent.get(key, key)) != key:
            self._parent[key] = self._parent.get(parent, parent)
            key = parent
        return key

    def _join(self, one: Input, other: Input) -> None:
        a, b = self._key(one), self._key(other)
        if a is not None and b is not None:
            self._parent[self._root(a)] = self._root(b)

    def _join_block(self, block: Block) -> None:
        for node in block.nodes:
            self._plain |= {o for o, t in zip(node.outputs, node.types, strict=True) if t in _PLAIN}
            for inner in node.blocks:
                self._join_block(inner)
                # What goes into a block, round a loop (behind its count and its condition), or out of it.
                loop = node.kind == "prim::Loop"
                around = [node.outputs, inner.outputs[loop:], *((inner.inputs[1:], node.inputs[2:]) if loop else ())]
                for passed in itertools.zip_longest(*around):
                    for one, other in itertools.pairwise(v for v in passed if v is not None):
                        self._join(one, other)
            self._join_node(node)

    def _join_node(self, node: Node) -> None:
        if node.schema:
            alias = _alias(node.schema)
            for made, inputs in zip(node.outputs, alias.shares, strict=False):
                for i in inputs:
                    self._join(made, node.inputs[i])
            self._written |= {k for i in alias.writes if (k := self._key(node.inputs[i])) is not None}
        elif not node.blocks:
            for made in node.outputs:
                for given in node.inputs:
                    self._join(made, given)
            if node.kind == "prim::CallMethod" and self._acts(node):
                self._written |= {k for i in node.inputs if (k := self._key(i)) is not None}
