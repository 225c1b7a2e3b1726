"""The Jacobian in the file against finite differences of the file's own ``forward``.

Central differences at a ladder of steps, extrapolated (C. Ridders, Accurate computation of F'(x) and F'(x)F''(x),
Advances in Engineering Software 4, 1982): the differences between neighbours in the table say how good the
extrapolation is, and so whether an entry can be judged. Where the one-sided differences of the smallest steps do not
meet, the function has a kink at that point, which is said.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from exporter.archive.cases import Case
from exporter.archive.contract import Contract
from runtime_checks.checks.probe import Probe, error_of, points
from runtime_checks.report import FAILED, NOT_RUN, PASSED, CheckResult
from runtime_checks.runners.base import Call, Result, Tensors

CHECK, ZEROS, PARAMETERS = "finite differences", "structural zeros", "settable parameters"
SIDES = "both sides of a kink"
# Components with a kink that are looked at on both sides.
KINKS = 4
# Other values of the parameters, as a factor; the components of a parameter that are moved.
CHANGE, COMPONENTS = 1.0 + 2.0**-6, 8
# Steps are the size of the input times FIRST, then each FACTOR smaller.
FIRST, FACTOR, STEPS = 0.05, 4.0, 7
# Two steps have led to one other solution where their changes are the same to this part.
JUMP = 1e-3
# An entry is judged where it is known to this part of its block's largest entry.
RESOLUTION = {"float64": 2e-7, "float32": 2e-2}
# How far beyond its own estimate an extrapolation may be off, and what is always let pass, as a part of the resolution.
TRUST, FLOOR = 20.0, 5e-3


@dataclass(frozen=True)
class Ladder:
    """One input or parameter, moved along each of its components: the calls, and the steps, of shape ``(steps,)`` or
    ``(steps, points)``."""

    name: str
    dtype: str
    components: torch.Tensor
    steps: torch.Tensor
    calls: tuple[Call, ...]
    # Of an implicit model.
    solved: bool = False


def probes(contract: Contract, cases: Sequence[Case], parameters: Mapping[str, torch.Tensor]) -> list[Probe]:
    """For each input and parameter that a block is taken by or declared zero for, and for inputs once more with other
    values of the parameters: a block that forgot to read one is stale."""
    spec = contract.methods.get("jacobian")
    at = points(contract, cases)
    if spec is None or not at:
        return []
    held = {n: p for n, p in parameters.items() if str(p.dtype).removeprefix("torch.") in RESOLUTION and p.numel()}
    changed = {name: value * CHANGE for name, value in held.items()}
    found = []
    variables = {s.name: (s.dtype, s.shape) for s in (*contract.parameters, *contract.inputs)}
    for name, (dtype, shape) in variables.items():
        by_this = [(i, o) for i, o in enumerate(spec.outputs) if not isinstance(o, str) and o[1] == name]
        zeros = [of for of, by in spec.zeros if by == name and math.prod(contract.returned(of).fixed)]
        by_this = [(i, o) for i, o in by_this if math.prod(contract.returned(o).fixed)]
        if not (by_this or zeros) or not math.prod(shape):
            continue
        if dtype not in RESOLUTION:
            found.append(_too_coarse(name, dtype))
            continue
        ladder = _ladder(contract, cases, at, name, held, {})
        if by_this:
            differences = _differences(contract, at, ladder, by_this, CHECK, {})
            if name not in held:
                further = functools.partial(_both_sides, contract, cases, at, ladder, by_this)
                differences = dataclasses.replace(differences, further=further)
            found.append(differences)
        if zeros:
            found.append(_zeros(contract, at, ladder, zeros))
        if by_this and changed and name not in held:
            other = _ladder(contract, cases, at, name, held, changed)
            found.append(_differences(contract, at, other, by_this, PARAMETERS, changed))
    return found


def _too_coarse(name: str, dtype: str) -> Probe:
    return Probe((), lambda _: CheckResult(CHECK, NOT_RUN, detail=f"d / d {name}: differences of {dtype} say nothing"))


def _ladder(
    contract: Contract,
    cases: Sequence[Case],
    at: Tensors,
    name: str,
    held: Mapping[str, torch.Tensor],
    changed: Mapping[str, torch.Tensor],
    only: int | None = None,
) -> Ladder:
    """Calls of ``forward``: up and down, for each step and component; the points are a batch where there is one."""
    place = next((i for i, s in enumerate(contract.inputs) if s.name == name), -1)
    value = at[place] if place >= 0 else held[name]
    flat = value.reshape(*value.shape[: contract.batch.ndim], -1) if place >= 0 else value.reshape(-1)
    typical = _typical(cases, place) if place >= 0 else float(value.abs().max()) or 1.0
    sizes = torch.tensor(typical, dtype=torch.float64)
    if contract.solvers and place >= 0 and contract.batch.ndim:
        # The first steps of a history may be a millionth of its last.
        own = flat.abs().amax(1).to(torch.float64)
        sizes = torch.where(own > 0, own, sizes)
    # Exact in binary, so that x + h - x is h up to the rounding of x.
    steps = torch.stack([torch.exp2(torch.log2(sizes * FIRST / FACTOR**j).round()) for j in range(STEPS)])
    count = flat.shape[-1]
    components = torch.arange(count) if place >= 0 else torch.linspace(0, count - 1, min(count, COMPONENTS)).long()
    components = components if only is None else torch.tensor([only])
    calls = []
    for k in components.tolist():
        for step in steps:
            for sign in (1.0, -1.0):
                moved = flat.clone()
                moved[..., k] += (sign * step).to(moved.dtype)
                moved = moved.reshape(value.shape)
                inputs = tuple(moved if i == place else t for i, t in enumerate(at))
                calls.append(Call("forward", inputs, parameters=changed if place >= 0 else {name: moved}))
    one = place >= 0 and contract.batch.ndim
    together = _together(calls, changed) if one else tuple(calls)
    dtype = str(value.dtype).removeprefix("torch.")
    return Ladder(name, dtype, components, steps, together, bool(contract.solvers))


def _typical(cases: Sequence[Case], place: int) -> float:
    """The largest magnitude of an input in the warmup case."""
    seen = torch.cat([c.inputs[place].flatten() for c in cases if c.method == "forward" and c.name == "warmup"])
    return (float(seen.abs().max()) if seen.numel() else 0.0) or 1.0


def _together(calls: Sequence[Call], parameters: Mapping[str, torch.Tensor]) -> tuple[Call, ...]:
    """One call for all."""
    inputs = tuple(map(torch.cat, zip(*(c.inputs for c in calls), strict=True)))
    return (Call("forward", inputs, parameters=parameters),)


def _table(contract: Contract, ladder: Ladder, results: Sequence[Result], output: int, rows: int) -> torch.Tensor:
    """``(components, steps, 2, *batch, *out)``: outputs above and below."""
    if len(results) > 1:
        values = torch.stack([r.outputs[output] for r in results])
        own = values.shape[1:]
    else:
        values = results[0].outputs[output]
        own = (rows, *values.shape[1:])
    return values.reshape(-1, STEPS, 2, *own).to(torch.float64)


def _differences(
    contract: Contract,
    at: Tensors,
    ladder: Ladder,
    by_this: Sequence[tuple[int, tuple[str, str]]],
    check: str,
    parameters: Mapping[str, torch.Tensor],
) -> Probe:
    calls = (*(Call(m, at, parameters=parameters) for m in ("jacobian", "forward")), *ladder.calls)
    outputs = [s.name for s in contract.outputs]
    rows = at[0].shape[0] if contract.batch.ndim else 1

    def judge(results: Sequence[Result]) -> CheckResult:
        if error_of(results):
            return CheckResult(check, FAILED, len(calls), f"by {ladder.name!r}: {error_of(results)}")
        said, resolved, total, kinks, order = [], 0, 0, 0, []
        for place, (of, _) in by_this:
            position = outputs.index(of)
            block = results[0].outputs[place].to(torch.float64)
            table = _table(contract, ladder, results[2:], position, rows)
            centre = results[1].outputs[position].to(torch.float64)
            floor = contract.tolerance.bounds((of, ladder.name), ladder.dtype).floor
            entries = _judge_block(block, table, centre, ladder, floor)
            total += entries.count
            resolved += entries.resolved
            kinks += entries.kinks
            order += entries.order
            if entries.worst:
                said.append(f"d {of} / d {ladder.name}: {entries.worst}")
        text = f"d / d {ladder.name}: {resolved} of {total} entries"
        if order:
            text += f", observed order {sorted(order)[len(order) // 2]:.1f}"
        if kinks:
            text += f"; not differentiable at {kinks} of them"
        if said:
            why = "the block is wrong, or the model keeps a part of it from autograd (detach, .data)"
            return CheckResult(check, FAILED, len(calls), f"{'; '.join(said)}: {why}")
        if resolved + kinks < total / 2:
            return CheckResult(check, NOT_RUN, len(calls), f"{text}: the others are too noisy or too curved to judge")
        return CheckResult(check, PASSED, len(calls), text)

    return Probe(calls, judge)


@dataclass(frozen=True)
class Entries:
    count: int
    resolved: int
    kinks: int
    # Positions among the ladder's components.
    kinked: tuple[int, ...]
    order: list[float]
    worst: str


def _both_sides(
    contract: Contract,
    cases: Sequence[Case],
    at: Tensors,
    ladder: Ladder,
    by_this: Sequence[tuple[int, tuple[str, str]]],
    results: Sequence[Result],
) -> Probe | None:
    """Where a component has a kink at one of the points, the blocks again with the component moved to each side, out of
    the reach of the steps there; None where no kink was found."""
    if error_of(results):
        return None
    rows = at[0].shape[0] if contract.batch.ndim else 1
    names = [s.name for s in contract.outputs]
    kinked: dict[int, None] = {}
    for output, (of, _) in by_this:
        table = _table(contract, ladder, results[2:], names.index(of), rows)
        centre = results[1].outputs[names.index(of)].to(torch.float64)
        found = _judge_block(results[0].outputs[output].to(torch.float64), table, centre, ladder)
        kinked.update(dict.fromkeys(ladder.components[list(found.kinked)].tolist()))
    place = next(i for i, s in enumerate(contract.inputs) if s.name == ladder.name)
    sides = []
    for component in list(kinked)[:KINKS]:
        for sign in (2.0, -2.0):
            moved = at[place].reshape(*at[place].shape[: contract.batch.ndim], -1).clone()
            moved[..., component] += (sign * ladder.steps[0]).to(moved.dtype)
            there = tuple(moved.reshape(t.shape) if i == place else t for i, t in enumerate(at))
            around = _ladder(contract, cases, there, ladder.name, {}, {}, component)
            sides.append(_differences(contract, there, around, by_this, SIDES, {}))
    if not sides:
        return None

    def judge(answers: Sequence[Result]) -> CheckResult:
        rest = iter(answers)
        checks = [side.judge(list(itertools.islice(rest, len(side.calls)))) for side in sides]
        worst = next(c for v in (FAILED, NOT_RUN, PASSED) for c in checks if c.verdict == v)
        where = f"{ladder.name}, components {', '.join(map(str, list(kinked)[:KINKS]))} of {len(kinked)} with a kink"
        return CheckResult(SIDES, worst.verdict, len(answers), f"{where}: {worst.detail}")

    return Probe(tuple(call for side in sides for call in side.calls), judge)


def _judge_block(
    block: torch.Tensor, table: torch.Tensor, centre: torch.Tensor, ladder: Ladder, floor: float = 0.0
) -> Entries:
    """``block``: ``(*batch, *out, *in)``; ``table``: ``(components, steps, 2, *batch, *out)``; what is closer than the
    ``floor`` of the contract is not wrong."""
    exact = block.reshape(*centre.shape, -1).movedim(-1, 0)[ladder.components]
    steps = ladder.steps.reshape(*ladder.steps.shape, *[1] * (centre.ndim + 1 - ladder.steps.ndim))
    central = (table[:, :, 0] - table[:, :, 1]) / (2 * steps)
    rounding = 4 * torch.finfo(getattr(torch, ladder.dtype)).eps * table.abs().amax(2) / steps
    best, doubt = extrapolated(central, rounding)
    # Far below what an output makes of an input of this size there is rounding only.
    sizes = table[torch.isfinite(table)].abs() if ladder.solved else table.new_zeros(0)
    rounded = 1e-6 * sizes.max() * FIRST / ladder.steps[0].max() if sizes.numel() else exact.new_zeros(())
    scale = torch.maximum(exact.abs().amax(), rounded).expand(exact.shape)
    allowed = RESOLUTION[ladder.dtype] * scale.clamp(min=torch.finfo(torch.float64).tiny)
    up = (table[:, -2:, 0] - centre) / steps[-2:]
    down = (centre - table[:, -2:, 1]) / steps[-2:]
    gap = (up - down).abs()
    # Where there is a second derivative the gap shrinks with the step.
    kink = (gap[:, 1] > 1e-3 * scale + 10 * rounding[:, -1]) & (gap[:, 1] > 0.5 * gap[:, 0])
    finite = torch.isfinite(best) & torch.isfinite(exact)
    known = finite & (doubt <= allowed) & ~kink
    off = (best - exact).abs()
    # Far out, where an output no longer changes, steps agree on a derivative that is none here.
    last = torch.maximum((central[:, -1] - central[:, -2]).abs(), rounding[:, -1])
    here = ((central[:, -1] - exact).abs() <= TRUST * last) & (ladder.steps.ndim == 2)
    wrong = (known & ~here & (off > torch.maximum(TRUST * doubt, FLOOR * allowed).clamp(min=floor))) | (
        torch.isfinite(best) & ~torch.isfinite(exact)
    )
    order = _observed_order(central, exact, 250 * rounding)
    worst = ""
    if bool(wrong.any()):
        at = int(torch.where(wrong, off / scale.clamp(min=1e-300), torch.zeros_like(off)).nan_to_num(0.0).argmax())
        got, wanted = exact.reshape(-1)[at].item(), best.reshape(-1)[at].item()
        worst = f"{int(wrong.sum())} entries; {got:.12g} against {wanted:.12g} from differences"
    kinked = tuple(i for i, one in enumerate(kink) if bool(one.any()))
    return Entries(exact.numel(), int(known.sum()), int(kink.sum()), kinked, order, worst)


def extrapolated(central: torch.Tensor, rounding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ridders' table over the steps: the entry whose neighbours agree best, and how well they do; rounding of the
    outputs bounds that from below."""
    columns = [central]
    best = central[:, -1]
    doubt = torch.full_like(best, torch.inf)
    for level in range(1, central.shape[1]):
        factor = FACTOR ** (2 * level)
        last = columns[-1]
        made = (factor * last[:, 1:] - last[:, :-1]) / (factor - 1)
        difference = torch.maximum((made - last[:, 1:]).abs(), (made - last[:, :-1]).abs())
        difference = torch.maximum(difference, rounding[:, level:])
        for i in range(made.shape[1]):
            better = difference[:, i] < doubt
            best, doubt = torch.where(better, made[:, i], best), torch.where(better, difference[:, i], doubt)
        columns.append(made)
    return best, doubt


def _observed_order(central: torch.Tensor, exact: torch.Tensor, noise: torch.Tensor) -> list[float]:
    """Of the error of central differences, where it stands above rounding: 2 is expected."""
    errors = (central - exact[:, None]).abs()
    clear = (errors[:, :-1] > noise[:, :-1]) & (errors[:, 1:] > noise[:, 1:])
    orders = torch.log(errors[:, :-1] / errors[:, 1:]) / math.log(FACTOR)
    return orders[clear & torch.isfinite(orders)].tolist()


def _another_solution(off: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Where a solve has come to another of its solutions, from a first guess that is farther off.

    The smallest step does not move it; what a larger one changes is what the next smaller one does, or far more than a
    dependence on the step, linear or quadratic, would make of it.
    """
    smaller = torch.maximum(torch.cat([off[:, 1:], off[:, -1:]], 1), allowed)
    alike = (off - smaller).abs() <= JUMP * off
    return (off > allowed) & (off[:, -1:] <= allowed) & (alike | (off > 2 * FACTOR**2 * smaller))


def _zeros(contract: Contract, at: Tensors, ladder: Ladder, zeros: Sequence[str]) -> Probe:
    """Outputs that are declared not to depend on an input do not change with it: to the bit, or, where the input is a
    first guess of a solve, within the tolerance: but for those that lead to another solution."""
    outputs = [s.name for s in contract.outputs]
    rows = at[0].shape[0] if contract.batch.ndim else 1
    calls = (Call("forward", at), *ladder.calls)

    def judge(results: Sequence[Result]) -> CheckResult:
        if error_of(results):
            return CheckResult(ZEROS, FAILED, len(calls), error_of(results))
        moved, elsewhere = [], False
        for of in zeros:
            position = outputs.index(of)
            table = _table(contract, ladder, results[1:], position, rows)
            centre = results[0].outputs[position].to(torch.float64)
            bounds = contract.tolerance.bounds(of, contract.outputs[position].dtype)
            allowed = bounds.rtol * centre.abs().amax() if contract.solvers and centre.numel() else torch.zeros(())
            off = (table - centre).abs()
            still = (off <= allowed) | (table.isnan() & centre.isnan())
            if contract.solvers:
                there = _another_solution(off, allowed)
                elsewhere, still = elsewhere or bool(there.any()), still | there
            if not bool(still.all()):
                moved.append(of)
        if moved:
            text = f"{', '.join(moved)} changes with {ladder.name}, and no block says so"
            return CheckResult(ZEROS, FAILED, len(calls), text)
        note = "; another solution is found from a first guess that is farther off" if elsewhere else ""
        return CheckResult(ZEROS, PASSED, len(calls), f"{', '.join(zeros)} by {ladder.name}{note}")

    return Probe(calls, judge)
