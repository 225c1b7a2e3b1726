"""Archives on other devices than the CPU. What needs a GPU is marked ``cuda``; ``make cuda-check`` runs it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from project import MODELS

import torchferry
from exporter.archive import pt_archive
from exporter.archive.tensor_spec import TensorSpec
from exporter.common.errors import MissingRuntimeError, UsageError
from runtime_checks.checks import devices
from runtime_checks.checks.batch_invariance import LARGE_BATCHES, batch_invariance_checks
from runtime_checks.checks.expectation import Expectation, NotRun
from runtime_checks.runners.base import Call
from runtime_checks.runners.libtorch_runner import LibtorchRunner
from runtime_checks.runners.python_runner import PythonRunner
from runtime_checks.verification import collect_report

pytestmark = pytest.mark.usefixtures("file_without_the_gate")

WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")


def gpu() -> None:
    """No GPU is no fault of a machine, so this is a skip in CI too."""
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")


@pytest.fixture(scope="module")
def elastic(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("devices") / "elastic.pt"
    torchferry.export(f"{MODELS}:Elastic", output=path)
    return path


def test_what_a_device_adds_to_the_calls(elastic):
    opened = pt_archive.read(elastic)
    planned = devices.plan_device_checks(opened.contract, opened.cases())
    labels = {(p.check, p.label) for p in planned if isinstance(p, Expectation)}
    assert labels >= {
        (devices.MOVED, "warmup"),
        (LARGE_BATCHES, "batch 100000"),
        (devices.MISPLACED, "last input on cpu"),
    }
    large = next(p for p in planned if isinstance(p, Expectation) and p.label == "batch 100000")
    assert [t.shape[0] for t in large.call.inputs] == [100_000] * 3


def test_no_large_batch_where_eager_mode_ran_none(elastic):
    opened = pt_archive.read(elastic)
    batch = dataclasses.replace(opened.contract.batch, sizes=(0, 1, 13), limits="batch 1000: not run")
    contract = dataclasses.replace(opened.contract, batch=batch)
    planned = devices.plan_device_checks(contract, opened.cases())
    assert not [p for p in planned if p.check == LARGE_BATCHES]
    everywhere = batch_invariance_checks(contract, opened.cases())
    assert [p.reason for p in everywhere if isinstance(p, NotRun) and p.check == LARGE_BATCHES] == [batch.limits]


@pytest.mark.parametrize("runner", [PythonRunner(), LibtorchRunner()], ids=["python", "libtorch"])
def test_an_archive_that_was_moved_gives_the_same_numbers(elastic, runner):
    """The way from the CPU to a device, with the CPU as the device."""
    opened = pt_archive.read(elastic)
    calls = [Call(c.method, c.inputs, moved=True) for c in opened.cases()]
    results = runner.run(elastic, opened.contract, calls).results
    for case, result in zip(opened.cases(), results, strict=True):
        assert not result.error
        assert all(map(torch.equal, result.outputs, case.outputs))


class Elsewhere:
    """A runner that claims a device, and takes whatever it is given: the check of misplaced inputs must notice."""

    name, device = "here", "cuda"

    def run(self, path, contract, calls):
        return PythonRunner().run(path, contract, calls)


def test_an_input_that_is_taken_from_anywhere_is_found(elastic):
    report = collect_report(elastic, runners=[Elsewhere()])
    failed = [c for c in report.checks if c.verdict == "failed"]
    assert [c.check for c in failed] == [devices.MISPLACED]
    assert "it ran instead of an error about the device" in failed[0].detail


@WITHOUT_GPU
@pytest.mark.parametrize("runtime", ["python", "libtorch"])
def test_a_device_that_is_not_there(elastic, runtime, tmp_path):
    with pytest.raises(MissingRuntimeError, match="not on this machine"):
        torchferry.verify(elastic, runtimes=runtime, devices="cuda")
    with pytest.raises(MissingRuntimeError):
        torchferry.export(f"{MODELS}:Elastic", output=tmp_path / "m.pt", devices="cpu,cuda")
    assert not list(tmp_path.iterdir())
    report = torchferry.verify(elastic)
    assert report.notes == ("cuda: not checked on this machine (there is no GPU)",)


@WITHOUT_GPU
def test_the_harness_without_a_gpu(elastic):
    contract = pt_archive.read(elastic).contract
    with pytest.raises(MissingRuntimeError, match="libtorch"):
        LibtorchRunner(device="cuda").run(elastic, contract, [])


def test_load_names_the_input_on_the_wrong_device(elastic):
    model = torchferry.load(elastic)
    values = {s.name: torch.zeros(2, *s.static_shape, dtype=torch.float64) for s in contract_inputs(model)}
    assert set(model.call("forward", values)) == {"force", "pushed", "energy"}
    values["v"] = values["v"].to("meta")
    with pytest.raises(UsageError, match="'v' is on the wrong device"):
        model.call("forward", values)


def contract_inputs(model: torchferry.Model) -> tuple[TensorSpec, ...]:
    return model.contract.inputs


@pytest.mark.cuda
@pytest.mark.parametrize("factory", ["Elastic", "Single"], ids=["float64", "float32"])
@pytest.mark.parametrize("runtime", ["python", "libtorch"])
def test_every_check_on_cuda(factory, runtime, tmp_path):
    gpu()
    path = tmp_path / "m.pt"
    (exported,) = torchferry.export(f"{MODELS}:{factory}", output=path, runtimes=runtime, devices="cpu,cuda")
    assert exported.contract.devices == ("cpu", "cuda")
    result = {c.check: c.verdict for leg in exported.report.legs if leg.device == "cuda" for c in leg.checks}
    for check in (devices.MOVED, LARGE_BATCHES, devices.MISPLACED, "stored cases", "fresh inputs"):
        assert result[check] == "passed"


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is no second GPU")
def test_a_second_device_index(tmp_path):
    path = tmp_path / "m.pt"
    torchferry.export(f"{MODELS}:Elastic", output=path, runtimes="python,libtorch", devices="cuda:1")
    assert torchferry.load(path, "cuda:1").contract.devices == ("cuda:1",)
