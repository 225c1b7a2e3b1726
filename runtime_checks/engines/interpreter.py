"""The engine that evaluates the graphs of an archive in Python, operator by operator: it needs no ``torch.jit``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from exporter.archive.pt_archive import Archive
from exporter.common.errors import RunError, TorchferryError, UsageError, summarize_error
from exporter.common.torch_internals import parse_target
from exporter.saved_code.saved_module import SavedModule


class InterpreterEngine:
    """An engine for an archive, whose records it reads itself. Shapes and batches are checked by the archive's graphs.

    Raises ``ArchiveError`` for records that are damaged, and ``UnsupportedError``, with record and line, for code that
    ``torch.jit`` alone reads."""

    def __init__(self, opened: Archive, device: str | torch.device = "cpu") -> None:
        self._opened = opened
        self._module = SavedModule(opened, device)
        # What cannot be read is said when the file is loaded, not at a call.
        self._module.prepare(list(opened.contract.methods))

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]:
        return self._module.named_parameters

    @property
    def buffers(self) -> Mapping[str, torch.Tensor]:
        return self._module.named_buffers

    def run(self, method: str, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        try:
            return tuple(self._module.run(method, inputs))
        except TorchferryError:
            raise
        except NotImplementedError as error:
            where, got, mend = str(self._opened.path), summarize_error(error), "load it with a torch that has torch.jit"
            raise RunError(f"method {method!r} does not run in Python", where=where, got=got, mend=mend) from error

    def to(self, *target: Any) -> torch.device | None:
        device, dtype, *_ = parse_target(*target)
        if dtype is not None:
            what, mend = "the interpreter keeps the dtypes of the file", "move it to a device only"
            raise UsageError(what, got=str(dtype), mend=mend)
        if device is not None:
            self._module.to(device)
        return device
