"""A graph as lines to read: one a node, with the submodule and the line of source that it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exporter.graph.canonical_text import input_text
from exporter.graph.ir import Block, Graph, Held, Input, Node
from exporter.graph.recursion import deep


@dataclass(frozen=True)
class Row:
    """``depth``: of the block that the node stands in. ``origin`` says a node of autograd too, where one is known."""

    text: str
    module: str
    where: str
    origin: str
    depth: int


@deep
def rows(graph: Graph, names: Sequence[str] = ()) -> list[Row]:
    """``names`` of the inputs; other values have numbers."""
    known = dict(zip(graph.body.inputs, (f"%{n}" for n in names), strict=False))
    taken = ", ".join(f"{known.get(v, f'%{v}')}{_type(t)}" for v, t in zip(graph.body.inputs, graph.types, strict=True))
    found = [Row(f"({taken})", "", "", "", 0), *_rows(graph.body, known, 0)]
    found.append(Row(f"-> {_join(graph.body.outputs, known)}", "", "", "", 0))
    return found


def _rows(block: Block, known: dict[int, str], depth: int):
    for node in block.nodes:
        origin = node.origin
        said = f"{origin.part} {origin.of}".strip()
        yield Row(node_text(node, known), origin.module, origin.where, said, depth)
        for inner in node.blocks:
            if inner.inputs:
                yield Row(f"({', '.join(known.get(v, f'%{v}') for v in inner.inputs)})", "", "", "", depth + 1)
            yield from _rows(inner, known, depth + 1)
            yield Row(f"-> {_join(inner.outputs, known)}", "", "", "", depth + 1)


def node_text(node: Node, known: dict[int, str] | None = None) -> str:
    known = known or {}
    given = ", ".join(f"{known.get(v, f'%{v}')}{_type(t)}" for v, t in zip(node.outputs, node.types, strict=True))
    return f"{given}{' = ' if given else ''}{node.operator}({_join(node.inputs, known)})"


def _join(values: Sequence[Input], known: dict[int, str]) -> str:
    return ", ".join(known.get(v, f"%{v}") if isinstance(v, int) else input_text(v, _held) for v in values)


def _held(held: Held) -> str:
    return f"${held.name or held.digest[:8]}:{held.kind()}"


def _type(text: str) -> str:
    """Nothing for a tensor of which nothing is known, a number or a text: the operator says it."""
    return "" if text in ("Tensor", "int", "float", "bool", "str") else f": {text}"
