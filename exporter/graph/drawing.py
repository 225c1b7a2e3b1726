"""A drawing of a graph: operations in groups by submodule, and edges for the values between them.

Graphviz (``svg``) or dagre (``page``) lays it out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from exporter.common.recursion import with_deep_recursion
from exporter.graph.listing import format_node
from exporter.saved_code.ir import Block, Graph, Input, Literal, Node, TensorConstant

# More operations than this side by side are hard to read: they are grouped further, by line of source or in order.
_LARGEST_GROUP = 40
INPUT, OUTPUT, OPERATION = "input", "output", "operation"


@dataclass(frozen=True)
class Group:
    """A group of shapes, one inside ``parent``, which is empty at the top."""

    name: str
    label: str
    parent: str


@dataclass(frozen=True)
class Shape:
    """A node of the drawing; ``detail`` is the whole line of text, ``where`` the source line."""

    name: str
    label: str
    group: str
    kind: str
    detail: str
    where: str = ""


@dataclass(frozen=True)
class GraphDrawing:
    """A graph to be drawn; ``edges`` are pairs of names of shapes."""

    groups: tuple[Group, ...]
    shapes: tuple[Shape, ...]
    edges: tuple[tuple[str, str], ...]


@with_deep_recursion
def build_drawing(graph: Graph, names: Sequence[str] = (), outputs: Sequence[str] = ()) -> GraphDrawing:
    """Build the drawing of a graph, with ``names`` of its inputs and of its ``outputs``."""
    return _DrawingBuilder(graph, names, outputs).build()


class _DrawingBuilder:
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
        # Operations so far of each group that is split.
        self._group_counts: Counter[str] = Counter()
        # Shapes that each value comes from: several for a branch.
        self._sources: dict[int, tuple[str, ...]] = {}

    def build(self) -> GraphDrawing:
        for value, name in zip(self._graph.body.inputs, self._inputs, strict=True):
            self._sources[value] = (f"in {value}",)
            self._shapes.append(Shape(f"in {value}", name, "", INPUT, f"input {name}"))
        self._add_block(self._graph.body, "")
        for i, value in enumerate(self._tuple.inputs if self._tuple else self._graph.body.outputs):
            name = self._outputs[i] if i < len(self._outputs) else f"output {i}"
            self._shapes.append(Shape(f"out {i}", name, "", OUTPUT, f"output {name}"))
            self._add_edge(value, f"out {i}")
        return GraphDrawing(tuple(self._groups.values()), tuple(self._shapes), tuple(self._edges))

    def _add_edge(self, value: Input, to: str) -> None:
        for start in self._sources.get(value, ()) if isinstance(value, int) else ():
            self._edges.setdefault((start, to))

    def _add_group(self, name: str, label: str, parent: str) -> str:
        self._groups.setdefault(name, Group(name, label, parent))
        return name

    def _add_module_groups(self, parent: str, module: str) -> str:
        """Return the group of a submodule inside ``parent``."""
        path = parent
        for part in module.split(".") if module else ():
            path = self._add_group(f"{path}/{part}", part, path)
        return path

    def _add_block(self, block: Block, parent: str) -> None:
        visible_nodes = [n for n in block.nodes if n is not self._tuple]
        counts = Counter(n.origin.module for n in visible_nodes)
        places = _infer_lines(visible_nodes)
        lines = Counter(zip((n.origin.module for n in visible_nodes), places, strict=True))
        for node, where in zip(visible_nodes, places, strict=True):
            module = node.origin.module
            group = self._add_module_groups(parent, module)
            if counts[module] > _LARGEST_GROUP:
                if where and lines[module, where] < counts[module]:
                    group = self._add_group(f"{group}/{where}", where.rpartition("/")[2], group)
                self._group_counts[group] += 1
                # Operations of one line, or without one, are grouped in order.
                if lines[module, where] > _LARGEST_GROUP:
                    part = (self._group_counts[group] - 1) // _LARGEST_GROUP
                    label = f"{part * _LARGEST_GROUP + 1} to {(part + 1) * _LARGEST_GROUP}"
                    group = self._add_group(f"{group}/#{part}", label, group)
            self._add_node(node, group)

    def _add_node(self, node: Node, group: str) -> None:
        name = f"op {len(self._shapes)}"
        if node.blocks:
            group = self._add_group(f"{group}/{name}", node.kind.removeprefix("prim::").lower(), group)
        label = node.operator.partition("[")[0].removeprefix("aten::").removeprefix("prim::")
        constants = [_abbreviate(i) for i in node.inputs if not isinstance(i, int)]
        label += f" {' '.join(o for o in constants if o)}" if any(constants) else ""
        self._shapes.append(Shape(name, label, group, OPERATION, format_node(node), node.origin.where))
        for value in node.inputs:
            self._add_edge(value, name)
        self._sources.update(dict.fromkeys(node.outputs, (name,)))
        for inner in node.blocks:
            self._sources.update(dict.fromkeys(inner.inputs, (name,)))
            self._add_block(inner, group)
        loop = node.kind == "prim::Loop"
        for i, value in enumerate(node.outputs):
            branch_outputs = [inner.outputs[i + loop] for inner in node.blocks if len(inner.outputs) > i + loop]
            sources = [self._sources.get(v, ()) if isinstance(v, int) else () for v in branch_outputs]
            self._sources[value] = tuple(dict.fromkeys(n for names in sources for n in names)) or (name,)


def _infer_lines(nodes: Sequence[Node]) -> list[str]:
    """Return each node's source line; one without (lists, sizes) takes that of its submodule's next node."""
    lines: list[str] = []
    last_lines: dict[str, str] = {}
    for node in reversed(nodes):
        if node.origin.where:
            last_lines[node.origin.module] = node.origin.where
        lines.append(last_lines.get(node.origin.module, ""))
    return lines[::-1]


def _abbreviate(value: Input) -> str:
    """Return a constant as it is shown beside the operator."""
    if isinstance(value, TensorConstant):
        return f"${value.name.rpartition('.')[2] or value.kind()}"
    return value.text if isinstance(value, Literal) and value.text != "None" and len(value.text) < 12 else ""
