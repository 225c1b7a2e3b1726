"""Checks of torch's own autograd through a loaded file: by inputs against the eager gradients in the cases of ``vjp``,
by parameters against differences of the file's own ``forward``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from exporter.archive.cases import Cases
from exporter.archive.contract import Contract
from exporter.archive.tensor_spec import FLOATING, name_dtype
from runtime_checks.checks.expectation import Expectation
from runtime_checks.checks.finite_differences import FACTOR, FIRST, RESOLUTION, STEPS, extrapolate, select_settable
from runtime_checks.checks.probe import Probe, find_error, select_points
from runtime_checks.report import FAILED, NOT_RUN, PASSED, CheckResult
from runtime_checks.runners.base import Call, CallResult, Tensors

CHECK, PARAMETERS = "autograd through the file", "autograd by parameters"


def plan_autograd_checks(contract: Contract, cases: Cases) -> list[Expectation]:
    """Plan the calls whose input gradients must be those of the stored cases of ``vjp``."""
    if not contract.differentiable:
        return []
    count = len(contract.inputs)
    products = [(c, Call("forward", c.inputs[:count], seeds=c.inputs[count:])) for c in cases if c.method == "vjp"]
    return [Expectation(CHECK, c.name, call, c.outputs, returns="vjp") for c, call in products]


def plan_parameter_probes(contract: Contract, cases: Cases, parameters: Mapping[str, torch.Tensor]) -> list[Probe]:
    """Plan probes that compare each settable parameter's gradient along a direction with central differences."""
    point = select_points(contract, cases)
    settable = select_settable(parameters)
    if not contract.differentiable or not point or not settable:
        return []
    generator = torch.Generator().manual_seed(2)
    rows = point[0].shape[: contract.batch.ndim]
    real = [s for s in contract.outputs if s.dtype in FLOATING]
    draws = [torch.rand((*rows, *s.static_shape), generator=generator, dtype=torch.float64) for s in real]
    seeds = tuple(draw.to(getattr(torch, s.dtype)) for draw, s in zip(draws, real, strict=True))
    gradient = Call("forward", point, seeds=seeds, wrt=tuple(settable))
    return [_make_direction_probe(contract, gradient, *entry, generator) for entry in settable.items()]


def _make_direction_probe(
    contract: Contract, gradient: Call, name: str, value: torch.Tensor, generator: torch.Generator
) -> Probe:
    point, seeds = gradient.inputs, gradient.seeds
    unit = 0.5 + 0.5 * torch.rand(value.shape, generator=generator, dtype=torch.float64)
    direction = (unit * (float(value.abs().max()) or 1.0)).to(value.dtype)
    steps = [FIRST / FACTOR**j for j in range(STEPS)]
    moved = [value + sign * step * direction for step in steps for sign in (1.0, -1.0)]
    calls = (gradient, *(Call("forward", point, parameters={name: m}) for m in moved))
    dtype = name_dtype(value)
    real = [i for i, s in enumerate(contract.outputs) if s.dtype in FLOATING]

    def judge(results: Sequence[CallResult]) -> CheckResult:
        if find_error(results):
            return CheckResult(PARAMETERS, FAILED, len(calls), f"by {name!r}: {find_error(results)}")
        computed = results[0].outputs[len(results[0].outputs) - len(gradient.wrt) + gradient.wrt.index(name)]
        exact = (computed.to(torch.float64) * direction).sum()
        sums = torch.stack([_sum_weighted(r.outputs, real, seeds) for r in results[1:]]).reshape(STEPS, 2)
        wide = torch.tensor(steps, dtype=torch.float64)
        largest = sum(float((results[1].outputs[i] * s).abs().sum()) for i, s in zip(real, seeds, strict=True))
        rounding = 4 * torch.finfo(value.dtype).eps * largest / wide
        best, doubt = extrapolate(((sums[:, 0] - sums[:, 1]) / (2 * wide))[None], rounding[None])
        scale = max(float((computed.abs().to(torch.float64) * direction).sum()), torch.finfo(torch.float64).tiny)
        allowed = RESOLUTION[dtype] * scale
        text = f"by {name}: {exact.item():.9g} against {best.item():.9g} from differences"
        if not bool(torch.isfinite(exact)) or float((best - exact).abs()) > max(20 * doubt.item(), allowed):
            why = "the file's graph omits a term, or the model detaches one; --parameter says which ones are kept"
            return CheckResult(PARAMETERS, FAILED, len(calls), f"{text}: {why}")
        if not doubt.item() <= 50 * allowed:
            return CheckResult(PARAMETERS, NOT_RUN, len(calls), f"{text}: too noisy or too curved to judge")
        return CheckResult(PARAMETERS, PASSED, len(calls), f"by {name}")

    return Probe(calls, judge)


def _sum_weighted(outputs: Tensors, real: Sequence[int], seeds: Tensors) -> torch.Tensor:
    terms = ((outputs[i].to(torch.float64) * s).sum() for i, s in zip(real, seeds, strict=True))
    return torch.stack(list(terms)).sum()
