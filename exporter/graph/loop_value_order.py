"""What loops and branches carry, in an order of its own: TorchScript puts it in that of the variables' names.

Outputs of a branch, and the values that go round a loop, can be listed in any order. Here they are sorted by what they
are computed from; of those that are computed alike the order is kept.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

from exporter.graph.ir import Block, Graph, Held, Input, Literal, Node

LOOP, BRANCH = "prim::Loop", "prim::If"
Hashes = dict[int, bytes]


def settled(graph: Graph) -> Graph:
    hashes: Hashes = {v: b"input %d" % i for i, v in enumerate(graph.body.inputs)}
    return dataclasses.replace(graph, body=_block(graph.body, hashes))


def _block(block: Block, hashes: Hashes) -> Block:
    """``hashes`` of what is known already; those of the block's own values are added."""
    nodes = []
    for node in block.nodes:
        made = _node(node, hashes)
        own = _hash([_label(made), *(_of(v, hashes) for v in made.inputs), *(_inner(b, hashes) for b in made.blocks)])
        hashes.update({v: own + b"%d" % i for i, v in enumerate(made.outputs)})
        nodes.append(made)
    return dataclasses.replace(block, nodes=tuple(nodes))


def _node(node: Node, hashes: Hashes) -> Node:
    if node.kind == LOOP:
        return _loop(node, hashes)
    for j, inner in enumerate(node.blocks):
        # Of a graph of its own; a branch is given nothing.
        taken = [_label(node), *(_of(v, hashes) for v in node.inputs), b"%d" % j]
        hashes.update({v: _hash([*taken, b"%d" % i]) for i, v in enumerate(inner.inputs)})
    blocks = tuple(_block(inner, hashes) for inner in node.blocks)
    if node.kind != BRANCH:
        return dataclasses.replace(node, blocks=blocks)
    keys = [_hash([_of(b.outputs[i], hashes) for b in blocks]) for i in range(len(node.outputs))]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return dataclasses.replace(
        node,
        blocks=tuple(dataclasses.replace(b, outputs=_sorted(b.outputs, order)) for b in blocks),
        outputs=_sorted(node.outputs, order),
        types=_sorted(node.types, order),
    )


def _loop(node: Node, hashes: Hashes) -> Node:
    """Two rounds over the body: what a value is computed from may be a value that goes round itself."""
    (body,) = node.blocks
    count, condition, *given = node.inputs
    turn, *carried = body.inputs
    keys = [_hash([b"carried", _of(v, hashes)]) for v in given]
    hashes[turn] = _hash([b"turn", _of(count, hashes), _of(condition, hashes)])
    inner = body
    for _ in range(2):
        hashes.update(zip(carried, keys, strict=True))
        inner = _block(body, hashes)
        keys = [_hash([key, _of(v, hashes)]) for key, v in zip(keys, inner.outputs[1:], strict=True)]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    block = Block((turn, *_sorted(carried, order)), inner.nodes, (inner.outputs[0], *_sorted(inner.outputs[1:], order)))
    return dataclasses.replace(
        node,
        inputs=(count, condition, *_sorted(given, order)),
        blocks=(block,),
        outputs=_sorted(node.outputs, order),
        types=_sorted(node.types, order),
    )


def _sorted(values: Sequence, order: Sequence[int]) -> tuple:
    return tuple(values[i] for i in order)


def _inner(block: Block, hashes: Hashes) -> bytes:
    """Of a block whose values are in ``hashes``: what it computes, in no order, and what it gives."""
    made = sorted(hashes[v] for node in block.nodes for v in node.outputs)
    return _hash([*made, *(_of(v, hashes) for v in block.outputs)])


def _label(node: Node) -> bytes:
    return f"{node.operator} {', '.join(node.types)}".encode()


def _of(value: Input, hashes: Hashes) -> bytes:
    if isinstance(value, int):
        return hashes[value]
    return value.text.encode() if isinstance(value, Literal) else constant(value).encode()


def constant(held: Held) -> str:
    return f"{held.name} {held.kind()} {held.digest}"


def _hash(parts: Sequence[bytes]) -> bytes:
    return hashlib.sha256(b"\0".join(parts)).digest()
