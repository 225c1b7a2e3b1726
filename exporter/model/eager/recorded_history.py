"""The load history that recorded calls of a model are, with eager mode's outputs at every step."""

from __future__ import annotations

import torch

from exporter.archive.load_history import History, Named, lag_of, walk
from exporter.common.errors import UsageError
from exporter.model.eager.evaluation import evaluate, inference_conditions
from exporter.model.source import Inputs, Source

# How far the values of an element are from those that were recorded, at most.
VARIED = 0.1


def recorded(source: Source, rows: int = 0, seed: int = 0) -> History:
    """The history that the recorded calls of a source are, with eager mode's outputs at every step.

    ``rows``: a batch of as many elements, the first as it was recorded, each other with a factor of its own, near 1, to
    each of the prescribed variables. Raises ``UsageError`` where the calls are no history: one call, or steps that do
    not begin where the one before ends.
    """
    if len(source.calls) < 2 or not source.batch_ndim:
        raise UsageError(
            f"nothing is known of a load history of {source.name!r}",
            got="a model with whole shapes" if not source.batch_ndim else f"{len(source.calls)} recorded steps",
            expected="an input file with a driver of several steps",
        )
    names = [s.name for s in source.inputs]
    with inference_conditions(source):
        outputs = evaluate(source, source.calls[0])
    fed = {n: lag_of(n)[0] for n in names if lag_of(n)[0] in outputs}
    lagged = {n: lag_of(n)[0] for n in names if n not in fed and lag_of(n)[0] != n and lag_of(n)[0] in names}
    prescribed = {
        n: torch.stack([call[i] for call in source.calls]) for i, n in enumerate(names) if n not in fed | lagged
    }
    initial: dict[str, torch.Tensor] = {}
    for n in (*fed, *lagged):
        (base, lag), values = lag_of(n), torch.stack([call[names.index(n)] for call in source.calls])
        if n in lagged:
            _refuse_gaps(n, values[lag:], prescribed[base][:-lag])
        # What lies two steps back at the first step lies one back at the second.
        back = {f"{base}~{lag - step}": values[step] for step in range(min(lag, len(values)))}
        initial |= back if n != base else {n: values[0]}
    if rows:
        prescribed, initial = _varied(prescribed, initial, rows, torch.Generator().manual_seed(seed))
    history = History(prescribed, initial, {}, len(source.calls))
    with inference_conditions(source):
        found = list(walk(history, source.inputs, lambda given: _contiguous_call(source, given)))
    expected = {n: torch.stack([step[n] for step in found]) for n in found[0]}
    return History(prescribed, initial, expected, history.steps)


def _contiguous_call(source: Source, given: Named) -> Named:
    inputs: Inputs = tuple(given[s.name].contiguous() for s in source.inputs)
    return {n: v.detach().clone() for n, v in evaluate(source, inputs).items()}


def _refuse_gaps(name: str, got: torch.Tensor, prescribed: torch.Tensor) -> None:
    same = (got == prescribed).flatten(1).all(1)
    if not bool(same.all()):
        step = int((~same).nonzero()[0]) + lag_of(name)[1]
        raise UsageError(
            "the recorded calls are not one history",
            where=f"step {step}",
            got=f"{name!r} is not what was prescribed before",
            expected="one driver that steps the model",
        )


def _varied(
    prescribed: Named, initial: Named, rows: int, generator: torch.Generator
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    some = {n: v[:, torch.arange(rows) % v.shape[1]] for n, v in prescribed.items()}
    first = {n: v[torch.arange(rows) % v.shape[0]] for n, v in initial.items()}
    for name, value in some.items():
        factor = 1 + VARIED * (2 * torch.rand(rows, generator=generator, dtype=torch.float64) - 1)
        factor[0] = 1.0
        some[name] = value * factor.reshape(1, rows, *[1] * (value.ndim - 2)).to(value.dtype)
        for other, start in first.items():
            if lag_of(other)[0] == name:
                first[other] = start * factor.reshape(rows, *[1] * (start.ndim - 1)).to(value.dtype)
    return some, first
