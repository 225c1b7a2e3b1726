"""Canonical order of values carried by loops and branches: TorchScript orders them by the variables' names.

Outputs of a branch, and the values that go round a loop, can be listed in any order. Here they are sorted by what they
are computed from; values computed alike keep their order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from exporter.saved_code.ir import Block, Graph, Input, Literal, Node, TensorConstant, replace_fields

LOOP, BRANCH = "prim::Loop", "prim::If"
Hashes = dict[int, bytes]


def canonicalize_loop_values(graph: Graph) -> Graph:
    """Return the graph with the carried values of its loops and branches in canonical order."""
    hashes: Hashes = {v: b"input %d" % i for i, v in enumerate(graph.body.inputs)}
    return replace_fields(graph, body=_sort_block(graph.body, hashes))


def _sort_block(block: Block, hashes: Hashes) -> Block:
    """Sort a block; ``hashes`` are those of known values, and get those of the block's own."""
    nodes = []
    for node in block.nodes:
        sorted_node = _sort_node(node, hashes)
        inputs = [_encode_value(v, hashes) for v in sorted_node.inputs]
        inner = [_hash_block(b, hashes) for b in sorted_node.blocks]
        node_hash = _hash([_encode_label(sorted_node), *inputs, *inner])
        hashes.update({v: node_hash + b"%d" % i for i, v in enumerate(sorted_node.outputs)})
        nodes.append(sorted_node)
    return replace_fields(block, nodes=tuple(nodes))


def _sort_node(node: Node, hashes: Hashes) -> Node:
    if not node.blocks:
        return node
    if node.kind == LOOP:
        return _sort_loop(node, hashes)
    for j, inner in enumerate(node.blocks):
        # Inputs of a separate graph; a branch has none.
        node_parts = [_encode_label(node), *(_encode_value(v, hashes) for v in node.inputs), b"%d" % j]
        hashes.update({v: _hash([*node_parts, b"%d" % i]) for i, v in enumerate(inner.inputs)})
    blocks = tuple(_sort_block(inner, hashes) for inner in node.blocks)
    if node.kind != BRANCH:
        return replace_fields(node, blocks=blocks)
    keys = [_hash([_encode_value(b.outputs[i], hashes) for b in blocks]) for i in range(len(node.outputs))]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    blocks = tuple(replace_fields(b, outputs=_permute(b.outputs, order)) for b in blocks)
    outputs, types = _permute(node.outputs, order), _permute(node.types, order)
    return replace_fields(node, blocks=blocks, outputs=outputs, types=types)


def _sort_loop(node: Node, hashes: Hashes) -> Node:
    """Sort a loop in two rounds over its body: a value may be computed from one that goes round itself."""
    (body,) = node.blocks
    count, condition, *initial = node.inputs
    turn, *carried = body.inputs
    keys = [_hash([b"carried", _encode_value(v, hashes)]) for v in initial]
    hashes[turn] = _hash([b"turn", _encode_value(count, hashes), _encode_value(condition, hashes)])
    inner = body
    for _ in range(2):
        hashes.update(zip(carried, keys, strict=True))
        inner = _sort_block(body, hashes)
        keys = [_hash([key, _encode_value(v, hashes)]) for key, v in zip(keys, inner.outputs[1:], strict=True)]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    block_outputs = (inner.outputs[0], *_permute(inner.outputs[1:], order))
    block = Block((turn, *_permute(carried, order)), inner.nodes, block_outputs)
    inputs = (count, condition, *_permute(initial, order))
    outputs, types = _permute(node.outputs, order), _permute(node.types, order)
    return replace_fields(node, inputs=inputs, blocks=(block,), outputs=outputs, types=types)


def _permute(values: Sequence, order: Sequence[int]) -> tuple:
    return tuple(values[i] for i in order)


def _hash_block(block: Block, hashes: Hashes) -> bytes:
    """Hash a block whose values are in ``hashes``: what it computes, in no order, and what it returns."""
    value_hashes = sorted(hashes[v] for node in block.nodes for v in node.outputs)
    return _hash([*value_hashes, *(_encode_value(v, hashes) for v in block.outputs)])


def _encode_label(node: Node) -> bytes:
    return f"{node.operator} {', '.join(node.types)}".encode()


def _encode_value(value: Input, hashes: Hashes) -> bytes:
    if isinstance(value, int):
        return hashes[value]
    return value.text.encode() if isinstance(value, Literal) else format_tensor(value).encode()


def format_tensor(tensor: TensorConstant) -> str:
    """Return the text of a tensor constant."""
    return f"{tensor.name} {tensor.kind()} {tensor.digest}"


def _hash(parts: Sequence[bytes]) -> bytes:
    return hashlib.sha256(b"\0".join(parts)).digest()
