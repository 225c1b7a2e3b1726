"""How far two right ways to one solution of an implicit model may part."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from exporter.archive.contract import COTANGENT, TANGENT, Bounds, MethodSpec, Tolerance, block_name
from exporter.archive.tensor_spec import FLOATING
from exporter.model.eager.derivatives import blocks
from exporter.model.eager.evaluation import evaluate, inference_conditions
from exporter.model.eager.warmup import Warmup
from exporter.model.implicit.solve_recording import calls

# Of what a linear solve may lose: several solves, and sums over them.
MARGIN = 8.0
# However badly conditioned a solve is, numbers that are farther apart are not the same.
CAP = 1e-6
# A block that moves by this part of itself, where inputs move by their last bit, is rounding; elsewhere there may be
# more of it than at the warmup case.
NOISE, DRAWN = 1e-3, 64.0


def of_solves(warm: Warmup, methods: Mapping[str, MethodSpec]) -> Tolerance:
    """The usual tolerance, widened by what the linear solves lose to rounding; exact for iterations and status.

    A solve with ``A`` loses the relative accuracy ``eps * || |A^-1| |A| ||`` (Skeel's condition number, which scaling
    the equations does not change: Higham, Accuracy and Stability of Numerical Algorithms, 2002, eq. 7.13), at most over
    the warmup case. A norm that is nothing but rounding is another number on another device, and a tangent of an
    element that does not yield is zero but for rounding, relative to what the output makes of an input of this size, or
    to how far the block moves with the last bit of the inputs.
    """
    source = warm.source
    with inference_conditions(source):
        outputs = evaluate(source, warm.inputs)
        condition = max(_condition(given[1], given[4]) for _, _, given in calls(source, warm.inputs))
    sizes = {n: _magnitude(p) for n, p in source.named.named_parameters()}
    sizes |= {s.name: _magnitude(t) for s, t in zip(source.inputs, warm.inputs, strict=True)}
    found = {"residual_norm": Bounds(1.0, 1.0)}

    def widened(dtype: str) -> Bounds:
        usual = Tolerance().bounds("", dtype)
        lost = min(MARGIN * torch.finfo(getattr(torch, dtype)).eps * condition, CAP)
        return Bounds(max(usual.rtol, lost), max(usual.atol, lost))

    for spec in (*source.inputs, *warm.output_specs):
        if spec.dtype in FLOATING:
            side = [COTANGENT + spec.name] if spec in source.inputs else [spec.name, TANGENT + spec.name]
            found.update(dict.fromkeys(side, widened(spec.dtype)))
    pairs = [o for m in methods.values() for o in m.outputs if not isinstance(o, str)]
    with inference_conditions(source):
        tangents = blocks(source, warm.inputs, pairs) if pairs else {}
        beside = blocks(source, tuple(map(_beside, warm.inputs)), pairs) if pairs else {}
    for of, by in pairs:
        bounds = found[of]
        made, largest = _magnitude(outputs[of]) / (sizes[by] or 1.0), _magnitude(tangents[of, by])
        noise = _magnitude(beside[of, by] - tangents[of, by])
        found[block_name(of, by)] = Bounds(
            bounds.rtol, bounds.atol, _floor(bounds.atol * made, CAP * made, largest, noise)
        )
    return Tolerance(outputs=found)


def _floor(rounding: float, most: float, largest: float, noise: float) -> float:
    """Of a block whose largest entry is ``largest`` and that moves by ``noise`` with the last bit of the inputs."""
    # Where the block is more than rounding, nothing that is seen beside its largest entry is let pass. A block that is
    # as large as others and moves is at a kink.
    if noise <= NOISE * largest or largest > most:
        return min(rounding, CAP * largest)
    return min(max(rounding, DRAWN * max(largest, noise)), most)


def _beside(value: torch.Tensor) -> torch.Tensor:
    """Each number moved by one unit in the last place, up and down in turns."""
    if not value.is_floating_point():
        return value
    turns = torch.arange(value.numel(), device=value.device).reshape(value.shape) % 2
    far = torch.where(turns == 0, float("inf"), -float("inf")).to(value.dtype)
    return torch.where(value == 0, value, torch.nextafter(value, far))


def _condition(matrix: torch.Tensor, status: torch.Tensor) -> float:
    good = matrix[status == 0].to(torch.float64)
    inverse, info = torch.linalg.inv_ex(good)
    found = (inverse.abs() @ good.abs()).sum(-1).amax(-1)[info == 0]
    return float(found.max()) if found.numel() else 1.0


def _magnitude(value: torch.Tensor) -> float:
    finite = value.detach()[torch.isfinite(value)].abs()
    return float(finite.max()) if finite.numel() else 0.0
