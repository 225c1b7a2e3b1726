"""A sweep over every model of every input file below some folders: export, convert, verify, report reasons.

A sweep that was cut off goes on where it stopped."""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from exporter.archive.formats import count_bytes, path_for_format
from exporter.common import task_pools
from exporter.common.errors import (
    MissingRuntimeError,
    OutputError,
    RunError,
    TorchferryError,
    UsageError,
    summarize_error,
)
from exporter.common.result_log import ResultLog, digest_files
from runtime_checks.report import Report
from torchferry.conversion import Converted
from torchferry.pipeline import Exported

VERIFIED, REFUSED, CRASHED = "verified", "refused", "crashed"
TASKS_PER_PROCESS = 8
REPORT, UNFINISHED = "report.json", "unfinished.jsonl"
# Errors that another try may not have.
OF_MACHINE = (MissingRuntimeError, OutputError, RunError)
ROOT = Path(__file__).parents[1]
# What the rows of an interrupted sweep depend on, besides its files and options.
PACKAGES, CODE = ("torch", "neml2", "onnx", "onnxscript", "onnxruntime"), ("exporter", "runtime_checks", "torchferry")


class Export(Protocol):
    """``torchferry.export``, which raises for a model that is not exported and verified."""

    def __call__(self, source: str, *, models: Sequence[str], output: Path, seed: int) -> list[Exported]: ...


class Convert(Protocol):
    """``torchferry.convert``, which raises for an archive that is not converted and verified."""

    def __call__(self, path: Path, output: Path, *, to: str) -> Converted: ...


@dataclass(frozen=True)
class Steps:
    """What a sweep does with each model: export it, and convert the archive to other formats.

    ``options`` are those of both, as text: with others an interrupted sweep begins anew."""

    export: Export
    convert: Convert | None = None
    formats: tuple[str, ...] = ()
    options: str = ""


@dataclass(frozen=True)
class Task:
    """One model of one input file, to be exported."""

    folder: Path
    file: Path
    model: str
    driven: bool
    output: Path
    seed: int


@dataclass(frozen=True)
class SweepCell:
    """The result of one format of a model. ``kind`` is the error's class, ``reason`` its first line; ``bytes`` is the
    size of the file, or of all files of a kernel; figures are the worst of all outputs."""

    format: str
    verdict: str
    seconds: float
    kind: str = ""
    reason: str = ""
    bytes: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: int = 0


@dataclass(frozen=True)
class SweepRow:
    """The results of one model: of its archive first, and of the other formats if there is one.

    ``driven`` says that a driver of the file names this model: it is the one that the file is about."""

    file: str
    model: str
    driven: bool
    cells: tuple[SweepCell, ...]

    @property
    def archive(self) -> SweepCell:
        """Return the result of the archive."""
        return self.cells[0]


_EXPORTING = threading.Lock()
Rows = Iterator[tuple[Task, SweepRow]]


def find_tasks(folders: Sequence[Path], output: Path, seed: int) -> tuple[list[Task], list[SweepRow]]:
    """Return a task for each model and a row for each unparsable file. Raises ``UsageError`` if there are no files."""
    from exporter.frontends.model_request import ModelRequest
    from exporter.frontends.neml2 import input_file

    tasks, rows = [], []
    folder_by_label: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            what, expected = "there is no such folder to sweep", "a folder with input files (.i) below it"
            raise UsageError(what, where=str(folder), expected=expected)
        for file in sorted(folder.rglob("*.i")):
            label = _make_label(folder, file)
            if label in folder_by_label:
                where = f"{folder_by_label[label]} and {folder}"
                expected = "folders of different names: archives are written below OUTPUT/NAME"
                raise UsageError("two folders of a sweep have one name", where=where, expected=expected)
            folder_by_label[label] = folder
            try:
                request = ModelRequest(str(file))
                names, driven = input_file.list_model_names(request), input_file.list_driver_models(request)
            except TorchferryError as error:
                rows.append(SweepRow(str(label), "", True, (_make_error_cell("pt", error, 0.0),)))
                continue
            place = output / label.with_suffix("")
            tasks += [Task(folder, file, name, name in driven, place / f"{name}.pt", seed) for name in names]
    if not tasks and not rows:
        what, where = "there is no input file to sweep", ", ".join(map(str, folders))
        raise UsageError(what, where=where, expected="files that end in .i")
    return tasks, rows


def run_task(task: Task, steps: Steps) -> SweepRow:
    """Export and verify one model, and convert its archive; any failure becomes a cell of its row.

    A worker of Dask may have several threads, and a process exports one model at a time."""
    with _EXPORTING:
        return _run_task(task, steps)


def _run_task(task: Task, steps: Steps) -> SweepRow:
    def export() -> tuple[Path, Report]:
        results = steps.export(str(task.file), models=[task.model], output=task.output, seed=task.seed)
        return task.output, results[0].report

    def convert(format_name: str) -> tuple[Path, Report]:
        assert steps.convert is not None
        converted = steps.convert(task.output, path_for_format(task.output, format_name), to=format_name)
        return converted.path, converted.report

    cells = [_make_cell("pt", export)]
    if cells[0].verdict == VERIFIED:
        cells += [_make_cell(name, functools.partial(convert, name)) for name in steps.formats]
    return SweepRow(str(_make_label(task.folder, task.file)), task.model, task.driven, tuple(cells))


def _make_cell(format_name: str, make: Callable[[], tuple[Path, Report]]) -> SweepCell:
    start = time.perf_counter()
    try:
        path, report = make()
    except Exception as error:
        return _make_error_cell(format_name, error, time.perf_counter() - start)
    figures = [output.comparison for output in report.outputs]
    return SweepCell(
        format_name,
        VERIFIED,
        round(time.perf_counter() - start, 3),
        bytes=count_bytes(path),
        max_abs=max((f.max_abs for f in figures), default=0.0),
        max_rel=max((f.max_rel for f in figures), default=0.0),
        max_ulp=max((f.max_ulp for f in figures), default=0),
    )


def sweep(
    folders: Sequence[Path],
    output: Path,
    steps: Steps,
    executor: Callable[[], Executor],
    *,
    seed: int = 0,
    watch: Callable[[int], Callable[[SweepRow], Any]] = lambda total: lambda row: None,
) -> list[SweepRow]:
    """Export and verify every model below ``folders``; files and ``report.json`` go to ``output``.

    ``executor`` makes a ``concurrent.futures`` executor; ``watch`` gets the number of models and returns a function
    that gets each row. An interrupt leaves the files and a report of the models done so far; the next sweep with the
    same input files and options does the others alone. Raises ``UsageError`` for folders without input files,
    ``OutputError`` if results cannot be written."""
    tasks, rows = find_tasks(folders, output, seed)
    report, unfinished = output / REPORT, output / UNFINISHED
    try:
        output.mkdir(parents=True, exist_ok=True)
        report.touch()
        log = ResultLog(unfinished, _digest_sweep(tasks, steps))
    except OSError as error:
        raise _make_output_error(output, error) from None
    known = {(row.file, row.model): row for row in map(_read_row, log.results)}
    done: dict[Task, SweepRow] = {}
    tell = watch(len(tasks))
    try:
        for task in tasks:
            row = known.get((str(_make_label(task.folder, task.file)), task.model))
            if row is not None and _is_settled(row) and _has_files(task, row):
                done[task] = row
                tell(row)
        for task, row in run_tasks([task for task in tasks if task not in done], steps, executor):
            done[task] = row
            _keep(log, row, output)
            tell(row)
        unfinished.unlink(missing_ok=True)
    finally:
        rows += [done[task] for task in tasks if task in done]
        report.write_text(rows_to_json(rows) + "\n")
    return rows


def run_tasks(tasks: Sequence[Task], steps: Steps, executor: Callable[[], Executor]) -> Rows:
    """Yield tasks and their rows as they finish."""
    results = task_pools.run_tasks(tasks, functools.partial(run_task, steps=steps), executor, TASKS_PER_PROCESS)
    for task, result in results:
        if isinstance(result, BrokenExecutor):
            label = str(_make_label(task.folder, task.file))
            yield task, SweepRow(label, task.model, task.driven, (SweepCell("pt", CRASHED, 0.0, "crash", str(result)),))
        else:
            yield task, result


def _digest_sweep(tasks: Sequence[Task], steps: Steps) -> str:
    """Return a digest of what the rows of a sweep depend on, but for data files that models read."""
    from exporter.frontends.source_files import list_included_files

    seeds = {task.seed for task in tasks}
    texts = [*map(_find_version, PACKAGES), ",".join(steps.formats), steps.options, *map(str, sorted(seeds))]
    files = (file for path in dict.fromkeys(task.file for task in tasks) for file in list_included_files(path))
    return digest_files(texts, [*(ROOT / name for name in CODE), *dict.fromkeys(files)])


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _read_row(result: dict[str, Any]) -> SweepRow:
    return SweepRow(**{**result, "cells": tuple(SweepCell(**cell) for cell in result["cells"])})


def _is_settled(row: SweepRow) -> bool:
    """Return whether a row says what the model is, and nothing of a machine that lacked something."""
    names = [error.__name__ for error in OF_MACHINE]
    return all(cell.verdict != CRASHED and cell.kind not in names for cell in row.cells)


def _keep(log: ResultLog, row: SweepRow, output: Path) -> None:
    try:
        log.add(dataclasses.asdict(row))
    except OSError as error:
        raise _make_output_error(output, error) from None


def _make_output_error(output: Path, error: OSError) -> OutputError:
    what = "the results of the sweep cannot be written"
    got, mend = error.strerror or str(error), "name another folder with -o, or free disk space"
    return OutputError(what, where=str(output), got=got, mend=mend)


def _has_files(task: Task, row: SweepRow) -> bool:
    """Return whether the files of a row are still there."""
    verified = [cell.format for cell in row.cells if cell.verdict == VERIFIED]
    return all(path_for_format(task.output, name).exists() for name in verified)


def rows_to_json(rows: Iterable[SweepRow]) -> str:
    """Return the rows and, by format, the count of each verdict as JSON. What is of the archive is not nested."""
    rows = list(rows)
    counts: dict[str, dict[str, int]] = {}
    for cell in (cell for row in rows for cell in row.cells):
        counts.setdefault(cell.format, dict.fromkeys((VERIFIED, REFUSED, CRASHED), 0))[cell.verdict] += 1
    models = []
    for row in rows:
        own, *others = ({k: v for k, v in dataclasses.asdict(c).items() if k != "format"} for c in row.cells)
        formats = {c.format: values for c, values in zip(row.cells[1:], others, strict=True)}
        models.append({"file": row.file, "model": row.model, "driven": row.driven, **own, "formats": formats})
    return json.dumps(
        {
            "counts": counts.pop("pt", dict.fromkeys((VERIFIED, REFUSED, CRASHED), 0)),
            "formats": counts,
            "models": models,
        },
        indent=1,
    )


def _make_label(folder: Path, file: Path) -> Path:
    """Return the label of a file in rows and below the output: the folder's name (also of ``.``), then the rest."""
    return Path(folder.resolve().name) / file.relative_to(folder)


def _make_error_cell(format_name: str, error: Exception, seconds: float) -> SweepCell:
    ours = isinstance(error, TorchferryError)
    reason = summarize_error(error).split(": ", 1)[-1] if ours else traceback.format_exc().strip()
    return SweepCell(format_name, REFUSED if ours else CRASHED, round(seconds, 3), type(error).__name__, reason)
