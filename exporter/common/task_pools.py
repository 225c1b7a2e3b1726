"""Tasks in pools of spawned processes: a few for each process, and again alone if their process dies.

Processes are spawned, not forked: torch's threads do not survive a fork."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

from exporter.common.forking import end_with_parent

# Seconds that a process has to end in order.
GRACE = 3.0
Task = TypeVar("Task")
Result = TypeVar("Result")


def make_pool_factory(jobs: int, prepare: Callable[[], Any] | None = None) -> Callable[[], Executor]:
    """Return a factory of process pools; ``prepare``, a function of a module, runs first in each process."""
    spawn = multiprocessing.get_context("spawn")
    return lambda: ProcessPoolExecutor(jobs, spawn, _begin_process, (prepare,))


def run_tasks(
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    make_pool: Callable[[], Executor],
    per_process: int,
    tries: int = 1,
) -> Iterator[tuple[Task, Result | BrokenExecutor]]:
    """Yield each task with ``function(task)`` as it finishes, or with the error if its process dies, and dies again
    when the task is tried alone, as often as ``tries`` says.

    torch keeps every graph that a process traced, so a pool ends after some tasks ``per_process``. (The pool's own
    ``max_tasks_per_child`` comes to a standstill: CPython issue 115634.)"""
    remaining = list(tasks)
    while remaining:
        pool = make_pool()
        count = per_process * getattr(pool, "_max_workers", 1)
        batch, remaining = remaining[:count], remaining[count:]
        yield from _run_in_pool(pool, batch, function, make_pool, tries)


def _run_in_pool(
    pool: Executor,
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    make_pool: Callable[[], Executor],
    tries: int,
) -> Iterator[tuple[Task, Result | BrokenExecutor]]:
    """Run tasks in one pool. A process that dies ends its whole pool, so unfinished tasks are run again, each in a
    pool of its own."""
    is_interrupted = False
    run = functools.partial(_run_or_end, function)
    futures = {pool.submit(run, task): task for task in tasks}
    unfinished = dict(futures)
    try:
        for future in as_completed(futures):
            try:
                result = future.result()
            except BrokenExecutor:
                continue
            yield unfinished.pop(future), result
    except (KeyboardInterrupt, GeneratorExit):
        is_interrupted = True
        _end_processes(list((getattr(pool, "_processes", None) or {}).values()))
        raise
    finally:
        # Not a with block: leaving one would wait for the tasks that are cancelled here. Nor does an interrupt wait for
        # processes that end: what is done is still to be written.
        pool.shutdown(wait=not is_interrupted, cancel_futures=True)
    for task in unfinished.values():
        yield task, _run_alone(task, run, make_pool, tries)


def _run_alone(
    task: Task, run: Callable[[Task], Result], make_pool: Callable[[], Executor], tries: int
) -> Result | BrokenExecutor:
    """Run a task in a pool of its own, and in another one if its process dies; return the last error if all did."""
    last = BrokenExecutor()
    for _ in range(tries):
        with make_pool() as alone:
            try:
                return alone.submit(run, task).result()
            except BrokenExecutor as error:
                last = error
    return last


def _end_processes(processes: Sequence[Any]) -> None:
    """Let processes end in order; kill those that compute on, where no signal is heard."""
    for process in processes:
        process.terminate()
    timer = threading.Timer(GRACE, lambda: [process.kill() for process in processes])
    timer.daemon = True
    timer.start()


def _run_or_end(function: Callable[[Task], Result], task: Task) -> Result:
    """Run a task in a process of a pool. After an interrupt the process would go on with the next one: it ends."""
    try:
        return function(task)
    except KeyboardInterrupt:
        if multiprocessing.parent_process() is None:
            raise
        os._exit(128 + signal.SIGTERM)


def _begin_process(prepare: Callable[[], Any] | None) -> None:
    """End in order on the parent's SIGTERM, and with it; Ctrl-C at the terminal is left to the parent."""
    end_with_parent()

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, interrupt)
    if prepare is not None:
        prepare()
