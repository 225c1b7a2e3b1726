"""A graph as readable lines: one per node, with the submodule and source line that it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from exporter.common.recursion import with_deep_recursion
from exporter.graph.canonical_text import format_input
from exporter.saved_code.ir import Block, Graph, Input, Node, TensorConstant


@dataclass(frozen=True)
class ListingRow:
    """One line of a graph; ``depth`` is that of the node's block, ``origin`` names its autograd node too, if known."""

    text: str
    module: str
    where: str
    origin: str
    depth: int


@with_deep_recursion
def list_rows(graph: Graph, names: Sequence[str] = ()) -> list[ListingRow]:
    """Return the lines of a graph; ``names`` are those of its inputs, other values have numbers."""
    return list_block_rows(graph.body, graph.types, name_inputs(graph, names))


def name_inputs(graph: Graph, names: Sequence[str]) -> dict[int, str]:
    """Return the texts that stand for a graph's inputs, by value."""
    return dict(zip(graph.body.inputs, (f"%{n}" for n in names), strict=False))


def list_block_rows(block: Block, types: Sequence[str], value_names: Mapping[int, str]) -> list[ListingRow]:
    """Return the lines of a block: what it takes, of which types, its nodes, and what it gives."""
    typed = zip(block.inputs, types, strict=True)
    arguments = ", ".join(f"{value_names.get(v, f'%{v}')}{_format_type(t)}" for v, t in typed)
    listing = [ListingRow(f"({arguments})", "", "", "", 0), *_iterate_rows(block, value_names, 0)]
    listing.append(ListingRow(f"-> {_format_inputs(block.outputs, value_names)}", "", "", "", 0))
    return listing


def _iterate_rows(block: Block, value_names: Mapping[int, str], depth: int) -> Iterator[ListingRow]:
    for node in block.nodes:
        origin = node.origin
        origin_text = f"{origin.part} {origin.of}".strip()
        yield ListingRow(format_node(node, value_names), origin.module, origin.where, origin_text, depth)
        for inner in node.blocks:
            if inner.inputs:
                names = ", ".join(value_names.get(v, f"%{v}") for v in inner.inputs)
                yield ListingRow(f"({names})", "", "", "", depth + 1)
            yield from _iterate_rows(inner, value_names, depth + 1)
            yield ListingRow(f"-> {_format_inputs(inner.outputs, value_names)}", "", "", "", depth + 1)


def format_node(node: Node, value_names: Mapping[int, str] | None = None) -> str:
    """Return one node as a line of text."""
    value_names = value_names or {}
    typed = zip(node.outputs, node.types, strict=True)
    results = ", ".join(f"{value_names.get(v, f'%{v}')}{_format_type(t)}" for v, t in typed)
    return f"{results}{' = ' if results else ''}{node.operator}({_format_inputs(node.inputs, value_names)})"


def format_value(value: Input, value_names: Mapping[int, str]) -> str:
    """Return the text of a value or a constant."""
    return value_names.get(value, f"%{value}") if isinstance(value, int) else format_input(value, _format_tensor)


def _format_inputs(values: Sequence[Input], value_names: Mapping[int, str]) -> str:
    return ", ".join(format_value(value, value_names) for value in values)


def _format_tensor(tensor: TensorConstant) -> str:
    return f"${tensor.name or tensor.digest[:8]}:{tensor.kind()}"


def _format_type(text: str) -> str:
    """Return an empty text for an unknown tensor, a number or a text: the operator tells their type."""
    return "" if text in ("Tensor", "int", "float", "bool", "str") else f": {text}"
