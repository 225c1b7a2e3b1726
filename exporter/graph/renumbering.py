"""Nodes that were read once, repeated under other numbers: a submodule's method that several methods call."""

from __future__ import annotations

from collections.abc import Callable

from exporter.saved_code.ir import Block, Input, Node, replace_fields

Renumber = Callable[[int], int]


def renumber_node(node: Node, renumber: Renumber) -> Node:
    """Return the node with its values under other numbers; what it reads and writes is not known yet."""
    return replace_fields(
        node,
        inputs=_renumber_inputs(node.inputs, renumber),
        outputs=tuple(map(renumber, node.outputs)),
        blocks=tuple(_renumber_block(block, renumber) for block in node.blocks),
    )


def _renumber_block(block: Block, renumber: Renumber) -> Block:
    return Block(
        tuple(map(renumber, block.inputs)),
        tuple(renumber_node(node, renumber) for node in block.nodes),
        _renumber_inputs(block.outputs, renumber),
        block.types,
    )


def _renumber_inputs(values: tuple[Input, ...], renumber: Renumber) -> tuple[Input, ...]:
    return tuple(renumber(value) if isinstance(value, int) else value for value in values)
