"""Pools of processes that end: what is done is kept, and what ends a process costs its own task alone."""

from __future__ import annotations

import os
from concurrent.futures import BrokenExecutor

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
