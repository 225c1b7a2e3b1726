"""Laws of a batch of independent elements, from rows of the stored cases alone.

Whatever rows a batch is put together from, each must give the outputs that it gave in its case: at every size
that the contract names, in another order, put behind other rows, in another memory layout, under another number
of batch dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from exporter.archive.cases import EXTREMES, Case
from exporter.archive.contract import Contract
from runtime_checks.checks.expectation import Expectation, NotRun
from runtime_checks.runners.base import Call, Tensors

SIZES, PERMUTATION, CONCATENATION = "batch sizes", "permutation", "concatenation"
LAYOUTS, RANKS = "memory layouts", "batch dimensions"
LAWS = (SIZES, PERMUTATION, CONCATENATION, LAYOUTS, RANKS)
# Enough rows to permute, few enough to compare by hand.
ROWS = 12
# Beyond the sizes that eager mode was run at: files go through large batches slice by slice.
LARGE = 20_011
# Of implicit models, whose Jacobian alone goes in slices beyond those of the loop.
LARGE_SOLVED = 4_099


def laws(contract: Contract, cases: Sequence[Case]) -> list[Expectation | NotRun]:
    reason = ""
    if contract.batch.ndim == 0:
        reason = "does not apply: the contract's shapes are whole"
    elif not contract.inputs:
        reason = "does not apply: the model has no inputs"
    if reason:
        laid_out = _whole(cases) if contract.inputs else []
        return [*laid_out, *(NotRun(law, reason) for law in LAWS if not laid_out or law != LAYOUTS)]
    found: list[Expectation | NotRun] = []
    for method in contract.methods:
        # Extreme magnitudes stand alone: beside them the rounding of an ordinary row would not be seen.
        parts = [c for c in cases if c.method == method and not c.name.startswith(EXTREMES)]
        if not parts:
            found += [NotRun(law, f"method {method!r} has no ordinary cases") for law in LAWS]
            continue
        inputs = tuple(map(torch.cat, zip(*(c.inputs for c in parts), strict=True)))
        outputs = tuple(map(torch.cat, zip(*(c.outputs for c in parts), strict=True)))
        planned = _of_method(contract, method, inputs, outputs)
        found += planned
        found += [NotRun(law, "the contract names none") for law in LAWS if law not in {e.check for e in planned}]
    return found


def _whole(cases: Sequence[Case]) -> list[Expectation]:
    return [
        Expectation(LAYOUTS, f"{c.name}, non-contiguous", Call(c.method, tuple(map(_strided, c.inputs))), c.outputs)
        for c in cases
        if not c.name.startswith(EXTREMES)
    ]


def _of_method(contract: Contract, method: str, inputs: Tensors, outputs: Tensors) -> list[Expectation]:
    count = inputs[0].shape[0]

    def expect(
        check: str,
        label: str,
        rows: torch.Tensor,
        shape: Callable[[torch.Tensor], torch.Tensor] = lambda t: t,
        layout: Callable[[torch.Tensor], torch.Tensor] = lambda t: t,
    ) -> Expectation:
        given = tuple(layout(shape(t[rows])) for t in inputs)
        wanted = tuple(shape(t[rows]) for t in outputs)
        return Expectation(check, label, Call(method, given), wanted)

    generator = torch.Generator().manual_seed(0)
    # From all cases: neighbours in one case may be equal, and equal rows show nothing.
    some = torch.linspace(0, count - 1, ROWS, dtype=torch.float64).long()
    shuffled = some[torch.randperm(ROWS, generator=generator)]
    found = [expect(SIZES, f"batch {n}", torch.arange(n) % count) for n in contract.batch.sizes]
    if contract.batch.sizes and (not contract.solvers or method == "jacobian"):
        large = LARGE if not contract.solvers else LARGE_SOLVED
        found.append(expect(SIZES, f"batch {large}", torch.arange(large) % count))
    found.append(expect(PERMUTATION, "shuffled rows", shuffled))
    found.append(expect(PERMUTATION, "reversed rows", some.flip(0)))
    found.append(expect(CONCATENATION, "rows behind other rows", torch.cat([shuffled, some])))
    found.append(expect(LAYOUTS, "non-contiguous", some, layout=_strided))
    # As many as code that takes several elements at once takes in one go.
    found.append(expect(LAYOUTS, "non-contiguous block", some.repeat(4), layout=_strided))
    one = torch.zeros(ROWS, dtype=torch.int64)
    found.append(expect(LAYOUTS, "expanded", one, layout=lambda t: t[:1].expand(ROWS, *t.shape[1:])))
    for rank in contract.batch.ranks:
        if rank == 0:
            found.append(expect(RANKS, "unbatched", torch.tensor([0]), shape=lambda t: t[0]))
        if rank == 2:
            found.append(expect(RANKS, "3 x 4", some, shape=lambda t: t.reshape(3, ROWS // 3, *t.shape[1:])))
    return found


def _strided(value: torch.Tensor) -> torch.Tensor:
    """The same values with every dimension's stride doubled."""
    wide = value.new_zeros([2 * n for n in value.shape])
    view = wide[tuple(slice(None, None, 2) for _ in value.shape)]
    return view.copy_(value)
