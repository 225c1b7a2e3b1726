"""Matching of the nodes of two graphs.

In rounds, each over what the earlier ones left: nodes that compute the same from the inputs and are used alike; that
compute the same (as before a change); that are used alike (as after it); then neighbours of matched nodes, at the same
argument. By hashes of subtrees, as trees are differenced: Chawathe et al., "Change detection in hierarchically
structured information", SIGMOD '96."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from exporter.graph.canonical_text import format_label
from exporter.graph.loop_value_order import format_tensor as held
from exporter.saved_code.ir import Block, Graph, Input, Literal, Node, TensorConstant, count_prior_writes

# A use of a value: the user, the argument, the output.
Use = tuple[int, str, int]


@dataclass
class FlatGraph:
    """The nodes of a graph, including those of inner blocks, numbered in their order.

    ``producers``: for each value its node and which of the node's outputs (or inner inputs) it is; values without one
    are inputs of the graph. ``versions``: the number of earlier writes to what a node reads; ``effects``: its number
    among the effects of its block, from 1 on. ``upstream``: a hash of what a node computes; ``downstream``: of how it
    is used."""

    graph: Graph
    nodes: list[Node] = field(default_factory=list)
    producers: dict[int, tuple[int, str]] = field(default_factory=dict)
    uses: dict[int, list[Use]] = field(default_factory=lambda: defaultdict(list))
    inner: dict[int, range] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    effects: dict[int, int] = field(default_factory=dict)
    upstream: dict[int, bytes] = field(default_factory=dict)
    downstream: dict[int, bytes] = field(default_factory=dict)

    def add_use(self, value: Input, user: int, slot: str) -> None:
        """Record that a node, or the end of the graph (-1), uses a value, if a node gives it."""
        if isinstance(value, int) and value in self.producers:
            producer, output = self.producers[value]
            self.uses[producer].append((user, slot, int(output.rpartition(" ")[2])))


def flatten_graph(graph: Graph) -> FlatGraph:
    """Return the graph as numbered nodes with hashes of what they compute and of how they are used."""
    flat_graph = FlatGraph(graph)
    values = {v: b"input %d" % i for i, v in enumerate(graph.body.inputs)}
    _collect(flat_graph, graph.body, values)
    for i, value in enumerate(graph.body.outputs):
        flat_graph.add_use(value, -1, f"return {i}")
    for index in range(len(flat_graph.nodes) - 1, -1, -1):
        users = []
        for user, slot, output in flat_graph.uses[index]:
            text = f"{slot} {output} {describe_node(flat_graph.nodes[user]) if user >= 0 else ''}"
            users.append(text.encode() + flat_graph.downstream.get(user, b""))
        flat_graph.downstream[index] = _hash(sorted(users))
    return flat_graph


def _collect(flat_graph: FlatGraph, block: Block, values: dict[int, bytes]) -> None:
    write_counts = count_prior_writes(block)
    effects = 0
    for node in block.nodes:
        index = len(flat_graph.nodes)
        flat_graph.nodes.append(node)
        flat_graph.versions[index] = write_counts.get(id(node), -1)
        effects += node.effect
        flat_graph.effects[index] = effects if node.effect else 0
        for i, value in enumerate(node.inputs):
            flat_graph.add_use(value, index, f"argument {i}")
        inputs = [_encode_input(i, values) for i in node.inputs]
        node_hash = _hash([format_label(node).encode(), b"%d" % flat_graph.versions[index], *inputs])
        inner: list[bytes] = []
        for j, body in enumerate(node.blocks):
            for i, value in enumerate(body.inputs):
                flat_graph.producers[value] = (index, f"inner {j} {i}")
                values[value] = node_hash + b"inner %d %d" % (j, i)
            first = len(flat_graph.nodes)
            _collect(flat_graph, body, values)
            inner += sorted(flat_graph.upstream[i] for i in range(first, len(flat_graph.nodes)))
            for i, value in enumerate(body.outputs):
                inner.append(_encode_input(value, values))
                flat_graph.add_use(value, index, f"inner {j} gives {i}")
        flat_graph.inner[index] = range(index + 1, len(flat_graph.nodes))
        flat_graph.upstream[index] = _hash([node_hash, *inner])
        for i, value in enumerate(node.outputs):
            flat_graph.producers[value] = (index, f"output {i}")
            values[value] = flat_graph.upstream[index] + b"output %d" % i


def _hash(parts: Iterable[bytes]) -> bytes:
    return hashlib.sha256(b"\0".join(parts)).digest()


def _encode_input(value: Input, values: dict[int, bytes]) -> bytes:
    return values[value] if isinstance(value, int) else format_constant(value).encode()


def format_constant(value: Literal | TensorConstant) -> str:
    """Return the text of a constant."""
    return value.text if isinstance(value, Literal) else held(value)


def describe_node(node: Node) -> str:
    """Describe a node by itself: its operator, and the constants among its arguments, each at its position."""
    constants = [f"{i}={format_constant(v)}" for i, v in enumerate(node.inputs) if not isinstance(v, int)]
    return f"{format_label(node)} {' '.join(constants)}"


def match_nodes(old: FlatGraph, new: FlatGraph) -> dict[int, int]:
    """Return the matching of nodes of ``old`` to nodes of ``new``."""
    matching = _NodeMatching(old, new)
    rounds: list[Callable[[FlatGraph, int], Hashable]] = [
        lambda flat_graph, index: (flat_graph.upstream[index], flat_graph.downstream[index]),
        lambda flat_graph, index: flat_graph.upstream[index],
        lambda flat_graph, index: (flat_graph.downstream[index], describe_node(flat_graph.nodes[index])),
        lambda flat_graph, index: (flat_graph.downstream[index], flat_graph.nodes[index].kind),
    ]
    for key in rounds:
        matching.pair_by_key(key)
    matching.spread(same_kind=True)
    # Remaining nodes that look alike, wherever they stand.
    matching.pair_by_key(lambda graph, index: (describe_node(graph.nodes[index]), graph.nodes[index].origin.module))
    matching.spread(same_kind=True)
    matching.spread(same_kind=False)
    matching.pair_by_key(lambda flat_graph, index: describe_node(flat_graph.nodes[index]))
    return matching.pairs


class _NodeMatching:
    def __init__(self, old: FlatGraph, new: FlatGraph) -> None:
        self.old, self.new = old, new
        self.pairs: dict[int, int] = {}
        self._paired: set[int] = set()
        self._fresh: list[tuple[int, int]] = []

    def add(self, a: int, b: int) -> bool:
        if a in self.pairs or b in self._paired:
            return False
        self.pairs[a] = b
        self._paired.add(b)
        self._fresh.append((a, b))
        return True

    def pair_by_key(self, key: Callable[[FlatGraph, int], Hashable]) -> None:
        """Pair nodes with equal keys, in order; those of the same submodule first."""
        unmatched: dict[Hashable, dict[int, str]] = defaultdict(dict)
        for b in reversed(range(len(self.new.nodes))):
            if b not in self._paired:
                unmatched[key(self.new, b)][b] = self.new.nodes[b].origin.module
        keys = {a: key(self.old, a) for a in range(len(self.old.nodes)) if a not in self.pairs}
        modules: dict[Hashable, list[int]] = defaultdict(list)
        for node_key, group in unmatched.items():
            for b, module in group.items():
                modules[node_key, module].append(b)
        for a, node_key in keys.items():
            same = modules.get((node_key, self.old.nodes[a].origin.module))
            if same and self.add(a, b := same.pop()):
                del unmatched[node_key][b]
        for a, node_key in keys.items():
            if a not in self.pairs and unmatched.get(node_key):
                b, _ = unmatched[node_key].popitem()
                self.add(a, b)

    def spread(self, *, same_kind: bool) -> None:
        """Pair producers of the same argument and sole users of the same output of paired nodes, and so on."""
        todo = list(self.pairs.items())
        while True:
            self._fresh = []
            self._pair_neighbours(todo, same_kind)
            if not self._fresh:
                return
            todo = self._fresh

    def _pair_neighbours(self, todo: Sequence[tuple[int, int]], same_kind: bool) -> None:
        for a, b in todo:
            x, y = self.old.nodes[a], self.new.nodes[b]
            for v, w in zip(x.inputs, y.inputs, strict=False):
                self._pair_if_alike(self._find_producer(self.old, v), self._find_producer(self.new, w), same_kind)
            for p, q in zip(x.blocks, y.blocks, strict=False):
                for v, w in zip(p.outputs, q.outputs, strict=False):
                    self._pair_if_alike(self._find_producer(self.old, v), self._find_producer(self.new, w), same_kind)
            old_users = self._find_users(self.old, a, self.pairs)
            new_users = self._find_users(self.new, b, self._paired)
            for use, (user,) in ((u, n) for u, n in old_users.items() if len(n) == 1):
                if len(new_users.get(use, ())) == 1:
                    self._pair_if_alike(user, new_users[use][0], same_kind)
        for v, w in zip(self.old.graph.body.outputs, self.new.graph.body.outputs, strict=False):
            self._pair_if_alike(self._find_producer(self.old, v), self._find_producer(self.new, w), same_kind)

    def _find_producer(self, flat_graph: FlatGraph, value: Input) -> int | None:
        return flat_graph.producers[value][0] if isinstance(value, int) and value in flat_graph.producers else None

    def _find_users(self, flat_graph: FlatGraph, index: int, paired: Iterable[int]) -> dict[tuple[str, int], list[int]]:
        paired_nodes = paired if isinstance(paired, (set, dict)) else set(paired)
        users: dict[tuple[str, int], list[int]] = defaultdict(list)
        for user, slot, output in flat_graph.uses[index]:
            if user >= 0 and user not in paired_nodes:
                users[slot, output].append(user)
        return users

    def _pair_if_alike(self, a: int | None, b: int | None, same_kind: bool) -> None:
        if a is None or b is None:
            return
        x, y = self.old.nodes[a], self.new.nodes[b]
        is_alike = x.kind == y.kind
        if not same_kind:
            is_alike = len(x.outputs) == len(y.outputs) and len(x.blocks) == len(y.blocks)
        if is_alike:
            self.add(a, b)
