"""The fresh process: what it can import, what bounds it, what it says when the archive does not run."""

import contextvars
import dataclasses
import re
import runpy
import time
from pathlib import Path

import pytest
import torch
from contracts import archived
from project import load_module

from exporter.archive import pt_archive
from exporter.archive.cases import ReferenceCase
from exporter.capture.serialization import serialize_module
from exporter.common.errors import RunError
from runtime_checks.runners import fork_server, python_runner
from runtime_checks.runners.base import Call
from runtime_checks.runners.fork_server import TORCH_AND_ITS_OWN
from runtime_checks.runners.python_runner import PythonRunner
from runtime_checks.verification import collect_report

F = torch.float64
X = torch.linspace(0, 1, 4, dtype=F)


class Steps(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        if x.numel() > 0 and bool(x[0] == -1.0):
            raise ValueError("minus one")
        y = x
        while bool((y < 10.0).any()):
            y = y + torch.where(x == -2.0, torch.zeros_like(x), torch.ones_like(x))
        return (y,)


@pytest.fixture
def path(tmp_path):
    return archived(tmp_path, Steps())


def run(path, *inputs, **limits):
    opened = pt_archive.read(path)
    return PythonRunner(**limits).run(path, opened.contract, [Call("forward", (x,)) for x in inputs])


def test_outputs_are_those_of_the_module(path):
    strided = torch.stack([X, X], dim=1)[:, 0]
    done = run(path, X, strided, X[:0], X[0].expand(4))
    module = load_module(path)
    for result, arguments in zip(done.results, (X, X, X[:0], X[0].expand(4)), strict=True):
        assert torch.equal(result.outputs[0], module(arguments)[0])


def test_a_source_of_no_library_refuses_nothing(path):
    contract = pt_archive.read(path).contract
    contract = dataclasses.replace(
        contract, source=dataclasses.replace(contract.source, library="", refused_imports=())
    )
    assert PythonRunner().run(path, contract, [Call("forward", (X,))]).evidence["refused"] == {}


def test_the_source_library_cannot_be_imported(path):
    evidence = run(path, X).evidence
    # `planted` is what the contract names as its source
    assert evidence["refused"] == {
        "planted": "ModuleNotFoundError: No module named 'planted'",
    }
    assert evidence["foreign_modules"] == []
    assert not [p for p in evidence["sys_path"] if "site-packages" in p]  # pyright: ignore[reportGeneralTypeIssues]
    assert evidence["default_dtype"] == "torch.float32"
    assert "numpy" not in TORCH_AND_ITS_OWN


def test_an_error_in_a_call_is_that_calls_result(path):
    good, bad = run(path, X, torch.tensor([-1.0], dtype=F)).results
    assert good.error == ""
    assert "minus one" in bad.error


@pytest.mark.thorough
def test_a_run_without_end_is_ended(path):
    start = time.monotonic()
    with pytest.raises(RunError, match=r"did not finish(.|\n)*--time-limit|ended early"):
        run(path, torch.tensor([-2.0], dtype=F), seconds=6.0)
    assert time.monotonic() - start < 30


def test_memory_is_bounded(path):
    (result,) = run(path, X[0].expand(2**30), memory=6 * 2**30).results
    assert "memory" in result.error or "alloc" in result.error


def test_a_very_large_graph_runs_unoptimised(path, monkeypatch):
    assert run(path, X).evidence["optimised"] is True
    monkeypatch.setattr(python_runner, "MAX_OPTIMISED_NODES", 3)
    done = run(path, X)
    assert done.evidence["optimised"] is False
    assert torch.equal(done.results[0].outputs[0], load_module(path)(X)[0])
    report = collect_report(path)
    assert {c.check: c.verdict for c in report.checks}["optimising executor"] == "not run"


class Powers(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * x,)

    @torch.jit.export
    def cube(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        if bool(x[0] == -1.0):
            raise ValueError("minus one")
        return (x * x * x,)


@pytest.fixture
def powers(tmp_path, monkeypatch):
    monkeypatch.setattr(python_runner, "LEAST_SHARED_NODES", 1)
    path = archived(tmp_path, Powers())
    opened = pt_archive.read(path)
    methods = {**opened.contract.methods, "cube": opened.contract.methods["forward"]}
    return path, dataclasses.replace(opened.contract, methods=methods)


def test_methods_of_a_large_graph_run_side_by_side(powers):
    path, contract = powers
    calls = [Call(name, (k * X + 1,)) for k in (1, 2) for name in ("forward", "cube", "forward")]
    calls += [Call("cube", (-X - 1,))]
    for jobs, processes in ((1, 1), (2, 2), (3, 2)):
        done = PythonRunner(jobs=jobs).run(path, contract, calls)
        assert done.evidence["processes"] == processes
        for call, result in zip(calls[:-1], done.results, strict=False):
            (x,) = call.inputs
            assert torch.equal(result.outputs[0], x * x if call.method == "forward" else x * x * x)
        assert "minus one" in done.results[-1].error
    assert PythonRunner(jobs=2).run(path, contract, calls[:1]).evidence["processes"] == 1


def test_calls_are_divided_by_method_and_stay_in_order():
    divide_by_method = runpy.run_path(str(fork_server.CHILD))["divide_by_method"]
    methods = ["a", "b", "a", "c", "a", "b"]
    assert divide_by_method(methods, 1) == [[0, 1, 2, 3, 4, 5]]
    assert divide_by_method(methods, 2) == [[0, 2, 4], [1, 3, 5]]
    assert divide_by_method(methods, 9) == [[0, 2, 4], [1, 5], [3]]
    assert divide_by_method([], 2) == [[]]


def test_calls_of_a_slow_method_run_side_by_side(path, monkeypatch):
    calls = [Call("forward", (k * X[:k],)) for k in range(1, 9)]
    monkeypatch.setattr(python_runner, "LEAST_SHARED_SECONDS", 1e9)
    assert PythonRunner(jobs=2).run(path, None, calls).evidence["processes"] == 1
    monkeypatch.setattr(python_runner, "LEAST_SHARED_SECONDS", 0.0)
    for jobs, processes in ((1, 1), (2, 2), (3, 3), (9, 5)):
        done = PythonRunner(jobs=jobs).run(path, None, calls)
        assert done.evidence["processes"] == processes
        module = load_module(path)
        for call, result in zip(calls, done.results, strict=True):
            assert torch.equal(result.outputs[0], module(*call.inputs)[0])
    assert PythonRunner(jobs=2).run(path, None, calls[:3]).evidence["processes"] == 1
    # Autograd forbids forks once it has run.
    differentiated = [*calls, Call("forward", (X,), seeds=(torch.ones_like(X),))]
    assert PythonRunner(jobs=2).run(path, None, differentiated).evidence["processes"] == 1


def test_calls_of_several_methods_of_a_small_graph_stay_together(powers, monkeypatch):
    """Every process would optimise each method."""
    path, contract = powers
    monkeypatch.setattr(python_runner, "LEAST_SHARED_NODES", 10**9)
    monkeypatch.setattr(python_runner, "LEAST_SHARED_SECONDS", 0.0)
    calls = [Call(name, (k * X + 1,)) for k in range(6) for name in ("forward", "cube")]
    assert PythonRunner(jobs=2).run(path, contract, calls).evidence["processes"] == 1
    assert PythonRunner(jobs=2).run(path, contract, calls[::2]).evidence["processes"] == 2


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(3.0, dtype=F), requires_grad=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        if bool((x == -1.0).any()):
            raise ValueError("minus one")
        return (self.scale * x,)


def test_parameters_and_errors_of_a_call_are_its_own_in_every_process(tmp_path, monkeypatch):
    monkeypatch.setattr(python_runner, "LEAST_SHARED_SECONDS", 0.0)
    path = archived(tmp_path, Scaled())
    calls = []
    for k in range(12):
        value = torch.tensor(float(k), dtype=F)
        calls.append(
            Call("forward", (X,), parameters={"scale": value}) if k % 3 else Call("forward", (k * X - k // 6,))
        )
    done = PythonRunner(jobs=3).run(path, None, calls)
    assert done.evidence["processes"] == 3
    for k, (call, result) in enumerate(zip(calls, done.results, strict=True)):
        if k in (6, 9):
            assert "minus one" in result.error
        else:
            assert torch.equal(result.outputs[0], (k if k % 3 else 3.0) * call.inputs[0])


def test_calls_of_a_method_are_divided_by_cost_and_stay_in_order():
    divide_by_cost = runpy.run_path(str(fork_server.CHILD))["divide_by_cost"]
    assert divide_by_cost([6, 1, 1, 1, 1], 2) == [[0], [1, 2, 3, 4]]
    assert divide_by_cost([1, 1, 1], 2) == [[0, 2], [1]]
    assert divide_by_cost([3, 2], 1) == [[0, 1]]
    assert divide_by_cost([7], 4) == [[0]]


@pytest.fixture
def plant(tmp_path, monkeypatch):
    """Replace lines of the child's program, in a server of the test's own."""

    def replace(*faults: tuple[str, str]) -> None:
        source = fork_server.CHILD.read_text()
        source = source.replace("os.path.dirname(__file__)", repr(str(fork_server.CHILD.parent)))
        for line, fault in faults:
            assert line in source
            source = source.replace(line, fault)
        planted = tmp_path / "planted_child.py"
        planted.write_text(source)
        monkeypatch.setattr(fork_server, "CHILD", planted)
        monkeypatch.setattr(fork_server, "_SHARED", contextvars.ContextVar("planted", default=None))

    return replace


OTHER_SHARE = "torch.save(run_share(calls, share, job_calls), path)"
OWN_SHARE = "parts = [run_share(calls, shares[0], job_calls)]"


def test_a_process_that_ends_early_ends_the_run(powers, plant):
    path, contract = powers
    calls = [Call("forward", (X,)), Call("cube", (X,))]
    assert PythonRunner(jobs=2).run(path, contract, calls).results[1].outputs
    plant((OTHER_SHARE, "os.kill(os.getpid(), 9)"))
    with pytest.raises(RunError, match="ended early"):
        PythonRunner(jobs=2).run(path, contract, calls)


def test_a_failure_ends_the_other_processes(powers, plant):
    path, contract = powers
    # The other process makes a folder of its number, and this one waits for it.
    plant(
        (OTHER_SHARE, "import time; os.mkdir(f\"{job_calls.job['folder']}/pid-{os.getpid()}\"); time.sleep(300)"),
        (
            OWN_SHARE,
            "names = []\n        while not names:"
            "\n            names = [n for n in os.listdir(job_calls.job['folder']) if n.startswith('pid-')]"
            "\n        raise RuntimeError(names[0])",
        ),
    )
    with fork_server.shared_fork_server(), pytest.raises(RunError, match="ended early") as caught:
        PythonRunner(jobs=2).run(path, contract, [Call("forward", (X,)), Call("cube", (X,))])
    number = re.search(r"RuntimeError: pid-(\d+)", str(caught.value))
    assert number
    assert not Path(f"/proc/{number[1]}").exists()


def test_too_little_memory_to_start(path):
    with pytest.raises(RunError, match=r"ended early|MemoryError"):
        run(path, X, memory=2**26)


def test_an_operator_of_the_source_library_does_not_load(tmp_path, path):
    """The fault that isolation is for: a file that only loads where its library is imported."""
    import planted_models  # noqa: F401 - registers the operator

    class Twice(torch.nn.Module):
        def forward(self, x):
            return (torch.ops.planted.twice(x),)

    module = torch.jit.trace(Twice(), (X,))
    result = pt_archive.read(path).contract
    pt_archive.write(
        tmp_path / "twice.pt",
        serialize_module(module),
        result,
        [ReferenceCase("one", "forward", (X,), (2 * X,))],
        "graph",
    )
    # It loads here, where planted is imported
    load_module(tmp_path / "twice.pt")
    with pytest.raises(RunError, match=r"does not load(.|\n)*planted::twice|does not load"):
        run(tmp_path / "twice.pt", X)


def test_a_bare_tensor_is_not_a_tuple(tmp_path, path):
    module = torch.jit.trace(torch.nn.Tanh(), (X,))
    result = pt_archive.read(path).contract
    pt_archive.write(
        tmp_path / "bare.pt",
        serialize_module(module),
        result,
        [ReferenceCase("one", "forward", (X,), (X.tanh(),))],
        "graph",
    )
    assert "instead of a tuple" in run(tmp_path / "bare.pt", X).results[0].error
