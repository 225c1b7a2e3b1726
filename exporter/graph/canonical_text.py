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

from exporter.graph.ir import Block, Graph, Held, Input, Literal, Node, free_values, values_of, versions
from exporter.graph.loop_value_order import settled
from exporter.graph.reader import Saved
from exporter.graph.recursion import deep


@deep
def canonical_text(saved: Saved) -> str:
    """One section a method, sorted by name, then a table of the tensors, numbered as they are first met."""
    constants = _Constants()
    sections = [_method(ordered(saved.graphs[name]), constants) for name in sorted(saved.graphs)]
    return "\n".join([*sections, constants.table()])


@deep
def method_text(graph: Graph) -> str:
    """One method by itself: how many tensors it holds and where, not which."""
    return _method(ordered(graph), _Constants())


def graph_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def ordered(graph: Graph) -> Graph:
    """The same graph with its nodes in canonical order and its values numbered in it."""
    body, _ = _numbered(_sorted(settled(graph).body), {}, 0)
    return dataclasses.replace(graph, body=body)


def _sorted(block: Block) -> Block:
    """Inner blocks first: what they read of outside, and in which order, is what their node needs."""
    nodes = [dataclasses.replace(n, blocks=tuple(map(_sorted, n.blocks))) if n.blocks else n for n in block.nodes]
    block = dataclasses.replace(block, nodes=tuple(nodes))
    made = {value: node for node in nodes for value in node.outputs}
    needed = {id(node): _needs(node) for node in nodes}
    levels = _levels(nodes, made, needed)
    place: dict[int, int] = {}
    for root in _roots(block, made):
        for node in _reached(root, made, needed, place):
            place[id(node)] = len(place)
    return dataclasses.replace(block, nodes=tuple(sorted(nodes, key=lambda n: (levels[id(n)], place[id(n)]))))


def _levels(nodes: list[Node], made: Mapping[int, Node], needed: Mapping[int, list[int]]) -> dict[int, int]:
    """Effects keep their order; what reads memory stands behind the last write to it and before the next."""
    levels: dict[int, int] = {}
    last: dict[int | str, int] = {}
    effects = 0
    for node in nodes:
        if node.effect:
            effects += 1
            levels[id(node)] = 2 * effects - 1
        else:
            levels[id(node)] = max((levels[id(made[v])] for v in needed[id(node)] if v in made), default=0)
            levels[id(node)] = max([levels[id(node)], *(last.get(m, -1) + 1 for m in node.reads)])
        last.update(dict.fromkeys(node.writes, levels[id(node)]))
    return levels


def _roots(block: Block, made: Mapping[int, Node]) -> Iterator[Node]:
    yield from (node for node in block.nodes if node.effect)
    yield from (made[v] for v in values_of(block.outputs) if v in made)
    used = {v for node in block.nodes for v in _needs(node)} | set(values_of(block.outputs))
    dead = [n for n in block.nodes if not n.effect and not used & set(n.outputs)]
    if dead:
        hashes = node_hashes(block)
        yield from sorted(dead, key=lambda n: hashes[id(n)])


def _numbered(block: Block, names: Mapping[int, int], count: int) -> tuple[Block, int]:
    """``names``: the new number of each value of outside."""
    inputs = tuple(range(count, count + len(block.inputs)))
    new = {**names, **dict(zip(block.inputs, inputs, strict=True))}
    count += len(inputs)
    nodes = []
    for node in block.nodes:
        blocks = []
        for inner in node.blocks:
            one, count = _numbered(inner, new, count)
            blocks.append(one)
        outputs = tuple(range(count, count + len(node.outputs)))
        count += len(outputs)
        taken = tuple(_renumbered(i, new) for i in node.inputs)
        new.update(zip(node.outputs, outputs, strict=True))
        nodes.append(dataclasses.replace(node, inputs=taken, outputs=outputs, blocks=tuple(blocks)))
    return Block(inputs, tuple(nodes), tuple(_renumbered(i, new) for i in block.outputs)), count


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
    """By ``id`` of each node of the block: a hash of what it computes. ``outside``: those of the values around it; what
    is not known there is only known to be from there."""
    values = {v: b"outside" for node in block.nodes for v in _needs(node)}
    values.update(dict.fromkeys(values_of(block.outputs), b"outside"))
    values.update(outside or {})
    values.update({v: b"input %d" % i for i, v in enumerate(block.inputs)})
    seen = versions(block)
    found: dict[int, bytes] = {}
    for node in block.nodes:
        state = hashlib.sha256(label(node).encode())
        state.update(b"@%d" % seen.get(id(node), -1))
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
    seen = versions(block)
    for node in block.nodes:
        taken = ", ".join(input_text(i, constants.text) for i in node.inputs)
        given = ", ".join(f"%{v} : {t}" for v, t in zip(node.outputs, node.types, strict=True))
        # How often what it reads was written to before.
        state = f" @{seen[id(node)]}" if node.reads else ""
        yield f"{indent}{given}{' = ' if given else ''}{node.operator}({taken}){state}{' !' if node.effect else ''}"
        for inner in node.blocks:
            yield f"{indent}  ({', '.join(f'%{v}' for v in inner.inputs)})"
            yield from _lines(inner, constants, indent + "  ")
    yield f"{indent}-> {', '.join(input_text(i, constants.text) for i in block.outputs)}"


def input_text(value: Input, of_tensor) -> str:
    if isinstance(value, int):
        return f"%{value}"
    return value.text if isinstance(value, Literal) else of_tensor(value)
