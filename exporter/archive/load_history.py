"""Load histories: values prescribed step by step, and states fed back from the outputs of earlier steps.

``x~k`` is the value of the output or prescribed input ``x`` ``k`` steps back; an input ``x`` that is also an output and
is not prescribed is a first guess, and takes the value of the step before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from exporter.archive.tensor_spec import TensorSpec
from exporter.common.errors import RunError, summarize_error

PRESCRIBED, INITIAL, EXPECTED = "prescribed", "initial", "expected"
NamedTensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class LoadHistory:
    """Tensors: ``prescribed``, ``expected`` of shape ``(steps, *batch, *event)``, ``initial`` ``(*batch, *event)``."""

    prescribed: NamedTensors
    initial: NamedTensors
    expected: NamedTensors
    steps: int

    def to_file_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors by their names in a file of load histories."""
        sides = ((PRESCRIBED, self.prescribed), (INITIAL, self.initial), (EXPECTED, self.expected))
        return {f"{side}/{name}": value for side, values in sides for name, value in values.items()}


def parse_lag(name: str) -> tuple[str, int]:
    """Split a name such as ``x~2`` into the variable and its lag, which is 1 by default."""
    base, mark, count = name.rpartition("~")
    return (base, int(count)) if mark and count.isdigit() and int(count) > 0 else (name, 1)


def list_lag_names(base: str, lag: int) -> list[str]:
    """List the names ``base~1`` to ``base~lag``."""
    return [f"{base}~{k + 1}" for k in range(lag)]


def run_steps(
    history: LoadHistory, inputs: Sequence[TensorSpec], call: Callable[[dict[str, torch.Tensor]], NamedTensors]
) -> Iterator[NamedTensors]:
    """Yield outputs by name, step by step. Raises ``RunError`` where ``call`` raises ``RuntimeError``."""
    past_steps: list[dict[str, torch.Tensor]] = []
    longest_lag = max((parse_lag(s.name)[1] for s in inputs), default=1)
    for step in range(history.steps):
        prescribed = {name: values[step] for name, values in history.prescribed.items()}
        fed_back = [s.name for s in inputs if s.name not in prescribed]
        tensors = prescribed | {n: _get_lagged_value(history, past_steps, step, n) for n in fed_back}
        batch_shapes = (tensors[s.name].shape[: tensors[s.name].ndim - len(s.shape)] for s in inputs)
        batch_shape = torch.broadcast_shapes(*batch_shapes)
        try:
            outputs = call({s.name: tensors[s.name].expand(*batch_shape, *s.static_shape) for s in inputs})
        except RuntimeError as error:
            raise RunError(f"step {step} fails", where=f"step {step}", got=summarize_error(error)) from error
        yield outputs
        past_steps = [*past_steps, {**prescribed, **outputs}][-longest_lag:]


def _get_lagged_value(history: LoadHistory, past_steps: Sequence[NamedTensors], step: int, name: str) -> torch.Tensor:
    base, lag = parse_lag(name)
    if step >= lag:
        return past_steps[-lag][base]
    initial_name = f"{base}~{lag - step}"
    return history.initial[initial_name if initial_name in history.initial else name]
