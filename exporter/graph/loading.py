"""Loading of TorchScript files into torch, on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from exporter.archive import pt_archive
from exporter.archive.contract import Contract
from exporter.archive.method_names import BLOCKS
from exporter.archive.pt_archive import Archive
from exporter.common.errors import ArchiveError, ForeignError, summarize_error
from exporter.common.script_loading import load_script
from exporter.common.torch_hooks import ignore_deprecations


@dataclass(frozen=True)
class File:
    """A TorchScript file: an archive with its contract, or a foreign one.

    Each ``load`` gives a new module: one that has run keeps the graphs of torch's executor."""

    path: Path
    archive: Archive | None

    @property
    def contract(self) -> Contract | None:
        """Return the contract of an archive, None for a foreign file."""
        return self.archive.contract if self.archive else None

    def load(self) -> torch.jit.ScriptModule:
        """Load the module anew."""
        return load_module(self.path)


def open_file(path: Path) -> File:
    """Open a file; raise ``ArchiveError`` if it is damaged or no TorchScript."""
    try:
        opened = pt_archive.read(path)
        if opened.holds != "graphs":
            what, expected = "this file holds no graphs of TorchScript", "the .pt that it was made from"
            raise ArchiveError(what, where=str(path), expected=expected)
        return File(path, opened)
    except ForeignError:
        return File(path, None)


def load_module(path: Path) -> torch.jit.ScriptModule:
    """Load any TorchScript file; raise ``ArchiveError`` if that fails, or if loading would run code of the file."""
    pt_archive.check_file_runs_nothing(path)
    with ignore_deprecations():
        try:
            return load_script(str(path))
        except ValueError as error:
            what, expected = "the file calls what does not only compute", "operators that compute from their arguments"
            mend = "leave printing, files, random states and threads to the host"
            raise ArchiveError(what, where=str(path), got=str(error), expected=expected, mend=mend) from None
        except Exception as error:
            got, expected = summarize_error(error), "a TorchScript file, as torch.jit.save writes it"
            raise ArchiveError("the file does not load", where=str(path), got=got, expected=expected) from error


def resolve_captured_method(module: torch.jit.ScriptModule, method: str) -> str:
    """Return the name of the graph behind a method of the contract, without the shape checks around it."""
    available = module._c._method_names()
    candidates = [f"{method}_batch", *([BLOCKS] if method == "jacobian" else [])]
    return next((name for name in candidates if name in available), method)
