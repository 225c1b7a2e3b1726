"""Run of an archive over a load history: prescribed inputs step by step, states fed back.

A history file is a ``torch.save``d dict of tensors: ``"prescribed/<input>"`` of shape ``(steps, *batch, *event)``,
``"initial/<input>"`` of shape ``(*batch, *event)`` for variables that are fed back (``x~1``: ``x`` one step before),
and ``"expected/<output>"`` of shape ``(steps, *batch, *event)`` if there are values to compare with.
``exporter/archive/load_history.py`` says how states are fed back."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from exporter.archive.contract import Bounds, Contract
from exporter.archive.load_history import (
    EXPECTED,
    INITIAL,
    PRESCRIBED,
    LoadHistory,
    list_lag_names,
    parse_lag,
    run_steps,
)
from exporter.archive.tensor_spec import name_dtype
from exporter.common.errors import MismatchError, UsageError, suggest_names, summarize_error
from runtime_checks.comparison import compare_tensors, find_scale
from runtime_checks.model import Model


def read(path: Path, contract: Contract) -> LoadHistory:
    """Read a history file. Raise ``UsageError`` if it is no history of this archive, naming what is missing."""
    if not path.is_file():
        raise UsageError("there is no history file", where=str(path), expected="a .pt file of tensors by name")
    try:
        content = torch.load(path, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        what, mend = "the history file does not load", "write it with torch.save, or with torchferry history"
        raise UsageError(what, where=str(path), got=summarize_error(error), mend=mend) from None
    sides: dict[str, dict[str, torch.Tensor]] = {PRESCRIBED: {}, INITIAL: {}, EXPECTED: {}}
    for key, value in content.items() if isinstance(content, dict) else ():
        side, _, name = str(key).partition("/")
        if side in sides and name and isinstance(value, torch.Tensor):
            sides[side][name] = value
        else:
            expected = " or ".join(f"'{s}/NAME'" for s in sides) + ", each a tensor"
            raise UsageError("the history file has an unknown entry", where=f"{path}, {key!r}", expected=expected)
    history = LoadHistory(sides[PRESCRIBED], sides[INITIAL], sides[EXPECTED], _count_steps(path, sides))
    return _check_variables(contract, history)


def run(
    model: Model,
    history: LoadHistory,
    advance: Callable[[int], object] = lambda step: None,
    look: Callable[[int, Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]], object] = lambda *step: None,
) -> dict[str, torch.Tensor]:
    """Return the outputs by name, each ``(steps, *batch, *event)``; ``advance`` is told of each finished step, ``look``
    of its inputs and outputs, too."""
    per_step: list[Mapping[str, torch.Tensor]] = []

    def call(inputs: dict[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        outputs = model.call_from_anywhere("forward", inputs)
        look(len(per_step), inputs, outputs)
        return outputs

    steps = run_steps(history, model.contract.inputs, call)
    for step, outputs in enumerate(steps):
        per_step.append(outputs)
        advance(step)
    return {s.name: torch.stack([step_outputs[s.name] for step_outputs in per_step]) for s in model.contract.outputs}


def check_history(contract: Contract, history: LoadHistory, outputs: Mapping[str, torch.Tensor]) -> None:
    """Raise ``MismatchError`` at the first step that departs from the expected values. States carry the error of a step
    on: the tolerance of step ``n`` is ``n`` times that of a call. Rounding is relative to all steps' numbers."""
    scales = {name: find_scale(expected) for name, expected in history.expected.items()}
    for step in range(history.steps):
        for name, expected in history.expected.items():
            tolerance = contract.tolerance.bounds(name, name_dtype(expected))
            bounds = Bounds(tolerance.rtol * (step + 1), tolerance.atol * (step + 1), tolerance.floor * (step + 1))
            result = compare_tensors(outputs[name][step], expected[step], bounds, scales[name])
            if not result.passed:
                what = f"the history departs from the expected values at step {step}"
                where = f"output {name!r}, element {list(result.worst)}"
                raise MismatchError(what, where=where, got=result.got or result.reason, expected=result.expected)


def find_failure(outputs: Mapping[str, torch.Tensor]) -> tuple[int, int] | None:
    """Return the first step with a value that is not finite and the count of them at the end; None if there is none."""
    bad = [torch.isnan(v).flatten(1).any(1) for v in outputs.values() if v.is_floating_point() and v.numel()]
    failing_steps = torch.stack(bad).any(0).nonzero().flatten() if bad else torch.empty(0)
    last = sum(int(torch.isnan(v[-1]).sum()) for v in outputs.values() if v.is_floating_point() and v.numel())
    return (int(failing_steps[0]), last) if failing_steps.numel() else None


def _count_steps(path: Path, sides: Mapping[str, Mapping[str, torch.Tensor]]) -> int:
    rows = {f"{side}/{name}": value for side in (PRESCRIBED, EXPECTED) for name, value in sides[side].items()}
    counts = {name: value.shape[0] if value.ndim else 0 for name, value in rows.items()}
    if not sides[PRESCRIBED] or len(set(counts.values())) != 1 or not min(counts.values()):
        what = "the number of steps of the history is unclear"
        expected = "prescribed inputs, each with the same number of steps"
        got = ", ".join(f"{n}: {c}" for n, c in counts.items()) or "no prescribed input"
        raise UsageError(what, where=str(path), got=got, expected=expected)
    return next(iter(counts.values()))


def _check_variables(contract: Contract, history: LoadHistory) -> LoadHistory:
    inputs, outputs = {s.name: s for s in contract.inputs}, {s.name: s for s in contract.outputs}
    # A value two steps back also needs the one a step back.
    before = {lagged: s for n, s in inputs.items() for lagged in list_lag_names(*parse_lag(n))}
    for side, values, specs in (
        (PRESCRIBED, history.prescribed, inputs),
        (INITIAL, history.initial, before | inputs),
        (EXPECTED, history.expected, outputs),
    ):
        for name, value in values.items():
            if name not in specs:
                what, where = f"the archive has no variable {name!r}", f"{side}/{name}"
                raise UsageError(what, where=where, expected=suggest_names(name, specs))
            event_shape = tuple(value.shape[value.ndim - len(specs[name].shape) :])
            short = value.ndim < len(specs[name].shape) + (side != INITIAL)
            if short or event_shape != specs[name].static_shape or str(value.dtype) != f"torch.{specs[name].dtype}":
                what, where = f"variable {name!r} of the history has another shape or dtype", f"{side}/{name}"
                got = f"{list(value.shape)} {value.dtype}"
                raise UsageError(what, where=where, got=got, expected=specs[name].describe())
    for name in inputs:
        base, lag = parse_lag(name)
        if name in history.prescribed:
            continue
        if base not in outputs and base not in history.prescribed:
            expected = f"'{PRESCRIBED}/{name}', or an output or prescribed input {base!r} that it is fed from"
            raise UsageError(f"the history does not define input {name!r}", expected=expected)
        missing = [lagged for lagged in list_lag_names(base, lag) if lagged not in history.initial]
        if missing and not (name == base and name in history.initial):
            what = f"the history has no initial value of {missing[0]!r}"
            raise UsageError(what, expected=f"'{INITIAL}/{missing[0]}'")
    return history
