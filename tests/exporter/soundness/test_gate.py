"""What the gate does with its findings: refusal, allowance, what could not run, and that it leaves nothing behind."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import math
import os
import re
import signal
import threading
import time
import types
from pathlib import Path
from typing import Any

import numpy
import planted_models
import pytest
import torch
from gate_specimens import findings_of, source_of
from project import PLANTED, export_unverified
from torch import nn

import torchferry
from exporter.archive.contract import Finding
from exporter.common.errors import UnsoundError, UsageError
from exporter.common.forking import ForkFailedError, run_in_fork
from exporter.common.stopwatch import Step
from exporter.frontends import python_factory
from exporter.model.eager import warmup
from exporter.model.eager.call_cost import NUMBERS_PER_OPERATION, CallCost
from exporter.model.eager.evaluation import eager_context
from exporter.model.eager.warmup import run_first
from exporter.soundness import branch_search, first_calls, gate, probe_inputs
from exporter.soundness.checks import data_reads, devices
from exporter.soundness.clean_room import CleanRooms
from exporter.soundness.execution_paths import trace_path
from exporter.soundness.footprint import Footprint
from exporter.soundness.gate import Allowance
from exporter.soundness.run_recording import record_run
from torchferry.cli.app import run

HAZARDS = Path(__file__).with_name("hazards")
F = torch.float64


def model_of(function) -> nn.Module:
    return planted_models.Model(function)


def source_for(model: nn.Module):
    return python_factory.source_from_module(model, "m", None, "here")


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


def _halve(self, x):
    while x.abs().max() > 1.0:
        x = x * self.factor
    return x


@pytest.mark.parametrize(("function", "is_slow"), [(_halve, True), (lambda self, x: x.tanh() * self.factor, False)])
def test_draws_that_take_too_long_are_left_out(monkeypatch, function, is_slow):
    model: Any = model_of(function)
    model.factor = 1 - 1e-5
    source = source_for(model)
    draws = [(name, (torch.full((5, 3), value, dtype=F),)) for name, value in (("small", 0.5), ("large", 1e8))]
    monkeypatch.setattr(probe_inputs, "SECONDS", 0.1)
    with eager_context(source):
        kept = run_in_fork(first_calls.observe_first_calls, source, draws, 0.0, math.inf).chosen.draws
    assert [label for label, _ in kept if label in ("small", "large")] == ["small"] + ["large"] * (not is_slow)


def _shrink_from_one(self, x):
    # At a number above 1 it never ends: 1.001 is what the search tries for the literal.
    while x.max() > 1.0:
        x = x * 1.0
    return x


def test_the_search_for_branches_ends_where_a_call_does_not():
    source = source_for(model_of(_shrink_from_one))
    draws = [("traced", (torch.full((5, 3), 0.5, dtype=F),)), ("other values", (torch.full((5, 3), 0.2, dtype=F),))]
    with eager_context(source):
        chosen = run_in_fork(first_calls.observe_first_calls, source, draws, 0.0, math.inf, seconds=60.0).chosen
    assert [label for label, _ in chosen.draws][:2] == ["traced", "other values"]


def test_a_costly_model_has_the_draws_that_it_can_afford():
    source = source_for(model_of(lambda self, x: x.tanh()))
    probes = probe_inputs.draw_probe_inputs(run_first(source, 0).sampler, 5, torch.Generator().manual_seed(0))
    kept = {n: probe_inputs.keep_affordable_draws(probes, 10.0, 10.0 * n) for n in (0, 4, 6.5, 1000, math.inf)}
    labels = {n: [label for label, _ in draws] for n, draws in kept.items()}
    assert set(labels[0]) == set(labels[4]) == set(probe_inputs.SMALLEST)
    assert set(labels[6.5]) == {*probe_inputs.SMALLEST, *probe_inputs.PREFERRED[:2]}
    # In the order of all, the traced one first.
    assert labels[6.5] == [label for label, _ in probes if label in labels[6.5]]
    assert labels[6.5][0] == "traced"
    assert labels[1000] == labels[math.inf] == [label for label, _ in probes]
    assert set(probe_inputs.PREFERRED) < set(labels[1000])


def test_draws_are_chosen_by_what_a_call_computes():
    source = source_for(model_of(lambda self, x: x.tanh()))
    probes = probe_inputs.draw_probe_inputs(run_first(source, 0).sampler, 5, torch.Generator().manual_seed(0))
    run = record_run(source, probes[0][1])
    chosen = {n: branch_search.choose_draws(source, probes, 7e8, n * 7e8, run) for n in (1, 6.5, 1000)}
    assert [len(c.draws) for c in chosen.values()] == [4, 6, len(probes)]
    left_out = {n: len(probes) - len(c.draws) for n, c in chosen.items()}
    assert {n: c.left_out for n, c in chosen.items()} == left_out
    for n, c in chosen.items():
        assert c.seconds == pytest.approx(0.7 * left_out[n])
    # Nothing is known of a call.
    assert branch_search.choose_draws(source, probes, 0.0, 1.0, run).left_out == 0


@pytest.mark.parametrize("batch_ndim", [1, 0])
def test_the_gate_knows_what_a_call_computes(batch_ndim, monkeypatch):
    """As warmup has counted it: tanh of 5 rows, or of whole shapes, and a product."""
    model: Any = model_of(lambda self, x: x.tanh() * self.scale)
    if not batch_ndim:
        model.signature = torchferry.Signature.of({"x": (5, 3)}, {"y": (5, 3)}, batch_ndim=0)
    counts = list[float]()

    def observe(source, probes, numbers, limit):
        counts.append(numbers)
        return first_calls.observe_first_calls(source, probes, numbers, limit)

    source = source_for(model)
    monkeypatch.setattr(gate, "observe_first_calls", observe)
    room: Any = lambda function, *arguments: function(source, *arguments)  # noqa: E731
    first = warmup.measure_cost(run_first(source, 0), 0)
    probes = probe_inputs.draw_probe_inputs(first.sampler, first.sizes[0], torch.Generator().manual_seed(0))
    gate._observe_first_calls(first, room, probes, gate.GateOptions())
    assert counts == [2 * (NUMBERS_PER_OPERATION + 15)]


@pytest.mark.parametrize("thorough", [False, True])
def test_the_draws_of_a_costly_model_are_in_the_report(monkeypatch, thorough):
    monkeypatch.setattr(gate, "LIMIT", 1.0)
    (report,) = torchferry.check(planted_models.sound(), thorough=thorough)
    assert ("draws were not run" in str(report.findings)) is not thorough
    with pytest.raises(UnsoundError) as caught:
        torchferry.check(planted_models.branch_on_data(), thorough=thorough)
    assert caught.value.details["check"] == "data read"


def test_a_slow_model_keeps_few_draws_where_none_could_be_chosen(monkeypatch):
    def fail(source, probes, numbers, limit, run):
        raise ForkFailedError("as planted")

    monkeypatch.setattr(warmup, "SLOW_CALL", 0.0)
    monkeypatch.setattr(first_calls, "choose_draws", fail)
    source = source_for(planted_models.sound())
    first = run_first(source, 0)
    probes = probe_inputs.draw_probe_inputs(first.sampler, 5, torch.Generator().manual_seed(0))
    room: Any = lambda function, *arguments: function(source, *arguments)  # noqa: E731
    draws, quiet, findings = gate._observe_first_calls(first, room, probes, gate.GateOptions())
    # Nothing is known of the model then: every check runs.
    assert not quiet
    assert {label for label, _ in draws} == set(probe_inputs.SMALLEST)
    assert [f.severity for f in findings] == ["sound", "not run"]


@pytest.mark.parametrize("thorough", [False, True])
def test_a_slow_model_is_announced_and_has_the_smallest_checks(monkeypatch, thorough):
    monkeypatch.setattr(warmup, "SLOW_CALL", 0.0)
    steps: list[Step] = []
    (report,) = torchferry.check(planted_models.sound(), thorough=thorough, watch=steps.append)
    (notice,) = [step for step in steps if step.is_notice]
    assert re.fullmatch(r"a call takes \d+ s, an export about \d+ of them: \d+ minutes", notice.part)
    assert ("draws were not run" in str(report.findings)) is not thorough
    # The checks are all there, and refuse.
    with pytest.raises(UnsoundError) as caught:
        torchferry.check(planted_models.branch_on_data(), thorough=thorough)
    assert caught.value.details["check"] == "data read"


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
        (result,) = data_reads._check(source, [inputs, inputs])[:1]
    assert result.severity == "unsound"
    twin = source_of(HAZARDS / "newton_while_item.py", "Sound")
    with eager_context(twin):
        assert not [f for f in data_reads._check(twin, [inputs, inputs]) if f.severity == "unsound"]


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


@pytest.mark.parametrize("cost", [0.0, 7e8])
def test_what_is_traced_is_the_first_of_the_chosen_draws(cost):
    """The capture does not wait for the choice."""
    first = run_first(source_for(planted_models.sound()), 0)
    first = dataclasses.replace(first, cost=CallCost((1, 2), (cost, 2 * cost)))
    with CleanRooms(first.source) as room:
        checks = gate.make_eager_checks(first, room, 0, gate.GateOptions())
        draws, _ = checks.run()
    assert len(draws) < len(checks.context.draws) or not cost
    assert draws[0][0] == "traced"
    for value, traced in zip(draws[0][1], checks.traced_inputs, strict=True):
        assert torch.equal(value, traced)


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
