"""Parameters whose numbers Python reads while a model is traced: to the trace, what follows from them is fixed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from exporter.capture.data_dependence import reads_shape_only
from exporter.capture.value_reads import ValueReadRecorder
from exporter.common.script_loading import list_inputs
from exporter.common.torch_internals import get_tracing_state, get_value_trace


class ParameterReadRecorder(ValueReadRecorder):
    """Records reads, and the paths of the tensors of modules that what is read was computed from (``paths``).

    What an input of the model goes into as well is left to the soundness gate: where such a read has an effect, no file
    is written."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: dict[str, str] = {}
        # By the number of a value: whether an input of the model goes into it.
        self._has_input: dict[int, bool] = {}

    def note(self, label: str, value: Any, tensors: Iterable[torch.Tensor], *, size: bool = False) -> Any:
        """Record a read, and what it depends on; sizes of a parameter do not change with its numbers."""
        tensors = tuple(tensors)
        result = super().note(label, value, tensors, size=size)
        if get_tracing_state() and not size:
            for tensor in tensors:
                self._collect(tensor, self.reads[-1].where or "a line that is not the user's")
        return result

    def _collect(self, tensor: torch.Tensor, where: str) -> None:
        try:
            value = get_value_trace(tensor)
        except RuntimeError:
            # The tracer does not know where it came from.
            return
        if self._depends_on_input(value):
            return
        todo, visited = [value], set[int]()
        while todo:
            value = todo.pop()
            if value.unique() in visited:
                continue
            visited.add(value.unique())
            if value.node().kind() == "prim::TracedAttr":
                # The tracer makes attributes of these names when it is done.
                self.paths.setdefault(value.node().s("scope").removeprefix("__module."), where)
            todo += _list_sources(value)

    def _depends_on_input(self, value: Any) -> bool:
        todo = [value]
        while todo:
            current = todo[-1]
            sources = _list_sources(current)
            unknown = [source for source in sources if source.unique() not in self._has_input]
            if unknown:
                todo += unknown
                continue
            is_input = current.node().kind() == "prim::Param"
            self._has_input[current.unique()] = is_input or any(self._has_input[s.unique()] for s in sources)
            todo.pop()
        return self._has_input[value.unique()]


def _list_sources(value: Any) -> list[Any]:
    """List the values whose numbers go into a value."""
    node = value.node()
    return list_inputs(node)[1 if reads_shape_only(node) else 0 :]
