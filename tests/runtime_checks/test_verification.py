"""Verification of a file: what passes, and planted faults that each check is for."""

import dataclasses

import pytest
import torch
from contracts import contract
from project import load_module
from tampering import change_cases, change_contract
from verifying import verify

from exporter.archive import pt_archive
from exporter.archive.cases import ReferenceCase
from exporter.archive.contract import Batch, MethodSpec
from exporter.archive.tensor_spec import TensorSpec
from exporter.capture.serialization import serialize_module
from exporter.common.errors import ArchiveError, MismatchError
from runtime_checks.checks import batch_invariance
from runtime_checks.report import FAILED, NOT_RUN, PASSED
from runtime_checks.runners.base import CallResult, Run
from runtime_checks.verification import collect_report

F = torch.float64


class InThisProcess:
    """A runner without a process, so that a fault can be planted in what it returns."""

    name = "here"
    device = "cpu"

    def __init__(self, fault=lambda module, inputs: module(*inputs)):
        self.fault = fault

    def run(self, path, contract, calls):
        module = load_module(path)
        results = []
        for call in calls:
            try:
                results.append(CallResult(tuple(self.fault(module, call.inputs))))
            except Exception as error:
                results.append(CallResult(error=str(error).splitlines()[-1]))
        return Run(tuple(results), {"refused": {"planted": "ModuleNotFoundError: no"}, "foreign_modules": []})


def verdicts(report):
    return {c.check: c.verdict for c in report.checks}


def test_a_sound_archive_passes_in_a_fresh_process(eq_path):
    report = verify(eq_path)
    result = verdicts(report)
    assert result.pop("fresh inputs") == NOT_RUN
    assert result.pop("confinement") in (PASSED, NOT_RUN)
    assert set(result.values()) == {PASSED}
    others = {"integrity", "source library absent", "contract", "stored cases", "default dtype"}
    assert {*batch_invariance.INVARIANCES, *others} == set(result)
    refused = report.legs[0].evidence["refused"]
    assert "neml2" in refused
    assert all(outcome.startswith("ModuleNotFoundError") for outcome in refused.values())
    assert report.as_dict()["passed"] is True


def scaled_by_a_millionth(module, inputs):
    first, *rest = module(*inputs)
    return first * (1 + 1e-6), *rest


def nan_in_one_place(module, inputs):
    outputs = [o.clone() for o in module(*inputs)]
    if outputs[1].numel():
        outputs[1].view(-1)[-1] = float("nan")
    return outputs


def outputs_swapped(module, inputs):
    a, b, c = module(*inputs)
    return b, a, c


def only_rank_one(module, inputs):
    return tuple(o.reshape(-1) for o in module(*inputs))


def position_in_batch_counts(module, inputs):
    return tuple(o + 1e-6 * torch.arange(o.shape[-1] if o.ndim else 1) for o in module(*inputs))


def ignores_strides(module, inputs):
    flat = [
        torch.as_strided(x, x.shape, torch.empty(x.shape).stride(), x.storage_offset())
        if x.untyped_storage().nbytes() >= x.numel() * 8
        else x
        for x in inputs
    ]
    return module(*flat)


def float32_inside(module, inputs):
    return tuple(o.to(F) for o in module.to(torch.float32)(*(x.float() for x in inputs)))


def drops_an_output(module, inputs):
    return module(*inputs)[:2]


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (scaled_by_a_millionth, "stored cases"),
        (nan_in_one_place, "stored cases"),
        (outputs_swapped, "stored cases"),
        (float32_inside, "stored cases"),
        (drops_an_output, "stored cases"),
        (only_rank_one, "batch dimensions"),
        (position_in_batch_counts, "permutation"),
        (position_in_batch_counts, "concatenation"),
        (ignores_strides, "memory layouts"),
    ],
)
def test_a_planted_fault_is_caught_by_its_check(eq_path, fault, check):
    report = collect_report(eq_path, runners=[InThisProcess(fault)])
    assert verdicts(report)[check] == FAILED
    assert not report.passed
    with pytest.raises(MismatchError) as error:
        report.raise_if_failed()
    assert check in str(error.value)
    assert error.value.report is report


def test_without_a_fault_the_same_runner_passes(eq_path):
    assert collect_report(eq_path, runners=[InThisProcess()]).passed


def test_the_report_names_the_worst_element_and_its_inputs(eq_path):
    def one_wrong(module, inputs):
        outputs = [o.clone() for o in module(*inputs)]
        if inputs[0].shape == (1,):
            outputs[2][0] += 1.0
        return outputs

    report = collect_report(eq_path, runners=[InThisProcess(one_wrong)])
    worst = {o.output: o for o in report.outputs}["c_rate"]
    assert worst.comparison.worst == (0,)
    assert worst.comparison.max_abs == pytest.approx(1.0)
    assert "batch_1" in worst.at
    case = next(c for c in pt_archive.read(eq_path).cases() if c.name == "batch_1")
    assert worst.inputs["c~1"] == case.inputs[7][0].item()


def test_a_changed_case_is_found(eq_copy):
    change_cases(eq_copy, lambda t: t["batch_7/forward/out/1"].mul_(1 + 1e-6))
    with pytest.raises(MismatchError, match=r"stored cases(.|\n)*batch_7"):
        verify(eq_copy)


def test_nan_put_in_a_case_is_found(eq_copy):
    change_cases(eq_copy, lambda t: t["warmup/forward/out/0"].fill_(float("nan")))
    with pytest.raises(MismatchError):
        verify(eq_copy, runners=[InThisProcess()])


def test_a_case_of_a_wrong_shape_is_found(eq_copy):
    change_cases(eq_copy, lambda t: t.update({"batch_1/forward/out/0": torch.zeros(2, dtype=F)}))
    with pytest.raises((MismatchError, ArchiveError)):
        verify(eq_copy, runners=[InThisProcess()])


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda c: c["parameters"].append({"name": "nope", "shape": [], "dtype": "float64"}), "nope"),
        (lambda c: c["methods"].update(jacobian=c["methods"]["forward"]), "jacobian"),
    ],
)
def test_a_contract_that_says_more_than_the_file_holds(eq_copy, change, where):
    change_contract(eq_copy, change)
    with pytest.raises((MismatchError, ArchiveError), match=where):
        verify(eq_copy)


@pytest.mark.parametrize(
    "change", [lambda c: c["inputs"][0].update(dtype="float32"), lambda c: c["outputs"][0].update(shape=[7])]
)
def test_a_contract_of_other_shapes_or_dtypes(eq_copy, change):
    change_contract(eq_copy, change)
    with pytest.raises(ArchiveError, match="does not fit the contract"):
        verify(eq_copy)


def test_a_law_without_calls_is_not_run(eq_copy):
    change_contract(eq_copy, lambda c: c["batch"].update(sizes=[], ranks=[]))
    result = verdicts(collect_report(eq_copy, runners=[InThisProcess()]))
    assert result["batch sizes"] == NOT_RUN
    assert result["batch dimensions"] == NOT_RUN


def test_an_archive_that_depends_on_the_default_dtype(tmp_path):
    n = torch.tensor([1, 2])
    result = contract(
        [TensorSpec("n", (), "int64")],
        [TensorSpec("y", (), "float32")],
        batch=Batch(1, (2,), (1,)),
        methods={"forward": MethodSpec(("n",), ("y",))},
        parameters=(),
    )

    class Third(torch.nn.Module):
        def forward(self, n):
            return (n / 3,)

    module = torch.jit.trace(Third(), (n,))
    pt_archive.write(
        tmp_path / "m.pt", serialize_module(module), result, [ReferenceCase("one", "forward", (n,), (n / 3,))], "graph"
    )
    report = collect_report(tmp_path / "m.pt")
    assert verdicts(report)["default dtype"] == FAILED
    assert verdicts(report)["stored cases"] == PASSED


def test_a_looser_contract_is_another_file(eq_copy):
    """A tolerance edited by hand breaks the manifest; with the manifest remade it is what the contract says."""
    change_contract(eq_copy, lambda c: c["tolerance"]["dtypes"]["float64"].update(rtol=1e-3))
    assert collect_report(eq_copy, runners=[InThisProcess(scaled_by_a_millionth)]).passed


def test_a_source_library_that_can_be_imported_fails(eq_path):
    class Leaky(InThisProcess):
        def run(self, path, contract, calls):
            done = super().run(path, contract, calls)
            return dataclasses.replace(done, evidence={"refused": {"neml2": "imported"}, "foreign_modules": []})

    report = collect_report(eq_path, runners=[Leaky()])
    assert verdicts(report)["source library absent"] == FAILED


def test_fresh_cases_are_compared(eq_path):
    case = pt_archive.read(eq_path).cases()[0]
    wrong = ReferenceCase("fresh", "forward", case.inputs, (case.outputs[0] + 1, *case.outputs[1:]))
    assert collect_report(eq_path, fresh=[case], runners=[InThisProcess()]).passed
    report = collect_report(eq_path, fresh=[case, wrong], runners=[InThisProcess()])
    assert verdicts(report)["fresh inputs"] == FAILED


def test_fixed_shapes_have_no_batch_laws(tmp_path):
    x = torch.rand(4, 3, dtype=F)
    promise = contract(
        [TensorSpec("x", (4, 3))],
        [TensorSpec("y", (4, 3))],
        batch=Batch(0),
        methods={"forward": MethodSpec(("x",), ("y",))},
    )

    class Twice(torch.nn.Module):
        def forward(self, x):
            return (2 * x,)

    module = torch.jit.trace(Twice(), (x,))
    pt_archive.write(
        tmp_path / "m.pt", serialize_module(module), promise, [ReferenceCase("one", "forward", (x,), (2 * x,))], "graph"
    )
    result = verdicts(collect_report(tmp_path / "m.pt", runners=[InThisProcess()]))
    assert {law for law in batch_invariance.INVARIANCES if result[law] != NOT_RUN} == {batch_invariance.LAYOUTS}
    assert result["stored cases"] == PASSED


def test_nothing_that_was_checked_is_not_a_pass(eq_path):
    report = collect_report(eq_path, runners=[InThisProcess()])
    empty = dataclasses.replace(report.legs[0], checks=())
    assert not dataclasses.replace(report, legs=()).passed
    assert not dataclasses.replace(report, legs=(*report.legs, empty)).passed
