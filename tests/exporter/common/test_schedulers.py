"""Who does many tasks: texts, packages that are missing, workers that die, what is cancelled."""

from __future__ import annotations

import sys
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from threading import Event
from typing import Any

import dask.config
import dask_jobqueue
import distributed
import pytest

from exporter.common import schedulers
from exporter.common.errors import MissingRuntimeError, UsageError
from exporter.common.schedulers import check_scheduler, open_pools


@pytest.mark.parametrize("text", ["", "thread", "threads:", "threads:0", "processes:x", "http://a", "tcp://", "mpi:2"])
def test_schedulers_that_are_not_there(text):
    with pytest.raises(UsageError, match="no such scheduler"):
        check_scheduler(text)


def test_a_scheduler_that_does_not_answer():
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        with pytest.raises(UsageError, match="does not answer") as caught:
            with open_pools("tcp://127.0.0.1:9", 1):
                pass
    assert caught.value.details["where"] == "tcp://127.0.0.1:9"


def test_packages_that_are_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingRuntimeError, match="distributed is not installed") as caught:
        with open_pools("tcp://127.0.0.1:9", 1):
            pass
    assert "torchferry[dask]" in caught.value.details["mend"]


def test_slurm_is_asked_through_dask_jobqueue(monkeypatch):
    """There is no SLURM here: its cluster is stood in for by a local one, which the pool then uses."""
    scaled: list[int] = []

    def make_cluster() -> Any:
        cluster: Any = distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=":0")
        scale = cluster.scale
        cluster.scale = lambda n=0, jobs=0: scaled.append(jobs) if jobs else scale(n)
        return cluster

    monkeypatch.setattr(dask_jobqueue, "SLURMCluster", make_cluster)
    with open_pools("slurm:3", 1) as make_pool:
        assert make_pool is not None
        assert make_pool().submit(sum, [1, 2]).result() == 3
    assert scaled == [3]


# A cluster of dask-jobqueue that is refused is not closed by it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_slurm_without_a_configuration():
    with pytest.raises(MissingRuntimeError, match="SLURM gives no workers"):
        with open_pools("slurm:1", 1):
            pass


def test_a_worker_of_dask_that_dies_is_one_of_a_pool():
    with ThreadPoolExecutor(1) as pool:
        borrowed = schedulers._Borrowed(pool, (ZeroDivisionError,))
        with pytest.raises(BrokenExecutor, match="by zero"):
            borrowed.submit(divmod, 1, 0).result()
        with pytest.raises(TypeError):
            borrowed.submit(len, 1).result()
        assert borrowed.submit(len, "ab").result() == 2


def test_what_was_not_waited_for_is_cancelled():
    gate = Event()
    with ThreadPoolExecutor(1) as pool:
        borrowed = schedulers._Borrowed(pool)
        first, second = borrowed.submit(gate.wait), borrowed.submit(gate.wait)
        borrowed.shutdown(cancel_futures=True)
        gate.set()
        assert first.result()
        assert second.cancelled()
        assert pool.submit(len, "ab").result() == 2
