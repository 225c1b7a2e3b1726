"""``jacobian``, ``jvp`` and ``vjp`` of a file against each other, and Newton's method with the Jacobian."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from exporter.archive.cases import Case
from exporter.archive.contract import COTANGENT, TANGENT, Contract, bare
from exporter.archive.tensor_spec import FLOATING
from runtime_checks.checks.probe import Probe, error_of, points
from runtime_checks.comparison import compare
from runtime_checks.report import FAILED, NOT_RUN, PASSED, CheckResult
from runtime_checks.runners.base import Call, Result, Tensors

PRODUCTS, NEWTON, SYMMETRY = "products", "Newton", "symmetry"
# Distances from the root, as parts of the input's size, at which a step is tried.
DISTANCES = (2.0**-6, 2.0**-9, 2.0**-12)
# What a step from the nearest may leave of the distance; a Jacobian that is wrong by a part leaves that part.
LEFT = 0.01
# What a Jacobian changes by on the way where that is no curvature.
KINKED = 0.1
# A condition number.
SINGULAR = 1e8


def products(contract: Contract, cases: Sequence[Case]) -> list[Probe]:
    """Cotangent times tangent, by ``jvp`` and by ``vjp``, is one number; each product is that of the blocks."""
    at = points(contract, cases)
    methods = contract.methods
    if not at or not {"jvp", "vjp"} & set(methods):
        return []
    generator = torch.Generator().manual_seed(1)

    def drawn(names: Sequence[str], specs: Sequence[torch.Tensor]) -> Tensors:
        unit = (2 * torch.rand(t.shape, generator=generator, dtype=torch.float64) - 1 for t in specs)
        return tuple(u.to(t.dtype) for u, t in zip(unit, specs, strict=True))

    given = dict(zip((s.name for s in contract.inputs), at, strict=True))
    first = next(c for c in cases if c.method == "forward")
    lead = contract.batch.ndim
    rows = at[0].shape[:lead]
    like = {s.name: v.new_zeros((*rows, *s.fixed)) for s, v in zip(contract.outputs, first.outputs, strict=True)}
    calls: list[Call] = []
    tangents: dict[str, torch.Tensor] = {}
    seeds: dict[str, torch.Tensor] = {}
    if "jvp" in methods:
        names = [bare(n) for n in methods["jvp"].inputs if n.startswith(TANGENT)]
        tangents = dict(zip(names, drawn(names, [given[n] for n in names]), strict=True))
        calls.append(Call("jvp", (*at, *tangents.values())))
    if "vjp" in methods:
        names = [bare(n) for n in methods["vjp"].inputs if n.startswith(COTANGENT)]
        seeds = dict(zip(names, drawn(names, [like[n] for n in names]), strict=True))
        calls.append(Call("vjp", (*at, *seeds.values())))
    if "jacobian" in methods:
        calls.append(Call("jacobian", at))

    def judge(results: Sequence[Result]) -> CheckResult:
        if error_of(results):
            return CheckResult(PRODUCTS, FAILED, len(calls), error_of(results))
        by_method = {c.method: r.outputs for c, r in zip(calls, results, strict=True)}
        pushed = _named(contract, "jvp", by_method)
        pulled = _named(contract, "vjp", by_method)
        wrong = []
        if pushed and pulled:
            left = sum((_dot(seeds[n], pushed[n], lead) for n in seeds if n in pushed), torch.zeros(rows))
            right = sum((_dot(pulled[n], tangents[n], lead) for n in tangents if n in pulled), torch.zeros(rows))
            wrong += _unlike(contract, "vjp against jvp", torch.as_tensor(left), torch.as_tensor(right), given)
        if "jacobian" in by_method and _is_whole(contract):
            blocks = {
                o: v
                for o, v in zip(methods["jacobian"].outputs, by_method["jacobian"], strict=True)
                if not isinstance(o, str)
            }
            for of, value in pushed.items():
                made = [_apply(b, tangents[i], lead) for (o, i), b in blocks.items() if o == of and i in tangents]
                wrong += _unlike(contract, f"jvp of {of!r} against the blocks", value, _total(made, value), given)
            for by, value in pulled.items():
                made = [_transposed(b, seeds[o], lead) for (o, i), b in blocks.items() if i == by and o in seeds]
                wrong += _unlike(contract, f"vjp by {by!r} against the blocks", value, _total(made, value), given)
        if wrong:
            return CheckResult(PRODUCTS, FAILED, len(calls), "; ".join(wrong))
        return CheckResult(PRODUCTS, PASSED, len(calls), ", ".join(by_method))

    return [Probe(tuple(calls), judge)]


def _named(contract: Contract, method: str, results: dict[str, Tensors]) -> dict[str, torch.Tensor]:
    if method not in results:
        return {}
    names = contract.methods[method].outputs
    found = zip(names, results[method], strict=True)
    return {bare(str(n)): v for n, v in found if str(n).startswith((TANGENT, COTANGENT))}


def _is_whole(contract: Contract) -> bool:
    """Whether every block of the Jacobian is in the file or declared zero, so that products can be put together."""
    spec = contract.methods["jacobian"]
    known = {o for o in spec.outputs if not isinstance(o, str)} | set(spec.zeros)
    outs = [s.name for s in contract.outputs if s.dtype in FLOATING]
    ins = [s.name for s in contract.inputs if s.dtype in FLOATING]
    return all((o, i) in known for o in outs for i in ins)


def _dot(a: torch.Tensor, b: torch.Tensor, lead: int) -> torch.Tensor:
    return (a * b).reshape((*a.shape[:lead], math.prod(a.shape[lead:]))).sum(-1)


def _apply(block: torch.Tensor, tangent: torch.Tensor, lead: int) -> torch.Tensor:
    own = tangent.shape[lead:]
    out = block.shape[: block.ndim - len(own)]
    flat = block.reshape((*out[:lead], math.prod(out[lead:]), math.prod(own)))
    return (flat @ tangent.reshape((*out[:lead], math.prod(own), 1))).reshape(out)


def _transposed(block: torch.Tensor, seed: torch.Tensor, lead: int) -> torch.Tensor:
    rows, n = block.shape[:lead], math.prod(seed.shape[lead:])
    own = block.shape[seed.ndim :]
    flat = block.reshape((*rows, n, math.prod(own)))
    return (seed.reshape((*rows, 1, n)) @ flat).reshape((*rows, *own))


def _total(made: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    return sum(made[1:], made[0]) if made else torch.zeros_like(like)


def _unlike(contract: Contract, what: str, got: torch.Tensor, wanted: torch.Tensor, given: dict) -> list[str]:
    dtype = str(next(t.dtype for t in given.values() if t.is_floating_point())).removeprefix("torch.")
    found = compare(got.to(wanted.dtype), wanted, contract.tolerance.bounds("", dtype))
    return [] if found.passed else [f"{what}: {found.reason}"]


def symmetry(contract: Contract, cases: Sequence[Case]) -> list[Probe]:
    """Blocks that are declared to be second derivatives of a potential equal their transposes."""
    spec = contract.methods.get("jacobian")
    at = points(contract, cases)
    if spec is None or not spec.symmetric or not at:
        return []
    lead = contract.batch.ndim

    def judge(results: Sequence[Result]) -> CheckResult:
        if error_of(results):
            return CheckResult(SYMMETRY, FAILED, 1, error_of(results))
        wrong = []
        for pair in spec.symmetric:
            block = results[0].outputs[spec.outputs.index(pair)]
            n = math.prod(contract.returned(pair[0]).fixed)
            square = block.reshape(*block.shape[:lead], n, n)
            bounds = contract.tolerance.bounds(pair, str(block.dtype).removeprefix("torch."))
            found = compare(square, square.transpose(-1, -2).contiguous(), bounds)
            wrong += [] if found.passed else [f"d {pair[0]} / d {pair[1]}: {found.reason}"]
        said = ", ".join(f"d {of} / d {by}" for of, by in spec.symmetric)
        return CheckResult(SYMMETRY, FAILED if wrong else PASSED, 1, "; ".join(wrong) or said)

    return [Probe((Call("jacobian", at),), judge)]


def newton(contract: Contract, cases: Sequence[Case]) -> list[Probe]:
    """A Newton step from near a root of ``f(x) - f(x*)`` comes nearer with the square of the distance."""
    spec = contract.methods.get("jacobian")
    at = points(contract, cases)
    if spec is None or not at:
        return []
    shapes = {s.name: s for s in contract.outputs}, {s.name: s for s in contract.inputs}
    square = [
        (i, o)
        for i, o in enumerate(spec.outputs)
        if not isinstance(o, str)
        and o[1] in shapes[1]
        and _size(shapes[0][o[0]]) == _size(shapes[1][o[1]])
        and shapes[1][o[1]].dtype == "float64"
        and _size(shapes[1][o[1]]) > 0
    ]
    if not square:
        return []
    return [_newton(contract, at, place, pair) for place, pair in square[:2]]


def _size(spec: object) -> int:
    return math.prod(getattr(spec, "shape", ()))


def _newton(contract: Contract, at: Tensors, place: int, pair: tuple[str, str]) -> Probe:
    of = [s.name for s in contract.outputs].index(pair[0])
    by = [s.name for s in contract.inputs].index(pair[1])
    lead = contract.batch.ndim
    root = at[by]
    size = float(root.abs().max()) or 1.0
    generator = torch.Generator().manual_seed(2)
    direction = 2 * torch.rand(root.shape, generator=generator, dtype=torch.float64) - 1
    starts = [root + size * d * direction for d in DISTANCES]
    calls = (
        Call("forward", at),
        *(Call("jacobian", tuple(s if i == by else t for i, t in enumerate(at))) for s in (*starts, root)),
    )
    label = f"{pair[0]} by {pair[1]}"

    def judge(results: Sequence[Result]) -> CheckResult:
        if error_of(results):
            return CheckResult(NEWTON, FAILED, len(calls), f"{label}: {error_of(results)}")
        goal = results[0].outputs[of]
        errors, blocks = [], []
        for start, result in zip(starts, results[1:-1], strict=True):
            rows = start.shape[:lead]
            block = result.outputs[place].reshape(*rows, _size(contract.outputs[of]), -1)
            residual = (result.outputs[of] - goal).reshape(*rows, -1, 1)
            step, info = torch.linalg.solve_ex(block, residual)
            if bool(info.any()):
                return CheckResult(NEWTON, NOT_RUN, len(calls), f"{label}: the block is singular")
            errors.append((start.reshape(*rows, -1) - step[..., 0] - root.reshape(*rows, -1)).abs() / size)
            blocks.append(block)
        first, second, third = errors
        # Where the second derivative is large a step is good only still nearer: what is left falls with the distance.
        falls = third / DISTANCES[2] <= 0.5 * second / DISTANCES[1]
        # Where the Jacobian vanishes, has no number, or changes much on the way, the root is not a simple one.
        steep = blocks[2].abs().amax((-1, -2))
        simple = (blocks[2] - blocks[1]).abs().amax((-1, -2)) < 0.3 * steep
        known = torch.where(torch.isfinite(steep)[..., None, None], blocks[2], 0.0)
        simple &= (steep * size > 1e-6 * goal.abs().max()) & (torch.linalg.cond(known) < SINGULAR)
        if not bool(simple.any()):
            return CheckResult(NEWTON, NOT_RUN, len(calls), f"{label}: no point where the Jacobian changes slowly")
        # At a kink on the way a step leaves of the distance what the Jacobian changes by.
        change = torch.linalg.solve_ex(blocks[2], results[-1].outputs[place].reshape(blocks[2].shape) - blocks[2])[0]
        change = change.abs().sum(-1)
        left = LEFT + torch.where(change > KINKED, change, 0.0)
        if not bool(((third <= left * DISTANCES[2] + 1e-9) | falls | ~simple[..., None]).all()):
            text = f"{label}: a step from {DISTANCES[2]:.1e} leaves {float(third.max()):.1e}"
            return CheckResult(NEWTON, FAILED, len(calls), text)
        text = f"{label}: {float(first.max()):.1e}, {float(second.max()):.1e}, {float(third.max()):.1e}"
        return CheckResult(NEWTON, PASSED, len(calls), text)

    return Probe(calls, judge)
