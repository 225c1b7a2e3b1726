"""The pipelines: each takes a bundle of samples through one format and one runtime, with inputs new to it.

A pipeline returns a verdict on each sample, or raises a ``TorchferryError`` if the bundle is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchferry
from exams.cells import PASS, REFUSED, WRONG, Verdict
from exams.derivatives import differs_from_differences, judge_jacobian, judge_products
from exams.judgement import CLOSE, SAME, SINGLE, judge_outputs
from exams.laws import check_laws
from exams.ode_solving import explain_solution
from exams.samples import Bundle, Inputs, Sample, get_number
from exporter.archive import onnx_container
from exporter.archive.contract import Contract, block_name
from exporter.common.errors import CaptureError, MismatchError, RunError, UnsupportedError
from runtime_checks.containers import open_container
from runtime_checks.runners.base import Call, Runner
from runtime_checks.runners.kernel_runner import KernelRunner
from runtime_checks.runners.libtorch_runner import LibtorchRunner
from runtime_checks.runners.onnxruntime_runner import OnnxRuntimeRunner
from runtime_checks.runners.package_runner import PackageRunner
from runtime_checks.runners.python_runner import PROGRAMS, PythonRunner

Judge = Callable[["Workbench", Sequence[int]], dict[int, Verdict]]
MAIN = "forward"
JACOBIAN, DIGITS, LAWS, PUBLISHED = "jacobian", "digits", "laws", "published"
# The check that compares derivatives with the function.
DIFFERENCES = "finite differences"
# Seconds of large batches in an export: the exam judges by itself.
BUDGET = 0.2


@dataclass
class Workbench:
    """The samples of a case, and the archives that were made of them so far: each bundle is exported once."""

    samples: Sequence[Sample]
    folder: Path
    budget: float | None = BUDGET
    archives: dict[tuple[Any, ...], Path] = field(default_factory=dict)

    def make_bundle(self, numbers: Sequence[int]) -> Bundle:
        return Bundle({n: self.samples[n] for n in numbers})

    def export(self, numbers: Sequence[int], **options: Any) -> Path:
        """Return the archive of a bundle."""
        key = (*numbers, *sorted(map(str, options.items())))
        if key not in self.archives:
            bundle, path = self.make_bundle(numbers), self.folder / f"{len(self.archives)}.pt"
            inputs = {name: tensor.clone() for name, tensor in bundle.name_inputs(0).items()}
            batch = "yes" if self.samples[numbers[0]].rows else "no"
            # A sample is what it is, at the sizes that it has.
            settings: dict[str, Any] = {"sizes": "fixed", "jobs": 1, "budget": self.budget}
            torchferry.export(bundle, inputs=inputs, output=path, batch=batch, **settings, **options)
            self.archives[key] = path
        return self.archives[key]

    def convert(self, numbers: Sequence[int], to: str) -> Path:
        """Return the container that is made of a bundle's archive, from this file alone."""
        key = (*numbers, to)
        if key not in self.archives:
            self.archives[key] = torchferry.convert(self.export(numbers), to=to).path
        return self.archives[key]


def _judge(
    work: Workbench, numbers: Sequence[int], run: Callable[[Inputs], dict[str, torch.Tensor]], tolerances: Any
) -> dict[int, Verdict]:
    """Judge every set of fresh inputs; one that differs counts."""
    bundle = work.make_bundle(numbers)
    verdicts = dict.fromkeys(numbers, PASS)
    for fresh in range(1, bundle.count_fresh + 1):
        inputs = bundle.name_inputs(fresh)
        verdicts |= judge_outputs(numbers, bundle.evaluate(inputs), run(inputs), tolerances)
    return verdicts


def judge_archive(work: Workbench, numbers: Sequence[int]) -> dict[int, Verdict]:
    """Export a bundle; load the archive in this process."""
    model = torchferry.load(work.export(numbers))
    return _judge(work, numbers, lambda inputs: model.call(MAIN, inputs), SAME)


def _make_judge(runner: Runner, to: str, tolerances: Mapping[str, float]) -> Judge:
    def judge(work: Workbench, numbers: Sequence[int]) -> dict[int, Verdict]:
        path = work.convert(numbers, to) if to else work.export(numbers)
        contract = open_container(path).contract
        return _judge(work, numbers, lambda inputs: _call(runner, path, contract, inputs), tolerances)

    return judge


def _call(runner: Runner, path: Path, contract: Contract, inputs: Inputs) -> dict[str, torch.Tensor]:
    method = contract.methods[MAIN]
    (result,) = runner.run(path, contract, [Call(MAIN, tuple(inputs[name] for name in method.inputs))]).results
    if result.error:
        raise RunError(f"{runner.name} does not run the file", where=str(path), got=result.error)
    return dict(zip(method.output_names, result.outputs, strict=True))


def judge_reference(work: Workbench, numbers: Sequence[int]) -> dict[int, Verdict]:
    """Run the ONNX model by the evaluator of the onnx package, which is written in NumPy, without onnxruntime."""
    from onnx.reference import ReferenceEvaluator

    path = work.convert(numbers, "onnx")
    files = onnx_container.read(path)
    evaluator: Any = ReferenceEvaluator(str(path))
    names = files.contract.methods[MAIN].inputs

    def run(inputs: Inputs) -> dict[str, torch.Tensor]:
        feeds = {name: inputs[own].contiguous().numpy() for name, own in zip(files.inputs[MAIN], names, strict=True)}
        try:
            arrays = evaluator.run(None, feeds)
        except Exception as error:
            got = f"{type(error).__name__}: {error}"
            raise UnsupportedError("onnx.reference does not run the model", where=str(path), got=got) from None
        outputs = files.contract.methods[MAIN].output_names
        return {name: torch.tensor(array) for name, array in zip(outputs, map(np.array, arrays), strict=True)}

    return _judge(work, numbers, run, CLOSE)


def _load_differentiated(work: Workbench, numbers: Sequence[int]) -> tuple[Bundle, torchferry.Model]:
    """Export a bundle with all derivatives of each sample by its own inputs."""
    bundle = work.make_bundle(numbers)
    try:
        archive = work.export(numbers, derivatives=[f"o{n}_*:x{n}_*" for n in numbers], jvp=True, vjp=True)
    except MismatchError as error:
        if len(numbers) == 1 and {*error.details.get("expected", "").split("; ")} == {"nan"}:
            raise CaptureError("eager mode's own derivatives are NaN at some inputs", got=error.what) from None
        if len(numbers) > 1 or DIFFERENCES not in error.what or not differs_from_differences(bundle):
            raise
        raise CaptureError("eager mode's own derivatives are not those of its function", got=error.what) from None
    return bundle, torchferry.load(archive)


def judge_derivatives(work: Workbench, numbers: Sequence[int]) -> dict[int, Verdict]:
    """Hold the blocks of the Jacobian against eager mode's autograd and finite differences of the file."""
    return judge_jacobian(*_load_differentiated(work, numbers))


def judge_jvp_vjp(work: Workbench, numbers: Sequence[int]) -> dict[int, Verdict]:
    """Hold jvp and vjp against eager mode's autograd, by the same Jacobian."""
    return judge_products(*_load_differentiated(work, numbers))


def judge_laws(work: Workbench, numbers: Sequence[int]) -> dict[int, Verdict]:
    """Hold the laws of each sample on the archive, with every set of fresh inputs."""
    model, bundle = torchferry.load(work.export(numbers)), work.make_bundle(numbers)
    verdicts = {n: PASS if work.samples[n].laws else Verdict(REFUSED, "it has no laws") for n in numbers}
    for fresh in range(1, bundle.count_fresh + 1):
        inputs = bundle.name_inputs(fresh)
        for number in (n for n in numbers if work.samples[n].laws):
            own = [name for name in inputs if get_number(name) == number]
            run = functools.partial(_run_sample, model, inputs, own)
            text = check_laws(work.samples[number].laws, run, [inputs[name] for name in own])
            verdicts[number] = Verdict(WRONG, text) if text else verdicts[number]
    return verdicts


def judge_published(work: Workbench, numbers: Sequence[int]) -> dict[int, Verdict]:
    """Hold the ONNX model against the outputs that others have published for inputs of theirs."""
    bundle, path = work.make_bundle(numbers), work.convert(numbers, "onnx")
    expected = {f"o{n}_{i}": tensor for n in numbers for i, tensor in enumerate(work.samples[n].published)}
    if not expected:
        return dict.fromkeys(numbers, Verdict(REFUSED, "nothing is published of it"))
    got = _call(OnnxRuntimeRunner(), path, open_container(path).contract, bundle.name_inputs(1))
    return dict.fromkeys(numbers, PASS) | judge_outputs(numbers, expected, got, SINGLE)


def judge_digits(work: Workbench, numbers: Sequence[int]) -> dict[int, Verdict]:
    """Solve the problem of each sample by SciPy's Radau, by the kernel and its Jacobian; compare with the solution."""
    archive = work.export(numbers, derivatives=[f"o{n}_*:x{n}_*" for n in numbers])
    model = torchferry.load(torchferry.convert(archive, to="c").path)
    first = {key: tensor[:1].numpy() for key, tensor in work.make_bundle(numbers).name_inputs(0).items()}
    verdicts = {}
    for n in numbers:
        output, wrt = f"o{n}_0", f"x{n}_0"
        call = functools.partial(_call_row, model, first, wrt)
        rate, jacobian = (
            functools.partial(call, *names) for names in ((MAIN, output), (JACOBIAN, block_name(output, wrt)))
        )
        text = explain_solution(work.samples[n].problem, rate, jacobian)
        verdicts[n] = Verdict(WRONG, text) if text else PASS
    return verdicts


def _call_row(model: Any, first: Mapping[str, Any], wrt: str, method: str, output: str, row: Any) -> Any:
    """Return one output of a method for one row of an input."""
    return model.call(method, {**first, wrt: np.asarray(row)[None]})[output][0]


def _run_sample(
    model: torchferry.Model, inputs: Inputs, own: Sequence[str], *tensors: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Run the file with other inputs of one sample; return its outputs."""
    outputs = model.call(MAIN, {**inputs, **dict(zip(own, tensors, strict=True))})
    return tuple(tensor for name, tensor in outputs.items() if get_number(name) == get_number(own[0]))


# What holds the same function; each of the others needs an export of its own, with derivatives.
FILES = ("pt", "libtorch", "program", "onnx", "onnx.reference", "c")
DERIVATIVES = (JACOBIAN, "jvp vjp")
PIPELINES: dict[str, Judge] = {
    "pt": judge_archive,
    "libtorch": _make_judge(LibtorchRunner(), "", SAME),
    "program": _make_judge(PythonRunner(name="program", holds=PROGRAMS), "program", CLOSE),
    "pt2": _make_judge(PackageRunner(PythonRunner()), "pt2", CLOSE),
    "onnx": _make_judge(OnnxRuntimeRunner(), "onnx", CLOSE),
    "onnx.reference": judge_reference,
    "c": _make_judge(KernelRunner(), "c", CLOSE),
    JACOBIAN: judge_derivatives,
    "jvp vjp": judge_jvp_vjp,
    DIGITS: judge_digits,
    LAWS: judge_laws,
    PUBLISHED: judge_published,
}
