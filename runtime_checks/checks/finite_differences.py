"""The Jacobian in the file against finite differences of the file's own ``forward``.

Central differences at a ladder of steps, extrapolated (C. Ridders, Accurate computation of F'(x) and F'(x)F''(x),
Advances in Engineering Software 4, 1982): the differences between neighbours in the table say how good the
extrapolation is, and so whether an entry can be judged. Where the one-sided differences of the smallest steps do not
meet, the function has a kink at that point, which is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from exporter.archive import Case
from exporter.contract import FLOATING, Contract, TensorSpec
from runtime_checks.checks.probe import Probe, error_of, points
from runtime_checks.report import FAILED, NOT_RUN, PASSED, CheckResult
from runtime_checks.runners.base import Call, Result, Tensors

CHECK, ZEROS = "finite differences", "structural zeros"
# Steps are the size of the input times FIRST, then each FACTOR smaller.
FIRST, FACTOR, STEPS = 0.05, 4.0, 7
# An entry is judged where it is known to this part of its block's largest entry.
RESOLUTION = {"float64": 2e-7, "float32": 2e-2}
# How far beyond its own estimate an extrapolation may be off.
TRUST = 20.0


@dataclass(frozen=True)
class Ladder:
    """One input, moved along each of its components: rows of the calls, and the steps by component."""

    spec: TensorSpec
    steps: torch.Tensor
    calls: tuple[Call, ...]


def probes(contract: Contract, cases: Sequence[Case]) -> list[Probe]:
    """For each input that a block is taken by or declared zero for; parameters are not moved by a call."""
    spec = contract.methods.get("jacobian")
    at = points(contract, cases)
    if spec is None or not at:
        return []
    pairs = [o for o in spec.outputs if not isinstance(o, str)]
    found = []
    for place, variable in enumerate(contract.inputs):
        by_this = [(i, o) for i, o in enumerate(spec.outputs) if not isinstance(o, str) and o[1] == variable.name]
        zeros = [of for of, by in spec.zeros if by == variable.name]
        if variable.dtype not in FLOATING or variable.dtype not in RESOLUTION or not (by_this or zeros):
            continue
        ladder = _ladder(contract, cases, at, place)
        if by_this:
            found.append(_differences(contract, at, ladder, by_this))
        if zeros:
            found.append(_zeros(contract, at, ladder, zeros))
    by_parameters = sorted({by for _, by in pairs} - {s.name for s in contract.inputs})
    if by_parameters:
        reason = f"blocks by parameters were held against eager mode only: {', '.join(by_parameters)}"
        found.append(Probe((), lambda _: CheckResult(CHECK, NOT_RUN, detail=reason)))
    return found


def _ladder(contract: Contract, cases: Sequence[Case], at: Tensors, place: int) -> Ladder:
    """Calls of ``forward``: up and down, for each step and component; the points are a batch where there is one."""
    spec = contract.inputs[place]
    seen = torch.cat([c.inputs[place].flatten() for c in cases if c.method == "forward" and c.name == "warmup"])
    typical = float(seen.abs().max()) if seen.numel() else 0.0
    typical = typical or 1.0
    value = at[place]
    lead = contract.batch.ndim
    flat = value.reshape(*value.shape[:lead], -1)
    count = flat.shape[-1]
    # Exact in binary, so that x + h - x is h up to the rounding of x.
    steps = [2.0 ** round(math.log2(typical * FIRST / FACTOR**j)) for j in range(STEPS)]
    calls = []
    for k in range(count):
        for step in steps:
            for sign in (1.0, -1.0):
                moved = flat.clone()
                moved[..., k] += sign * step
                inputs = list(at)
                inputs[place] = moved.reshape(value.shape)
                calls.append(Call("forward", tuple(inputs)))
    return Ladder(spec, torch.tensor(steps, dtype=torch.float64), _together(contract, calls))


def _together(contract: Contract, calls: Sequence[Call]) -> tuple[Call, ...]:
    """One call for all where there is a batch."""
    if contract.batch.ndim == 0:
        return tuple(calls)
    return (Call("forward", tuple(map(torch.cat, zip(*(c.inputs for c in calls), strict=True)))),)


def _table(contract: Contract, ladder: Ladder, results: Sequence[Result], output: int, rows: int) -> torch.Tensor:
    """``(components, steps, 2, *batch, *out)``: outputs above and below."""
    if contract.batch.ndim == 0:
        values = torch.stack([r.outputs[output] for r in results])
        own = values.shape[1:]
    else:
        values = results[0].outputs[output]
        own = (rows, *values.shape[1:])
    return values.reshape(-1, STEPS, 2, *own).to(torch.float64)


def _differences(
    contract: Contract, at: Tensors, ladder: Ladder, by_this: Sequence[tuple[int, tuple[str, str]]]
) -> Probe:
    calls = (Call("jacobian", at), *ladder.calls)
    outputs = [s.name for s in contract.outputs]
    rows = at[0].shape[0] if contract.batch.ndim else 1

    def judge(results: Sequence[Result]) -> CheckResult:
        if error_of(results):
            return CheckResult(CHECK, FAILED, len(calls), f"by {ladder.spec.name!r}: {error_of(results)}")
        said, resolved, total, kinks, order = [], 0, 0, 0, []
        for place, (of, _) in by_this:
            position = outputs.index(of)
            block = results[0].outputs[place].to(torch.float64)
            table = _table(contract, ladder, results[1:], position, rows)
            centre = results[0].outputs[position].to(torch.float64)
            entries = _judge_block(block, table, centre, ladder, contract.batch.ndim)
            total += entries.count
            resolved += entries.resolved
            kinks += entries.kinks
            order += entries.order
            if entries.worst:
                said.append(f"d {of} / d {ladder.spec.name}: {entries.worst}")
        text = f"d / d {ladder.spec.name}: {resolved} of {total} entries"
        if order:
            text += f", observed order {sorted(order)[len(order) // 2]:.1f}"
        if kinks:
            text += f"; not differentiable at {kinks} of them"
        if said:
            return CheckResult(CHECK, FAILED, len(calls), "; ".join(said))
        if resolved + kinks < total / 2:
            return CheckResult(CHECK, NOT_RUN, len(calls), f"{text}: the others are too noisy or too curved to judge")
        return CheckResult(CHECK, PASSED, len(calls), text)

    return Probe(calls, judge)


@dataclass(frozen=True)
class Entries:
    count: int
    resolved: int
    kinks: int
    order: list[float]
    worst: str


def _judge_block(block: torch.Tensor, table: torch.Tensor, centre: torch.Tensor, ladder: Ladder, lead: int) -> Entries:
    """``block``: ``(*batch, *out, *in)``; ``table``: ``(components, steps, 2, *batch, *out)``."""
    components = table.shape[0]
    exact = block.reshape(*centre.shape, components).movedim(-1, 0)
    steps = ladder.steps.reshape(-1, *[1] * centre.ndim)
    central = (table[:, :, 0] - table[:, :, 1]) / (2 * steps)
    best, doubt = _extrapolated(central)
    scale = exact.abs().amax() if exact.numel() else torch.tensor(0.0)
    scale = torch.maximum(exact.abs(), scale * torch.ones_like(exact))
    allowed = RESOLUTION[ladder.spec.dtype] * scale.clamp(min=torch.finfo(torch.float64).tiny)
    up = (table[:, -2:, 0] - centre) / steps[-2:]
    down = (centre - table[:, -2:, 1]) / steps[-2:]
    gap = (up - down).abs()
    kink = (gap[:, 1] > 1e-3 * scale) & (gap[:, 1] > 0.5 * gap[:, 0]) & (doubt > allowed)
    finite = torch.isfinite(best) & torch.isfinite(exact)
    known = finite & (doubt <= allowed) & ~kink
    off = (best - exact).abs()
    wrong = (known & (off > torch.maximum(TRUST * doubt, 0.5 * allowed))) | (
        torch.isfinite(best) & ~torch.isfinite(exact)
    )
    order = _observed_order(central, exact, table, steps)
    worst = ""
    if bool(wrong.any()):
        at = int(torch.where(wrong, off / scale.clamp(min=1e-300), torch.zeros_like(off)).nan_to_num(0.0).argmax())
        got, wanted = exact.reshape(-1)[at].item(), best.reshape(-1)[at].item()
        worst = f"{int(wrong.sum())} entries; {got:.12g} against {wanted:.12g} from differences"
    return Entries(exact.numel(), int(known.sum()), int(kink.sum()), order, worst)


def _extrapolated(central: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ridders' table over the steps: the entry whose neighbours agree best, and how well they do."""
    columns = [central]
    best = central[:, -1]
    doubt = torch.full_like(best, torch.inf)
    for level in range(1, central.shape[1]):
        factor = FACTOR ** (2 * level)
        last = columns[-1]
        made = (factor * last[:, 1:] - last[:, :-1]) / (factor - 1)
        difference = torch.maximum((made - last[:, 1:]).abs(), (made - last[:, :-1]).abs())
        for i in range(made.shape[1]):
            better = difference[:, i] < doubt
            best, doubt = torch.where(better, made[:, i], best), torch.where(better, difference[:, i], doubt)
        columns.append(made)
    return best, doubt


def _observed_order(
    central: torch.Tensor, exact: torch.Tensor, table: torch.Tensor, steps: torch.Tensor
) -> list[float]:
    """Of the error of central differences, where it stands above rounding: 2 is expected."""
    errors = (central - exact[:, None]).abs()
    noise = 1e3 * torch.finfo(torch.float64).eps * table.abs().amax(2) / steps
    clear = (errors[:, :-1] > noise[:, :-1]) & (errors[:, 1:] > noise[:, 1:])
    orders = torch.log(errors[:, :-1] / errors[:, 1:]) / math.log(FACTOR)
    return orders[clear & torch.isfinite(orders)].tolist()


def _zeros(contract: Contract, at: Tensors, ladder: Ladder, zeros: Sequence[str]) -> Probe:
    """Outputs that are declared not to depend on an input do not change with it, to the bit."""
    outputs = [s.name for s in contract.outputs]
    rows = at[0].shape[0] if contract.batch.ndim else 1
    calls = (Call("forward", at), *ladder.calls)

    def judge(results: Sequence[Result]) -> CheckResult:
        if error_of(results):
            return CheckResult(ZEROS, FAILED, len(calls), error_of(results))
        moved = []
        for of in zeros:
            position = outputs.index(of)
            table = _table(contract, ladder, results[1:], position, rows)
            centre = results[0].outputs[position].to(torch.float64)
            if not bool(((table == centre) | (table.isnan() & centre.isnan())).all()):
                moved.append(of)
        if moved:
            text = f"{', '.join(moved)} changes with {ladder.spec.name}, and no block says so"
            return CheckResult(ZEROS, FAILED, len(calls), text)
        return CheckResult(ZEROS, PASSED, len(calls), f"{', '.join(zeros)} by {ladder.spec.name}")

    return Probe(calls, judge)
