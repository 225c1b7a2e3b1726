"""The comparison of an exam: independent of the one under test, and short enough to be read.

Tensors agree if shapes, dtypes, and the places of NaN and of infinities are equal, integers are equal, and floating
numbers differ by at most ``tolerance`` times the largest finite number that is expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from exams.cells import REFUSED, WRONG, Verdict
from exams.samples import get_number

# Of the largest number, by dtype: the same operations in another order, and libm's functions in another version.
CLOSE = {"float64": 1e-11, "complex128": 1e-11, "float32": 2e-5, "complex64": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
# What others have published was computed in single precision.
SINGLE = {**CLOSE, **dict.fromkeys(("float64", "float32"), 1e-5)}
# torch runs the same operators in both.
SAME = {"float64": 1e-14, "complex128": 1e-14, "float32": 1e-6, "complex64": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}


def explain_difference(expected: torch.Tensor, got: torch.Tensor, tolerances: Mapping[str, float]) -> str:
    """Return how two tensors differ; empty if they agree."""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return f"{list(got.shape)} {got.dtype} instead of {list(expected.shape)} {expected.dtype}"
    expected, got, name = expected.detach().resolve_conj(), got.detach().resolve_conj(), str(expected.dtype)[6:]
    if expected.is_complex():
        expected, got = torch.view_as_real(expected), torch.view_as_real(got)
    if not expected.is_floating_point():
        return "" if torch.equal(expected, got) else "other integers"
    finite, infinite = expected.isfinite(), expected.isinf()
    is_alike = torch.equal(expected.isnan(), got.isnan()) and torch.equal(infinite, got.isinf())
    if not is_alike or not torch.equal(expected[infinite], got[infinite]):
        return "NaN or infinity in other places than in eager mode"
    if not finite.any():
        return ""
    # Differences are taken in float64: half precision would lose them.
    wanted, have = expected[finite].double(), got[finite].double()
    largest, scale = float((wanted - have).abs().max()), float(wanted.abs().max())
    return "" if largest <= tolerances[name] * scale else f"off by {largest / (scale or 1.0):.0e} of the largest number"


def judge_outputs(
    numbers: Sequence[int],
    expected: Mapping[str, torch.Tensor],
    got: Mapping[str, torch.Tensor],
    tolerances: Mapping[str, float],
) -> dict[int, Verdict]:
    """Return what is not verified of the samples of a bundle, from its outputs by name."""
    silent = {*numbers} - {get_number(name) for name in expected}
    verdicts = dict.fromkeys(silent, Verdict(REFUSED, "it returns no tensor, so there is nothing to compare"))
    excess = [Verdict(WRONG, f"the file has output {name} besides") for name in got if name not in expected]
    verdicts |= dict.fromkeys(numbers, excess[0]) if excess else {}
    for name, tensor in expected.items():
        text = explain_difference(tensor, got[name], tolerances) if name in got else "the output is missing"
        if text:
            verdicts.setdefault(get_number(name), Verdict(WRONG, text))
    return verdicts
