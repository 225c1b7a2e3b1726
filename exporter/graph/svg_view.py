"""A graph as an SVG picture, laid out by Graphviz."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import graphviz

from exporter.common.atomic_files import written
from exporter.common.errors import MissingRuntimeError
from exporter.graph.drawing import INPUT, OPERATION, Group, Picture

# As many shapes as a page can be read with; of larger graphs the inner groups are drawn closed.
READABLE = 48
_FILL = {INPUT: "#dbeafe", OPERATION: "#ffffff"}


def write_svg(path: Path, picture: Picture, title: str) -> int:
    """How many groups are drawn closed. Raises ``MissingRuntimeError`` where Graphviz is not installed."""
    opened = open_groups(picture)
    drawing = graphviz.Digraph(
        graph_attr={"label": title, "labelloc": "t", "fontname": "sans-serif", "ranksep": "0.35", "nodesep": "0.2"},
        node_attr={"shape": "box", "style": "filled,rounded", "fontname": "sans-serif", "fontsize": "10"},
        edge_attr={"arrowsize": "0.6", "color": "#64748b"},
    )
    shown = _shown(picture, opened)
    sizes = Counter(shown[s.name] for s in picture.shapes)
    _draw(drawing, "", picture, opened, sizes)
    edges = Counter((shown[a], shown[b]) for a, b in picture.edges if shown[a] != shown[b])
    for (a, b), count in edges.items():
        drawing.edge(_id(a), _id(b), label=str(count) if count > 1 else None)
    try:
        data = drawing.pipe(format="svg")
    except graphviz.ExecutableNotFound as error:
        raise MissingRuntimeError(
            "Graphviz is not installed",
            where="--svg",
            got=str(error).partition(",")[0],
            expected="its program dot on the PATH",
            mend="apt-get install graphviz (brew install graphviz); or --html FILE, which works without",
        ) from None
    written(path, data)
    return len({g.name for g in picture.groups} - opened)


def open_groups(picture: Picture) -> set[str]:
    """The groups to be drawn open: outermost first, the smallest first, while the picture can be read."""
    children: dict[str, list[Group]] = {}
    for group in picture.groups:
        children.setdefault(group.parent, []).append(group)
    direct = Counter(s.group for s in picture.shapes)
    count = direct[""] + len(children.get("", ()))
    opened: set[str] = set()
    todo = list(children.get("", ()))
    while todo:
        # What opening one adds: what it holds, less itself.
        todo.sort(key=lambda g: (g.name.count("/"), direct[g.name] + len(children.get(g.name, ()))))
        group = todo.pop(0)
        more = direct[group.name] + len(children.get(group.name, ())) - 1
        if count + more <= READABLE:
            count += more
            opened.add(group.name)
            todo += children.get(group.name, ())
    return opened


def _shown(picture: Picture, opened: set[str]) -> dict[str, str]:
    """For each shape what is drawn for it: itself, or the outermost closed group that it is in."""
    parents = {g.name: g.parent for g in picture.groups}
    found = {}
    for shape in picture.shapes:
        drawn, group = shape.name, shape.group
        while group:
            drawn = drawn if group in opened else group
            group = parents[group]
        found[shape.name] = drawn
    return found


def _draw(drawing: graphviz.Digraph, parent: str, picture: Picture, opened: set[str], sizes: Counter[str]) -> None:
    for shape in picture.shapes:
        if shape.group == parent:
            drawing.node(
                _id(shape.name),
                graphviz.escape(shape.label),
                tooltip=f"{shape.detail} {shape.where}",
                fillcolor=_FILL.get(shape.kind, "#dcfce7"),
            )
    for group in (g for g in picture.groups if g.parent == parent):
        if group.name not in opened:
            label = f"{graphviz.escape(group.label)}\\n{sizes[group.name]} operations"
            drawing.node(_id(group.name), label, fillcolor="#fef3c7", shape="box3d", tooltip=group.name)
            continue
        inner = graphviz.Digraph(name=f"cluster {group.name}")
        inner.attr(label=group.label, style="rounded", color="#94a3b8", fontsize="11")
        _draw(inner, group.name, picture, opened, sizes)
        drawing.subgraph(inner)


def _id(name: str) -> str:
    # A colon would name a port.
    return name.replace(":", ";")
