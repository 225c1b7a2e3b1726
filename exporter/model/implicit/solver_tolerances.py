"""Tolerances of implicit models: how far two correct computations of one solution may differ."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from exporter.archive.contract import COTANGENT, DEFAULT_TOLERANCE, TANGENT, Bounds, MethodSpec, Tolerance, block_name
from exporter.archive.tensor_spec import FLOATING
from exporter.model.eager.derivatives import compute_jacobian_blocks
from exporter.model.eager.evaluation import eager_context, evaluate
from exporter.model.eager.warmup import Warmup
from exporter.model.implicit.newton_solver import find_solvers
from exporter.model.implicit.solve_recording import record_solver_calls

# Factor on the loss of one linear solve: several solves, and sums over them.
MARGIN = 8.0
# Numbers that are farther apart are never the same, however badly conditioned a solve is.
CAP = 1e-6
# A block that moves by this fraction of itself when inputs move by their last bit is rounding; at other inputs there
# may be more of it than at the warmup case.
NOISE, DRAW_FACTOR = 1e-3, 64.0


def solver_tolerances(warm: Warmup, methods: Mapping[str, MethodSpec]) -> Tolerance:
    """Return the usual tolerance, widened by what the linear solves lose to rounding; exact for iterations and status.

    A solve with ``A`` loses the relative accuracy ``eps * || |A^-1| |A| ||`` (Skeel's condition number, which scaling
    the equations does not change: Higham, Accuracy and Stability of Numerical Algorithms, 2002, eq. 7.13), at most over
    the warmup case. A norm that is only rounding is another number on another device, and a tangent of an element that
    does not yield is zero but for rounding, relative to the ratio of the output to an input of this size, or to how far
    the block moves with the last bit of the inputs."""
    source = warm.source
    with eager_context(source):
        outputs = evaluate(source, warm.inputs)
        results = [result for _, _, result in record_solver_calls(source, warm.inputs)]
        condition = max(_estimate_condition(result[1], result[4]) for result in results)
    sizes = {n: _compute_magnitude(p) for n, p in source.parameter_module.named_parameters()}
    sizes |= {s.name: _compute_magnitude(t) for s, t in zip(source.inputs, warm.inputs, strict=True)}
    # A norm below the solver's own tolerance is rounding, which another order of operations changes by any factor.
    least = max(loop.read_settings()["abs_tol"] for loop in find_solvers(source.parameter_module).values())
    bounds_by_name = {"residual_norm": Bounds(1.0, 1.0, least)}

    def widen(dtype: str) -> Bounds:
        usual = DEFAULT_TOLERANCE.bounds("", dtype)
        lost = min(MARGIN * torch.finfo(getattr(torch, dtype)).eps * condition, CAP)
        return Bounds(max(usual.rtol, lost), max(usual.atol, lost))

    for spec in (*source.inputs, *warm.output_specs):
        if spec.dtype in FLOATING:
            side = [COTANGENT + spec.name] if spec in source.inputs else [spec.name, TANGENT + spec.name]
            bounds_by_name.update(dict.fromkeys(side, widen(spec.dtype)))
    pairs = [o for m in methods.values() for o in m.outputs if not isinstance(o, str)]
    with eager_context(source):
        tangents = compute_jacobian_blocks(source, warm.inputs, pairs) if pairs else {}
        perturbed = compute_jacobian_blocks(source, tuple(map(_perturb_last_bit, warm.inputs)), pairs) if pairs else {}
    for output, wrt in pairs:
        bounds = bounds_by_name[output]
        scale = _compute_magnitude(outputs[output]) / (sizes[wrt] or 1.0)
        largest = _compute_magnitude(tangents[output, wrt])
        noise = _compute_magnitude(perturbed[output, wrt] - tangents[output, wrt])
        floor = _choose_floor(bounds.atol * scale, CAP * scale, largest, noise)
        bounds_by_name[block_name(output, wrt)] = Bounds(bounds.rtol, bounds.atol, floor)
    return Tolerance(DEFAULT_TOLERANCE.dtypes, outputs=bounds_by_name)


def _choose_floor(rounding: float, most: float, largest: float, noise: float) -> float:
    """Return the floor of a block with largest entry ``largest`` that moves by ``noise`` with the inputs' last bit."""
    # If the block is more than rounding, no error that is visible beside its largest entry passes. A block that is
    # as large as others and moves is at a kink.
    if noise <= NOISE * largest or largest > most:
        return min(rounding, CAP * largest)
    return min(max(rounding, DRAW_FACTOR * max(largest, noise)), most)


def _perturb_last_bit(value: torch.Tensor) -> torch.Tensor:
    """Move each number by one unit in the last place, alternately up and down."""
    if not value.is_floating_point():
        return value
    turns = torch.arange(value.numel(), device=value.device).reshape(value.shape) % 2
    far = torch.where(turns == 0, float("inf"), -float("inf")).to(value.dtype)
    return torch.where(value == 0, value, torch.nextafter(value, far))


def _estimate_condition(matrix: torch.Tensor, status: torch.Tensor) -> float:
    good = matrix[status == 0].to(torch.float64)
    inverse, info = torch.linalg.inv_ex(good)
    conditions = (inverse.abs() @ good.abs()).sum(-1).amax(-1)[info == 0]
    return float(conditions.max()) if conditions.numel() else 1.0


def _compute_magnitude(value: torch.Tensor) -> float:
    finite = value.detach()[torch.isfinite(value)].abs()
    return float(finite.max()) if finite.numel() else 0.0
