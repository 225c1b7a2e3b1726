"""One import of torch for many fresh processes, of which none sees another."""

from __future__ import annotations

import contextvars
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from contracts import archived
from project import ROOT

from exporter.archive import pt_archive
from exporter.common import script_loading
from exporter.common.errors import RunError
from exporter.common.forking import run_in_fork
from runtime_checks.runners import fork_server
from runtime_checks.runners.base import Call
from runtime_checks.runners.python_runner import PythonRunner

F = torch.float64
X = torch.linspace(0, 1, 4, dtype=F)


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (2 * x,)


@pytest.fixture
def path(tmp_path):
    return archived(tmp_path, Doubled())


def run(path, **limits):
    opened = pt_archive.read(path)
    (result,) = PythonRunner(**limits).run(path, opened.contract, [Call("forward", (X,))]).results
    assert torch.equal(result.outputs[0], 2 * X)


def number(server):
    assert server._process is not None
    return server._process.pid


@pytest.fixture
def alone(monkeypatch):
    """Without the server of all tests."""
    monkeypatch.setattr(fork_server, "_SHARED", contextvars.ContextVar("another", default=None))


@pytest.mark.usefixtures("alone")
def test_runs_have_one_server_and_it_ends_with_them(path):
    with fork_server.shared_fork_server() as server, fork_server.shared_fork_server() as inner:
        assert inner is server
        run(path)
        first = number(server)
        run(path)
        assert number(server) == first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("takes_over", [True, False])
def test_a_forked_process_has_its_own_unless_it_takes_over(path, takes_over):
    with fork_server.shared_fork_server() as server:
        server.start()
        first = number(server)

        def run_there() -> int:
            if takes_over:
                server.take_over()
            run(path)
            return number(server)

        assert (run_in_fork(run_there) == first) is takes_over
        run(path)
        assert number(server) == first


@pytest.mark.usefixtures("alone")
def test_another_is_started_where_it_has_ended_or_the_environment_is_another(path, monkeypatch):
    with fork_server.shared_fork_server() as server:
        run(path)
        first = number(server)
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        run(path)
        second = number(server)
        assert second != first
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
        run(path)
        assert number(server) != second


def test_what_a_run_does_to_its_process_is_gone_with_it(path):
    with fork_server.shared_fork_server():
        with pytest.raises(RunError, match=r"ended early|MemoryError"):
            run(path, memory=2**26)
        run(path)


def test_a_server_that_does_not_start(path, alone, monkeypatch):
    """It says why."""
    monkeypatch.setattr(fork_server, "find_package_folders", lambda names: {})
    with pytest.raises(RunError, match=r"ended early(.|\n)*No module named 'torch'"):
        run(path)


def test_an_interrupt_leaves_no_answer_behind(path, monkeypatch):
    """It would be taken for that of the next run."""
    wait = fork_server.multiprocessing.connection.wait

    def interrupted(*arguments):
        wait(*arguments)
        raise KeyboardInterrupt

    with fork_server.shared_fork_server():
        monkeypatch.setattr(fork_server.multiprocessing.connection, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(path, memory=2**26)
        monkeypatch.undo()
        run(path)


def test_threads_take_turns(path):
    with fork_server.shared_fork_server() as server, ThreadPoolExecutor(4) as threads:
        contexts = [contextvars.copy_context() for _ in range(6)]
        for done in [threads.submit(context.run, run, path) for context in contexts]:
            done.result()
        assert server._process is not None


HOST = """
import os
import sys
from runtime_checks.runners import fork_server
with fork_server.shared_fork_server() as server:
    job = {"said": sys.argv[1], "archive": sys.argv[2], "holds": "graphs", "device": "cpu", "memory": 2**34,
           "folder": os.path.dirname(sys.argv[1]), "further_packages": {}, "parts": {}}
    job["script_loading"] = sys.argv[3]
    server._ensure_started()
    print(server._process.pid, flush=True)
    print(server.run({**job, "seconds": 100, "refused": ["this"]}, 100.0))
"""


def test_it_ends_with_its_host(tmp_path):
    """Also where that is killed in the middle of a job, here one that waits for ever to open its file."""
    os.mkfifo(tmp_path / "archive")
    command = [sys.executable, "-c", HOST, str(tmp_path / "said"), str(tmp_path / "archive"), script_loading.__file__]
    host = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    assert host.stdout is not None
    server = int(host.stdout.readline())
    children = Path(f"/proc/{server}/task/{server}/children")
    until = time.monotonic() + 60
    while not (tmp_path / "said").exists() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.5)
    job = children.read_text().split() if children.exists() else []
    host.kill()
    message, _ = host.communicate()
    assert len(job) == 1, f"the job has not waited: {message.decode()}"
    for number in (server, int(job[0])):
        while Path(f"/proc/{number}").exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert not Path(f"/proc/{number}").exists()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("runtimes", "is_started"), [(("python", "libtorch"), True), (("libtorch",), False)])
def test_the_process_is_started_for_the_runtime_that_needs_it(runtimes, is_started):
    with fork_server.start_runtime(runtimes), fork_server.shared_fork_server() as server:
        assert (server._process is not None) is is_started
