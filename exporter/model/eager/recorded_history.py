"""Load histories from a model's recorded calls, with eager mode's outputs at every step."""

from __future__ import annotations

import torch

from exporter.archive.load_history import LoadHistory, NamedTensors, parse_lag, run_steps
from exporter.common.errors import UsageError
from exporter.model.eager.evaluation import eager_context, evaluate
from exporter.model.source import Inputs, Source

# The largest relative deviation of an element's values from the recorded values.
VARIATION = 0.1


def record_load_history(source: Source, rows: int = 0, seed: int = 0) -> LoadHistory:
    """Build the load history of a source's recorded calls, with eager mode's outputs at every step.

    ``rows``: the size of a batch; the first element is as recorded, each other has a factor of its own, near 1, for
    each prescribed variable. Raises ``UsageError`` if the calls are no history: one call, or steps that do
    not begin where the previous step ends."""
    if len(source.calls) < 2 or not source.batch_ndim:
        what = f"model {source.name!r} has no load history"
        got = "a model with whole shapes" if not source.batch_ndim else f"{len(source.calls)} recorded steps"
        raise UsageError(what, got=got, expected="an input file with a driver of several steps")
    names = [s.name for s in source.inputs]
    with eager_context(source):
        outputs = evaluate(source, source.calls[0])
    recorded = {n: torch.stack([call[i] for call in source.calls]) for i, n in enumerate(names)}
    state_names = [n for n in names if parse_lag(n)[0] in outputs]
    lagged = [n for n in names if n not in state_names and parse_lag(n)[0] != n and parse_lag(n)[0] in names]
    prescribed = {n: v for n, v in recorded.items() if n not in (*state_names, *lagged)}
    initial: dict[str, torch.Tensor] = {}
    for n in (*state_names, *lagged):
        (base, lag), values = parse_lag(n), recorded[n]
        if n in lagged:
            _check_continuity(n, values[lag:], prescribed[base][:-lag])
        # A value two steps back at the first step is one step back at the second.
        back = {f"{base}~{lag - step}": values[step] for step in range(min(lag, len(values)))}
        initial |= back if n != base else {n: values[0]}
    if rows:
        prescribed, initial = _vary_elements(prescribed, initial, rows, torch.Generator().manual_seed(seed))
    history = LoadHistory(prescribed, initial, {}, len(source.calls))
    with eager_context(source):
        step_outputs = list(run_steps(history, source.inputs, lambda values: _call_contiguous(source, values)))
    expected = {n: torch.stack([step[n] for step in step_outputs]) for n in step_outputs[0]}
    return LoadHistory(prescribed, initial, expected, history.steps)


def _call_contiguous(source: Source, variables: NamedTensors) -> NamedTensors:
    inputs: Inputs = tuple(variables[s.name].contiguous() for s in source.inputs)
    return {n: v.detach().clone() for n, v in evaluate(source, inputs).items()}


def _check_continuity(name: str, got: torch.Tensor, prescribed: torch.Tensor) -> None:
    same = (got == prescribed).flatten(1).all(1)
    if not bool(same.all()):
        step = int((~same).nonzero()[0]) + parse_lag(name)[1]
        what, reason = "the recorded calls are not one history", f"{name!r} is not what was prescribed before"
        raise UsageError(what, where=f"step {step}", got=reason, expected="one driver that steps the model")


def _vary_elements(
    prescribed: NamedTensors, initial: NamedTensors, rows: int, generator: torch.Generator
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    varied_prescribed = {n: v[:, torch.arange(rows) % v.shape[1]] for n, v in prescribed.items()}
    varied_initial = {n: v[torch.arange(rows) % v.shape[0]] for n, v in initial.items()}
    for name, value in varied_prescribed.items():
        factor = 1 + VARIATION * (2 * torch.rand(rows, generator=generator, dtype=torch.float64) - 1)
        factor[0] = 1.0
        varied_prescribed[name] = value * factor.reshape(1, rows, *[1] * (value.ndim - 2)).to(value.dtype)
        for state_name, start in varied_initial.items():
            if parse_lag(state_name)[0] == name:
                varied_initial[state_name] = start * factor.reshape(rows, *[1] * (start.ndim - 1)).to(value.dtype)
    return varied_prescribed, varied_initial
