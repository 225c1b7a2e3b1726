"""Threads, processes, Dask and MPI give the same bytes of an evaluation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from data_sets import RETURN_MAP, make_steps, write_data
from project import need

from exporter.common.schedulers import open_pools
from runtime_checks.evaluation.chunk_evaluation import DataRequest
from runtime_checks.evaluation.evaluation import Evaluation
from runtime_checks.evaluation.evaluator import FileRequest


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


@pytest.mark.thorough
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


@pytest.mark.thorough
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
