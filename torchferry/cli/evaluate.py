"""``torchferry evaluate``."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from torchferry.cli.options import AllowNativeOption, JsonOption, MemoryLimitOption, choose_trust
from torchferry.cli.output import err, out, print_json
from torchferry.cli.startup import pause_collection

if TYPE_CHECKING:
    from runtime_checks.evaluation.evaluation import Evaluated, Evaluation, Progress
    from runtime_checks.evaluation.summaries import Extent

# A month of one core's time.
SECONDS = 30 * 86_400.0


@dataclass(frozen=True)
class _Request:
    """What is evaluated, and what is told of it."""

    file: Any
    data: Any
    output: Path
    failures: Path | None
    plot: Path | None
    curves: tuple[str, ...]
    as_json: bool


def command(
    path: Annotated[
        Path, Argument(help="An archive, a .pt2, an ONNX container, or a kernel's folder.", metavar="FILE")
    ],
    output: Annotated[Path, Option("--output", "-o", help="The results: .zarr, .nc or .parquet.")],
    data: Annotated[
        Path | None, Argument(help="A data set: Zarr, NetCDF (.nc) or Parquet.", metavar="DATA", show_default=False)
    ] = None,
    method: Annotated[str, Option(help="A method of the file: forward, jacobian, ...")] = "forward",
    engine: Annotated[
        str, Option(help="What runs an archive: torchscript, kernel, pt2 or interpreter.")
    ] = "torchscript",
    name: Annotated[
        list[str] | None, Option(help="INPUT=VARIABLE, where the data set has another name; may be repeated.")
    ] = None,
    vary: Annotated[
        list[str] | None,
        Option(help="NAME=LOW:HIGH:COUNT[:log] or NAME=A,B: values of an input or parameter, with all elements."),
    ] = None,
    keep: Annotated[list[str] | None, Option(help="A variable that goes to the results too; may be repeated.")] = None,
    chunk: Annotated[int | None, Option(help="Elements of a chunk, at most. Default: about 64 MiB of numbers.")] = None,
    scheduler: Annotated[
        str,
        Option(
            help="Who evaluates: threads[:N], processes[:N], tcp://... (Dask), slurm:N, mpi. All but threads open the "
            "file in this process too: for files that you trust."
        ),
    ] = "threads",
    failures: Annotated[
        Path | None, Option(help="Where the inputs of the first elements that fail go, for run --replay: a .pt file.")
    ] = None,
    plot: Annotated[Path | None, Option(help="A picture of what is varied: .svg, .png, .pdf (matplotlib).")] = None,
    curve: Annotated[list[str] | None, Option(help="What is drawn over what: 'stress[0]:E'; may be repeated.")] = None,
    allow_native: AllowNativeOption = False,
    time_limit: Annotated[float, Option(help="Seconds of computing for each process.")] = SECONDS,
    memory_limit: MemoryLimitOption = 16.0,
    json: JsonOption = False,
) -> None:
    """Evaluate a file over a data set, chunk by chunk; the results are a data set with its dimensions.

    Variables have the names of the inputs; their own dimensions come last, all others are those of elements. Names,
    shapes and dtypes are checked before anything runs. What is not there after an interrupt, a crash or a full disk,
    the same command computes; finished chunks are kept, once their digests are checked.

    The results have the variable status: 0 for an element that has numbers. Exit code 0: everything was evaluated,
    whatever the statuses; 2: the data do not fit; 4: the file fails on a chunk.

    Examples:

      torchferry evaluate return_map.pt strains.zarr -o stresses.zarr

      torchferry evaluate return_map.pt strains.parquet -o stresses.parquet --engine kernel --failures failed.pt

      torchferry evaluate decay.pt states.nc -o rates.nc --vary rate=0.1:10:50:log --plot rates.svg

      mpirun -n 9 torchferry evaluate return_map.pt strains.zarr -o stresses.zarr --scheduler mpi
    """
    with pause_collection():
        from exporter.common.errors import UsageError
        from exporter.common.schedulers import is_of_this_process
        from exporter.common.temporary_folders import temporary_folder
        from runtime_checks.evaluation.chunk_evaluation import DataRequest
        from runtime_checks.evaluation.evaluator import FileRequest
        from runtime_checks.runners.confined_calls import Confinement, make_preparation
        from torchferry.cli.confined_process import import_early, report_missing, run_confined
        from torchferry.cli.study_values import parse_pairs, parse_study

    studies = tuple(map(parse_study, vary or []))
    if (curve or plot) and not studies:
        what, mend = "there is nothing varied to draw over", "leave --plot out, or vary something"
        raise UsageError(what, where="--plot", expected="--vary NAME=LOW:HIGH:COUNT", mend=mend)
    if curve and plot is None:
        raise UsageError("curves need a picture to draw into", where="--curve", expected="--plot FILE")
    written = {other.resolve() for other in (failures, plot) if other is not None}
    if written & {other.resolve() for other in (path, data, output) if other is not None}:
        what, mend = "a file would be written over another one of this command", "name another file"
        raise UsageError(what, where="--failures, --plot", expected="files of their own", mend=mend)
    if len({study for study, _ in studies}) < len(studies):
        raise UsageError("something is varied twice", where="--vary", expected="each name once", mend="leave one out")
    request = _Request(
        FileRequest(path, method, engine, choose_trust(allow_native)),
        DataRequest(data, parse_pairs(name or [], "--name"), studies, tuple(keep or ()), chunk),
        output,
        failures,
        plot,
        tuple(curve or ()),
        json,
    )
    if plot is not None:
        import_early("matplotlib.figure")
    for package in ("xarray", "zarr", "h5netcdf", "pyarrow.parquet"):
        import_early(package)
    outputs = (output, failures, plot)
    confinement = Confinement(path, outputs, time_limit, memory_limit, programs=None)
    if is_of_this_process(scheduler):
        run_confined(functools.partial(_evaluate, request, scheduler), confinement, as_json=json)
        return
    # NumPy's threads would begin in a worker before it is confined.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with temporary_folder() as folder:
        _evaluate(request, scheduler, make_preparation(confinement, folder, report_missing))


def _evaluate(request: _Request, scheduler: str, prepare: Callable[[], None] | None = None) -> None:
    from exporter.common.schedulers import open_pools
    from runtime_checks.evaluation.evaluation import Evaluation
    from runtime_checks.evaluation.study_plot import draw_study, parse_study_curves
    from torchferry.options import choose_jobs

    with open_pools(scheduler, choose_jobs(None), prepare) as make_pool:
        if make_pool is None:
            # Another process of MPI tells what was done.
            return
        evaluation = Evaluation(request.file, request.data, request.output)
        curves = parse_study_curves(request.curves, evaluation, request.output) if request.plot is not None else []
        try:
            with _show_progress(evaluation, is_silent=request.as_json) as watch:
                result = evaluation.run(make_pool, failures=request.failures, watch=watch)
        except BaseException:
            if evaluation.finished and not request.as_json:
                text = f"{evaluation.finished} of {evaluation.chunks} chunks are kept: the same command goes on"
                err.print(text, soft_wrap=True)
            raise
    if request.plot is not None:
        draw_study(request.output, curves, request.plot)
    if request.as_json:
        print_json(result.as_dict())
        return
    _print_result(result, request.failures)


@contextlib.contextmanager
def _show_progress(evaluation: Evaluation, *, is_silent: bool) -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=err, transient=True, disable=is_silent) as bar:
        task = bar.add_task("chunks", total=evaluation.chunks)

        def watch(progress: Progress) -> None:
            bar.update(task, completed=progress.done, total=progress.total, description=progress.stage)

        yield watch


def _print_result(result: Evaluated, failures: Path | None) -> None:
    from exporter.model.implicit.newton_solver import STATUS
    from runtime_checks.evaluation.summaries import NO_NUMBER

    summary = result.summary
    table = Table(show_edge=False)
    for column in ("variable", "min", "max", "NaN", "outside"):
        table.add_column(column, justify="left" if column == "variable" else "right")
    for variable, extent in summary.inputs.items():
        table.add_row(Text(variable), *_format_extent(extent), f"{extent.outside:,}")
    for variable, extent in summary.outputs.items():
        table.add_row(Text(variable), *_format_extent(extent), "")
    out.print(table)
    meanings = {**STATUS, NO_NUMBER: "no number"}
    for status, count in summary.statuses.items():
        if status:
            out.print(f"{count:,} elements: {meanings.get(status, f'status {status}')}", soft_wrap=True)
    if summary.failed and failures is not None:
        where = f"torchferry run --replay {failures}"
        out.print(f"{failures}: inputs of {len(summary.failures)} of them ({where})", soft_wrap=True)
    if result.unchecked_units:
        names = ", ".join(result.unchecked_units)
        out.print(Text(f"units: not compared for {names}: the data have no attribute 'units'"), soft_wrap=True)
    kept = f", {result.kept} of {result.kept + result.evaluated} chunks kept from before" if result.kept else ""
    out.print(f"wrote {result.path}: {summary.elements:,} elements{kept}", soft_wrap=True)


def _format_extent(extent: Extent) -> Sequence[str]:
    is_empty = extent.low > extent.high
    low, high = ("", "") if is_empty else (f"{extent.low:.6g}", f"{extent.high:.6g}")
    return low, high, f"{extent.nan:,}" if extent.nan else ""
