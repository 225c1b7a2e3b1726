"""What a drawing of a graph shows: operations in groups by submodule, and which value goes where.

Layout is Graphviz's (``svg``) or dagre's (``page``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from exporter.graph.ir import Block, Graph, Held, Input, Literal, Node
from exporter.graph.listing import node_text
from exporter.graph.recursion import deep

# More operations than this side by side are hard to read: they are grouped further, by line of source or in order.
_MANY = 40
INPUT, OUTPUT, OPERATION = "input", "output", "operation"


@dataclass(frozen=True)
class Group:
    """``parent`` is "" at the top."""

    name: str
    label: str
    parent: str


@dataclass(frozen=True)
class Shape:
    """``detail`` is the whole line; ``where`` the line of source."""

    name: str
    label: str
    group: str
    kind: str
    detail: str
    where: str = ""


@dataclass(frozen=True)
class Picture:
    """``edges`` are pairs of names of shapes."""

    groups: tuple[Group, ...]
    shapes: tuple[Shape, ...]
    edges: tuple[tuple[str, str], ...]


@deep
def picture(graph: Graph, names: Sequence[str] = (), outputs: Sequence[str] = ()) -> Picture:
    """``names`` of the inputs, and of the outputs."""
    return _Drawn(graph, names, outputs).picture()


class _Drawn:
    def __init__(self, graph: Graph, names: Sequence[str], outputs: Sequence[str]) -> None:
        self._graph = graph
        self._outputs = outputs
        self._inputs = list(names) + [f"input {i}" for i in range(len(names), len(graph.body.inputs))]
        self._groups: dict[str, Group] = {}
        self._shapes: list[Shape] = []
        self._edges: dict[tuple[str, str], None] = {}
        # A method returns its outputs as one tuple; they are drawn one by one.
        body = graph.body
        last = body.nodes[-1] if body.nodes and body.nodes[-1].kind == "prim::TupleConstruct" else None
        self._tuple = last if last is not None and body.outputs == last.outputs else None
        # Operations of a group that is in pieces.
        self._met: Counter[str] = Counter()
        # Which shapes a value comes from: of a branch, several.
        self._made: dict[int, tuple[str, ...]] = {}

    def picture(self) -> Picture:
        for value, name in zip(self._graph.body.inputs, self._inputs, strict=True):
            self._made[value] = (f"in {value}",)
            self._shapes.append(Shape(f"in {value}", name, "", INPUT, f"input {name}"))
        self._block(self._graph.body, "")
        for i, value in enumerate(self._tuple.inputs if self._tuple else self._graph.body.outputs):
            name = self._outputs[i] if i < len(self._outputs) else f"output {i}"
            self._shapes.append(Shape(f"out {i}", name, "", OUTPUT, f"output {name}"))
            self._edge(value, f"out {i}")
        return Picture(tuple(self._groups.values()), tuple(self._shapes), tuple(self._edges))

    def _edge(self, value: Input, to: str) -> None:
        for start in self._made.get(value, ()) if isinstance(value, int) else ():
            self._edges.setdefault((start, to))

    def _group(self, name: str, label: str, parent: str) -> str:
        self._groups.setdefault(name, Group(name, label, parent))
        return name

    def _within(self, parent: str, module: str) -> str:
        """The group of a submodule, inside ``parent``."""
        path = parent
        for part in module.split(".") if module else ():
            path = self._group(f"{path}/{part}", part, path)
        return path

    def _block(self, block: Block, parent: str) -> None:
        shown = [n for n in block.nodes if n is not self._tuple]
        counts = Counter(n.origin.module for n in shown)
        places = _lines(shown)
        lines = Counter(zip((n.origin.module for n in shown), places, strict=True))
        for node, where in zip(shown, places, strict=True):
            module = node.origin.module
            group = self._within(parent, module)
            if counts[module] > _MANY:
                if where and lines[module, where] < counts[module]:
                    group = self._group(f"{group}/{where}", where.rpartition("/")[2], group)
                self._met[group] += 1
                # What has one line, or none, goes by its order.
                if lines[module, where] > _MANY:
                    part = (self._met[group] - 1) // _MANY
                    label = f"{part * _MANY + 1} to {(part + 1) * _MANY}"
                    group = self._group(f"{group}/#{part}", label, group)
            self._node(node, group)

    def _node(self, node: Node, group: str) -> None:
        name = f"op {len(self._shapes)}"
        if node.blocks:
            group = self._group(f"{group}/{name}", node.kind.removeprefix("prim::").lower(), group)
        label = node.operator.partition("[")[0].removeprefix("aten::").removeprefix("prim::")
        own = [_short(i) for i in node.inputs if not isinstance(i, int)]
        self._shapes.append(
            Shape(
                name,
                label + (f" {' '.join(o for o in own if o)}" if any(own) else ""),
                group,
                OPERATION,
                node_text(node),
                node.origin.where,
            )
        )
        for value in node.inputs:
            self._edge(value, name)
        self._made.update(dict.fromkeys(node.outputs, (name,)))
        for inner in node.blocks:
            self._made.update(dict.fromkeys(inner.inputs, (name,)))
            self._block(inner, group)
        loop = node.kind == "prim::Loop"
        for i, value in enumerate(node.outputs):
            given = [inner.outputs[i + loop] for inner in node.blocks if len(inner.outputs) > i + loop]
            froms = [self._made.get(v, ()) if isinstance(v, int) else () for v in given]
            self._made[value] = tuple(dict.fromkeys(n for names in froms for n in names)) or (name,)


def _lines(nodes: Sequence[Node]) -> list[str]:
    """Of each node; one that has none (lists, sizes) goes with the next of its submodule that has."""
    found: list[str] = []
    known: dict[str, str] = {}
    for node in reversed(nodes):
        if node.origin.where:
            known[node.origin.module] = node.origin.where
        found.append(known.get(node.origin.module, ""))
    return found[::-1]


def _short(value: Input) -> str:
    """A constant as it stands beside the operator."""
    if isinstance(value, Held):
        return f"${value.name.rpartition('.')[2] or value.kind()}"
    return value.text if isinstance(value, Literal) and value.text != "None" and len(value.text) < 12 else ""
