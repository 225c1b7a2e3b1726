"""``torchferry graph``."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from typer import Argument, Option

from torchferry.cli.options import JsonOption, MemoryLimitOption, TimeLimitOption
from torchferry.cli.output import out, print_json, print_passes, print_rows

if TYPE_CHECKING:
    from exporter.graph.executor_stages import Stage, StagedGraph


def command(
    path: Annotated[Path, Argument(help="An archive, or any TorchScript file.", metavar="FILE")],
    method: Annotated[str, Option(help="A method of the contract, or any method of the file.")] = "forward",
    stage: Annotated[
        str,
        Option(
            help="raw: as captured; profiling: with types, after a call; optimized: as torch runs it. Default: raw."
        ),
    ] = "",
    fusion: Annotated[
        bool, Option("--fusion", help="The optimized graph in the groups that torch fuses, with checks and fallbacks.")
    ] = False,
    passes: Annotated[
        bool, Option("--passes", help="Apply ten passes of torch one after another and show what each removes.")
    ] = False,
    svg: Annotated[Path | None, Option(help="Draw it to this file, with Graphviz.")] = None,
    html: Annotated[Path | None, Option(help="Draw it to this page: submodules open on a click.")] = None,
    inputs: Annotated[
        Path | None, Option(help="Inputs by name to run it on: .pt, .npz or .json. Default: a stored case.")
    ] = None,
    time_limit: TimeLimitOption = 600.0,
    memory_limit: MemoryLimitOption = 16.0,
    json: JsonOption = False,
) -> None:
    """Print or draw the graph of a saved method, each operation with its submodule and line of source.

    For a method of the contract it is the graph that was captured; the method itself only checks shapes and flattens
    the batch.

    Examples:

      torchferry graph eq.pt

      torchferry graph eq.pt --stage optimized

      torchferry graph eq.pt --fusion

      torchferry graph eq.pt --passes

      torchferry graph eq.pt --method jacobian --html jacobian.html
    """
    from exporter.archive.input_files import read_inputs
    from exporter.graph.executor_stages import compute_stage
    from exporter.graph.loading import open_file
    from exporter.graph.passes import run_passes
    from runtime_checks.runners.confined_calls import Confinement
    from torchferry.cli.confined_process import run_confined

    stage_name = _choose_stage(stage, is_fused=fusion, has_passes=passes)

    def work() -> None:
        file, named_inputs = open_file(path), read_inputs(inputs) if inputs else None
        if passes:
            pass_results = run_passes(file, method, named_inputs)
            if json:
                print_json([dataclasses.asdict(p) for p in pass_results])
            else:
                print_passes(pass_results)
            return
        title = f"{file.contract.name if file.contract else path.name}: {method}"
        stage_graph = compute_stage(file, method, stage_name, named_inputs, is_fused=fusion)
        notes = _draw(stage_graph, title, svg, html)
        if json:
            _print_json(stage_graph, has_fusion=fusion)
        else:
            _print(stage_graph, title, method, notes, has_fusion=fusion)

    # Graphviz draws the one picture.
    programs = tuple(filter(None, (shutil.which("dot"),))) if svg else ()
    run_confined(work, Confinement(path, (svg, html), time_limit, memory_limit, programs), as_json=json)


def _choose_stage(stage: str, *, is_fused: bool, has_passes: bool) -> Stage:
    """Return the stage that is asked for. Raises ``UsageError`` for one in which nothing is fused."""
    from exporter.common.errors import UsageError

    if is_fused and (has_passes or stage not in ("", "optimized")):
        got, mend = "--passes" if has_passes else f"--stage {stage}", "leave one of the two out"
        what, expected = "only the optimized graph is fused", "--fusion alone, or with --stage optimized"
        raise UsageError(what, where="--fusion", got=got, expected=expected, mend=mend)
    return cast("Stage", "optimized" if is_fused else stage or "raw")


def _draw(stage_graph: StagedGraph, title: str, svg: Path | None, html: Path | None) -> list[str]:
    """Write the pictures that are asked for; return a line on each."""
    from exporter.graph.drawing import build_drawing
    from exporter.graph.html_view import write_html
    from exporter.graph.svg_view import write_svg

    if svg is None and html is None:
        return []
    notes, drawing = [], build_drawing(stage_graph.graph, stage_graph.names, stage_graph.outputs)
    if svg is not None:
        closed_groups = write_svg(svg, drawing, title)
        notes.append(f"wrote {svg}" + (f" ({closed_groups} groups closed: --html opens them)" if closed_groups else ""))
    if html is not None:
        write_html(html, drawing, title)
        notes.append(f"wrote {html}")
    return notes


def _print_json(stage_graph: StagedGraph, *, has_fusion: bool) -> None:
    from exporter.graph.fusion import describe_support, find_fusion
    from exporter.graph.listing import list_rows

    rows = [dataclasses.asdict(row) for row in list_rows(stage_graph.graph, stage_graph.names)]
    counts = {"nodes": stage_graph.nodes, "operations": len(stage_graph.graph)}
    values = {"method": stage_graph.graph.method, "stage": stage_graph.stage, **counts, "rows": rows}
    if has_fusion:
        groups = dataclasses.asdict(find_fusion(stage_graph.graph, stage_graph.names))
        values["fusion"] = {"support": describe_support(), **groups}
    print_json(values)


def _print(stage_graph: StagedGraph, title: str, method: str, notes: Sequence[str], *, has_fusion: bool) -> None:
    """Print how large a graph is, and what was drawn; without a picture its operations, or the groups of them."""
    from exporter.graph.listing import list_rows

    captured = f", captured as {stage_graph.graph.method}" if stage_graph.graph.method != method else ""
    counts = f"{len(stage_graph.graph)} operations, {stage_graph.nodes} nodes with constants"
    out.print(f"{title}{captured}, {stage_graph.stage}: {counts}")
    for note in notes:
        out.print(note, soft_wrap=True)
    if has_fusion:
        _print_fusion(stage_graph, is_short=bool(notes))
    elif not notes:
        print_rows(list_rows(stage_graph.graph, stage_graph.names))


def _print_fusion(stage_graph: StagedGraph, *, is_short: bool) -> None:
    """Print the groups that are fused, what leads past them, and what stays apart."""
    from exporter.graph.fusion import describe_support, find_fusion

    fusion = find_fusion(stage_graph.graph, stage_graph.names)
    fused, apart = sum(group.operations for group in fusion.groups), sum(fusion.apart.values())
    kernels = "1 kernel" if len(fusion.groups) == 1 else f"{len(fusion.groups)} kernels"
    out.print(f"fused: {fused} of {fused + apart} operations, in {kernels}", soft_wrap=True)
    out.print(describe_support(), soft_wrap=True)
    for number, group in enumerate(() if is_short else fusion.groups, 1):
        out.print(f"kernel {number}: {group.operations} operations{', if' if group.checks else ''}", soft_wrap=True)
        for check in group.checks:
            out.print(f"    {check}", soft_wrap=True)
        if group.has_fallback:
            out.print("    (else the fallback, one operation after the other)", soft_wrap=True)
        print_rows(group.rows)
    if fusion.apart:
        counts = ", ".join(f"{count} {operator}" for operator, count in fusion.apart.items())
        out.print(f"apart: {counts}", soft_wrap=True)
