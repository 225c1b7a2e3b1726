"""``torchferry graph``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from torchferry.cli.output import out, print_json, print_passes, print_rows

if TYPE_CHECKING:
    from exporter.graph.executor_stages import Stage


def command(
    path: Annotated[Path, typer.Argument(help="An archive, or any TorchScript file.", metavar="FILE")],
    method: Annotated[str, typer.Option(help="A method of the contract, or any method of the file.")] = "forward",
    stage: Annotated[
        str,
        typer.Option(help="raw: as captured; profiling: with types, after a call; optimized: as torch runs it."),
    ] = "raw",
    passes: Annotated[
        bool, typer.Option("--passes", help="Apply ten passes of torch's one after another and say what each removes.")
    ] = False,
    svg: Annotated[Path | None, typer.Option(help="Draw it to this file, with Graphviz.")] = None,
    html: Annotated[Path | None, typer.Option(help="Draw it to this page: submodules open by a click.")] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="Inputs by name to run it on: .pt, .npz or .json. Default: a stored case.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it for machines.")] = False,
) -> None:
    """Print or draw the graph of a saved method, each operation with its submodule and line of source.

    For a method of the contract it is the graph that was captured; the method itself only checks shapes and flattens
    the batch.

    Examples:

      torchferry graph eq.pt

      torchferry graph eq.pt --stage optimized

      torchferry graph eq.pt --passes

      torchferry graph eq.pt --method jacobian --html jacobian.html
    """
    from exporter.archive.input_files import read_inputs
    from exporter.graph.drawing import picture
    from exporter.graph.executor_stages import stage as staged
    from exporter.graph.html_view import write_html
    from exporter.graph.listing import rows
    from exporter.graph.loading import opened_file
    from exporter.graph.passes import passes as applied
    from exporter.graph.svg_view import write_svg

    file = opened_file(path)
    given = read_inputs(inputs) if inputs else None
    if passes:
        found = applied(file, method, given)
        if json:
            print_json([dataclasses.asdict(p) for p in found])
        else:
            print_passes(found)
        return
    one = staged(file, method, cast("Stage", stage), given)
    title = f"{file.contract.name if file.contract else path.name}: {method}"
    drawn = picture(one.graph, one.names, one.outputs) if svg or html else None
    closed = write_svg(svg, drawn, title) if svg and drawn else 0
    if html and drawn:
        write_html(html, drawn, title)
    listed = rows(one.graph, one.names)
    if json:
        report: dict[str, Any] = {"method": one.graph.method, "stage": one.stage, "nodes": one.nodes}
        print_json(report | {"operations": len(one.graph), "rows": [dataclasses.asdict(row) for row in listed]})
        return
    captured = f", captured as {one.graph.method}" if one.graph.method != method else ""
    out.print(f"{title}{captured}, {stage}: {len(one.graph)} operations, {one.nodes} nodes with constants")
    for written, said in ((svg, f" ({closed} groups closed: --html opens them)" if closed else ""), (html, "")):
        if written is not None:
            out.print(f"wrote {written}{said}", soft_wrap=True)
    if svg is None and html is None:
        print_rows(listed)
