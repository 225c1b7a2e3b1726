"""``torchferry graph``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Argument, Option

from torchferry.cli.options import JsonOption
from torchferry.cli.output import out, print_json, print_passes, print_rows

if TYPE_CHECKING:
    from exporter.graph.executor_stages import Stage


def command(
    path: Annotated[Path, Argument(help="An archive, or any TorchScript file.", metavar="FILE")],
    method: Annotated[str, Option(help="A method of the contract, or any method of the file.")] = "forward",
    stage: Annotated[
        str, Option(help="raw: as captured; profiling: with types, after a call; optimized: as torch runs it.")
    ] = "raw",
    passes: Annotated[
        bool, Option("--passes", help="Apply ten passes of torch one after another and show what each removes.")
    ] = False,
    svg: Annotated[Path | None, Option(help="Draw it to this file, with Graphviz.")] = None,
    html: Annotated[Path | None, Option(help="Draw it to this page: submodules open on a click.")] = None,
    inputs: Annotated[
        Path | None, Option(help="Inputs by name to run it on: .pt, .npz or .json. Default: a stored case.")
    ] = None,
    json: JsonOption = False,
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
    from exporter.graph.drawing import build_drawing
    from exporter.graph.executor_stages import compute_stage as staged
    from exporter.graph.html_view import write_html
    from exporter.graph.listing import list_rows
    from exporter.graph.loading import open_file
    from exporter.graph.passes import run_passes as applied
    from exporter.graph.svg_view import write_svg

    file = open_file(path)
    named_inputs = read_inputs(inputs) if inputs else None
    if passes:
        pass_results = applied(file, method, named_inputs)
        if json:
            print_json([dataclasses.asdict(p) for p in pass_results])
        else:
            print_passes(pass_results)
        return
    stage_graph = staged(file, method, cast("Stage", stage), named_inputs)
    title = f"{file.contract.name if file.contract else path.name}: {method}"
    drawing = build_drawing(stage_graph.graph, stage_graph.names, stage_graph.outputs) if svg or html else None
    closed_groups = write_svg(svg, drawing, title) if svg and drawing else 0
    if html and drawing:
        write_html(html, drawing, title)
    listing_rows = list_rows(stage_graph.graph, stage_graph.names)
    if json:
        report: dict[str, Any] = {"method": stage_graph.graph.method, "stage": stage_graph.stage}
        report |= {"nodes": stage_graph.nodes, "operations": len(stage_graph.graph)}
        print_json(report | {"rows": [dataclasses.asdict(row) for row in listing_rows]})
        return
    captured = f", captured as {stage_graph.graph.method}" if stage_graph.graph.method != method else ""
    counts = f"{len(stage_graph.graph)} operations, {stage_graph.nodes} nodes with constants"
    out.print(f"{title}{captured}, {stage}: {counts}")
    closed_note = f" ({closed_groups} groups closed: --html opens them)" if closed_groups else ""
    for written_path, note in ((svg, closed_note), (html, "")):
        if written_path is not None:
            out.print(f"wrote {written_path}{note}", soft_wrap=True)
    if svg is None and html is None:
        print_rows(listing_rows)
