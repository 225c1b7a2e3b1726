"""torch's own autograd through a loaded file: by inputs against the gradients of eager mode that the cases of ``vjp``
hold, by parameters against differences of the file's own ``forward``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from exporter.archive.cases import Case
from exporter.archive.contract import Contract
from exporter.archive.tensor_spec import FLOATING
from runtime_checks.checks.expectation import Expectation
from runtime_checks.checks.finite_differences import FACTOR, FIRST, RESOLUTION, STEPS, extrapolated
from runtime_checks.checks.probe import Probe, error_of, points
from runtime_checks.report import FAILED, NOT_RUN, PASSED, CheckResult
from runtime_checks.runners.base import Call, Result, Tensors

CHECK, PARAMETERS = "autograd through the file", "autograd by parameters"


def through(contract: Contract, cases: Sequence[Case]) -> list[Expectation]:
    if not contract.differentiable:
        return []
    count = len(contract.inputs)
    return [
        Expectation(CHECK, c.name, Call("forward", c.inputs[:count], seeds=c.inputs[count:]), c.outputs, returns="vjp")
        for c in cases
        if c.method == "vjp"
    ]


def by_parameters(contract: Contract, cases: Sequence[Case], parameters: Mapping[str, torch.Tensor]) -> list[Probe]:
    """For each settable parameter the gradient along a direction, against central differences along it."""
    at = points(contract, cases)
    held = {n: p for n, p in parameters.items() if str(p.dtype).removeprefix("torch.") in RESOLUTION and p.numel()}
    if not contract.differentiable or not at or not held:
        return []
    generator = torch.Generator().manual_seed(2)
    rows = at[0].shape[: contract.batch.ndim]
    seeds = tuple(
        torch.rand((*rows, *s.fixed), generator=generator, dtype=torch.float64).to(getattr(torch, s.dtype))
        for s in contract.outputs
        if s.dtype in FLOATING
    )
    gradient = Call("forward", at, seeds=seeds, by=tuple(held))
    return [_along(contract, at, gradient, seeds, name, value, generator) for name, value in held.items()]


def _along(
    contract: Contract,
    at: Tensors,
    gradient: Call,
    seeds: Tensors,
    name: str,
    value: torch.Tensor,
    generator: torch.Generator,
) -> Probe:
    unit = 0.5 + 0.5 * torch.rand(value.shape, generator=generator, dtype=torch.float64)
    direction = (unit * (float(value.abs().max()) or 1.0)).to(value.dtype)
    steps = [FIRST / FACTOR**j for j in range(STEPS)]
    moved = [value + sign * step * direction for step in steps for sign in (1.0, -1.0)]
    calls = (gradient, *(Call("forward", at, parameters={name: m}) for m in moved))
    dtype = str(value.dtype).removeprefix("torch.")
    real = [i for i, s in enumerate(contract.outputs) if s.dtype in FLOATING]

    def judge(results: Sequence[Result]) -> CheckResult:
        if error_of(results):
            return CheckResult(PARAMETERS, FAILED, len(calls), f"by {name!r}: {error_of(results)}")
        found = results[0].outputs[len(results[0].outputs) - len(gradient.by) + gradient.by.index(name)]
        exact = (found.to(torch.float64) * direction).sum()
        sums = torch.stack([_weighted(r.outputs, real, seeds) for r in results[1:]]).reshape(STEPS, 2)
        wide = torch.tensor(steps, dtype=torch.float64)
        largest = sum(float((results[1].outputs[i] * s).abs().sum()) for i, s in zip(real, seeds, strict=True))
        rounding = 4 * torch.finfo(value.dtype).eps * largest / wide
        best, doubt = extrapolated(((sums[:, 0] - sums[:, 1]) / (2 * wide))[None], rounding[None])
        scale = max(float((found.abs().to(torch.float64) * direction).sum()), torch.finfo(torch.float64).tiny)
        allowed = RESOLUTION[dtype] * scale
        text = f"by {name}: {exact.item():.9g} against {best.item():.9g} from differences"
        if not bool(torch.isfinite(exact)) or float((best - exact).abs()) > max(20 * doubt.item(), allowed):
            why = "the file's graph leaves a term out, or the model detaches one; --parameter says which ones are kept"
            return CheckResult(PARAMETERS, FAILED, len(calls), f"{text}: {why}")
        if not doubt.item() <= 50 * allowed:
            return CheckResult(PARAMETERS, NOT_RUN, len(calls), f"{text}: too noisy or too curved to judge")
        return CheckResult(PARAMETERS, PASSED, len(calls), f"by {name}")

    return Probe(calls, judge)


def _weighted(outputs: Tensors, real: Sequence[int], seeds: Tensors) -> torch.Tensor:
    terms = ((outputs[i].to(torch.float64) * s).sum() for i, s in zip(real, seeds, strict=True))
    return torch.stack(list(terms)).sum()
