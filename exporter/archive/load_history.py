"""Load histories: what is prescribed step by step, states fed back from what a step gave.

``x~k`` is the value of the output or prescribed input ``x`` that lies ``k`` steps back; an input ``x`` that is an
output, too, and is not prescribed, is a first guess, and takes the value of the step before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from exporter.archive.tensor_spec import TensorSpec
from exporter.common.errors import RunError, first_line

PRESCRIBED, INITIAL, EXPECTED = "prescribed", "initial", "expected"
Named = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class History:
    """``prescribed`` and ``expected`` by name, each ``(steps, *batch, *own)``; ``initial`` is ``(*batch, *own)``."""

    prescribed: Named
    initial: Named
    expected: Named
    steps: int

    def as_file(self) -> dict[str, torch.Tensor]:
        sides = ((PRESCRIBED, self.prescribed), (INITIAL, self.initial), (EXPECTED, self.expected))
        return {f"{side}/{name}": value for side, values in sides for name, value in values.items()}


def lag_of(name: str) -> tuple[str, int]:
    base, mark, count = name.rpartition("~")
    return (base, int(count)) if mark and count.isdigit() and int(count) > 0 else (name, 1)


def lags(base: str, lag: int) -> list[str]:
    return [f"{base}~{k + 1}" for k in range(lag)]


def walk(
    history: History, inputs: Sequence[TensorSpec], call: Callable[[dict[str, torch.Tensor]], Named]
) -> Iterator[Named]:
    """Outputs by name, step by step. Raises ``RunError`` where ``call`` raises ``RuntimeError``."""
    passed: list[dict[str, torch.Tensor]] = []
    reach = max((lag_of(s.name)[1] for s in inputs), default=1)
    for step in range(history.steps):
        now = {name: values[step] for name, values in history.prescribed.items()}
        given = {s.name: now[s.name] if s.name in now else _before(history, passed, step, s.name) for s in inputs}
        lead = torch.broadcast_shapes(*(given[s.name].shape[: given[s.name].ndim - len(s.shape)] for s in inputs))
        try:
            outputs = call({s.name: given[s.name].expand(*lead, *s.fixed) for s in inputs})
        except RuntimeError as error:
            raise RunError(f"step {step} fails", where=f"step {step}", got=first_line(error)) from error
        yield outputs
        passed = [*passed, {**now, **outputs}][-reach:]


def _before(history: History, passed: Sequence[Named], step: int, name: str) -> torch.Tensor:
    base, lag = lag_of(name)
    if step >= lag:
        return passed[-lag][base]
    own = f"{base}~{lag - step}"
    return history.initial[own if own in history.initial else name]
