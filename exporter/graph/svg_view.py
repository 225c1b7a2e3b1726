"""A graph as an SVG picture, laid out by Graphviz."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import graphviz

from exporter.common.atomic_files import write_atomically
from exporter.common.errors import MissingRuntimeError
from exporter.graph.drawing import INPUT, OPERATION, GraphDrawing, Group

# The most shapes on a readable page; inner groups of larger graphs are drawn closed.
READABLE = 48
_FILL = {INPUT: "#dbeafe", OPERATION: "#ffffff"}


def write_svg(path: Path, picture: GraphDrawing, title: str) -> int:
    """Write the picture and return how many groups are closed; raise ``MissingRuntimeError`` without Graphviz."""
    open_names = choose_open_groups(picture)
    drawing = graphviz.Digraph(
        graph_attr={
            "label": _quote(title),
            "labelloc": "t",
            "fontname": "sans-serif",
            "ranksep": "0.35",
            "nodesep": "0.2",
        },
        node_attr={"shape": "box", "style": "filled,rounded", "fontname": "sans-serif", "fontsize": "10"},
        edge_attr={"arrowsize": "0.6", "color": "#64748b"},
    )
    drawn_names = _map_drawn_names(picture, open_names)
    sizes = Counter(drawn_names[s.name] for s in picture.shapes)
    _draw(drawing, "", picture, open_names, sizes)
    edges = Counter((drawn_names[a], drawn_names[b]) for a, b in picture.edges if drawn_names[a] != drawn_names[b])
    for (a, b), count in edges.items():
        drawing.edge(_escape_id(a), _escape_id(b), label=str(count) if count > 1 else None)
    try:
        data = drawing.pipe(format="svg")
    except graphviz.ExecutableNotFound as error:
        what, got = "Graphviz is not installed", str(error).partition(",")[0]
        expected = "its program dot on the PATH"
        mend = "apt-get install graphviz (brew install graphviz); or --html FILE, which works without"
        raise MissingRuntimeError(what, where="--svg", got=got, expected=expected, mend=mend) from None
    write_atomically(path, data)
    return len({g.name for g in picture.groups} - open_names)


def choose_open_groups(picture: GraphDrawing) -> set[str]:
    """Choose the groups to draw open: outermost first, then the smallest, while the picture stays readable."""
    children: dict[str, list[Group]] = {}
    for group in picture.groups:
        children.setdefault(group.parent, []).append(group)
    direct = Counter(s.group for s in picture.shapes)
    count = direct[""] + len(children.get("", ()))
    open_names: set[str] = set()
    todo = list(children.get("", ()))
    while todo:
        # Opening a group adds its contents, less itself.
        todo.sort(key=lambda g: (g.name.count("/"), direct[g.name] + len(children.get(g.name, ()))))
        group = todo.pop(0)
        more = direct[group.name] + len(children.get(group.name, ())) - 1
        if count + more <= READABLE:
            count += more
            open_names.add(group.name)
            todo += children.get(group.name, ())
    return open_names


def _map_drawn_names(picture: GraphDrawing, open_names: set[str]) -> dict[str, str]:
    """Return what is drawn for each shape: itself, or the outermost closed group around it."""
    parents = {g.name: g.parent for g in picture.groups}
    drawn_names = {}
    for shape in picture.shapes:
        drawn, group = shape.name, shape.group
        while group:
            drawn = drawn if group in open_names else group
            group = parents[group]
        drawn_names[shape.name] = drawn
    return drawn_names


def _draw(drawing: graphviz.Digraph, parent: str, picture: GraphDrawing, open_names: set[str], sizes: Counter) -> None:
    for shape in picture.shapes:
        if shape.group == parent:
            color, tooltip = _FILL.get(shape.kind, "#dcfce7"), _quote(f"{shape.detail} {shape.where}")
            drawing.node(_escape_id(shape.name), _quote(shape.label), tooltip=tooltip, fillcolor=color)
    for group in (g for g in picture.groups if g.parent == parent):
        if group.name not in open_names:
            label = f"{_quote(group.label)}\\n{sizes[group.name]} operations"
            drawing.node(_escape_id(group.name), label, fillcolor="#fef3c7", shape="box3d", tooltip=_quote(group.name))
            continue
        inner = graphviz.Digraph(name=f"cluster {group.name}")
        inner.attr(label=_quote(group.label), style="rounded", color="#94a3b8", fontsize="11")
        _draw(inner, group.name, picture, open_names, sizes)
        drawing.subgraph(inner)


def _quote(text: str) -> str:
    """Return a text that Graphviz shows as it is: it knows backslashes, angle brackets and entities of HTML."""
    return graphviz.escape(text.replace("&", "&amp;"))


def _escape_id(name: str) -> str:
    # A colon would name a port, and what stands in angle brackets is not read as text.
    return graphviz.nohtml(name.replace(":", ";"))
