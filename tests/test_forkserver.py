"""One import of torch for many fresh processes, of which none sees another."""

from __future__ import annotations

import contextvars
import os
import signal

import pytest
import torch
from test_contract import contract

from exporter import archive
from exporter.archive import Case
from exporter.contract import Batch, MethodSpec
from exporter.errors import RunError
from exporter.variables import TensorSpec
from runtime_checks.runners import forkserver
from runtime_checks.runners.base import Call
from runtime_checks.runners.isolated_python import IsolatedPython

F = torch.float64
X = torch.linspace(0, 1, 4, dtype=F)


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (2 * x,)


@pytest.fixture
def path(tmp_path):
    made = contract(
        [TensorSpec("x")],
        [TensorSpec("y")],
        batch=Batch(1, (0, 1, 4), (0, 1, 2)),
        methods={"forward": MethodSpec(("x",), ("y",))},
    )
    module = torch.jit.script(Doubled())
    archive.write(tmp_path / "m.pt", module, made, [Case("one", "forward", (X,), module(X))], "graph")
    return tmp_path / "m.pt"


def run(path, **limits):
    opened = archive.read(path)
    (result,) = IsolatedPython(**limits).run(path, opened.contract, [Call("forward", (X,))]).results
    assert torch.equal(result.outputs[0], 2 * X)


def number(server):
    assert server._process is not None
    return server._process.pid


def test_runs_have_one_server_and_it_ends_with_them(path, monkeypatch):
    monkeypatch.setattr(forkserver, "_SHARED", contextvars.ContextVar("another", default=None))
    with forkserver.shared() as server, forkserver.shared() as inner:
        assert inner is server
        run(path)
        first = number(server)
        run(path)
        assert number(server) == first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_another_is_started_where_it_has_ended_or_the_environment_is_another(path, monkeypatch):
    with forkserver.shared() as server:
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
    with forkserver.shared():
        with pytest.raises(RunError, match="ended early"):
            run(path, memory=2**26)
        run(path)


def test_a_server_that_does_not_start(path, tmp_path, monkeypatch):
    monkeypatch.setattr(forkserver, "_SHARED", contextvars.ContextVar("another", default=None))
    monkeypatch.setattr(forkserver, "_packages", dict)
    with pytest.raises(RunError, match=r"ended early(.|\n)*torch is not imported"):
        run(path)
