"""A graph as one HTML page without a server: submodules are closed, a click opens them.

Cytoscape.js draws it and dagre lays it out in the browser; both are in the page."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from jinja2 import Environment, PackageLoader

from exporter.common.atomic_files import write_atomically
from exporter.graph.drawing import GraphDrawing

_LIBRARIES = ("cytoscape.min.js", "cytoscape-dagre.min.js")


def write_html(path: Path, picture: GraphDrawing, title: str) -> None:
    """Write the page; raise ``OutputError`` if the file cannot be written."""
    folder = Path(__file__).parent / "web"
    template = Environment(autoescape=True, loader=PackageLoader("exporter.graph", "web")).get_template("page.html")
    # A closing tag in a name must not end the script.
    data = json.dumps(dataclasses.asdict(picture)).replace("<", "\\u003c")
    libraries = [(folder / name).read_text() for name in _LIBRARIES]
    write_atomically(path, template.render(title=title, data=data, libraries=libraries).encode())
