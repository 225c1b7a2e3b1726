"""Every model of every input file below some folders: exported, verified, and told, with the reason of each failure."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from exporter.errors import OutputError, TorchferryError, UsageError, first_line
from exporter.pipeline import Exported

VERIFIED, REFUSED, CRASHED = "verified", "refused", "crashed"


class Export(Protocol):
    """``torchferry.export``: raises for whatever is not exported and verified."""

    def __call__(self, source: str, *, models: Sequence[str], output: Path, seed: int) -> list[Exported]: ...


@dataclass(frozen=True)
class Task:
    folder: Path
    file: Path
    model: str
    driven: bool
    output: Path
    seed: int


@dataclass(frozen=True)
class Row:
    """One model. ``kind`` is the error's class, ``reason`` its first line; figures are the worst over all outputs.

    ``driven`` says that a driver of the file names this model: the one that the file is about.
    """

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


def prepare(output: Path, coverage: Path | None) -> None:
    """Find out before the work, not after it, that its results cannot be written. Raises ``OutputError``."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        for path in (output / "report.json", *([coverage] if coverage else [])):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    except OSError as error:
        raise OutputError(
            "the results of the sweep cannot be written", where=str(error.filename), got=error.strerror or str(error)
        ) from None


def find_tasks(folders: Sequence[Path], output: Path, seed: int) -> tuple[list[Task], list[Row]]:
    """A task for each model, and a row for each file that does not even parse. Raises ``UsageError`` for no files."""
    from exporter.sources import neml2

    tasks, rows = [], []
    seen: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UsageError("there is no such folder to sweep", where=str(folder))
        for file in sorted(folder.rglob("*.i")):
            label = _label(folder, file)
            if label in seen:
                raise UsageError(
                    "two folders of a sweep have one name",
                    where=f"{seen[label]} and {folder}",
                    expected="folders of different names: archives are written below OUTPUT/NAME",
                )
            seen[label] = folder
            try:
                names, driven = neml2.model_names(file), neml2.driver_models(file)
            except TorchferryError as error:
                rows.append(_row(label, "", True, error, 0.0))
                continue
            place = output / label.with_suffix("")
            tasks += [Task(folder, file, name, name in driven, place / f"{name}.pt", seed) for name in names]
    if not tasks and not rows:
        raise UsageError(
            "there is no input file to sweep",
            where=", ".join(map(str, folders)),
            expected="files that end in .i",
        )
    return tasks, rows


def run_task(task: Task, export: Export) -> Row:
    """Export and verify one model; whatever goes wrong becomes its row."""
    start = time.perf_counter()
    label = _label(task.folder, task.file)
    try:
        exported = export(str(task.file), models=[task.model], output=task.output, seed=task.seed)
    except Exception as error:
        return _row(label, task.model, task.driven, error, time.perf_counter() - start)
    figures = [o.comparison for o in exported[0].report.outputs]
    return Row(
        str(label),
        task.model,
        task.driven,
        VERIFIED,
        round(time.perf_counter() - start, 3),
        max_abs=max((f.max_abs for f in figures), default=0.0),
        max_rel=max((f.max_rel for f in figures), default=0.0),
        max_ulp=max((f.max_ulp for f in figures), default=0),
    )


def processes(jobs: int) -> Callable[[], Executor]:
    """Fresh processes, not forks: torch's threads do not survive a fork."""
    return lambda: ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))


def sweep(
    tasks: Sequence[Task],
    export: Export,
    executor: Callable[[], Executor],
    progress: Callable[[Row], Any] = lambda row: None,
) -> list[Row]:
    """Rows of all tasks, in the order of the tasks.

    ``executor`` makes a ``concurrent.futures`` executor; a process that dies takes its whole pool along, so what it
    left unfinished is run once more, each task in a pool of its own.
    """
    rows: dict[Task, Row] = {}

    def done(task: Task, row: Row) -> None:
        rows[task] = row
        progress(row)

    with executor() as pool:
        futures = {pool.submit(run_task, task, export): task for task in tasks}
        try:
            for future in as_completed(futures):
                try:
                    done(futures[future], future.result())
                except BrokenExecutor:
                    continue
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for task in tasks:
        if task in rows:
            continue
        with executor() as pool:
            try:
                done(task, pool.submit(run_task, task, export).result())
            except BrokenExecutor as error:
                label = _label(task.folder, task.file)
                done(task, Row(str(label), task.model, task.driven, CRASHED, 0.0, "crash", str(error)))
    return [rows[task] for task in tasks]


def as_json(rows: Iterable[Row]) -> str:
    rows = list(rows)
    counts = {v: sum(r.verdict == v for r in rows) for v in (VERIFIED, REFUSED, CRASHED)}
    models = [dataclasses.asdict(r) for r in rows]
    return json.dumps({"counts": counts, "models": models}, indent=1)


def coverage(rows: Sequence[Row], versions: str) -> str:
    """The rows as a Markdown page: figures by folder, then every model that was not verified, with its reason."""
    lines = [
        "# Coverage",
        "",
        f"Written by `torchferry sweep --coverage`, with {versions}.",
        "A model counts where its archive was exported and verified. *Driven* models are those that a driver of the",
        "input file names; the others are their parts.",
        "",
        "| folder | models | verified | driven models | verified |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for folder in dict.fromkeys(r.file.split("/")[0] for r in rows):
        here = [r for r in rows if r.file.split("/")[0] == folder]
        driven = [r for r in here if r.driven]
        cells = [folder, len(here), _verified(here), len(driven), _verified(driven)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    verified = [r for r in rows if r.verdict == VERIFIED]
    if verified:
        worst = max(verified, key=lambda r: r.max_rel)
        lines += [
            "",
            f"Largest difference from eager mode over all verified models: {worst.max_rel:.1e} relative "
            f"({worst.file}, `{worst.model}`).",
        ]
    failed = [r for r in rows if r.verdict != VERIFIED]
    if failed:
        lines += ["", "## Not verified", ""]
    for reason in dict.fromkeys(_grouped(r) for r in failed):
        group = [r for r in failed if _grouped(r) == reason]
        lines += [f"### {reason} ({len(group)})", "", "| file | models |", "| --- | --- |"]
        for file in dict.fromkeys(r.file for r in group):
            models = ", ".join(f"`{r.model}`" for r in group if r.file == file)
            lines.append(f"| {file} | {models} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def versions() -> str:
    """Of what a sweep depends on, for its page."""
    import platform
    from importlib.metadata import version

    from exporter.sources import neml2

    built = "built for it" if neml2.built_for_this_torch() else "not built for it"
    return f"neml2 {neml2.version()} ({built}), torch {version('torch')}, Python {platform.python_version()}"


def _verified(rows: Sequence[Row]) -> int:
    return sum(r.verdict == VERIFIED for r in rows)


def _grouped(row: Row) -> str:
    """The reason without the model's own name, so that equal reasons stand together."""
    text = row.reason.replace(f"'{row.model}'", "").replace("  ", " ").strip()
    return f"{row.kind}: {text}"


def _label(folder: Path, file: Path) -> Path:
    """How a file is called in rows and below the output: the folder's own name (also of ``.``), then the rest."""
    return Path(folder.resolve().name) / file.relative_to(folder)


def _row(file: Path, model: str, driven: bool, error: Exception, seconds: float) -> Row:
    ours = isinstance(error, TorchferryError)
    reason = first_line(error).split(": ", 1)[-1] if ours else traceback.format_exc().strip()
    return Row(
        str(file),
        model,
        driven,
        REFUSED if ours else CRASHED,
        round(seconds, 3),
        type(error).__name__,
        reason,
    )
