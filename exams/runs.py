"""A run of a suite: packs of cases in processes of their own; each row is kept as soon as it is there.

A run that was cut off goes on where it stopped."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import logging
import os
import shlex
import site
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from exams.cells import WRONG
from exams.tables import EXPECTED, Row
from exporter.common import task_pools
from exporter.common.result_log import ResultLog, digest_files
from exporter.common.task_pools import make_pool_factory
from runtime_checks.kernels.compilation import find_compiler
from runtime_checks.runners.fork_server import shared_fork_server

ROOT = Path(__file__).parents[1]
COMPILER = Path(__file__).with_name("quick_cc")
PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime", "hypothesis")
SOURCES = ("exporter", "runtime_checks", "torchferry", "exams")
# Samples of a case, of the hundreds that some have.
MOST_SAMPLES = 8
# Cases that are exported together where they go through the same pipelines.
PACK = 6
# torch keeps what a process has traced, so processes end after some packs.
PACKS_PER_PROCESS = 6

_IN_PROCESS = contextlib.ExitStack()


@dataclass(frozen=True)
class Task:
    """Cases of a suite that are examined together, with the rows that are expected."""

    suite: str
    cases: tuple[str, ...]
    expected: tuple[Mapping[str, str], ...]
    pipelines: tuple[str, ...] = ()
    most_samples: int = MOST_SAMPLES
    # The folder of packages that the suite alone needs.
    packages: str = ""


def select_share(cases: Sequence[str], share: int) -> list[str]:
    """Return each ``share``-th case, the same ones on every machine."""
    return [case for case in cases if zlib.crc32(case.encode()) % share == 0]


def plan_tasks(
    suite: str,
    cases: Sequence[str],
    expected: Mapping[str, Row],
    pipelines: Sequence[str],
    most_samples: int,
    packages: str = "",
) -> list[Task]:
    """Pack the cases of one kind, which is the last word of their names, in their order.

    One of which nothing is known is alone: where it is refused, a pack would be split down to it each time."""
    kinds: dict[str, list[str]] = {}
    for case in cases:
        kinds.setdefault(case.rpartition(" ")[2] if case in expected else case, []).append(case)
    packs = [names[i : i + PACK] for names in kinds.values() for i in range(0, len(names), PACK)]
    cells = {case: row.cells for case, row in expected.items()}
    return [
        Task(suite, tuple(pack), tuple(cells.get(c, {}) for c in pack), tuple(pipelines), most_samples, packages)
        for pack in packs
    ]


def run_suite(
    tasks: Sequence[Task], log: Path, jobs: int, watch: Callable[[Row], None] = lambda row: None
) -> list[Row]:
    """Return the rows of all tasks; those that ``log`` holds already, of the same code, are not run again."""
    kept = ResultLog(log, _digest_sources(tasks[0].most_samples if tasks else 0))
    done = {row.case: row for row in (Row(**result) for result in kept.results)}
    is_done = {task.cases: {*task.cases} <= done.keys() for task in tasks}
    for case in (case for cases, is_known in is_done.items() if is_known for case in cases):
        watch(done[case])
    remaining = [task for task in tasks if not is_done[task.cases]]
    for row in _run_tasks(remaining, jobs):
        done[row.case] = row
        kept.add(asdict(row))
        watch(row)
    return [done[case] for task in tasks for case in task.cases]


def _digest_sources(most_samples: int) -> str:
    """Return a digest of all that rows depend on: our files, but not the tables, the packages, and the samples."""
    versions = [importlib.metadata.version(name) for name in PACKAGES]
    code = (path for folder in SOURCES for path in sorted((ROOT / folder).iterdir()) if path != EXPECTED)
    return digest_files([*versions, str(most_samples)], code)


def _run_tasks(tasks: Sequence[Task], jobs: int) -> Iterator[Row]:
    """Yield the rows of tasks. The cases of a pack whose process dies are run one by one; one that ends it is wrong."""
    for task, rows in task_pools.run_tasks(
        tasks, run_task, make_pool_factory(jobs, _prepare_process), PACKS_PER_PROCESS
    ):
        first, *others = task.cases
        if not isinstance(rows, BrokenExecutor):
            yield from rows
        elif others:
            pairs = zip(task.cases, task.expected, strict=True)
            yield from _run_tasks([replace(task, cases=(case,), expected=(cells,)) for case, cells in pairs], jobs)
        else:
            yield Row(first, 0, {"pt": f"{WRONG}: the process ended"})


def _prepare_process() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    os.environ["CC"] = shlex.join([str(COMPILER), *find_compiler()])
    _IN_PROCESS.enter_context(shared_fork_server())


def run_task(task: Task) -> list[Row]:
    """Examine the cases of a task."""
    from exams.examination import examine

    if task.packages:
        site.addsitedir(task.packages)
    make_case = importlib.import_module(f"exams.suites.{task.suite}").make_case
    cases = [make_case(name, task.most_samples) for name in task.cases]
    rows = zip(task.cases, cases, examine(cases, task.expected, task.pipelines), strict=True)
    return [Row(name, len(case.samples), cells) for name, case, cells in rows]
