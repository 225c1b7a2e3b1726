"""Parameters whose numbers Python reads while a model is traced: to the trace, what follows from them is fixed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from exporter.capture.value_reads import ValueReadRecorder
from exporter.common.torch_internals import get_tracing_state, get_value_trace


class ParameterReadRecorder(ValueReadRecorder):
    """Records reads, and the paths of the tensors of modules that what is read was computed from (``paths``)."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: dict[str, str] = {}
        self._visited: set[int] = set()

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
            todo = [get_value_trace(tensor)]
        except RuntimeError:
            # The tracer does not know where it came from.
            return
        while todo:
            value = todo.pop()
            number, node = value.unique(), value.node()
            # Names move while a graph is traced. What was visited by an earlier read is known.
            if number in self._visited:
                continue
            self._visited.add(number)
            if node.kind() == "prim::TracedAttr":
                # The tracer makes attributes of these names when it is done.
                self.paths.setdefault(node.s("scope").removeprefix("__module."), where)
            else:
                todo += list(node.inputs())
