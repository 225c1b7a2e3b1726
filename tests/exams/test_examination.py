"""The exams find what is wrong by themselves: planted faults, with the gate and all verification switched off."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from project import skip_checks

import torchferry
from exams import derivatives
from exams.cells import PASS, REFUSED, VERIFIED, WRONG, Verdict
from exams.examination import MOST_REFUSED, Case, examine, settle
from exams.judgement import SAME, judge_outputs
from exams.pipelines import PIPELINES
from exams.samples import Sample
from exporter.archive import pt_archive
from exporter.archive.contract import COTANGENT, TANGENT
from exporter.backends.c_kernel import c_expressions
from exporter.backends.torch_export import graph_interpreter
from exporter.capture import operator_rewrites
from exporter.common.errors import CaptureError

D = torch.float64


def draw(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.rand(shape, dtype=D, generator=generator) + 0.5 for shape in shapes)


def make_case(function, *shapes, pipelines=("pt",)):
    return Case([Sample(function, draw(*shapes), (draw(*shapes, seed=1),))], pipelines)


def give_sines(x):
    return torch.sin(x)


def write_through_a_view(x):
    y = x.clone()
    y[0].mul_(3.0)
    return y.sum(0)


@pytest.mark.thorough
def test_a_sound_case_is_verified_in_every_pipeline():
    pipelines = tuple(name for name in PIPELINES if name not in ("pt2", "digits", "laws", "published"))
    (cells,) = examine([make_case(write_through_a_view, (3, 2), pipelines=pipelines)], [{}])
    assert cells == dict.fromkeys(pipelines, VERIFIED)


def test_a_wrong_row_of_the_kernels_operators_is_found(monkeypatch):
    case = make_case(give_sines, (3,), pipelines=("pt", "c"))
    with skip_checks():
        assert examine([case], [{}])[0]["c"] == VERIFIED
        real = c_expressions.format_expression
        monkeypatch.setattr(
            "exporter.backends.c_kernel.frame_writer.format_expression",
            lambda op, *rest: real("cos" if op == "sin" else op, *rest),
        )
        cells = examine([case], [{}])[0]
    assert cells["pt"] == VERIFIED
    assert cells["c"].startswith(f"{WRONG}: off by")


def test_a_wrong_rewrite_is_found(monkeypatch):
    rule = operator_rewrites.Rewrite(
        "aten::sin",
        "graph(%x):\n  %y = aten::sin(%x)\n  return (%y)",
        "graph(%x):\n  %y : Tensor = aten::tan(%x)\n  return (%y)",
        "planted",
    )
    monkeypatch.setattr(operator_rewrites, "OPERATOR_REWRITES", (*operator_rewrites.OPERATOR_REWRITES, rule))
    with skip_checks():
        (cells,) = examine([make_case(give_sines, (3,))], [{}])
    assert cells["pt"].startswith(f"{WRONG}: off by")


def test_a_lost_write_in_place_is_found(monkeypatch):
    case = make_case(write_through_a_view, (3, 2), pipelines=("pt", "program"))
    real = graph_interpreter.run_operator

    def lose_writes(node, values, override):
        if node.operator.startswith("aten::mul_"):
            return [values[0] * values[1]]
        return real(node, values, override)

    monkeypatch.setattr(graph_interpreter, "run_operator", lose_writes)
    with skip_checks():
        (cells,) = examine([case], [{}])
    assert cells["pt"] == VERIFIED
    assert cells["program"].startswith(f"{WRONG}: off by")


class Spoilt:
    """A file whose derivatives are off by a thousandth."""

    def __init__(self, model):
        self.contract, self._model = model.contract, model

    def call(self, method, inputs):
        outputs = self._model.call(method, inputs)
        return {name: t * 1.001 if name.startswith(("d ", TANGENT, COTANGENT)) else t for name, t in outputs.items()}


@pytest.mark.parametrize("pipeline", ["jacobian", "jvp vjp"])
def test_a_wrong_derivative_is_found(pipeline, monkeypatch):
    case = make_case(give_sines, (3,), pipelines=("pt", pipeline))
    real = torchferry.load
    monkeypatch.setattr(torchferry, "load", lambda path: Spoilt(real(path)))
    with skip_checks():
        (cells,) = examine([case], [{}])
    assert cells == {"pt": VERIFIED, pipeline: f"{WRONG}: off by 1e-03 of the largest number"}


def multiply_precisions(x, z):
    return (torch.tanh(x) * z).sum(-1), torch.sin(z)


def test_derivatives_in_mixed_precision_are_judged():
    fresh = tuple(t.float() if i else t for i, t in enumerate(draw((3,), (3,), seed=1)))
    inputs = tuple(t.float() if i else t for i, t in enumerate(draw((3,), (3,))))
    case = Case([Sample(multiply_precisions, inputs, (fresh,))], ("pt", "jacobian", "jvp vjp"))
    (cells,) = examine([case], [{}])
    assert cells == {
        "pt": VERIFIED,
        "jacobian": f"{REFUSED}: no block of an output by an input of another precision",
        "jvp vjp": VERIFIED,
    }


@pytest.mark.parametrize("states", list(itertools.permutations([REFUSED, WRONG])))
def test_what_is_wrong_goes_before_what_is_refused(states):
    verdicts = {3: PASS}
    for state in (*states, WRONG):
        derivatives._blame(verdicts, "o3_0", f"it is {state}", state)
    assert verdicts == {3: Verdict(WRONG, f"it is {WRONG}")}
    derivatives._blame(verdicts, "o3_1", "another reason")
    assert verdicts[3].reason == f"it is {WRONG}"


def test_what_verification_finds_is_wrong_too(monkeypatch):
    real = pt_archive.write

    def spoil(path, records, contract, stored, *rest):
        first, *others = stored
        spoilt = dataclasses.replace(first, outputs=tuple(t + 1 for t in first.outputs))
        return real(path, records, contract, [spoilt, *others], *rest)

    monkeypatch.setattr(pt_archive, "write", spoil)
    (cells,) = examine([make_case(give_sines, (3,))], [{}])
    assert cells["pt"].startswith(f"{WRONG}: verification found it")


def judge_by_number(bad):
    calls = []

    def judge(numbers):
        calls.append(tuple(numbers))
        if bad & {*numbers}:
            raise CaptureError("no such operator", got="aten::nothing")
        return dict.fromkeys(numbers, PASS)

    return judge, calls


def test_a_refused_bundle_is_split_down_to_the_samples():
    judge, calls = judge_by_number({5})
    verdicts = settle([list(range(8))], judge)
    assert {n for n, v in verdicts.items() if v.state == REFUSED} == {5}
    assert verdicts[5] == Verdict(REFUSED, "no such operator: aten::nothing")
    assert len(calls) == 1 + 2 * 3


def test_a_case_that_is_refused_every_time_is_not_split_to_its_end_and_others_are_not_blamed():
    judge, calls = judge_by_number(set(range(40)))
    verdicts = settle([list(range(48))], judge, lambda n: n >= 40)
    assert {n for n, v in verdicts.items() if v.state == REFUSED} == set(range(40))
    assert {n for n, v in verdicts.items() if v.state == VERIFIED} == set(range(40, 48))
    assert sum(len(call) == 1 for call in calls) == MOST_REFUSED


def test_the_expected_cells_save_splits():
    bad = Sample(lambda x: (x > 0).item(), draw((2,)), (draw((2,), seed=1),))
    good = make_case(give_sines, (3,)).samples[0]
    case = Case([good, bad, good], ("pt",))
    (cells,) = examine([case], [{}])
    assert cells["pt"].startswith("verified 2 of 3; refused 1: ")
    assert examine([case], [cells]) == [cells]


def test_a_sample_that_returns_nothing_is_not_verified():
    expected = {"o0_0": torch.ones(2)}
    verdicts = judge_outputs([0, 1], expected, dict(expected), SAME)
    assert {n: v.state for n, v in verdicts.items()} == {1: REFUSED}
    assert judge_outputs([0], expected, {}, SAME)[0] == Verdict(WRONG, "the output is missing")


def test_an_output_in_excess_is_wrong():
    expected = {"o0_0": torch.ones(2)}
    verdict = judge_outputs([0], expected, {**expected, "o0_1": torch.ones(2)}, SAME)[0]
    assert verdict == Verdict(WRONG, "the file has output o0_1 besides")


def test_a_sample_is_judged_by_something():
    with pytest.raises(ValueError, match="verified by nothing"):
        Sample(give_sines, draw((3,)), ())
    (cells,) = examine([make_case(give_sines, (3,), pipelines=("pt", "laws"))], [{}])
    assert cells["laws"] == f"{REFUSED}: it has no laws"
