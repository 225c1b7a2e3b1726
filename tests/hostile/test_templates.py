"""What is written for another reader quotes names of a file as text, whatever they are."""

from __future__ import annotations

import dataclasses
import subprocess
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import torch
from markdown_it import MarkdownIt
from project import ROOT, need

from exporter.common.plain_text import escape_formula, escape_markdown, quote_markdown
from exporter.graph import html_view, svg_view
from exporter.graph.drawing import GraphDrawing, Group, Shape
from runtime_checks import history_plot
from runtime_checks.bench.benchmark import BenchmarkOptions, run_benchmark
from runtime_checks.bench.report import plot
from torchferry.sweep import SweepCell, SweepRow
from torchferry.sweep_report import render_coverage_page

NAMES = (
    "</script><script>alert(1)</script>",
    "<b>bold</b>",
    "<<table><tr><td>x</td></tr></table>>",
    '" onload="alert(1)',
    "'; alert(1); '",
    "&lt;&#60;",
    "a|b`c`[d](javascript:e)",
    r"\N\G\l$\frac{$%s{{7*7}}@picture@",
    "$\\notacommand{$",
    "a:b;c",
)


class Tags(HTMLParser):
    """The tags of a page, with the names of their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, tuple(name for name, _ in attrs)))


def list_tags(page: str) -> list[tuple[str, tuple[str, ...]]]:
    parser = Tags()
    parser.feed(page)
    return parser.seen


def draw(name: str) -> GraphDrawing:
    groups = (Group(name, name, ""), Group("closed", name, name))
    shapes = (Shape("x", name, name, "input", name, name), Shape(f"{name} 2", "y", name, "operation", "", name))
    return GraphDrawing(groups, shapes, (("x", f"{name} 2"),))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_of_a_graph(name, tmp_path):
    pages = []
    for text in (name, "plain"):
        html_view.write_html(tmp_path / "a.html", draw(text), text)
        pages.append((tmp_path / "a.html").read_text())
    assert list_tags(pages[0]) == list_tags(pages[1])


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_of_a_graph(name, tmp_path):
    need(subprocess.run(["sh", "-c", "command -v dot"], capture_output=True, check=False).returncode == 0, "no dot")
    pictures = []
    for text in (name, "plain"):
        svg_view.write_svg(tmp_path / "a.svg", draw(text), text)
        pictures.append(ElementTree.parse(tmp_path / "a.svg"))
    tags = [[element.tag for element in picture.iter()] for picture in pictures]
    assert tags[0] == tags[1]
    shown = [element.text for element in pictures[0].iter() if element.tag.endswith("}text")]
    assert any(name in (text or "") for text in shown), shown


@pytest.fixture(scope="module")
def measured():
    return run_benchmark([ROOT / "artifacts" / "robertson.pt"], BenchmarkOptions(batches=[1]))


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_a_page_of_a_benchmark(name, measured, tmp_path):
    pytest.importorskip("matplotlib")
    pages = []
    for text in (name, "plain"):
        timings = tuple(dataclasses.replace(t, candidate=text) for t in measured.timings)
        plot(dataclasses.replace(measured, model=text, timings=timings, notes=(text,)), tmp_path / "a.html")
        pages.append((tmp_path / "a.html").read_text())
    assert list_tags(pages[0]) == list_tags(pages[1])


@pytest.mark.parametrize("name", NAMES)
def test_a_plot_of_a_history(name, tmp_path):
    pytest.importorskip("matplotlib")
    component = history_plot.Component(name, torch.zeros(3, 2))
    history_plot.draw([(component, component)], tmp_path / "a.svg")
    ElementTree.parse(tmp_path / "a.svg")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_of_a_sweep(name):
    """As Markdown shows it, which would take tags over."""
    pages = []
    for text in (name, "plain"):
        # What is in front of a slash is a folder.
        file = text.replace("/", "|")
        row = SweepRow(f"{file}.i", text, driven=True, cells=(SweepCell("pt", "refused", 0.0, reason=text),))
        page = render_coverage_page([row], "torch")
        pages.append(MarkdownIt("commonmark", {"html": True}).enable("table").render(page))
    assert list_tags(pages[0]) == list_tags(pages[1])


def test_the_quotes_themselves():
    assert escape_formula("a$b$") == r"a\$b\$"
    assert escape_markdown("<b>\n[x](y)|") == r"\<b\> \[x\]\(y\)\|"
    assert quote_markdown("a`b|c\nd") == r"`a'b\|c d`"
