"""Checks of ``jacobian``, ``jvp`` and ``vjp`` of a file against each other, and of Newton's method with the blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from exporter.archive.cases import Cases
from exporter.archive.contract import COTANGENT, TANGENT, Contract, strip_prefix
from exporter.archive.tensor_spec import FLOATING, name_dtype
from exporter.common.tensors import find_coarsest_dtype
from runtime_checks.checks.probe import Probe, find_error, select_points
from runtime_checks.comparison import compare_tensors
from runtime_checks.report import FAILED, NOT_RUN, PASSED, CheckResult
from runtime_checks.runners.base import Call, CallResult, Tensors

PRODUCTS, NEWTON, SYMMETRY = "products", "Newton", "symmetry"
# Distances from the root, as parts of the input's size, at which a step is tried.
DISTANCES = (2.0**-6, 2.0**-9, 2.0**-12)
# Nearer than most jumps of a function that is put together of pieces, and far enough for double precision.
NEAREST = 2.0**-26
# The part of the distance that a step from the nearest start may leave; a Jacobian wrong by a part leaves that part.
REMAINDER = 0.01
# A change of the Jacobian on the way above this is no curvature.
KINK_CHANGE = 0.1
# The condition number of a singular block.
SINGULAR = 1e8


def derivative_product_checks(contract: Contract, cases: Cases) -> list[Probe]:
    """Plan probes: cotangent times tangent is one number by ``jvp`` and ``vjp``; each product is that of the blocks."""
    point = select_points(contract, cases)
    methods = contract.methods
    if not point or not {"jvp", "vjp"} & set(methods):
        return []
    generator = torch.Generator().manual_seed(1)

    def draw(names: Sequence[str], specs: Sequence[torch.Tensor]) -> Tensors:
        unit = (2 * torch.rand(t.shape, generator=generator, dtype=torch.float64) - 1 for t in specs)
        return tuple(u.to(t.dtype) for u, t in zip(unit, specs, strict=True))

    values = dict(zip((s.name for s in contract.inputs), point, strict=True))
    first = next(c for c in cases if c.method == "forward")
    batch_ndim = contract.batch.ndim
    batch_shape = point[0].shape[:batch_ndim]
    pairs = zip(contract.outputs, first.outputs, strict=True)
    like = {s.name: v.new_zeros((*batch_shape, *s.static_shape)) for s, v in pairs}
    calls: list[Call] = []
    tangents: dict[str, torch.Tensor] = {}
    seeds: dict[str, torch.Tensor] = {}
    if "jvp" in methods:
        names = [strip_prefix(n) for n in methods["jvp"].inputs if n.startswith(TANGENT)]
        tangents = dict(zip(names, draw(names, [values[n] for n in names]), strict=True))
        calls.append(Call("jvp", (*point, *tangents.values())))
    if "vjp" in methods:
        names = [strip_prefix(n) for n in methods["vjp"].inputs if n.startswith(COTANGENT)]
        seeds = dict(zip(names, draw(names, [like[n] for n in names]), strict=True))
        calls.append(Call("vjp", (*point, *seeds.values())))
    if "jacobian" in methods:
        calls.append(Call("jacobian", point))

    def judge(results: Sequence[CallResult]) -> CheckResult:
        if find_error(results):
            return CheckResult(PRODUCTS, FAILED, len(calls), find_error(results))
        by_method = {c.method: r.outputs for c, r in zip(calls, results, strict=True)}
        pushed = _select_products(contract, "jvp", by_method)
        pulled = _select_products(contract, "vjp", by_method)
        pairs: dict[str, _Pair] = {}
        if pushed and pulled:
            zeros = torch.zeros(batch_shape)
            jvp_side = sum((_dot(seeds[n], pushed[n], batch_ndim) for n in seeds if n in pushed), zeros)
            vjp_side = sum((_dot(pulled[n], tangents[n], batch_ndim) for n in tangents if n in pulled), zeros)
            sides = torch.as_tensor(jvp_side), torch.as_tensor(vjp_side)
            parts = (*pushed.values(), *pulled.values(), *tangents.values(), *seeds.values())
            pairs["vjp against jvp"] = *sides, _name_coarsest_dtype(parts)
        if "jacobian" in by_method and _has_all_blocks(contract):
            results_by_name = zip(methods["jacobian"].outputs, by_method["jacobian"], strict=True)
            blocks = {o: v for o, v in results_by_name if not isinstance(o, str)}
            pairs |= _pair_with_blocks(blocks, pushed, tangents, pulled, seeds, batch_ndim)
        wrong = [text for name, pair in pairs.items() for text in _describe_mismatch(contract, name, *pair)]
        if wrong:
            return CheckResult(PRODUCTS, FAILED, len(calls), "; ".join(wrong))
        return CheckResult(PRODUCTS, PASSED, len(calls), ", ".join(by_method))

    return [Probe(tuple(calls), judge)]


# What is got, what is expected, and the dtype of the coarsest number on the way.
_Pair = tuple[torch.Tensor, torch.Tensor, str]


def _pair_with_blocks(
    blocks: Mapping[tuple[str, str], torch.Tensor],
    pushed: Mapping[str, torch.Tensor],
    tangents: Mapping[str, torch.Tensor],
    pulled: Mapping[str, torch.Tensor],
    seeds: Mapping[str, torch.Tensor],
    batch_ndim: int,
) -> dict[str, _Pair]:
    """Pair each product of ``jvp`` and ``vjp`` with the same product by the blocks."""

    def make_pair(product: torch.Tensor, own: list[_Operands], apply: Callable[..., torch.Tensor]) -> _Pair:
        terms = [apply(block, vector, batch_ndim) for block, vector in own]
        return product, _sum_terms(terms, product), _name_coarsest_dtype((product, *itertools.chain(*own)))

    pairs = {}
    for output, value in pushed.items():
        own = [(b, tangents[i]) for (o, i), b in blocks.items() if o == output and i in tangents]
        pairs[f"jvp of {output!r} against the blocks"] = make_pair(value, own, _apply)
    for wrt, value in pulled.items():
        own = [(b, seeds[o]) for (o, i), b in blocks.items() if i == wrt and o in seeds]
        pairs[f"vjp by {wrt!r} against the blocks"] = make_pair(value, own, _apply_transpose)
    return pairs


# A block, and the tangent or cotangent that it is applied to.
_Operands = tuple[torch.Tensor, torch.Tensor]


def _name_coarsest_dtype(tensors: Iterable[torch.Tensor]) -> str:
    """Return the name of the dtype with the fewest digits: a derivative by a float32 input has no more."""
    return str(find_coarsest_dtype(t.dtype for t in tensors)).removeprefix("torch.")


def _select_products(contract: Contract, method: str, results: dict[str, Tensors]) -> dict[str, torch.Tensor]:
    if method not in results:
        return {}
    names = contract.methods[method].outputs
    pairs = zip(names, results[method], strict=True)
    return {strip_prefix(str(n)): v for n, v in pairs if str(n).startswith((TANGENT, COTANGENT))}


def _has_all_blocks(contract: Contract) -> bool:
    """Return whether every Jacobian block is in the file or declared zero, so that products can be put together."""
    spec = contract.methods["jacobian"]
    available = {o for o in spec.outputs if not isinstance(o, str)} | set(spec.zeros)
    outs = [s.name for s in contract.outputs if s.dtype in FLOATING]
    ins = [s.name for s in contract.inputs if s.dtype in FLOATING]
    return all((o, i) in available for o in outs for i in ins)


def _dot(a: torch.Tensor, b: torch.Tensor, batch_ndim: int) -> torch.Tensor:
    return (a * b).reshape((*a.shape[:batch_ndim], math.prod(a.shape[batch_ndim:]))).sum(-1)


def _apply(block: torch.Tensor, tangent: torch.Tensor, batch_ndim: int) -> torch.Tensor:
    block, tangent = _promote(block, tangent)
    event_shape = tangent.shape[batch_ndim:]
    out = block.shape[: block.ndim - len(event_shape)]
    flat = block.reshape((*out[:batch_ndim], math.prod(out[batch_ndim:]), math.prod(event_shape)))
    return (flat @ tangent.reshape((*out[:batch_ndim], math.prod(event_shape), 1))).reshape(out)


def _apply_transpose(block: torch.Tensor, seed: torch.Tensor, batch_ndim: int) -> torch.Tensor:
    block, seed = _promote(block, seed)
    batch_shape, n = block.shape[:batch_ndim], math.prod(seed.shape[batch_ndim:])
    event_shape = block.shape[seed.ndim :]
    flat = block.reshape((*batch_shape, n, math.prod(event_shape)))
    return (seed.reshape((*batch_shape, 1, n)) @ flat).reshape((*batch_shape, *event_shape))


def _promote(block: torch.Tensor, vector: torch.Tensor) -> _Operands:
    dtype = torch.promote_types(block.dtype, vector.dtype)
    return block.to(dtype), vector.to(dtype)


def _sum_terms(terms: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    return sum(terms[1:], terms[0]) if terms else torch.zeros_like(like)


def _describe_mismatch(
    contract: Contract, what: str, got: torch.Tensor, expected: torch.Tensor, dtype: str
) -> list[str]:
    comparison = compare_tensors(got.to(expected.dtype), expected, contract.tolerance.bounds("", dtype))
    return [] if comparison.passed else [f"{what}: {comparison.reason}"]


def plan_symmetry_probes(contract: Contract, cases: Cases) -> list[Probe]:
    """Plan probes that blocks declared to be second derivatives of a potential equal their transposes."""
    spec = contract.methods.get("jacobian")
    point = select_points(contract, cases)
    if spec is None or not spec.symmetric or not point:
        return []
    batch_ndim = contract.batch.ndim

    def judge(results: Sequence[CallResult]) -> CheckResult:
        if find_error(results):
            return CheckResult(SYMMETRY, FAILED, 1, find_error(results))
        wrong = []
        for pair in spec.symmetric:
            block = results[0].outputs[spec.outputs.index(pair)]
            n = math.prod(contract.output_spec(pair[0]).static_shape)
            square = block.reshape(*block.shape[:batch_ndim], n, n)
            bounds = contract.tolerance.bounds(pair, name_dtype(block))
            comparison = compare_tensors(square, square.transpose(-1, -2).contiguous(), bounds)
            wrong += [] if comparison.passed else [f"d {pair[0]} / d {pair[1]}: {comparison.reason}"]
        labels = ", ".join(f"d {output} / d {wrt}" for output, wrt in spec.symmetric)
        return CheckResult(SYMMETRY, FAILED if wrong else PASSED, 1, "; ".join(wrong) or labels)

    return [Probe((Call("jacobian", point),), judge)]


def plan_newton_probes(contract: Contract, cases: Cases) -> list[Probe]:
    """Plan probes that a Newton step near a root of ``f(x) - f(x*)`` comes nearer with the square of the distance."""
    spec = contract.methods.get("jacobian")
    point = select_points(contract, cases)
    if spec is None or not point:
        return []
    outputs, inputs = ({s.name: s for s in specs} for specs in (contract.outputs, contract.inputs))
    blocks = [(i, o) for i, o in enumerate(spec.outputs) if not isinstance(o, str) and o[1] in inputs]

    def is_square(output: str, wrt: str) -> bool:
        count = _count_components(inputs[wrt])
        return 0 < count == _count_components(outputs[output]) and inputs[wrt].dtype == "float64"

    square = [(i, block) for i, block in blocks if is_square(*block)]
    if not square:
        return []
    return [_make_newton_probe(contract, point, index, pair) for index, pair in square[:2]]


def _count_components(spec: object) -> int:
    return math.prod(getattr(spec, "shape", ()))


def _make_newton_probe(contract: Contract, point: Tensors, block_index: int, pair: tuple[str, str]) -> Probe:
    output_index = [s.name for s in contract.outputs].index(pair[0])
    input_index = [s.name for s in contract.inputs].index(pair[1])
    batch_ndim = contract.batch.ndim
    root = point[input_index]
    size = float(root.abs().max()) or 1.0
    generator = torch.Generator().manual_seed(2)
    direction = 2 * torch.rand(root.shape, generator=generator, dtype=torch.float64) - 1
    starts = [root + size * d * direction for d in (*DISTANCES, NEAREST)]
    moved = [tuple(s if i == input_index else t for i, t in enumerate(point)) for s in (*starts, root)]
    calls = (Call("forward", point), *(Call("jacobian", inputs) for inputs in moved))
    label = f"{pair[0]} by {pair[1]}"

    def judge(results: Sequence[CallResult]) -> CheckResult:
        if find_error(results):
            return CheckResult(NEWTON, FAILED, len(calls), f"{label}: {find_error(results)}")
        goal = results[0].outputs[output_index]
        errors, blocks = [], []
        for start, result in zip(starts, results[1:-1], strict=True):
            batch_shape = start.shape[:batch_ndim]
            rows = _count_components(contract.outputs[output_index])
            block = result.outputs[block_index].reshape(*batch_shape, rows, -1)
            residual = (result.outputs[output_index] - goal).reshape(*batch_shape, -1, 1)
            step, info = torch.linalg.solve_ex(block, residual)
            if bool(info.any()):
                return CheckResult(NEWTON, NOT_RUN, len(calls), f"{label}: the block is singular")
            end = start.reshape(*batch_shape, -1) - step[..., 0]
            errors.append((end - root.reshape(*batch_shape, -1)).abs() / size)
            blocks.append(block)
        first, second, third, nearest = errors
        # If the second derivative is large a step is good only still nearer: the remainder falls with the distance.
        falls = third / DISTANCES[2] <= 0.5 * second / DISTANCES[1]
        # If the Jacobian vanishes, is not finite, or changes much on the way, the root is not a simple one.
        steep = blocks[2].abs().amax((-1, -2))
        simple = (blocks[2] - blocks[1]).abs().amax((-1, -2)) < 0.3 * steep
        finite_block = torch.where(torch.isfinite(steep)[..., None, None], blocks[2], 0.0)
        simple &= (steep * size > 1e-6 * goal.abs().max()) & (torch.linalg.cond(finite_block) < SINGULAR)
        if not bool(simple.any()):
            return CheckResult(NEWTON, NOT_RUN, len(calls), f"{label}: no point where the Jacobian changes slowly")
        # At a kink on the way a step leaves the part of the distance by which the Jacobian changes.
        difference = results[-1].outputs[block_index].reshape(blocks[2].shape) - blocks[2]
        change = torch.linalg.solve_ex(blocks[2], difference)[0].abs().sum(-1)
        allowed_ratio = REMAINDER + torch.where(change > KINK_CHANGE, change, 0.0)
        # A jump on the way is no fault of the Jacobian; one that is wrong by a part leaves that part at any distance.
        falls |= nearest <= REMAINDER * NEAREST
        if not bool(((third <= allowed_ratio * DISTANCES[2] + 1e-9) | falls | ~simple[..., None]).all()):
            text = f"{label}: a step from {DISTANCES[2]:.1e} leaves {float(third.max()):.1e}"
            return CheckResult(NEWTON, FAILED, len(calls), text)
        text = f"{label}: {float(first.max()):.1e}, {float(second.max()):.1e}, {float(third.max()):.1e}"
        return CheckResult(NEWTON, PASSED, len(calls), text)

    return Probe(calls, judge)
