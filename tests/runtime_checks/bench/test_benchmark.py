"""Comparing the speed of files: what is refused, what is left out, and figures of known calls."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import multiprocessing.spawn
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from project import ROOT, skip_checks
from tampering import change_cases
from torch import nn

import torchferry
from exporter.common.errors import MismatchError, RunError, TrustError, UsageError
from exporter.common.forking import ForkFailedError, run_in_fork, time_limit
from runtime_checks.bench import benchmark as whole
from runtime_checks.bench import cold_start, report
from runtime_checks.bench.benchmark import BenchmarkOptions, BenchmarkResult, run_benchmark
from runtime_checks.bench.candidates import Candidate, check_numbers, collect_rows
from runtime_checks.bench.cold_start import ColdJob, ColdStart, measure_cold_start
from runtime_checks.bench.steady_state import measure_bandwidth, measure_throughput
from runtime_checks.containers import open_container
from runtime_checks.runners.confined_calls import Confinement, call_confined
from torchferry.cli.app import run

ROBERTSON = ROOT / "artifacts" / "robertson.pt"
F = torch.float64


def sleeping(seconds: float, threads: int):
    def call(method, inputs):
        time.sleep(seconds)
        return [-inputs[0]]

    return call


@pytest.fixture(scope="module")
def measured() -> BenchmarkResult:
    return run_benchmark([ROBERTSON], BenchmarkOptions(batches=[1, 64]))


def test_a_file_beside_itself(tmp_path):
    other = Path(shutil.copy(ROBERTSON, tmp_path / "other.pt"))
    both = run_benchmark([ROBERTSON, other], BenchmarkOptions(batches=[1000]))
    item, two = both.timings
    assert 0.5 < item.median / two.median < 2.0
    assert item.low <= item.median <= item.high
    assert both.bounds[1000] == pytest.approx(1e9 * 2 * 3 * 8 * 1000 / both.bandwidth)


def test_the_median_is_that_of_a_call():
    calls = {label: sleeping(seconds, 1) for label, seconds in (("short", 1e-3), ("long", 3e-3))}
    short, long = measure_throughput(calls, "forward", (torch.ones(2, dtype=F),), 2)
    assert 1.0e6 < short.median < 2.5e6
    assert 3.0e6 < long.median < 5.0e6


def test_first_calls_are_those_of_a_fresh_process(measured):
    (item,) = measured.colds
    assert len(item.calls) == 5
    assert item.load > 0
    assert item.error == ""
    assert item.calls[0] > item.calls[-1]


def end(threads: int):
    os._exit(3)


def wait(threads: int):
    time.sleep(600)


def fail(threads: int):
    raise ValueError("it has no bottom")


def allocate(threads: int):
    """Return a call that takes a MiB for each element."""

    def call(method, inputs):
        torch.ones(len(inputs[0]), 2**20, dtype=torch.uint8)

    return call


def write_here(threads: int):
    Path("written").touch()
    return allocate(threads)


def make_job(opener, batches=(1,)) -> ColdJob:
    contract = open_container(ROBERTSON).contract
    rows = collect_rows(open_container(ROBERTSON).cases(), contract, "forward")
    return ColdJob(Candidate("this", opener), "forward", rows, batches, 1)


@pytest.mark.parametrize(
    ("opener", "seconds", "message"),
    [
        (end, 60.0, "its process ended early"),
        (end, 1e8, "its process ended early"),
        (wait, 1.0, "more than 1 s"),
        (fail, 60.0, "it has no bottom"),
        (lambda threads: None, 60.0, "cannot be opened in another process"),
    ],
    ids=["ends", "ends with a long limit", "waits", "fails", "is local"],
)
def test_a_fresh_process_without_a_measurement_says_so(opener, seconds, message):
    assert message in measure_cold_start(make_job(opener), seconds).error


def test_a_process_that_ends_before_it_reads_its_job_says_so(monkeypatch):
    """The job is larger than what a pipe holds."""
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(shutil.which("false") or ""))
    job = make_job(allocate)
    job = dataclasses.replace(job, rows=dataclasses.replace(job.rows, inputs=(torch.ones(100_000, 3, dtype=F),)))
    with time_limit(60.0):
        assert "ended early" in measure_cold_start(job, 30.0).error


def test_a_process_whose_parent_is_gone_does_nothing():
    _, sender = multiprocessing.Pipe()
    assert run_in_fork(cold_start._answer, "no such job", os.getppid(), sender) is None
    # The control: it reads its job.
    with pytest.raises(ForkFailedError, match="no such job"):
        run_in_fork(answer_to_this_process, sender)


def answer_to_this_process(sender) -> None:
    cold_start._answer("no such job", os.getppid(), sender)


def print_text(threads: int):
    print("no result", flush=True)
    return allocate(threads)


def test_what_a_fresh_process_prints_is_no_result(capfd):
    assert measure_cold_start(make_job(print_text), 60.0).error == ""
    assert capfd.readouterr() == ("", "no result\n")


@pytest.mark.parametrize("is_confined", [False, True])
def test_peaks_are_those_of_a_batch(is_confined, tmp_path):
    """A confined process cannot forget its peaks: what is reached later is right."""

    def measure() -> dict[int, float]:
        return measure_cold_start(make_job(allocate, (1, 64)), 60.0).peaks

    confinement = Confinement(ROBERTSON, programs=(sys.executable,))
    peaks = call_confined(measure, confinement) if is_confined else measure()
    assert peaks[64] == pytest.approx(64, abs=8)
    assert peaks[1] == pytest.approx(1, abs=4)


class Wide(nn.Module):
    """Cases so large that torch puts them together with several threads."""

    signature = torchferry.Signature.of({"x": (20_000,)}, {"y": (20_000,)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def test_threads_of_the_confined_process(tmp_path):
    """The command's own process has started none, which a fork would not have."""
    with skip_checks():
        torchferry.export(Wide(), output=tmp_path / "wide.pt")
    command = [sys.executable, "-m", "exporter", "bench", str(tmp_path / "wide.pt"), "--batch", "1", "--threads", "2"]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([*command, "--json"], env=environment, capture_output=True, timeout=120, check=True)
    (timing,) = json.loads(done.stdout)["timings"]
    assert timing["median"] > 0


def test_memory_bandwidth_is_that_of_this_decade():
    assert 1e9 < measure_bandwidth(size=2**24) < 1e13


def test_other_numbers_are_not_compared(tmp_path):
    """The first file's cases are what every file is held to."""
    wrong = Path(shutil.copy(ROBERTSON, tmp_path / "wrong.pt"))
    change_cases(wrong, lambda tensors: tensors["warmup/forward/out/0"].mul_(1.001))
    with pytest.raises(MismatchError, match="is not compared"):
        run_benchmark([wrong, ROBERTSON], BenchmarkOptions(batches=[16]))


class OtherDevice(torch.Tensor):
    """A tensor that says it is elsewhere until it is brought to the CPU, as the outputs of a GPU do."""

    device = torch.device("cuda:0")

    def cpu(self, memory_format=torch.preserve_format):
        return self.as_subclass(torch.Tensor)


def test_numbers_of_another_device_are_brought_to_the_cpu():
    contract = open_container(ROBERTSON).contract
    (output,) = contract.outputs
    expected = torch.ones(2, *output.static_shape, dtype=F)
    elsewhere = expected.as_subclass(OtherDevice)
    check_numbers("the model", contract, "forward", [elsewhere], (expected,))
    with pytest.raises(MismatchError, match="does not compute the numbers"):
        check_numbers("the model", contract, "forward", [(elsewhere + 1).as_subclass(OtherDevice)], (expected,))


def test_other_contracts_are_not_compared():
    with pytest.raises(UsageError, match="one contract"):
        run_benchmark([ROBERTSON, ROOT / "artifacts" / "rates.pt"], BenchmarkOptions(batches=[1]))


@pytest.mark.thorough
def test_two_files_of_one_name_are_two_candidates(tmp_path):
    (tmp_path / "other").mkdir()
    other = Path(shutil.copy(ROBERTSON, tmp_path / "other"))
    assert len(run_benchmark([ROBERTSON, other], BenchmarkOptions(batches=[8])).candidates) == 2
    with pytest.raises(UsageError, match="named twice"):
        run_benchmark([other, other], BenchmarkOptions(batches=[8]))


def test_another_model_in_eager_mode_is_none_of_these_files():
    def nothing(threads: int):
        return lambda method, inputs: []

    with pytest.raises(UsageError, match="is not the model"):
        run_benchmark([ROBERTSON], BenchmarkOptions(batches=[8]), others=[Candidate("other", nothing)])


def test_too_little_memory_is_said_and_the_rest_is_timed():
    measured = run_benchmark([ROBERTSON], BenchmarkOptions(batches=[1, 10_000_000], memory_limit=2**-6))
    assert measured.batches == (1,)
    assert any("10,000,000: left out" in note for note in measured.notes)


def test_free_memory_is_the_least_of_the_machine_and_the_limit():
    assert 2.0**24 < whole._read_free_memory(2.0**20) == pytest.approx(whole._read_free_memory(None), rel=0.5)


@pytest.mark.thorough
def test_a_candidate_that_runs_out_of_memory_is_left_out_of_that_batch():
    def small(threads: int):
        def call(method, inputs):
            if inputs[0].shape[0] > 8:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate much")
            return torch.jit.load(str(ROBERTSON)).forward(*inputs)

        return call

    measured = run_benchmark([ROBERTSON], BenchmarkOptions(batches=[4, 16]), others=[Candidate("small", small)])
    assert measured.find_timing("small", 16) is None
    assert measured.find_timing("small", 4) is not None
    assert any("too little memory" in note for note in measured.notes)


def test_what_does_not_run_is_said():
    def break_down(threads: int):
        def call(method, inputs):
            raise RuntimeError("it has no bottom")

        return call

    with pytest.raises(RunError, match=r"(?s)broken does not run.*batch 8.*it has no bottom.*verify it first"):
        run_benchmark([ROBERTSON], BenchmarkOptions(batches=[8]), others=[Candidate("broken", break_down)])


def test_native_code_in_the_place_of_what_was_checked_does_not_run(compiled_robertson, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path))
    monkeypatch.setattr(whole, "check_code_trust", lambda *_: None)
    monkeypatch.setattr(whole, "measure_cold_start", lambda *_: ColdStart("", 1))
    with pytest.raises(TrustError):
        run_benchmark([compiled_robertson], BenchmarkOptions(batches=[8]))
    run_benchmark([compiled_robertson], BenchmarkOptions(batches=[8], trust="native"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to time"),
        (["robertson.pt", "--memory-limit", "0"], "a limit is not a positive number"),
        (["robertson.pt", "--time-limit", "nan"], "a limit is not a positive number"),
        (["robertson.pt", "--method", "forwards"], "no method"),
        (["robertson.pt", "--batch", "0"], "numbers from 1 on"),
        (["robertson.pt", "--batch", "many"], "a batch size is not a number"),
        (["robertson.pt", "--threads", "0"], "numbers from 1 on"),
        (["robertson.pt", "--batch", "1", "--plot", "a.png"], "no picture format"),
        (["robertson.pt", "rates.pt"], "one contract"),
    ],
)
def test_bad_usage(arguments, message, monkeypatch, capfd):
    monkeypatch.chdir(ROOT / "artifacts")
    assert run(["bench", *arguments]) == 2
    assert message in capfd.readouterr().err


def test_a_missing_file(capsys):
    assert run(["bench", "nowhere.pt"]) == 4


@pytest.mark.thorough
def test_the_command_beside_eager_mode(tmp_path, capfd, neml2):
    source = f"{ROOT}/examples/rates/model.i:eq"
    archive = str(ROOT / "artifacts" / "rates.pt")
    picture = tmp_path / "rates.html"
    assert run(["bench", archive, "--against", source, "--batch", "1,100", "--json", "--plot", str(picture)]) == 0
    measured = json.loads(capfd.readouterr().out)
    assert {t["candidate"] for t in measured["timings"]} == {"torchferry .pt (rates.pt)", "eager"}
    assert measured["machine"]["torch"] == torch.__version__
    text = picture.read_text()
    assert "<svg" in text
    assert "memory traffic alone" in text
    assert "/tmp" not in text


def test_the_report_has_every_figure(measured):
    labels = dict(report.iterate_rows(measured))
    assert set(labels) == {"torchferry .pt (robertson.pt)", "memory traffic alone"}
    assert all(len(cells) == 2 for cells in labels.values())
    assert report.format_time(1234.0) == "1.23 us"
