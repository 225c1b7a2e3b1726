"""Pools of processes that end: what is done is kept, and what ends a process costs its own task alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest
from project import mark_thorough_after

from exporter.common.task_pools import make_pool_factory, run_tasks


def square(number):
    if number == 2:
        os._exit(1)
    return number**2, os.environ.get("PREPARED")


def prepare():
    os.environ["PREPARED"] = "yes"


def test_a_task_that_ends_its_process_costs_no_other():
    results = dict(run_tasks(range(5), square, make_pool_factory(2, prepare), 2))
    assert isinstance(results.pop(2), BrokenExecutor)
    assert results == {n: (n**2, "yes") for n in (0, 1, 3, 4)}


def work_slowly(number):
    Path(os.environ["STARTED"], str(number)).touch()
    time.sleep(60)


def go_on(number):
    """Hear no signal, as an operator that computes without end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    work_slowly(number)


@pytest.mark.parametrize("work", mark_thorough_after(1, [work_slowly, go_on]))
def test_an_interrupt_ends_processes_and_begins_no_other_task(tmp_path, monkeypatch, work):
    monkeypatch.setenv("STARTED", str(tmp_path))
    processes = []

    def press_interrupt():
        """Press Ctrl-C at the terminal, once both processes are at work."""
        wait_for(2, tmp_path)
        processes.extend(multiprocessing.active_children())
        os.kill(os.getpid(), signal.SIGINT)

    interrupt = threading.Thread(target=press_interrupt)
    # Tests may run in a process that leaves interrupts to its parent.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            list(run_tasks(range(8), work, make_pool_factory(2), 4))
        interrupt.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(processes) == 2
    # The pool's own thread waits for them, too: who comes second does not hear of their end.
    end = time.monotonic() + 10
    while any(is_there(process.pid) for process in processes):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert len(list(tmp_path.iterdir())) == 2


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(count, folder):
    while len(list(folder.iterdir())) < count:
        time.sleep(0.05)
