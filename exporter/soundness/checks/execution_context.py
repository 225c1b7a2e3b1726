"""Check of the same call under other conditions: gradients, default dtype, threads, memory layouts, aliased inputs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from exporter.archive.contract import Finding
from exporter.common.tensors import copy_transposed, copy_with_gaps
from exporter.model.eager.evaluation import find_forward_line, normalize_outputs
from exporter.model.function_model import FunctionModule
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import (
    EagerContext,
    alias_inputs,
    describe_mismatch,
    make_refusal,
    outputs_equal,
    run_eager,
)
from exporter.soundness.execution_paths import locate_path_divergence
from exporter.soundness.footprint import find_suspect_line
from exporter.soundness.run_recording import canonicalize, find_difference, record_run

CHECK = "grad mode"
OTHER_CHECKS = DTYPE, THREADS, LAYOUT, ALIAS = "default dtype", "threads", "memory layout", "aliasing"
TRAIN = "train mode"
# What outputs may depend on, and how to mend it.
_CONDITIONS = {
    CHECK: ("whether gradients are recorded", "compute the same with and without gradients"),
    DTYPE: ("torch's default dtype", "make tensors with dtype=x.dtype, or as buffers in __init__"),
    THREADS: ("the thread that calls", "keep no state of a thread"),
    LAYOUT: (
        "the layout of the inputs in memory",
        "compute the same for every layout: no branch on is_contiguous(), no as_strided",
    ),
    ALIAS: ("whether two inputs are the same tensor", "work on copies, and do not compare tensors by identity"),
}
# Calls that concern memory and not values.
LAYOUT_CALLS = r"as_strided|stride\(|storage|data_ptr|\bset_\(|is_contiguous"
_NamedTensors = dict[str, torch.Tensor]


def check(context: EagerContext) -> list[Finding]:
    """Check that outputs do not depend on the conditions of a call."""
    return context.room(_check, context.inputs)


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    reference = run_eager(source, inputs)
    if isinstance(reference, str):
        return []
    findings = []
    for name, run in _iter_conditions(source, inputs):
        try:
            outputs = run()
        except Exception:
            # A condition that the model refuses does not change what it computes.
            continue
        mismatch = _compare_outputs(outputs, reference)
        if mismatch and source.uses_autograd:
            mismatch = _compare_outputs(outputs, reference, _measure_rounding(source, inputs, reference))
        if not mismatch:
            continue
        where = locate_path_divergence(lambda: run_eager(source, inputs), run)
        if not where and name == LAYOUT:
            where = find_suspect_line(lambda: run_eager(source, inputs), LAYOUT_CALLS)
        if not where and name == DTYPE:
            where = _locate_dtype_divergence(source, inputs)
        condition, mend = _CONDITIONS[name]
        where = where or find_forward_line(source)
        findings.append(make_refusal(name, f"outputs depend on {condition}", where, mismatch, mend))
    if isinstance(source.parameter_module, FunctionModule):
        return findings
    # Last: the process ends in train mode.
    source.parameter_module.train()
    if not outputs_equal(run_eager(source, inputs), reference):
        what = "the model gives other outputs in train mode"
        findings.append(Finding(TRAIN, what, reason="it is captured in eval mode"))
    return findings


def _iter_conditions(source: Source, inputs: Inputs) -> Iterator[tuple[str, Callable[[], _NamedTensors]]]:
    def run_model(*tensors: torch.Tensor) -> _NamedTensors:
        return {n: v.detach().clone() for n, v in normalize_outputs(source.module(*tensors), source).items()}

    def copy_inputs() -> Inputs:
        return tuple(t.clone() for t in inputs)

    def run_with_gradients() -> _NamedTensors:
        with _enable_parameter_grads(source), torch.enable_grad():
            return run_model(*(t.requires_grad_(_can_require_grad(t)) for t in copy_inputs()))

    def run_in_inference_mode() -> _NamedTensors:
        with torch.inference_mode():
            return run_model(*copy_inputs())

    def run_with_other_dtype() -> _NamedTensors:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if before == torch.float32 else torch.float32)
        try:
            return run_model(*copy_inputs())
        finally:
            torch.set_default_dtype(before)

    def run_in_thread() -> _NamedTensors:
        result: list[Any] = []

        def run() -> None:
            # Each thread has its own number of threads, and a forked process has one.
            torch.set_num_threads(1)
            with contextlib.suppress(Exception), torch.set_grad_enabled(source.uses_autograd):
                result.append(run_model(*copy_inputs()))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return result[0]

    if not source.uses_autograd:
        yield CHECK, run_with_gradients
        yield CHECK, run_in_inference_mode
    yield DTYPE, run_with_other_dtype
    yield THREADS, run_in_thread
    yield LAYOUT, lambda: run_model(*map(copy_with_gaps, inputs))
    yield LAYOUT, lambda: run_model(*map(copy_transposed, inputs))
    yield LAYOUT, lambda: run_model(*map(_copy_with_offset, inputs))
    shared = alias_inputs(inputs)
    if shared is not None:

        def run_with_shared_inputs() -> _NamedTensors:
            # Against the same values in tensors of their own; equal ones count as the outputs of the other conditions.
            got, expected = run_model(*shared), run_model(*(t.clone() for t in shared))
            reference = run_eager(source, inputs)
            return reference if not _compare_outputs(got, expected) and not isinstance(reference, str) else got

        yield ALIAS, run_with_shared_inputs


def _locate_dtype_divergence(source: Source, inputs: Inputs) -> str:
    before, default_run = torch.get_default_dtype(), record_run(source, inputs)
    torch.set_default_dtype(torch.float64 if before == torch.float32 else torch.float32)
    try:
        other_run = record_run(source, inputs)
    finally:
        torch.set_default_dtype(before)
    if default_run.graph is None or other_run.graph is None:
        return ""
    return (find_difference(canonicalize(default_run), canonicalize(other_run)) or ("",))[0]


# Runs at inputs that differ in their last bit, and the factor by which rounding may exceed what they show.
ROUNDINGS, FACTOR = 4, 16.0


def _measure_rounding(source: Source, inputs: Inputs, reference: _NamedTensors) -> dict[str, float]:
    """Return by output how far rounding moves it: a gradient that is zero by symmetry is nothing but rounding."""
    generator = torch.Generator().manual_seed(0)
    bounds = dict.fromkeys(reference, 0.0)
    for _ in range(ROUNDINGS):
        perturbed = tuple(_perturb_last_bits(t, generator) if t.is_floating_point() else t for t in inputs)
        outputs = run_eager(source, perturbed)
        for name, value in reference.items():
            perturbed_value = outputs[name] if not isinstance(outputs, str) else value
            if value.is_floating_point() and perturbed_value.shape == value.shape and value.numel():
                gap = float((perturbed_value - value).abs().max().nan_to_num(0.0, 0.0, 0.0))
                bounds[name] = max(bounds[name], FACTOR * gap)
    return bounds


def _perturb_last_bits(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return every number as it is, or the next one up or down."""
    towards = torch.randint(-1, 2, value.shape, generator=generator) * torch.full_like(value, torch.inf)
    return torch.where(towards.isnan(), value, torch.nextafter(value, towards))


def _compare_outputs(got: _NamedTensors, expected: _NamedTensors, allowed: Mapping[str, float] | None = None) -> str:
    if list(got) != list(expected):
        return f"outputs {', '.join(got)} against {', '.join(expected)}"
    for name, value in expected.items():
        actual = got[name]
        if value.is_floating_point() and actual.is_floating_point():
            actual = actual.to(value.dtype)
        if mismatch := describe_mismatch(actual, value):
            if allowed and actual.shape == value.shape and float((actual - value).abs().max()) <= allowed[name]:
                continue
            return f"output {name!r}: {mismatch}"
    return ""


def _copy_with_offset(value: torch.Tensor) -> torch.Tensor:
    """Return the same values, not at the beginning of their memory."""
    return torch.cat([value.flatten(), value.flatten()])[value.numel() :].view(value.shape)


def _can_require_grad(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


@contextlib.contextmanager
def _enable_parameter_grads(source: Source) -> Iterator[None]:
    """Let parameters require gradients, as in a training loop."""
    parameters = [p for p in source.parameter_module.parameters() if _can_require_grad(p)]
    for parameter in parameters:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)
