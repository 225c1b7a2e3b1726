"""TorchScript files into torch, on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from exporter.archive import pt_archive
from exporter.archive.contract import Contract
from exporter.archive.method_names import BLOCKS
from exporter.archive.pt_archive import Archive
from exporter.common.errors import ArchiveError, ForeignError, first_line
from exporter.common.torch_hooks import quiet_deprecations


@dataclass(frozen=True)
class File:
    """A TorchScript file: an archive with its contract, or one of somebody else's.

    ``module`` is loaded anew each time: one that has run keeps what torch's executor made of it.
    """

    path: Path
    archive: Archive | None

    @property
    def contract(self) -> Contract | None:
        return self.archive.contract if self.archive else None

    def module(self) -> torch.jit.ScriptModule:
        return loaded(self.path)


def opened_file(path: Path) -> File:
    """Raises ``ArchiveError`` for a file that is damaged or no TorchScript."""
    try:
        opened = pt_archive.read(path)
        if opened.holds != "graphs":
            raise ArchiveError(
                "this file holds no graphs of TorchScript", where=str(path), expected="the .pt that it was made of"
            )
        return File(path, opened)
    except ForeignError:
        return File(path, None)


def loaded(path: Path) -> torch.jit.ScriptModule:
    """Any TorchScript file; raises ``ArchiveError`` where it does not load."""
    with quiet_deprecations():
        try:
            return torch.jit.load(str(path), map_location="cpu")
        except Exception as error:
            raise ArchiveError(
                "the file does not load",
                where=str(path),
                got=first_line(error),
                expected="a TorchScript file, as torch.jit.save writes it",
            ) from error


def captured_name(module: torch.jit.ScriptModule, method: str) -> str:
    """The graph behind a method of the contract, without the checks of shapes around it."""
    there = module._c._method_names()
    ways = [f"{method}_batch", *([BLOCKS] if method == "jacobian" else [])]
    return next((name for name in ways if name in there), method)
