"""What the gate does with its findings: refusal, allowance, what could not run, and that it leaves nothing behind."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

import numpy
import planted_models
import pytest
import torch
from gate_specimens import findings_of, model_of, source_for, source_of
from project import PLANTED, export_unverified
from torch import nn

import torchferry
from exporter.archive.contract import Finding
from exporter.common.errors import UnsoundError, UsageError
from exporter.common.forking import ForkFailedError, run_in_fork
from exporter.frontends import python_factory
from exporter.model.eager.evaluation import eager_context
from exporter.soundness import forced_reads, gate
from exporter.soundness.checks import data_reads, devices
from exporter.soundness.clean_room import CleanRooms
from exporter.soundness.execution_paths import trace_path
from exporter.soundness.footprint import Footprint
from exporter.soundness.gate import Allowance
from exporter.soundness.run_recording import record_run
from torchferry.cli.app import run

HAZARDS = Path(__file__).with_name("hazards")
F = torch.float64


def test_an_allowed_finding_is_in_the_contract_with_its_reason(tmp_path, capsys):
    def function(self, x):
        if x.max() > 1e30:
            return -x
        return x * self.scale

    model = model_of(function)
    with pytest.raises(UnsoundError) as caught:
        torchferry.export(model, output=tmp_path / "m.pt")
    assert caught.value.details["check"] == "data read"
    assert "--allow 'data read:REASON'" in caught.value.details["mend"]
    allowed = ["data read:strains are far below one", "batch size:as above", "values:as above"]
    (exported,) = torchferry.export(model, output=tmp_path / "m.pt", allow=allowed)
    finding = next(f for f in exported.contract.findings if f.severity == "allowed")
    assert (finding.check, finding.reason) == ("data read", "strains are far below one")
    assert "strains are far below one" in json.dumps(torchferry.verify(tmp_path / "m.pt").as_dict()["findings"])
    assert run(["inspect", str(tmp_path / "m.pt")]) == 0
    assert "allowed" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["data read", "data read:", "data reads:typo", ":why"])
def test_an_allowance_needs_a_check_and_a_reason(text):
    with pytest.raises(UsageError, match="CHECK:REASON"):
        Allowance.parse(text)


def test_the_command_runs_the_gate_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["check", f"{PLANTED}:sound"]) == 0
    assert "sound, by" in capsys.readouterr().out
    assert run(["check", f"{PLANTED}:branch_on_data", "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["check"] == "data read"
    assert report["findings"][0]["severity"] == "unsound"
    assert list(tmp_path.iterdir()) == []


def test_what_passes_is_said_with_its_reason():
    def function(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        print(f"{float(x.mean()):.3f}")
        return x * self.scale.max().item()

    result = findings_of(source_for(model_of(function)))
    message = {f.check: f for f in result}
    assert "no output depends on what was read" in message["data read"].reason
    assert "attribute 'calls'" in message["hidden state"].what
    assert "parameter 'scale' is a constant in the file" in message["parameters"].what
    assert all(f.severity == "sound" for f in result)


class Attention(nn.Module):
    """torch asks whether the mask is causal, among many questions that are asked at one line of this model."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, dtype=F)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x, mask, y, other):
        return [self.encoder(*pair) for pair in ((x, mask), (y, other))]


@pytest.mark.thorough
def test_each_question_of_a_library_is_asked_with_another_answer(tmp_path):
    generator = torch.Generator().manual_seed(0)
    inputs = {name: torch.randn(3, 4, dtype=F, generator=generator) for name in ("x", "y")}
    inputs |= {name: torch.eye(3).bool() for name in ("mask", "other")}
    with pytest.raises(UnsoundError, match="changes") as caught:
        torchferry.export(Attention().eval(), inputs=inputs, output=tmp_path / "m.pt", batch="no")
    assert caught.value.details["check"] == "data read"


def test_reads_are_spread():
    assert data_reads._spread([3, 5, 8], 8) == [3, 5, 8]
    assert data_reads._spread(range(100), 8) == [0, 14, 28, 42, 57, 71, 85, 99]


def test_an_input_that_is_not_used_and_an_output_that_is_constant_are_said():
    class Model(nn.Module):
        signature = torchferry.Signature.of({"x": (3,), "y": ()}, {"a": (3,), "b": ()})

        def forward(self, x, y):
            return x * 2, torch.zeros_like(x[:, 0])

    result = {f.check: f.what for f in findings_of(source_for(Model()))}
    assert "'y'" in result["unused input"]
    assert "'b'" in result["constant output"]


def test_the_users_process_is_left_as_it_was():
    calls = []

    def function(self, x):
        calls.append(1)
        torch.rand(1)
        return x * self.scale

    model = model_of(function)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    before = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), dict(os.environ))
    findings_of(source_for(model))
    assert before == (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), dict(os.environ))
    assert model.scale.requires_grad
    # Calls of warmup and capture, and none of the hundreds that the checks make.
    assert len(calls) < 60
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), expected)


def test_a_check_that_cannot_run_says_so(monkeypatch):
    def broken(_):
        raise ForkFailedError("planted")

    monkeypatch.setitem(gate._BEFORE, "data read", broken)
    result = [f for f in findings_of(source_for(planted_models.sound())) if f.severity == "not run"]
    assert result == [Finding("data read", "the check could not run", reason="planted", severity="not run")]


def _sleeps() -> None:
    time.sleep(60)


def _dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _changes(source, value: float) -> float:
    scale = source.parameter_module.scale
    scale.data.mul_(value)
    return float(scale.detach().sum())


def test_runs_apart():
    with pytest.raises(ForkFailedError, match=r"no end within 0\.2 s"):
        run_in_fork(_sleeps, seconds=0.2)
    with pytest.raises(ForkFailedError, match="was killed"):
        run_in_fork(_dies)
    source = source_for(planted_models.sound())
    with CleanRooms(source) as room:
        assert room(_changes, 2.0) == 12.0
        assert room(_changes, 2.0) == 12.0
        scale = dict(source.parameter_module.named_parameters())["scale"]
        scale.data.zero_()
        assert room(_changes, 1.0) == 6.0
    assert float(scale.detach().sum()) == 0.0


def _sleeps_there(source) -> None:
    time.sleep(60)


def _refuses(_) -> list[Finding]:
    return [Finding("random numbers", "planted", severity="unsound")]


def _list_children() -> set[str]:
    """Every process that this one has started, in whichever thread."""
    return {pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


def test_a_refusal_ends_the_checks_that_still_run(monkeypatch):
    before, start = _list_children(), time.monotonic()
    asked = threading.Event()

    def wait_there(context):
        asked.set()
        return context.room(_sleeps_there)

    def refuse_late(context):
        assert asked.wait(30)
        return _refuses(context)

    monkeypatch.setattr(gate, "_BEFORE", {"hidden state": refuse_late, "data read": wait_there})
    with pytest.raises(UnsoundError, match="planted"):
        torchferry.check(planted_models.sound(), jobs=2)
    assert time.monotonic() - start < 30
    assert _list_children() == before


def test_a_refusal_of_a_capture_ends_the_checks_that_still_run(monkeypatch):
    before, start = _list_children(), time.monotonic()
    monkeypatch.setattr(gate, "_AFTER", {"batch size": _refuses, "values": _sleeps_there})
    with pytest.raises(UnsoundError, match="planted"):
        torchferry.check(planted_models.sound(), jobs=2)
    assert time.monotonic() - start < 30
    assert _list_children() == before


def test_checks_side_by_side_find_what_each_finds_alone():
    def function(self, x):
        if x.max() > 1e30 or len(x) == 200:
            return -x
        return x * self.scale

    allowed = ["data read:as it is", "batch size:as it is", "values:as it is"]
    reports, steps = {}, {}
    for jobs in (1, 3):
        steps[jobs] = []
        watch = steps[jobs].append
        (reports[jobs],) = torchferry.check(model_of(function), allow=allowed, jobs=jobs, watch=watch)
    assert reports[1].findings == reports[3].findings
    assert {f.severity for f in reports[1].findings} >= {"allowed"}
    for jobs in (1, 3):
        ended = [(s.part, s.done, s.total) for s in steps[jobs] if s.part]
        assert ended == [(name, i, len(gate.RUNS)) for i, name in enumerate(("first calls", *gate.RUNS))]


def _dies_there(_) -> list[Finding]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_check_of_a_capture_that_dies_says_so_and_the_others_run(monkeypatch, jobs):
    monkeypatch.setitem(gate._AFTER, "values", _dies_there)
    (report,) = torchferry.check(planted_models.sound(), jobs=jobs)
    assert report.not_run == ("values",)
    assert {"batch size", "dtype"} <= set(report.checks)
    monkeypatch.setitem(gate._AFTER, "dtype", _refuses)
    with pytest.raises(UnsoundError, match="planted"):
        torchferry.check(planted_models.sound(), jobs=jobs)


def _sleep(source):
    time.sleep(5)


def test_a_call_in_a_room_may_take_as_long_as_the_room_says():
    with CleanRooms(source_for(planted_models.sound())) as room:
        room.limit = 0.2
        with pytest.raises(ForkFailedError, match=r"no end within 0\.2 s"):
            room(_sleep)


def test_a_read_is_followed_through_views_and_writes_in_place():
    def function(self, x):
        copy = torch.zeros_like(x)
        copy[:, 1] = x[:, 0]
        column = copy.T[1]
        if bool(torch.zeros_like(x).sum() > 1) or len(x.T) > 5 or bool(self.scale[0] > 9):
            return x
        return x * 2 if bool(column.max() > 100.0) else x * self.scale

    source = source_for(model_of(function))
    with eager_context(source):
        run = record_run(source, (torch.rand(5, 3, dtype=F),))
    data, size, parameter, written = run.origins
    # A tensor of zeros has the size of x and none of its data; a dimension that is turned round is a size.
    assert "x" not in data
    assert size == {"size of x"}
    assert parameter == frozenset()
    assert "x" in written


def test_the_control_of_the_read_check():
    """Without the data read nothing is found: the finding is about the read, and not about the model."""
    source = source_of(HAZARDS / "newton_while_item.py", "Hazard")
    inputs = tuple(torch.cat([t, t[:1]]) for t in source.calls[0])
    with eager_context(source):
        (result,) = data_reads._check(source, [inputs, inputs], ())[:1]
    assert result.severity == "unsound"
    twin = source_of(HAZARDS / "newton_while_item.py", "Sound")
    with eager_context(twin):
        assert not [f for f in data_reads._check(twin, [inputs, inputs], ()) if f.severity == "unsound"]


class WritingInBand(nn.Module):
    """Writes to a buffer where the mean is about a number, which a search finds."""

    def __init__(self, write: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.register_buffer("gain", torch.ones(1, dtype=F))
        self.gain: torch.Tensor
        self.write = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x.mean() - 437.0).abs() < 1.0:
            self.write(self.gain)
        return x * self.gain


# The second is not counted by torch.
@pytest.mark.parametrize("write", [lambda gain: gain.mul_(2), lambda gain: gain.data.mul_(2)])
def test_a_branch_that_writes_to_a_buffer_is_not_served_by_a_run_that_sees_it(write):
    examples = {"x": torch.tensor([[0.5, 1.0], [2.0, 0.1]], dtype=F)}
    with pytest.raises(UnsoundError) as caught:
        findings_of(python_factory.source_from_module(WritingInBand(write), "m", examples, "here"))
    assert caught.value.details["check"] == "data read"


def test_tensors_of_inference_mode_are_no_reason_for_a_check_not_to_run():
    """Torch counts no writes to them."""
    model = WritingInBand(torch.Tensor.abs)
    with torch.inference_mode():
        model.gain = torch.ones(1, dtype=F)
    examples = {"x": torch.tensor([[0.5, 1.0], [2.0, 0.1]], dtype=F)}
    findings = findings_of(python_factory.source_from_module(model, "m", examples, "here"))
    assert "not run" not in {finding.severity for finding in findings}


def test_numbers_keep_the_dtype_that_they_had_no_say_in(tmp_path):
    """A Python number beside whole numbers, and beside a tensor without dimensions, in a float32 model."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.tensor(3.0))

        def forward(self, x, k):
            return {"a": x * (self.gain * 0.1), "b": torch.exp(-0.3 * k), "c": k / 7}

    torchferry.export(
        Model(), inputs={"x": torch.rand(4, 2), "k": torch.tensor([1, 2, 3, 4])}, output=tmp_path / "m.pt"
    )
    outputs = torchferry.load(tmp_path / "m.pt")(torch.rand(3, 2), torch.tensor([1, 2, 3]))
    assert [o.dtype for o in outputs] == [torch.float32] * 3


def test_a_custom_function_is_captured_by_its_forward(tmp_path):
    opened = export_unverified(f"{PLANTED}:python_function_in_graph", tmp_path / "m.pt")
    assert "PythonOp" not in opened.graph


@pytest.mark.thorough
def test_the_second_opinion_is_the_same_beside_a_capture():
    opinions = []
    for jobs in (1, 2):
        (checked,) = torchferry.check(planted_models.sound(), second_opinion=True, jobs=jobs)
        opinions.append([f for f in checked.findings if f.check == "second opinion"])
    assert opinions[0] == opinions[1] != []


def test_the_second_opinion_decides_nothing():
    (checked,) = torchferry.check(planted_models.sound(), second_opinion=True)
    opinion = next(f for f in checked.findings if f.check == "second opinion")
    assert "one program for every batch size" in opinion.what
    with pytest.raises(UnsoundError) as caught:
        torchferry.check(planted_models.loop_over_batch(), second_opinion=True)
    message = next(f for f in caught.value.findings if f.check == "second opinion")
    assert "specialized" in message.what
    assert caught.value.details["check"] == "batch size"


def test_train_mode_is_said():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    result = findings_of(python_factory.source_from_module(model, "m", {"input": torch.rand(4, 3)}, "here"))
    assert "eval mode" in next(f for f in result if f.check == "train mode").reason
    assert not [f for f in findings_of(source_for(planted_models.sound())) if f.check == "train mode"]


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * (2.0 if self.calls > 500 else 1.0)


class Slots:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0


def _counted(kept, step, over):
    """A model whose outputs change after 500 calls; what counts them is ``kept``."""

    def function(self, x):
        step(kept)
        return x * (2.0 if over(kept) else 1.0)

    return model_of(function)


def _in_a_list():
    modules = [Inner()]
    return model_of(lambda self, x: modules[0](x))


def _step_slots(kept):
    kept.calls += 1


@pytest.mark.parametrize(
    "model",
    [
        _counted(torch.tensor(0), lambda k: k.add_(1), lambda k: int(k) > 500),
        _counted(numpy.zeros(1), lambda k: k.__iadd__(1), lambda k: k[0] > 500),
        _counted(Slots(), _step_slots, lambda k: k.calls > 500),
        _counted(types.SimpleNamespace(calls=0), _step_slots, lambda k: k.calls > 500),
        _counted(set(), lambda k: k.add(len(k)), lambda k: len(k) > 500),
        _counted({}, lambda k: k.update({len(k): 0}), lambda k: len(k) > 500),
        _counted(itertools.count(), lambda k: None, lambda k: next(k) > 500),
        _in_a_list(),
    ],
    ids=["tensor", "array", "slots", "namespace", "set", "dict", "iterator", "module in a list"],
)
def test_a_count_is_found_wherever_it_is_kept(model):
    with pytest.raises(UnsoundError) as caught:
        findings_of(source_for(model))
    assert caught.value.details["check"] == "hidden state"


def test_code_without_a_file_is_the_users(tmp_path):
    """A notebook's cell."""
    text = (
        "import torch\nfrom torch import nn\nclass Cell(nn.Module):\n    def forward(self, x):\n"
        "        return x * 2 if x.is_cuda else x * 3\n"
    )
    names: dict = {"__name__": "cell"}
    exec(compile(text, "<ipython-input-3>", "exec"), names)
    with pytest.raises(UnsoundError) as caught:
        torchferry.check(names["Cell"](), inputs={"x": torch.rand(4, 3)})
    assert caught.value.details["check"] == "device"
    assert "<ipython-input-3>:5" in caught.value.details["where"]


class Compiled(nn.Module):
    """Needs torch's compiler on every device."""

    example_inputs = {"x": torch.rand(4, 3)}  # noqa: RUF012

    def forward(self, x):
        tripled = torch.compile(lambda t: t * 3, backend="eager")(x)
        return x * 2 if x.is_cuda else tripled


def test_a_model_that_needs_the_compiler_is_run_with_it():
    findings = run_in_fork(devices._check, source_for(Compiled()), (torch.rand(4, 3),))
    assert [finding.check for finding in findings] == ["device"]


def test_a_function_that_was_bound_before_is_captured():
    def function(self, x):
        return APPLY(x) * self.scale

    findings_of(source_for(model_of(function)))


APPLY = planted_models.Square.apply


def test_what_a_garbage_collection_calls_is_no_part_of_a_run():
    """A library may have asked to be called; when that happens is chance."""
    seen = []

    def called(phase, info):
        seen.append(phase)

    def run():
        return [[i] for i in range(2000)]

    gc.callbacks.append(called)
    try:
        steps = trace_path(run)
        with Footprint() as footprint:
            run()
        gc.collect()
    finally:
        gc.callbacks.remove(called)
    assert seen
    assert any(step.code is run.__code__ for step in steps)
    assert not any(step.code is called.__code__ for step in steps)
    assert called.__code__ not in footprint.codes


def test_processes_end_with_the_room():
    source = source_for(planted_models.sound())
    with CleanRooms(source) as room:
        pid = room._rooms[0]._pid
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_module_goes_back_to_the_mode_it_was_in():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).train()
    torchferry.check(model, inputs={"input": torch.rand(4, 3)})
    assert all(m.training for m in model.modules())


def test_further_runs_are_fewer_for_a_large_model_and_the_report_says_so(monkeypatch):
    class Logged(nn.Module):
        signature = torchferry.Signature.of({"x": (3,)}, {"y": (3,)})

        def forward(self, x):
            self.seen = (x.mean().item(), x.max().item())
            return x * 2.5 + 3.5

    assert not any("not all reads" in f.what for f in findings_of(source_for(Logged())))
    monkeypatch.setattr(forced_reads, "OPERATIONS", 10)
    monkeypatch.setattr(forced_reads, "LEAST_FURTHER_RUNS", 1)
    (note,) = [f for f in findings_of(source_for(Logged())) if "not all reads" in f.what]
    assert (note.check, note.severity) == (data_reads.CHECK, "sound")
