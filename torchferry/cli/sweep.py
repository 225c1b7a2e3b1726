"""``torchferry sweep``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from torchferry.cli.options import DerivativeOption, JsonOption, ReduceOption, RuntimeOption, SeedOption
from torchferry.cli.output import err, out

if TYPE_CHECKING:
    from torchferry.sweep import SweepRow


def command(
    folders: Annotated[list[Path], Argument(help="Folders with input files.", metavar="FOLDER...")],
    output: Annotated[Path, Option("--output", "-o", help="Folder of the archives and report.json.")],
    jobs: Annotated[int, Option(help="Number of processes.", min=1)] = 1,
    seed: SeedOption = 0,
    derivative: DerivativeOption = None,
    runtime: RuntimeOption = "python",
    format: Annotated[
        list[str] | None, Option(help="Also convert each archive: onnx, pt2, program, c or cuda, or several.")
    ] = None,
    reduce: ReduceOption = "all",
    scheduler: Annotated[
        str, Option(help="Who exports: processes[:N], tcp://... (Dask), slurm:N, mpi; they share the folders.")
    ] = "processes",
    coverage: Annotated[
        Path | None,
        Option(help="Also write the figures and reasons as a Markdown page.", dir_okay=False, writable=True),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Export and verify every model of every input file below some folders.

    Goes on past failures; ends with a table and OUTPUT/report.json (model, verdict, reason, seconds, bytes, errors, by
    format). Exit code 0: every model was verified or refused with a reason; 1: a crash; 5: numbers differ somewhere.
    After an interrupt the same command goes on with the models that are left.

    Examples:

      torchferry sweep models/ -o archives/ --jobs 2

      torchferry sweep models/ regression/ -o archives/ --coverage docs/results/neml2-coverage.md

      torchferry sweep models/ -o archives/ --derivative all --runtime python,libtorch

      torchferry sweep models/ -o archives/ --format onnx,program,c

      torchferry sweep models/ -o archives/ --scheduler slurm:16
    """
    import torchferry
    from exporter.archive.formats import resolve_formats
    from exporter.common.errors import UsageError
    from exporter.common.schedulers import is_of_this_process, open_pools
    from torchferry.sweep import CRASHED, Steps, rows_to_json, sweep
    from torchferry.sweep_report import describe_versions, render_coverage_page

    if is_of_this_process(scheduler):
        expected = "processes, tcp://..., slurm:N or mpi"
        raise UsageError("a process exports one model at a time", where="--scheduler", got=scheduler, expected=expected)
    # Workers may be elsewhere, in other folders.
    folders, output = [folder.absolute() for folder in folders], output.absolute()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with open_pools(scheduler, jobs) as make_pool, Progress(*columns, console=err, disable=json) as bar:
        if make_pool is None:
            # Another process of MPI tells what was done.
            return

        def watch(total: int) -> Callable[[SweepRow], None]:
            task = bar.add_task("sweep", total=total)
            return lambda row: bar.update(task, advance=1, description=row.model[:24].ljust(24))

        options = {"derivatives": derivative or [], "runtimes": runtime}
        steps = Steps(
            functools.partial(torchferry.export, **options, jobs=1),
            functools.partial(torchferry.convert, reduce=reduce),
            tuple(name for name in resolve_formats(format or [], None) if name != "pt"),
            f"{options} {reduce}",
        )
        rows = sweep(folders, output, steps, make_pool, seed=seed, watch=watch)
    cells = [cell for row in rows for cell in row.cells]
    if coverage is not None:
        coverage.write_text(render_coverage_page(rows, describe_versions()))
    if json:
        out.file.write(rows_to_json(rows) + "\n")
    else:
        out.print(_make_table(rows))
    if any(cell.verdict == CRASHED for cell in cells):
        raise typer.Exit(1)
    if any(cell.kind == torchferry.MismatchError.__name__ for cell in cells):
        raise typer.Exit(torchferry.MismatchError.exit_code)


def _make_table(rows: list[SweepRow]) -> Table:
    from torchferry.sweep import VERIFIED

    verified_count = sum(row.archive.verdict == VERIFIED for row in rows)
    table = Table(title=f"{verified_count} of {len(rows)} models verified")
    for column in ("file", "model", "format", "verdict", "s", "kB", "max rel", "reason"):
        table.add_column(column, overflow="fold")
    for row, cell in ((r, cell) for r in rows for cell in r.cells):
        verified, is_first = cell.verdict == VERIFIED, cell is row.archive
        table.add_row(
            Text(row.file if is_first else ""),
            Text(row.model + (" *" if row.driven else "") if is_first else ""),
            Text(cell.format),
            Text(cell.verdict, style="green" if verified else "red"),
            f"{cell.seconds:.1f}",
            f"{cell.bytes / 1000:.0f}" if verified else "",
            f"{cell.max_rel:.1e}" if verified else "",
            Text(cell.reason.splitlines()[-1] if cell.reason else ""),
        )
    table.caption = "* named by a driver of its file"
    return table
