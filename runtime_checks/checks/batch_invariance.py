"""Invariance of a batch of independent elements, checked with rows of the stored cases alone.

Whatever rows a batch is put together from, each must give the outputs that it gave in its case: at every size
that the contract names, in another order, put behind other rows, in another memory layout, under another number
of batch dimensions."""

from __future__ import annotations

from collections.abc import Callable

import torch

from exporter.archive.cases import Cases
from exporter.archive.contract import Contract
from runtime_checks.checks.expectation import Expectation, NotRun
from runtime_checks.comparison import find_scale
from runtime_checks.runners.base import Call, Tensors

SIZES, PERMUTATION, CONCATENATION = "batch sizes", "permutation", "concatenation"
LAYOUTS, RANKS, LARGE_BATCHES = "memory layouts", "batch dimensions", "large batches"
INVARIANCES = (SIZES, PERMUTATION, CONCATENATION, LAYOUTS, RANKS)
# What puts a tensor into another shape or layout.
Layout = Callable[[torch.Tensor], torch.Tensor]
# Enough rows to permute, few enough to compare by hand; fewer where eager mode ran no batch of so many.
ROWS, FEW_ROWS = 12, 4
# Beyond the sizes run in eager mode, where it ran a large one: files process large batches chunk by chunk.
LARGE = 20_011
# For implicit models, where only the Jacobian goes in chunks beyond those of the loop.
LARGE_SOLVED = 4_099


def batch_invariance_checks(contract: Contract, cases: Cases) -> list[Expectation | NotRun]:
    """Plan the batch invariance checks of every method; a check that does not apply says why."""
    reason = ""
    if contract.batch.ndim == 0:
        reason = "does not apply: the contract's shapes are whole"
    elif not contract.inputs:
        reason = "does not apply: the model has no inputs"
    if reason:
        layout_checks = _plan_layout_checks(cases) if contract.inputs else []
        unplanned = [check for check in INVARIANCES if not layout_checks or check != LAYOUTS]
        return [*layout_checks, *(NotRun(check, reason) for check in unplanned)]
    expectations: list[Expectation | NotRun] = []
    if not contract.batch.has_large:
        expectations.append(NotRun(LARGE_BATCHES, contract.batch.explain_limits()))
    for method in contract.methods:
        # Extreme cases are left out: beside them the rounding of an ordinary row would not be seen.
        parts = [c for c in cases if c.method == method and not c.is_extreme]
        if not parts:
            expectations += [NotRun(check, f"method {method!r} has no ordinary cases") for check in INVARIANCES]
            continue
        inputs = tuple(map(torch.cat, zip(*(c.inputs for c in parts), strict=True)))
        outputs = tuple(map(torch.cat, zip(*(c.outputs for c in parts), strict=True)))
        planned = _plan_method_checks(contract, method, inputs, outputs)
        expectations += planned
        unplanned = set(INVARIANCES) - {e.check for e in planned}
        expectations += [NotRun(check, "the contract names none") for check in INVARIANCES if check in unplanned]
    return expectations


def _plan_layout_checks(cases: Cases) -> list[Expectation]:
    usual = [case for case in cases if not case.is_extreme]
    calls = [Call(case.method, tuple(map(_make_strided, case.inputs))) for case in usual]
    pairs = zip(usual, calls, strict=True)
    return [Expectation(LAYOUTS, f"{case.name}, non-contiguous", call, case.outputs) for case, call in pairs]


def _plan_method_checks(contract: Contract, method: str, inputs: Tensors, outputs: Tensors) -> list[Expectation]:
    count = inputs[0].shape[0]
    # A GPU rounds otherwise in a batch of another size, and a few rows may have numbers that are rounding alone.
    scales = tuple(map(find_scale, outputs))

    def expect(
        check: str, label: str, rows: torch.Tensor, shape: Layout = lambda t: t, layout: Layout = lambda t: t
    ) -> Expectation:
        call_inputs = tuple(layout(shape(t[rows])) for t in inputs)
        expected = tuple(shape(t[rows]) for t in outputs)
        return Expectation(check, label, Call(method, call_inputs), expected, scales=scales)

    generator = torch.Generator().manual_seed(0)
    # Spread over all cases: neighbours in one case may be equal, and equal rows show nothing.
    rows = ROWS if max(contract.batch.sizes, default=0) >= ROWS else FEW_ROWS
    spread = torch.linspace(0, count - 1, rows, dtype=torch.float64).long()
    shuffled = spread[torch.randperm(rows, generator=generator)]
    expectations = [expect(SIZES, f"batch {n}", torch.arange(n) % count) for n in contract.batch.sizes]
    if contract.batch.has_large and (not contract.solvers or method == "jacobian"):
        large = LARGE if not contract.solvers else LARGE_SOLVED
        expectations.append(expect(SIZES, f"batch {large}", torch.arange(large) % count))
    expectations.append(expect(PERMUTATION, "shuffled rows", shuffled))
    expectations.append(expect(PERMUTATION, "reversed rows", spread.flip(0)))
    expectations.append(expect(CONCATENATION, "rows behind other rows", torch.cat([shuffled, spread])))
    expectations.append(expect(LAYOUTS, "non-contiguous", spread, layout=_make_strided))
    # Enough rows for code that processes several elements at once.
    expectations.append(expect(LAYOUTS, "non-contiguous block", spread.repeat(4), layout=_make_strided))
    first_row = torch.zeros(rows, dtype=torch.int64)
    expectations.append(expect(LAYOUTS, "expanded", first_row, layout=lambda t: t[:1].expand(rows, *t.shape[1:])))
    outer, inner = (3, ROWS // 3) if rows == ROWS else (2, FEW_ROWS // 2)
    for rank in contract.batch.ranks:
        if rank == 0:
            expectations.append(expect(RANKS, "unbatched", torch.tensor([0]), shape=lambda t: t[0]))
        if rank == 2:
            label = f"{outer} x {inner}"
            expectations.append(expect(RANKS, label, spread, shape=lambda t: t.unflatten(0, (outer, inner))))
    return expectations


def _make_strided(value: torch.Tensor) -> torch.Tensor:
    """Copy a tensor into memory where every dimension's stride is doubled."""
    wide = value.new_zeros([2 * n for n in value.shape])
    view = wide[tuple(slice(None, None, 2) for _ in value.shape)]
    return view.copy_(value)
