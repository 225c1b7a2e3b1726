"""The Jacobian in the file against finite differences of the file's own ``forward``.

Central differences at a ladder of steps, extrapolated (C. Ridders, Accurate computation of F'(x) and F'(x)F''(x),
Advances in Engineering Software 4, 1982): the differences between neighbours in the table say how good the
extrapolation is, and so whether an entry can be judged. If the one-sided differences of the smallest steps do not
meet, the function has a kink at that point, which is reported."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from exporter.archive.cases import Cases
from exporter.archive.contract import Contract
from exporter.archive.tensor_spec import name_dtype
from runtime_checks.checks.probe import Probe, find_error, select_points
from runtime_checks.report import FAILED, NOT_RUN, PASSED, CheckResult
from runtime_checks.runners.base import Call, CallResult, Tensors

CHECK, ZEROS, PARAMETERS = "finite differences", "structural zeros", "settable parameters"
SIDES = "both sides of a kink"
# Components with a kink that are checked on both sides.
KINKS = 4
# Position of each Jacobian block among the outputs, and its output and input or parameter.
Pairs = Sequence[tuple[int, tuple[str, str]]]
# Other values of the parameters, as a factor; the components of a parameter that are moved.
CHANGE, COMPONENTS = 1.0 + 2.0**-6, 8
# Steps are the size of the input times FIRST, then each FACTOR smaller.
FIRST, FACTOR, STEPS = 0.05, 4.0, 7
# Two steps led to the same other solution if their changes agree to this part.
JUMP = 1e-3
# An entry is judged if it is known to this part of its block's largest entry.
RESOLUTION = {"float64": 2e-7, "float32": 2e-2}
# How far beyond its own estimate an extrapolation may be off, and what always passes, as a part of the resolution.
TRUST, FLOOR = 20.0, 5e-3


@dataclass(frozen=True)
class Ladder:
    """One input or parameter, moved along each of its components: the calls, and the steps, of shape ``(steps,)`` or
    ``(steps, points)``. ``is_implicit``: the model is an implicit one."""

    name: str
    dtype: str
    components: torch.Tensor
    steps: torch.Tensor
    calls: tuple[Call, ...]
    is_implicit: bool = False


def select_settable(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Select the parameters by which differences are fine enough to judge derivatives."""
    return {n: p for n, p in parameters.items() if name_dtype(p) in RESOLUTION and p.numel()}


def plan_difference_probes(contract: Contract, cases: Cases, parameters: Mapping[str, torch.Tensor]) -> list[Probe]:
    """Plan probes for each input and parameter with Jacobian blocks or declared zeros, and for inputs once more with
    other values of the parameters: a block that forgot to read one is stale."""
    spec = contract.methods.get("jacobian")
    point = select_points(contract, cases)
    if spec is None or not point:
        return []
    settable = select_settable(parameters)
    changed = {name: value * CHANGE for name, value in settable.items()}
    planned = []
    variables = {s.name: (s.dtype, s.shape) for s in (*contract.parameters, *contract.inputs)}
    for name, (dtype, shape) in variables.items():
        pairs = [(i, o) for i, o in enumerate(spec.outputs) if not isinstance(o, str) and o[1] == name]
        zeros = [output for output, wrt in spec.zeros if wrt == name]
        zeros = [output for output in zeros if math.prod(contract.output_spec(output).static_shape)]
        pairs = [(i, o) for i, o in pairs if math.prod(contract.output_spec(o).static_shape)]
        if not (pairs or zeros) or not math.prod(shape):
            continue
        if dtype not in RESOLUTION:
            planned.append(_make_coarse_probe(name, dtype))
            continue
        ladder = _build_ladder(contract, cases, point, name, settable, {})
        if pairs:
            differences = _make_difference_probe(contract, point, ladder, pairs, CHECK, {})
            if name not in settable:
                further = functools.partial(_probe_kink_sides, contract, cases, point, ladder, pairs)
                differences = dataclasses.replace(differences, further=further)
            planned.append(differences)
        if zeros:
            planned.append(_make_zero_probe(contract, point, ladder, zeros))
        if pairs and changed and name not in settable:
            changed_ladder = _build_ladder(contract, cases, point, name, settable, changed)
            planned.append(_make_difference_probe(contract, point, changed_ladder, pairs, PARAMETERS, changed))
    return planned


def _make_coarse_probe(name: str, dtype: str) -> Probe:
    return Probe((), lambda _: CheckResult(CHECK, NOT_RUN, detail=f"d / d {name}: {dtype} is too coarse to judge"))


def _build_ladder(
    contract: Contract,
    cases: Cases,
    point: Tensors,
    name: str,
    settable: Mapping[str, torch.Tensor],
    changed: Mapping[str, torch.Tensor],
    only: int | None = None,
) -> Ladder:
    """Build calls of ``forward``, up and down, for each step and component; the points are a batch if there is one."""
    position = next((i for i, s in enumerate(contract.inputs) if s.name == name), -1)
    value = point[position] if position >= 0 else settable[name]
    flat = value.reshape(*value.shape[: contract.batch.ndim], -1) if position >= 0 else value.reshape(-1)
    typical = _estimate_magnitude(cases, position) if position >= 0 else float(value.abs().max()) or 1.0
    sizes = torch.tensor(typical, dtype=torch.float64)
    if contract.solvers and position >= 0 and contract.batch.ndim:
        # The first steps of a history may be a millionth of its last.
        magnitudes = flat.abs().amax(1).to(torch.float64)
        sizes = torch.where(magnitudes > 0, magnitudes, sizes)
    # Exact in binary, so that x + h - x is h up to the rounding of x.
    steps = torch.stack([torch.exp2(torch.log2(sizes * FIRST / FACTOR**j).round()) for j in range(STEPS)])
    count = flat.shape[-1]
    components = torch.arange(count) if position >= 0 else torch.linspace(0, count - 1, min(count, COMPONENTS)).long()
    components = components if only is None else torch.tensor([only])
    calls = []
    for k in components.tolist():
        for step in steps:
            for sign in (1.0, -1.0):
                moved = flat.clone()
                moved[..., k] += (sign * step).to(moved.dtype)
                moved = moved.reshape(value.shape)
                inputs = tuple(moved if i == position else t for i, t in enumerate(point))
                calls.append(Call("forward", inputs, parameters=changed if position >= 0 else {name: moved}))
    is_batch = position >= 0 and contract.batch.ndim
    together = _merge_calls(calls, changed) if is_batch else tuple(calls)
    dtype = name_dtype(value)
    return Ladder(name, dtype, components, steps, together, bool(contract.solvers))


def _estimate_magnitude(cases: Cases, position: int) -> float:
    """Return the largest magnitude of an input in the warmup case."""
    values = torch.cat([c.inputs[position].flatten() for c in cases if c.method == "forward" and c.name == "warmup"])
    return (float(values.abs().max()) if values.numel() else 0.0) or 1.0


def _merge_calls(calls: Sequence[Call], parameters: Mapping[str, torch.Tensor]) -> tuple[Call, ...]:
    """Merge the calls into one."""
    inputs = tuple(map(torch.cat, zip(*(c.inputs for c in calls), strict=True)))
    return (Call("forward", inputs, parameters=parameters),)


def _tabulate_outputs(
    contract: Contract, ladder: Ladder, results: Sequence[CallResult], output: int, rows: int
) -> torch.Tensor:
    """Return the outputs above and below, of shape ``(components, steps, 2, *batch, *out)``."""
    if len(results) > 1:
        values = torch.stack([r.outputs[output] for r in results])
        shape = values.shape[1:]
    else:
        values = results[0].outputs[output]
        shape = (rows, *values.shape[1:])
    return values.reshape(-1, STEPS, 2, *shape).to(torch.float64)


def _make_difference_probe(
    contract: Contract, point: Tensors, ladder: Ladder, pairs: Pairs, check: str, parameters: Mapping[str, torch.Tensor]
) -> Probe:
    calls = (*(Call(m, point, parameters=parameters) for m in ("jacobian", "forward")), *ladder.calls)
    outputs = [s.name for s in contract.outputs]
    rows = point[0].shape[0] if contract.batch.ndim else 1

    def judge(results: Sequence[CallResult]) -> CheckResult:
        if find_error(results):
            return CheckResult(check, FAILED, len(calls), f"by {ladder.name!r}: {find_error(results)}")
        messages, resolved, total, kinks, order = [], 0, 0, 0, []
        for index, (output, _) in pairs:
            position = outputs.index(output)
            block = results[0].outputs[index].to(torch.float64)
            table = _tabulate_outputs(contract, ladder, results[2:], position, rows)
            centre = results[1].outputs[position].to(torch.float64)
            floor = contract.tolerance.bounds((output, ladder.name), ladder.dtype).floor
            entries = _judge_block(block, table, centre, ladder, floor)
            total += entries.count
            resolved += entries.resolved
            kinks += entries.kinks
            order += entries.order
            if entries.worst:
                messages.append(f"d {output} / d {ladder.name}: {entries.worst}")
        text = f"d / d {ladder.name}: {resolved} of {total} entries"
        if order:
            text += f", observed order {sorted(order)[len(order) // 2]:.1f}"
        if kinks:
            text += f"; not differentiable at {kinks} of them"
        if messages:
            why = "the block is wrong, or the model hides a part of it from autograd (detach, .data)"
            return CheckResult(check, FAILED, len(calls), f"{'; '.join(messages)}: {why}")
        if resolved + kinks < total / 2:
            return CheckResult(check, NOT_RUN, len(calls), f"{text}: the others are too noisy or too curved to judge")
        return CheckResult(check, PASSED, len(calls), text)

    return Probe(calls, judge)


@dataclass(frozen=True)
class Entries:
    """The judged entries of a Jacobian block: counts, observed orders, and the worst entry as a text."""

    count: int
    resolved: int
    kinks: int
    # Positions among the ladder's components.
    kinked: tuple[int, ...]
    order: list[float]
    worst: str


def _probe_kink_sides(
    contract: Contract,
    cases: Cases,
    point: Tensors,
    ladder: Ladder,
    pairs: Pairs,
    results: Sequence[CallResult],
) -> Probe | None:
    """Probe the blocks again with each component that has a kink moved to each side, out of the reach of the steps
    there; return None if no kink was found."""
    if find_error(results):
        return None
    rows = point[0].shape[0] if contract.batch.ndim else 1
    names = [s.name for s in contract.outputs]
    kinked: dict[int, None] = {}
    for index, (variable, _) in pairs:
        table = _tabulate_outputs(contract, ladder, results[2:], names.index(variable), rows)
        centre = results[1].outputs[names.index(variable)].to(torch.float64)
        entries = _judge_block(results[0].outputs[index].to(torch.float64), table, centre, ladder)
        kinked.update(dict.fromkeys(ladder.components[list(entries.kinked)].tolist()))
    position = next(i for i, s in enumerate(contract.inputs) if s.name == ladder.name)
    sides = []
    for component in list(kinked)[:KINKS]:
        for sign in (2.0, -2.0):
            moved = point[position].reshape(*point[position].shape[: contract.batch.ndim], -1).clone()
            moved[..., component] += (sign * ladder.steps[0]).to(moved.dtype)
            shifted = tuple(moved.reshape(t.shape) if i == position else t for i, t in enumerate(point))
            around = _build_ladder(contract, cases, shifted, ladder.name, {}, {}, component)
            sides.append(_make_difference_probe(contract, shifted, around, pairs, SIDES, {}))
    if not sides:
        return None

    def judge(answers: Sequence[CallResult]) -> CheckResult:
        rest = iter(answers)
        checks = [side.judge(list(itertools.islice(rest, len(side.calls)))) for side in sides]
        worst = next(c for v in (FAILED, NOT_RUN, PASSED) for c in checks if c.verdict == v)
        where = f"{ladder.name}, components {', '.join(map(str, list(kinked)[:KINKS]))} of {len(kinked)} with a kink"
        return CheckResult(SIDES, worst.verdict, len(answers), f"{where}: {worst.detail}")

    return Probe(tuple(call for side in sides for call in side.calls), judge)


def _judge_block(
    block: torch.Tensor, table: torch.Tensor, centre: torch.Tensor, ladder: Ladder, floor: float = 0.0
) -> Entries:
    """Judge ``block``: ``(*batch, *out, *in)`` by ``table``: ``(components, steps, 2, *batch, *out)``; an entry closer
    than the ``floor`` of the contract is not wrong."""
    exact = block.reshape(*centre.shape, -1).movedim(-1, 0)[ladder.components]
    steps = ladder.steps.reshape(*ladder.steps.shape, *[1] * (centre.ndim + 1 - ladder.steps.ndim))
    central = (table[:, :, 0] - table[:, :, 1]) / (2 * steps)
    rounding = 4 * torch.finfo(getattr(torch, ladder.dtype)).eps * table.abs().amax(2) / steps
    best, doubt = extrapolate(central, rounding)
    # Entries far below the output's change over an input of this size are rounding only.
    sizes = table[torch.isfinite(table)].abs() if ladder.is_implicit else table.new_zeros(0)
    rounded = 1e-6 * sizes.max() * FIRST / ladder.steps[0].max() if sizes.numel() else exact.new_zeros(())
    scale = torch.maximum(exact.abs().amax(), rounded).expand(exact.shape)
    allowed = RESOLUTION[ladder.dtype] * scale.clamp(min=torch.finfo(torch.float64).tiny)
    up = (table[:, -2:, 0] - centre) / steps[-2:]
    down = (centre - table[:, -2:, 1]) / steps[-2:]
    gap = (up - down).abs()
    # If a second derivative exists, the gap shrinks with the step.
    kink = (gap[:, 1] > 1e-3 * scale + 10 * rounding[:, -1]) & (gap[:, 1] > 0.5 * gap[:, 0])
    finite = torch.isfinite(best) & torch.isfinite(exact)
    judged = finite & (doubt <= allowed) & ~kink
    off = (best - exact).abs()
    # Far out, where an output no longer changes, large steps agree on a derivative that is wrong here.
    last = torch.maximum((central[:, -1] - central[:, -2]).abs(), rounding[:, -1])
    here = ((central[:, -1] - exact).abs() <= TRUST * last) & (ladder.steps.ndim == 2)
    # Among many kinks, as of sorted numbers, large steps may agree on the slope of a chain of pieces.
    is_near = (central[:, -1] - exact).abs() <= (FLOOR * allowed).clamp(min=floor)
    here |= is_near & (rounding[:, -1] <= allowed)
    is_far = judged & ~here & (off > torch.maximum(TRUST * doubt, FLOOR * allowed).clamp(min=floor))
    wrong = is_far | (torch.isfinite(best) & ~torch.isfinite(exact))
    order = _estimate_orders(central, exact, 250 * rounding)
    worst = ""
    if bool(wrong.any()):
        ratios = torch.where(wrong, off / scale.clamp(min=1e-300), torch.zeros_like(off))
        worst_index = int(ratios.nan_to_num(0.0).argmax())
        got, expected = exact.reshape(-1)[worst_index].item(), best.reshape(-1)[worst_index].item()
        worst = f"{int(wrong.sum())} entries; {got:.12g} against {expected:.12g} from differences"
    kinked = tuple(i for i, component in enumerate(kink) if bool(component.any()))
    return Entries(exact.numel(), int(judged.sum()), int(kink.sum()), kinked, order, worst)


def extrapolate(central: torch.Tensor, rounding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the entry of Ridders' table over the steps whose neighbours agree best, and how well they agree; the
    rounding of the outputs bounds that from below."""
    columns = [central]
    best = central[:, -1]
    doubt = torch.full_like(best, torch.inf)
    for level in range(1, central.shape[1]):
        factor = FACTOR ** (2 * level)
        last = columns[-1]
        extrapolant = (factor * last[:, 1:] - last[:, :-1]) / (factor - 1)
        difference = torch.maximum((extrapolant - last[:, 1:]).abs(), (extrapolant - last[:, :-1]).abs())
        difference = torch.maximum(difference, rounding[:, level:])
        for i in range(extrapolant.shape[1]):
            better = difference[:, i] < doubt
            best, doubt = torch.where(better, extrapolant[:, i], best), torch.where(better, difference[:, i], doubt)
        columns.append(extrapolant)
    return best, doubt


def _estimate_orders(central: torch.Tensor, exact: torch.Tensor, noise: torch.Tensor) -> list[float]:
    """Return the observed orders of central differences whose error exceeds rounding: 2 is expected."""
    errors = (central - exact[:, None]).abs()
    clear = (errors[:, :-1] > noise[:, :-1]) & (errors[:, 1:] > noise[:, 1:])
    orders = torch.log(errors[:, :-1] / errors[:, 1:]) / math.log(FACTOR)
    return orders[clear & torch.isfinite(orders)].tolist()


def _find_jumps(off: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Return where a solve found another of its solutions, from a first guess that is farther off, or a function that
    is constant piece by piece, as a permutation of pivots is, came to another piece.

    The smallest step does not move it; a larger one changes as much as the next smaller one does, or far more than a
    dependence on the step, linear or quadratic, would explain."""
    smaller = torch.maximum(torch.cat([off[:, 1:], off[:, -1:]], 1), allowed)
    alike = (off - smaller).abs() <= JUMP * off
    return (off > allowed) & (off[:, -1:] <= allowed) & (alike | (off > 2 * FACTOR**2 * smaller))


def _make_zero_probe(contract: Contract, point: Tensors, ladder: Ladder, zeros: Sequence[str]) -> Probe:
    """Check that outputs declared independent of an input do not change with it: to the bit, or, if the input is a
    first guess of a solve, within the tolerance, except for steps that lead to another solution, or over a jump."""
    outputs = [s.name for s in contract.outputs]
    rows = point[0].shape[0] if contract.batch.ndim else 1
    calls = (Call("forward", point), *ladder.calls)

    def judge(results: Sequence[CallResult]) -> CheckResult:
        if find_error(results):
            return CheckResult(ZEROS, FAILED, len(calls), find_error(results))
        moved, elsewhere = [], False
        for output in zeros:
            position = outputs.index(output)
            table = _tabulate_outputs(contract, ladder, results[1:], position, rows)
            centre = results[0].outputs[position].to(torch.float64)
            bounds = contract.tolerance.bounds(output, contract.outputs[position].dtype)
            allowed = bounds.rtol * centre.abs().amax() if contract.solvers and centre.numel() else torch.zeros(())
            off = (table - centre).abs()
            still = (off <= allowed) | (table.isnan() & centre.isnan())
            jumps = _find_jumps(off, allowed)
            elsewhere, still = elsewhere or bool(jumps.any()), still | jumps
            if not bool(still.all()):
                moved.append(output)
        if moved:
            text = f"{', '.join(moved)} changes with {ladder.name}, but is declared independent of it"
            return CheckResult(ZEROS, FAILED, len(calls), text)
        other = "another solution is found from a first guess that is farther off" if contract.solvers else "it jumps"
        note = f"; {other}" if elsewhere else ""
        return CheckResult(ZEROS, PASSED, len(calls), f"{', '.join(zeros)} by {ladder.name}{note}")

    return Probe(calls, judge)
