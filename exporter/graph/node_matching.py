"""Which nodes of two graphs are the same node.

In rounds, each over what the earlier ones left: nodes that compute the same from the inputs and are used alike; that
compute the same (what stands before a change does); that are used alike (what stands behind it is); then neighbours of
matched nodes, at the same argument. By hashes of subtrees, as trees are differenced: Chawathe et al., "Change detection
in hierarchically structured information", SIGMOD '96.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from exporter.graph.canonical_text import label
from exporter.graph.ir import Block, Graph, Held, Input, Literal, Node, versions
from exporter.graph.loop_value_order import constant as held

# A use of a value: who, at which argument, of which output.
Use = tuple[int, str, int]


@dataclass
class Flat:
    """The nodes of a graph, those of inner blocks included, numbered as they stand.

    ``made``: for each value the node that gives it and which of its outputs (or inner inputs) it is; values that have
    none are inputs of the graph. ``versions``: how many writes to what it reads stand before; ``effects``: which of the
    effects of its block it is, from 1 on. ``up``: a hash of what a node computes; ``down``: of what is done with it.
    """

    graph: Graph
    nodes: list[Node] = field(default_factory=list)
    made: dict[int, tuple[int, str]] = field(default_factory=dict)
    uses: dict[int, list[Use]] = field(default_factory=lambda: defaultdict(list))
    inner: dict[int, range] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    effects: dict[int, int] = field(default_factory=dict)
    up: dict[int, bytes] = field(default_factory=dict)
    down: dict[int, bytes] = field(default_factory=dict)


def flat(graph: Graph) -> Flat:
    found = Flat(graph)
    values = {v: b"input %d" % i for i, v in enumerate(graph.body.inputs)}
    _collect(found, graph.body, values)
    for i, value in enumerate(graph.body.outputs):
        if isinstance(value, int) and value in found.made:
            found.uses[found.made[value][0]].append((-1, f"return {i}", _output(found, value)))
    for at in range(len(found.nodes) - 1, -1, -1):
        found.down[at] = _hash(
            sorted(
                f"{place} {out} {own(found.nodes[by]) if by >= 0 else ''}".encode() + found.down.get(by, b"")
                for by, place, out in found.uses[at]
            )
        )
    return found


def _output(found: Flat, value: int) -> int:
    return int(found.made[value][1].rpartition(" ")[2])


def _collect(found: Flat, block: Block, values: dict[int, bytes]) -> None:
    seen = versions(block)
    effects = 0
    for node in block.nodes:
        at = len(found.nodes)
        found.nodes.append(node)
        found.versions[at] = seen.get(id(node), -1)
        effects += node.effect
        found.effects[at] = effects if node.effect else 0
        for i, value in enumerate(node.inputs):
            if isinstance(value, int) and value in found.made:
                found.uses[found.made[value][0]].append((at, f"argument {i}", _output(found, value)))
        taken = _hash([label(node).encode(), b"%d" % found.versions[at], *(_text(i, values) for i in node.inputs)])
        inner: list[bytes] = []
        for j, one in enumerate(node.blocks):
            for i, value in enumerate(one.inputs):
                found.made[value] = (at, f"inner {j} {i}")
                values[value] = taken + b"inner %d %d" % (j, i)
            first = len(found.nodes)
            _collect(found, one, values)
            inner += sorted(found.up[i] for i in range(first, len(found.nodes)))
            for i, value in enumerate(one.outputs):
                inner.append(_text(value, values))
                if isinstance(value, int) and value in found.made:
                    found.uses[found.made[value][0]].append((at, f"inner {j} gives {i}", _output(found, value)))
        found.inner[at] = range(at + 1, len(found.nodes))
        found.up[at] = _hash([taken, *inner])
        for i, value in enumerate(node.outputs):
            found.made[value] = (at, f"output {i}")
            values[value] = found.up[at] + b"output %d" % i


def _hash(parts: Iterable[bytes]) -> bytes:
    return hashlib.sha256(b"\0".join(parts)).digest()


def _text(value: Input, values: dict[int, bytes]) -> bytes:
    return values[value] if isinstance(value, int) else constant(value).encode()


def constant(value: Literal | Held) -> str:
    return value.text if isinstance(value, Literal) else held(value)


def own(node: Node) -> str:
    """All that a node is by itself: its operator, and the constants among its arguments, each at its place."""
    given = [f"{i}={constant(v)}" for i, v in enumerate(node.inputs) if not isinstance(v, int)]
    return f"{label(node)} {' '.join(given)}"


def matched(one: Flat, other: Flat) -> dict[int, int]:
    """Nodes of ``one`` to nodes of ``other``."""
    pairs = _Pairs(one, other)
    rounds: list[Callable[[Flat, int], Hashable]] = [
        lambda f, at: (f.up[at], f.down[at]),
        lambda f, at: f.up[at],
        lambda f, at: (f.down[at], own(f.nodes[at])),
        lambda f, at: (f.down[at], f.nodes[at].kind),
    ]
    for key in rounds:
        pairs.by(key)
    pairs.spread(same_kind=True)
    # What is left and looks alike, wherever it stands.
    pairs.by(lambda f, at: (own(f.nodes[at]), f.nodes[at].origin.module))
    pairs.spread(same_kind=True)
    pairs.spread(same_kind=False)
    pairs.by(lambda f, at: own(f.nodes[at]))
    return pairs.found


class _Pairs:
    def __init__(self, one: Flat, other: Flat) -> None:
        self.one, self.other = one, other
        self.found: dict[int, int] = {}
        self._taken: set[int] = set()
        self._fresh: list[tuple[int, int]] = []

    def add(self, a: int, b: int) -> bool:
        if a in self.found or b in self._taken:
            return False
        self.found[a] = b
        self._taken.add(b)
        self._fresh.append((a, b))
        return True

    def by(self, key: Callable[[Flat, int], Hashable]) -> None:
        """Pair what has one key, in order; those of one submodule first."""
        left: dict[Hashable, dict[int, str]] = defaultdict(dict)
        for b in reversed(range(len(self.other.nodes))):
            if b not in self._taken:
                left[key(self.other, b)][b] = self.other.nodes[b].origin.module
        keys = {a: key(self.one, a) for a in range(len(self.one.nodes)) if a not in self.found}
        modules: dict[Hashable, list[int]] = defaultdict(list)
        for found, group in left.items():
            for b, module in group.items():
                modules[found, module].append(b)
        for a, found in keys.items():
            same = modules.get((found, self.one.nodes[a].origin.module))
            if same and self.add(a, b := same.pop()):
                del left[found][b]
        for a, found in keys.items():
            if a not in self.found and left.get(found):
                b, _ = left[found].popitem()
                self.add(a, b)

    def spread(self, *, same_kind: bool) -> None:
        """Pair the producers of one argument, and the only users of one output, of nodes that are paired, and so on."""
        todo = list(self.found.items())
        while True:
            self._fresh = []
            self._neighbours(todo, same_kind)
            if not self._fresh:
                return
            todo = self._fresh

    def _neighbours(self, todo: Sequence[tuple[int, int]], same_kind: bool) -> None:
        for a, b in todo:
            x, y = self.one.nodes[a], self.other.nodes[b]
            for v, w in zip(x.inputs, y.inputs, strict=False):
                self._maybe(self._maker(self.one, v), self._maker(self.other, w), same_kind)
            for p, q in zip(x.blocks, y.blocks, strict=False):
                for v, w in zip(p.outputs, q.outputs, strict=False):
                    self._maybe(self._maker(self.one, v), self._maker(self.other, w), same_kind)
            users, others = self._users(self.one, a, self.found), self._users(self.other, b, self._taken)
            for use, (user,) in ((u, n) for u, n in users.items() if len(n) == 1):
                if len(others.get(use, ())) == 1:
                    self._maybe(user, others[use][0], same_kind)
        for v, w in zip(self.one.graph.body.outputs, self.other.graph.body.outputs, strict=False):
            self._maybe(self._maker(self.one, v), self._maker(self.other, w), same_kind)

    def _maker(self, of: Flat, value: Input) -> int | None:
        return of.made[value][0] if isinstance(value, int) and value in of.made else None

    def _users(self, of: Flat, at: int, taken: Iterable[int]) -> dict[tuple[str, int], list[int]]:
        known = taken if isinstance(taken, (set, dict)) else set(taken)
        found: dict[tuple[str, int], list[int]] = defaultdict(list)
        for by, place, out in of.uses[at]:
            if by >= 0 and by not in known:
                found[place, out].append(by)
        return found

    def _maybe(self, a: int | None, b: int | None, same_kind: bool) -> None:
        if a is None or b is None:
            return
        x, y = self.one.nodes[a], self.other.nodes[b]
        alike = x.kind == y.kind if same_kind else len(x.outputs) == len(y.outputs) and len(x.blocks) == len(y.blocks)
        if alike:
            self.add(a, b)
