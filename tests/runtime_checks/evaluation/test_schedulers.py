"""Threads, processes, Dask and MPI give the same bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import dask.config
import dask_jobqueue
import distributed
import pytest
from data_sets import RETURN_MAP, make_steps, write_data
from project import need

from exporter.common.errors import MissingRuntimeError, UsageError
from runtime_checks.evaluation import schedulers
from runtime_checks.evaluation.chunk_evaluation import DataRequest
from runtime_checks.evaluation.evaluation import Evaluation
from runtime_checks.evaluation.evaluator import FileRequest
from runtime_checks.evaluation.schedulers import check_scheduler, open_pools


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "steps.zarr", make_steps(100))


def evaluate(data: Path, output: Path, scheduler: str) -> Path:
    evaluation = Evaluation(FileRequest(RETURN_MAP), DataRequest(data, elements=20), output)
    with open_pools(scheduler, 2) as make_pool:
        assert make_pool is not None
        assert evaluation.run(make_pool).evaluated == 5
    return output


def read_all(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_threads_and_processes_give_the_same_bytes(tmp_path, data):
    expected = read_all(evaluate(data, tmp_path / "one.zarr", "threads:1"))
    assert read_all(evaluate(data, tmp_path / "threads.zarr", "threads")) == expected
    assert read_all(evaluate(data, tmp_path / "processes.zarr", "processes:2")) == expected


def test_a_cluster_of_dask_gives_the_same_bytes(tmp_path, data):
    """A scheduler and four workers, as ``dask scheduler`` and ``dask worker`` start them."""
    environment = {**os.environ, "DASK_DISTRIBUTED__DASHBOARD__LINK": ""}
    source = (
        "import distributed, sys\n"
        "if __name__ == '__main__':\n"
        "    cluster = distributed.LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None)\n"
        "    print(cluster.scheduler_address, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    script = tmp_path / "cluster.py"
    script.write_text(source)
    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, str(script)], text=True, env=environment, **streams) as cluster:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        try:
            results = read_all(evaluate(data, tmp_path / "dask.zarr", address))
        finally:
            cluster.communicate("")
    assert results == read_all(evaluate(data, tmp_path / "one.zarr", "threads:1"))


def test_two_ranks_of_mpi_give_the_same_bytes(tmp_path, data):
    need(shutil.which("mpirun") is not None, "there is no mpirun")
    expected = read_all(evaluate(data, tmp_path / "one.zarr", "threads:1"))
    output = tmp_path / "mpi.zarr"
    mpirun = ["mpirun", "-n", "3", "--oversubscribe"] + (["--allow-run-as-root"] if os.getuid() == 0 else [])
    arguments = ["evaluate", str(RETURN_MAP), str(data), "-o", str(output), "--chunk", "20", "--scheduler", "mpi"]
    command = [*mpirun, sys.executable, "-m", "exporter", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mpirun has exited" not in done.stderr
    assert done.stdout.count("wrote") == 1
    assert read_all(output) == expected
    # An error is told once, and no rank waits for ever.
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    assert done.stderr.count("the output is there already") == 1


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
