"""A load history through an archive: prescribed inputs step by step, states fed back.

A history file is a ``torch.save``d dict of tensors: ``"prescribed/<input>"`` of shape ``(steps, *batch, *own)``,
``"initial/<input>"`` of shape ``(*batch, *own)`` for what is fed back (``x~1``: the value of ``x`` one step before),
and ``"expected/<output>"`` of shape ``(steps, *batch, *own)`` where there is something to compare with.
``exporter/archive/load_history.py`` says how states are fed back.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from exporter.archive.contract import Bounds, Contract
from exporter.archive.load_history import EXPECTED, INITIAL, PRESCRIBED, History, lag_of, lags, walk
from exporter.common.errors import MismatchError, UsageError, first_line, near
from runtime_checks.comparison import compare
from runtime_checks.model import Model


def read(path: Path, contract: Contract) -> History:
    """Raises ``UsageError`` for a file that is no history of this archive: what is missing, by name."""
    if not path.is_file():
        raise UsageError("there is no history file", where=str(path), expected="a .pt file of tensors by name")
    try:
        held = torch.load(path, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise UsageError("the history file does not load", where=str(path), got=first_line(error)) from None
    sides: dict[str, dict[str, torch.Tensor]] = {PRESCRIBED: {}, INITIAL: {}, EXPECTED: {}}
    for key, value in held.items() if isinstance(held, dict) else ():
        side, _, name = str(key).partition("/")
        if side in sides and name and isinstance(value, torch.Tensor):
            sides[side][name] = value
        else:
            raise UsageError(
                "the history file holds something else",
                where=f"{path}, {key!r}",
                expected=" or ".join(f"'{s}/NAME'" for s in sides) + ", each a tensor",
            )
    return _checked(contract, History(sides[PRESCRIBED], sides[INITIAL], sides[EXPECTED], _steps(path, sides)))


def run(
    model: Model, history: History, advance: Callable[[int], object] = lambda step: None
) -> dict[str, torch.Tensor]:
    """Outputs by name, each ``(steps, *batch, *own)``; ``advance`` is told of each step that is done."""
    found: list[Mapping[str, torch.Tensor]] = []
    for step, outputs in enumerate(walk(history, model.contract.inputs, lambda given: model.call("forward", given))):
        found.append(outputs)
        advance(step)
    return {s.name: torch.stack([one[s.name] for one in found]) for s in model.contract.outputs}


def hold(contract: Contract, history: History, found: Mapping[str, torch.Tensor]) -> None:
    """Raises ``MismatchError`` at the first step that parts from what was expected. What a step is off by is carried on
    by the states: the tolerance of step ``n`` is ``n`` times that of one call."""
    for step in range(history.steps):
        for name, wanted in history.expected.items():
            one = contract.tolerance.bounds(name, str(wanted.dtype).removeprefix("torch."))
            bounds = Bounds(one.rtol * (step + 1), one.atol * (step + 1), one.floor * (step + 1))
            result = compare(found[name][step], wanted[step], bounds)
            if not result.passed:
                raise MismatchError(
                    f"the history parts from what was expected at step {step}",
                    where=f"output {name!r}, element {list(result.worst)}",
                    got=result.got or result.reason,
                    expected=result.expected,
                )


def failed(found: Mapping[str, torch.Tensor]) -> tuple[int, int] | None:
    """The first step with a value that is not finite, and how many values are not at the end."""
    bad = [torch.isnan(v).flatten(1).any(1) for v in found.values() if v.is_floating_point() and v.numel()]
    at = torch.stack(bad).any(0).nonzero().flatten() if bad else torch.empty(0)
    last = sum(int(torch.isnan(v[-1]).sum()) for v in found.values() if v.is_floating_point() and v.numel())
    return (int(at[0]), last) if at.numel() else None


def _steps(path: Path, sides: Mapping[str, Mapping[str, torch.Tensor]]) -> int:
    counts = {
        f"{side}/{n}": v.shape[0] if v.ndim else 0 for side in (PRESCRIBED, EXPECTED) for n, v in sides[side].items()
    }
    if not sides[PRESCRIBED] or len(set(counts.values())) != 1 or not min(counts.values()):
        raise UsageError(
            "the history has no number of steps",
            where=str(path),
            got=", ".join(f"{n}: {c}" for n, c in counts.items()) or "nothing that is prescribed",
            expected="prescribed inputs, and as many steps of each",
        )
    return next(iter(counts.values()))


def _checked(contract: Contract, history: History) -> History:
    inputs, outputs = {s.name: s for s in contract.inputs}, {s.name: s for s in contract.outputs}
    # What lies one step back is needed for what lies two back, too.
    before = {own: s for n, s in inputs.items() for own in lags(*lag_of(n))}
    for side, given, known in (
        (PRESCRIBED, history.prescribed, inputs),
        (INITIAL, history.initial, before | inputs),
        (EXPECTED, history.expected, outputs),
    ):
        for name, value in given.items():
            if name not in known:
                raise UsageError(
                    f"the archive has no variable {name!r}", where=f"{side}/{name}", expected=near(name, known)
                )
            own = tuple(value.shape[value.ndim - len(known[name].shape) :])
            short = value.ndim < len(known[name].shape) + (side != INITIAL)
            if short or own != known[name].fixed or str(value.dtype) != f"torch.{known[name].dtype}":
                raise UsageError(
                    f"variable {name!r} of the history has another shape or dtype",
                    where=f"{side}/{name}",
                    got=f"{list(value.shape)} {value.dtype}",
                    expected=known[name].describe(),
                )
    for name in inputs:
        base, lag = lag_of(name)
        if name in history.prescribed:
            continue
        if base not in outputs and base not in history.prescribed:
            raise UsageError(
                f"the history does not say what input {name!r} is",
                expected=f"'{PRESCRIBED}/{name}', or an output or prescribed input {base!r} that it is fed from",
            )
        missing = [own for own in lags(base, lag) if own not in history.initial]
        if missing and not (name == base and name in history.initial):
            raise UsageError(
                f"the history has no initial value of {missing[0]!r}", expected=f"'{INITIAL}/{missing[0]}'"
            )
    return history
