"""The text of saved graphs that says what is computed and nothing else, and its sha256.

Names of values, nodes, submodules and classes, the order in which independent nodes stand, how constants are numbered,
source lines and torch's own formatting are not in it. Operators with their overloads, the types, shapes and bytes of
constants, arguments and their order, and the order of effects are.

A graph is acyclic, with ordered roots (its effects, then its outputs) and ordered edges, so a walk from the roots along
the edges meets its nodes in an order that depends on nothing else. Nodes that no root reaches come last, by the hash of
what they compute (Merkle, CRYPTO '87: a hash over an operation and the hashes of its inputs).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping

from exporter.graph.read import Saved
from exporter.graph.values import Block, Graph, Held, Input, Literal, Node, free_values, values_of


def canonical_text(saved: Saved) -> str:
    """One section a method, sorted by name, then a table of the tensors, numbered as they are first met."""
    constants = _Constants()
    sections = [_method(ordered(saved.graphs[name]), constants) for name in sorted(saved.graphs)]
    return "\n".join([*sections, constants.table()])


def method_text(graph: Graph) -> str:
    """One method by itself: how many tensors it holds and where, not which."""
    return _method(ordered(graph), _Constants())


def graph_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def ordered(graph: Graph) -> Graph:
    """The same graph with its nodes in canonical order and its values numbered in it."""
    body, _ = _Order(graph.body).sorted(graph.body, {}, 0)
    return dataclasses.replace(graph, body=body)


class _Order:
    """Sorts blocks. ``_hashes``: of the values of all blocks, by number."""

    def __init__(self, body: Block) -> None:
        self._hashes: dict[int, bytes] = {}
        self._nodes: dict[Node, bytes] = {}

    def sorted(self, block: Block, names: Mapping[int, int], count: int) -> tuple[Block, int]:
        """``names``: the new number of each value of outside."""
        made = {value: node for node in block.nodes for value in node.outputs}
        versions = _versions(block)
        needed = {id(node): _needs(node) for node in block.nodes}
        levels: dict[int, int] = {}
        for node in block.nodes:
            own = versions[id(node)]
            before = max((levels[id(made[v])] for v in needed[id(node)] if v in made), default=0)
            # A write stands behind what reads the memory that it changes, and before what reads it later.
            levels[id(node)] = 2 * own + 1 if node.effect else max(2 * own if node.touches else 0, before)
        place: dict[int, int] = {}
        for root in self._roots(block, made, versions):
            for node in _reached(root, made, needed, place):
                place[id(node)] = len(place)
        new = dict(names)
        inputs = tuple(range(count, count + len(block.inputs)))
        new.update(zip(block.inputs, inputs, strict=True))
        count += len(inputs)
        nodes = []
        for node in sorted(block.nodes, key=lambda n: (levels[id(n)], place[id(n)])):
            blocks = []
            for inner in node.blocks:
                one, count = self.sorted(inner, new, count)
                blocks.append(one)
            outputs = tuple(range(count, count + len(node.outputs)))
            count += len(outputs)
            taken = tuple(_renumbered(i, new) for i in node.inputs)
            new.update(zip(node.outputs, outputs, strict=True))
            nodes.append(dataclasses.replace(node, inputs=taken, outputs=outputs, blocks=tuple(blocks)))
        returned = tuple(_renumbered(i, new) for i in block.outputs)
        return Block(inputs, tuple(nodes), returned), count

    def _roots(self, block: Block, made: Mapping[int, Node], versions: Mapping[int, int]) -> Iterator[Node]:
        yield from (node for node in block.nodes if node.effect)
        yield from (made[v] for v in values_of(block.outputs) if v in made)
        used = {v for node in block.nodes for v in _needs(node)} | set(values_of(block.outputs))
        dead = [n for n in block.nodes if not n.effect and not used & set(n.outputs)]
        if dead:
            hashes = node_hashes(block)
            yield from sorted(dead, key=lambda n: hashes[id(n)])


def _versions(block: Block) -> dict[int, int]:
    """How many effects stand before each node."""
    found, count = {}, 0
    for node in block.nodes:
        found[id(node)] = count
        count += node.effect
    return found


def _needs(node: Node) -> list[int]:
    return [*values_of(node.inputs), *(v for block in node.blocks for v in free_values(block))]


def _reached(
    root: Node, made: Mapping[int, Node], needed: Mapping[int, list[int]], place: Mapping[int, int]
) -> Iterator[Node]:
    """Nodes that the root needs and that have no place yet, each behind what it needs: a walk in post-order."""
    todo: list[tuple[Node, Iterator[int]]] = [(root, iter(needed[id(root)]))]
    waiting = {id(root)}
    while todo:
        node, rest = todo[-1]
        if id(node) in place:
            todo.pop()
            continue
        for value in rest:
            before = made.get(value)
            if before is not None and id(before) not in place and id(before) not in waiting:
                todo.append((before, iter(needed[id(before)])))
                waiting.add(id(before))
                break
        else:
            todo.pop()
            yield node


def _renumbered(value: Input, names: Mapping[int, int]) -> Input:
    return names[value] if isinstance(value, int) else value


def node_hashes(block: Block, outside: Mapping[int, bytes] | None = None) -> dict[int, bytes]:
    """By ``id`` of each node of the block: a hash of what it computes from the inputs of the block."""
    values = dict(outside or {})
    values.update({v: b"input %d" % i for i, v in enumerate(block.inputs)})
    versions = _versions(block)
    found: dict[int, bytes] = {}
    for node in block.nodes:
        state = hashlib.sha256(label(node).encode())
        if node.effect or node.touches:
            state.update(b"@%d" % versions[id(node)])
        for value in node.inputs:
            state.update(_hash_of(value, values))
        for inner in node.blocks:
            state.update(block_hash(inner, values))
        digest = found[id(node)] = state.digest()
        values.update({v: digest + b"%d" % i for i, v in enumerate(node.outputs)})
    return found


def block_hash(block: Block, outside: Mapping[int, bytes]) -> bytes:
    values = dict(outside)
    hashes = node_hashes(block, values)
    values.update({v: b"input %d" % i for i, v in enumerate(block.inputs)})
    values.update({v: hashes[id(n)] + b"%d" % i for n in block.nodes for i, v in enumerate(n.outputs)})
    state = hashlib.sha256(b"".join(sorted(hashes.values())))
    for value in block.outputs:
        state.update(_hash_of(value, values))
    return state.digest()


def _hash_of(value: Input, values: Mapping[int, bytes]) -> bytes:
    if isinstance(value, int):
        return b"%" + values[value]
    return f"{value.name} {value.kind()} {value.digest}".encode() if isinstance(value, Held) else value.text.encode()


def label(node: Node) -> str:
    """What a node is apart from what it is given."""
    return f"{node.operator} {len(node.inputs)} -> {', '.join(node.types)}"


class _Constants:
    """Numbers tensors as they are met; equal ones are one unless they can be set."""

    def __init__(self) -> None:
        self._found: dict[Held, str] = {}

    def text(self, held: Held) -> str:
        count = len(self._found)
        return self._found.setdefault(held, f"${held.name or count}")

    def table(self) -> str:
        rows = [f"{text} : {h.kind()} sha256 {h.digest}" for h, text in self._found.items()]
        return "\n".join(["# tensors", *rows, ""])


def _method(graph: Graph, constants: _Constants) -> str:
    taken = ", ".join(f"%{v} : {t}" for v, t in zip(graph.body.inputs, graph.types, strict=True))
    lines = [f"# {graph.method}({taken})", *_lines(graph.body, constants, "")]
    return "\n".join(lines) + "\n"


def _lines(block: Block, constants: _Constants, indent: str) -> Iterable[str]:
    version = 0
    for node in block.nodes:
        taken = ", ".join(input_text(i, constants.text) for i in node.inputs)
        given = ", ".join(f"%{v} : {t}" for v, t in zip(node.outputs, node.types, strict=True))
        # Which state of the memory it finds, and whether it leaves another.
        state = f" @{version}" if node.touches or node.effect else ""
        yield f"{indent}{given}{' = ' if given else ''}{node.operator}({taken}){state}{'!' if node.effect else ''}"
        version += node.effect
        for inner in node.blocks:
            yield f"{indent}  ({', '.join(f'%{v}' for v in inner.inputs)})"
            yield from _lines(inner, constants, indent + "  ")
    yield f"{indent}-> {', '.join(input_text(i, constants.text) for i in block.outputs)}"


def input_text(value: Input, of_tensor) -> str:
    if isinstance(value, int):
        return f"%{value}"
    return value.text if isinstance(value, Literal) else of_tensor(value)
