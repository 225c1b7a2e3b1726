"""Canonical text of saved graphs, which holds what is computed and nothing else, and its sha256.

It leaves out names of values, nodes, submodules and classes, the order of independent nodes, the numbering of
constants, source lines and torch's own formatting. It holds operators with their overloads, the types, shapes and bytes
of constants, arguments and their order, and the order of effects.

A graph is acyclic, with ordered roots (its effects, then its outputs) and ordered edges, so a walk from the roots along
the edges meets its nodes in an order that depends on nothing else. Nodes that no root reaches come last, by the hash of
what they compute (Merkle, CRYPTO '87: a hash over an operation and the hashes of its inputs)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

from exporter.common.recursion import with_deep_recursion
from exporter.graph.loop_value_order import canonicalize_loop_values
from exporter.saved_code.ir import (
    Block,
    Graph,
    Input,
    Literal,
    Node,
    SavedGraphs,
    TensorConstant,
    count_prior_writes,
    find_free_values,
    replace_fields,
    select_values,
)

# The node that gives each value, and the values that each node needs, by its id.
Producers = Mapping[int, Node]
Needed = Mapping[int, list[int]]


@with_deep_recursion
def format_canonical_text(saved: SavedGraphs) -> str:
    """Return one section per method, sorted by name, then a table of tensors numbered as they are first met."""
    constants = _Constants()
    sections = [_format_section(canonicalize_order(saved.graphs[name]), constants) for name in sorted(saved.graphs)]
    return "\n".join([*sections, constants.format_table()])


@with_deep_recursion
def format_method(graph: Graph) -> str:
    """Return the text of one method alone: how many tensors it holds and where, not which ones."""
    return _format_section(canonicalize_order(graph), _Constants())


def hash_graph_text(text: str) -> str:
    """Return the sha256 of a canonical text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def canonicalize_order(graph: Graph) -> Graph:
    """Return the same graph with its nodes in canonical order and its values numbered in that order."""
    body, _ = _number_block(_sort_block(canonicalize_loop_values(graph).body), {}, 0)
    return replace_fields(graph, body=body)


def _sort_block(block: Block) -> Block:
    """Sort inner blocks first: a node needs the outer values that they read, in the order in which they do."""
    nodes = [replace_fields(n, blocks=tuple(map(_sort_block, n.blocks))) if n.blocks else n for n in block.nodes]
    block = replace_fields(block, nodes=tuple(nodes))
    producers = {value: node for node in nodes for value in node.outputs}
    needed = {id(node): _list_needed_values(node) for node in nodes}
    levels = _compute_levels(nodes, producers, needed)
    positions: dict[int, int] = {}
    for root in _iterate_roots(block, producers):
        for node in _visit_dependencies(root, producers, needed, positions):
            positions[id(node)] = len(positions)
    return replace_fields(block, nodes=tuple(sorted(nodes, key=lambda n: (levels[id(n)], positions[id(n)]))))


def _compute_levels(nodes: list[Node], producers: Producers, needed: Needed) -> dict[int, int]:
    """Return levels by node id: effects keep their order; a memory read stays between the writes around it."""
    levels: dict[int, int] = {}
    last_writes: dict[int | str, int] = {}
    effects = 0
    for node in nodes:
        if node.effect:
            effects += 1
            levels[id(node)] = 2 * effects - 1
        else:
            levels[id(node)] = max((levels[id(producers[v])] for v in needed[id(node)] if v in producers), default=0)
            levels[id(node)] = max([levels[id(node)], *(last_writes.get(m, -1) + 1 for m in node.reads)])
        last_writes.update(dict.fromkeys(node.writes, levels[id(node)]))
    return levels


def _iterate_roots(block: Block, producers: Mapping[int, Node]) -> Iterator[Node]:
    yield from (node for node in block.nodes if node.effect)
    yield from (producers[v] for v in select_values(block.outputs) if v in producers)
    used = {v for node in block.nodes for v in _list_needed_values(node)} | set(select_values(block.outputs))
    dead = [n for n in block.nodes if not n.effect and not used & set(n.outputs)]
    if dead:
        hashes = hash_nodes(block)
        yield from sorted(dead, key=lambda n: hashes[id(n)])


def _number_block(block: Block, names: Mapping[int, int], count: int) -> tuple[Block, int]:
    """Return the block renumbered from ``count`` on; ``names`` are the new numbers of outer values."""
    inputs = tuple(range(count, count + len(block.inputs)))
    new = {**names, **dict(zip(block.inputs, inputs, strict=True))}
    count += len(inputs)
    nodes = []
    for node in block.nodes:
        blocks = []
        for inner in node.blocks:
            renumbered_block, count = _number_block(inner, new, count)
            blocks.append(renumbered_block)
        outputs = tuple(range(count, count + len(node.outputs)))
        count += len(outputs)
        node_inputs = tuple(_renumber(i, new) for i in node.inputs)
        new.update(zip(node.outputs, outputs, strict=True))
        nodes.append(replace_fields(node, inputs=node_inputs, outputs=outputs, blocks=tuple(blocks)))
    return Block(inputs, tuple(nodes), tuple(_renumber(i, new) for i in block.outputs)), count


def _list_needed_values(node: Node) -> list[int]:
    return [*select_values(node.inputs), *(v for block in node.blocks for v in find_free_values(block))]


def _visit_dependencies(root: Node, producers: Producers, needed: Needed, positions: dict[int, int]) -> Iterator[Node]:
    """Yield nodes that the root needs and that have no position yet, dependencies first: a walk in post-order."""
    todo: list[tuple[Node, Iterator[int]]] = [(root, iter(needed[id(root)]))]
    waiting = {id(root)}
    while todo:
        node, rest = todo[-1]
        if id(node) in positions:
            todo.pop()
            continue
        for value in rest:
            producer = producers.get(value)
            if producer is not None and id(producer) not in positions and id(producer) not in waiting:
                todo.append((producer, iter(needed[id(producer)])))
                waiting.add(id(producer))
                break
        else:
            todo.pop()
            yield node


def _renumber(value: Input, names: Mapping[int, int]) -> Input:
    return names[value] if isinstance(value, int) else value


def hash_nodes(block: Block, outside: Mapping[int, bytes] | None = None) -> dict[int, bytes]:
    """Return by ``id`` of each node of the block a hash of what it computes. ``outside``: hashes of the values around
    it; a value without one is only known to come from there."""
    values = {v: b"outside" for node in block.nodes for v in _list_needed_values(node)}
    values.update(dict.fromkeys(select_values(block.outputs), b"outside"))
    values.update(outside or {})
    values.update({v: b"input %d" % i for i, v in enumerate(block.inputs)})
    write_counts = count_prior_writes(block)
    hashes: dict[int, bytes] = {}
    for node in block.nodes:
        state = hashlib.sha256(format_label(node).encode())
        state.update(b"@%d" % write_counts.get(id(node), -1))
        for value in node.inputs:
            state.update(_encode_input(value, values))
        for inner in node.blocks:
            state.update(hash_block(inner, values))
        digest = hashes[id(node)] = state.digest()
        values.update({v: digest + b"%d" % i for i, v in enumerate(node.outputs)})
    return hashes


def hash_block(block: Block, outside: Mapping[int, bytes]) -> bytes:
    """Return a hash of what a block computes; ``outside``: hashes of the values around it."""
    values = dict(outside)
    hashes = hash_nodes(block, values)
    values.update({v: b"input %d" % i for i, v in enumerate(block.inputs)})
    values.update({v: hashes[id(n)] + b"%d" % i for n in block.nodes for i, v in enumerate(n.outputs)})
    state = hashlib.sha256(b"".join(sorted(hashes.values())))
    for value in block.outputs:
        state.update(_encode_input(value, values))
    return state.digest()


def _encode_input(value: Input, values: Mapping[int, bytes]) -> bytes:
    if isinstance(value, int):
        return b"%" + values[value]
    is_tensor = isinstance(value, TensorConstant)
    return (f"{value.name} {value.kind()} {value.digest}" if is_tensor else value.text).encode()


def format_label(node: Node) -> str:
    """Return the text of a node apart from its inputs."""
    return f"{node.operator} {len(node.inputs)} -> {', '.join(node.types)}"


class _Constants:
    """Numbers for tensors as they are met; equal ones share a number unless they can be set."""

    def __init__(self) -> None:
        self._names: dict[TensorConstant, str] = {}

    def get_name(self, tensor: TensorConstant) -> str:
        count = len(self._names)
        return self._names.setdefault(tensor, f"${tensor.name or count}")

    def format_table(self) -> str:
        rows = [f"{name} : {tensor.kind()} sha256 {tensor.digest}" for tensor, name in self._names.items()]
        return "\n".join(["# tensors", *rows, ""])


def _format_section(graph: Graph, constants: _Constants) -> str:
    arguments = ", ".join(f"%{v} : {t}" for v, t in zip(graph.body.inputs, graph.types, strict=True))
    lines = [f"# {graph.method}({arguments})", *_format_lines(graph.body, constants, "")]
    return "\n".join(lines) + "\n"


def _format_lines(block: Block, constants: _Constants, indent: str) -> Iterable[str]:
    write_counts = count_prior_writes(block)
    for node in block.nodes:
        arguments = ", ".join(format_input(i, constants.get_name) for i in node.inputs)
        results = ", ".join(f"%{v} : {t}" for v, t in zip(node.outputs, node.types, strict=True))
        # The number of earlier writes to the memory that it reads.
        state = f" @{write_counts[id(node)]}" if node.reads else ""
        effect = " !" if node.effect else ""
        yield f"{indent}{results}{' = ' if results else ''}{node.operator}({arguments}){state}{effect}"
        for inner in node.blocks:
            yield f"{indent}  ({', '.join(f'%{v}' for v in inner.inputs)})"
            yield from _format_lines(inner, constants, indent + "  ")
    yield f"{indent}-> {', '.join(format_input(i, constants.get_name) for i in block.outputs)}"


def format_input(value: Input, format_tensor) -> str:
    """Return the text of one input; ``format_tensor`` formats tensor constants."""
    if isinstance(value, int):
        return f"%{value}"
    return value.text if isinstance(value, Literal) else format_tensor(value)
