"""A sweep over every model of every input file below some folders: export, verify, and report each failure's reason."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from exporter.common import task_pools
from exporter.common.errors import OutputError, TorchferryError, UsageError, summarize_error
from torchferry.pipeline import Exported

VERIFIED, REFUSED, CRASHED = "verified", "refused", "crashed"
TASKS_PER_PROCESS = 8


class Export(Protocol):
    """``torchferry.export``, which raises for a model that is not exported and verified."""

    def __call__(self, source: str, *, models: Sequence[str], output: Path, seed: int) -> list[Exported]: ...


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
class SweepRow:
    """The result of one model. ``kind`` is the error's class, ``reason`` its first line; figures are the worst of all.

    ``driven`` says that a driver of the file names this model: it is the one that the file is about."""

    file: str
    model: str
    driven: bool
    verdict: str
    seconds: float
    kind: str = ""
    reason: str = ""
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: int = 0


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
                rows.append(_make_error_row(label, "", True, error, 0.0))
                continue
            place = output / label.with_suffix("")
            tasks += [Task(folder, file, name, name in driven, place / f"{name}.pt", seed) for name in names]
    if not tasks and not rows:
        what, where = "there is no input file to sweep", ", ".join(map(str, folders))
        raise UsageError(what, where=where, expected="files that end in .i")
    return tasks, rows


def run_task(task: Task, export: Export) -> SweepRow:
    """Export and verify one model; any failure becomes its row."""
    start = time.perf_counter()
    label = _make_label(task.folder, task.file)
    try:
        results = export(str(task.file), models=[task.model], output=task.output, seed=task.seed)
    except Exception as error:
        return _make_error_row(label, task.model, task.driven, error, time.perf_counter() - start)
    figures = [o.comparison for o in results[0].report.outputs]
    seconds = round(time.perf_counter() - start, 3)
    max_abs = max((f.max_abs for f in figures), default=0.0)
    max_rel = max((f.max_rel for f in figures), default=0.0)
    max_ulp = max((f.max_ulp for f in figures), default=0)
    return SweepRow(
        str(label), task.model, task.driven, VERIFIED, seconds, max_abs=max_abs, max_rel=max_rel, max_ulp=max_ulp
    )


def sweep(
    folders: Sequence[Path],
    output: Path,
    export: Export,
    executor: Callable[[], Executor],
    *,
    seed: int = 0,
    watch: Callable[[int], Callable[[SweepRow], Any]] = lambda total: lambda row: None,
) -> list[SweepRow]:
    """Export and verify every model below ``folders``; archives and ``report.json`` go to ``output``.

    ``executor`` makes a ``concurrent.futures`` executor; ``watch`` gets the number of models and returns a function
    that gets each row. An interrupt leaves the archives and a report of the models done so far. Raises ``UsageError``
    for folders without input files, ``OutputError`` if results cannot be written."""
    tasks, rows = find_tasks(folders, output, seed)
    report = output / "report.json"
    try:
        output.mkdir(parents=True, exist_ok=True)
        report.touch()
    except OSError as error:
        what = "the results of the sweep cannot be written"
        got, mend = error.strerror or str(error), "name another folder with -o, or free disk space"
        raise OutputError(what, where=str(output), got=got, mend=mend) from None
    done: dict[Task, SweepRow] = {}
    tell = watch(len(tasks))
    try:
        for task, row in run_tasks(tasks, export, executor):
            done[task] = row
            tell(row)
    finally:
        rows += [done[task] for task in tasks if task in done]
        report.write_text(rows_to_json(rows) + "\n")
    return rows


def run_tasks(tasks: Sequence[Task], export: Export, executor: Callable[[], Executor]) -> Rows:
    """Yield tasks and their rows as they finish."""
    results = task_pools.run_tasks(tasks, functools.partial(run_task, export=export), executor, TASKS_PER_PROCESS)
    for task, result in results:
        if isinstance(result, BrokenExecutor):
            label = str(_make_label(task.folder, task.file))
            yield task, SweepRow(label, task.model, task.driven, CRASHED, 0.0, "crash", str(result))
        else:
            yield task, result


def rows_to_json(rows: Iterable[SweepRow]) -> str:
    """Return the rows and the count of each verdict as JSON."""
    rows = list(rows)
    counts = {v: sum(r.verdict == v for r in rows) for v in (VERIFIED, REFUSED, CRASHED)}
    models = [dataclasses.asdict(r) for r in rows]
    return json.dumps({"counts": counts, "models": models}, indent=1)


def _make_label(folder: Path, file: Path) -> Path:
    """Return the label of a file in rows and below the output: the folder's name (also of ``.``), then the rest."""
    return Path(folder.resolve().name) / file.relative_to(folder)


def _make_error_row(file: Path, model: str, driven: bool, error: Exception, seconds: float) -> SweepRow:
    ours = isinstance(error, TorchferryError)
    reason = summarize_error(error).split(": ", 1)[-1] if ours else traceback.format_exc().strip()
    verdict, name = REFUSED if ours else CRASHED, type(error).__name__
    return SweepRow(str(file), model, driven, verdict, round(seconds, 3), name, reason)
