"""Hooks of mkdocs: what the pages say of commands and floors is made from the code, at each build."""

from __future__ import annotations

import html
import sys
from pathlib import Path
from typing import Any

import click
import typer
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import house

COMMANDS = "<!-- cli -->"
PICTURE = "assets/architecture.svg"
WIDTH, HEIGHT, GAP = 960, 64, 26


def describe_command(name: str, command: click.Command) -> str:
    """Return a command's section: usage, help, and a table of its parameters."""
    context = click.Context(command, info_name=f"torchferry {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    rows = []
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option) and parameter.name != "help":
            names = ", ".join(f"`{o}`" for o in (*parameter.opts, *parameter.secondary_opts))
            default = parameter.default
            shown = "" if default in (None, "", (), [], False) or callable(default) else f"`{default}`"
            text = " ".join((parameter.help or "").split()).replace("|", "\\|")
            rows.append(f"| {names} | {html.escape(text, quote=False)} | {shown} |")
        elif isinstance(parameter, click.Argument):
            text = " ".join((getattr(parameter, "help", "") or "").split()).replace("|", "\\|")
            rows.append(f"| `{parameter.make_metavar(context)}` | {html.escape(text, quote=False)} | |")
    table = ["| parameter | meaning | default |", "| --- | --- | --- |", *rows] if rows else []
    help_text = html.escape((command.help or "").strip(), quote=False)
    return "\n".join([f"## {name}", "", "```text", f"torchferry {name} {usage}", "```", "", help_text, "", *table, ""])


def describe_commands() -> str:
    """Return the sections of every command of the command line."""
    from torchferry.cli.app import app

    group: Any = typer.main.get_command(app)
    sections = []
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        for sub, child in inner.items() if inner else [("", command)]:
            sections.append(describe_command(f"{name} {sub}".strip(), child))
    return "\n".join(sections)


def draw_floors() -> str:
    """Return an SVG picture of the packages, a row for each floor, with their lines of Python."""
    lines: dict[str, int] = dict.fromkeys(house.FLOORS, 0)
    for path in house.list_files():
        package = house.find_package(house.name_module(path.relative_to(house.ROOT).as_posix()))
        if package is not None:
            lines[package] += len(path.read_text().splitlines())
    top = max(house.FLOORS.values())
    parts = []
    for floor in range(top, 0, -1):
        names = [name for name, number in house.FLOORS.items() if number == floor]
        y = (top - floor) * (HEIGHT + GAP) + 10
        width = (WIDTH - 60 - GAP * (len(names) - 1)) / len(names)
        parts.append(f'<text x="10" y="{y + HEIGHT / 2 + 5}" class="floor">{floor}</text>')
        for i, name in enumerate(names):
            x = 50 + i * (width + GAP)
            middle = x + width / 2
            parts.append(f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{HEIGHT}" rx="6"/>')
            parts.append(f'<text x="{middle:.0f}" y="{y + 28}" class="name">{name}</text>')
            parts.append(f'<text x="{middle:.0f}" y="{y + 48}" class="size">{lines[name]:,} lines</text>')
    style = (
        "rect{fill:#e3f2fd;stroke:#1565c0}text{font-family:sans-serif;fill:#0d2b4d}"
        ".name{font-size:15px;text-anchor:middle;font-weight:600}.size{font-size:12px;text-anchor:middle}"
        ".floor{font-size:20px;fill:#1565c0}"
    )
    height = top * (HEIGHT + GAP) + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        f"<title>The packages of torchferry by floor: each imports lower floors only</title><style>{style}</style>"
        + "".join(parts)
        + "</svg>\n"
    )


def on_files(files: Files, config: Any) -> Files:
    """Add the picture of the floors to the site."""
    files.append(File.generated(config, PICTURE, content=draw_floors()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the commands where a page asks for them."""
    return markdown.replace(COMMANDS, describe_commands()) if COMMANDS in markdown else markdown
