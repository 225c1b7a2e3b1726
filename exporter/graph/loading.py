"""Loading of TorchScript files into torch, on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from exporter.archive import pt_archive
from exporter.archive.contract import Contract
from exporter.archive.method_names import BLOCKS
from exporter.archive.pt_archive import Archive
from exporter.common.errors import ArchiveError, ForeignError, summarize_error
from exporter.common.script_loading import load_script
from exporter.common.torch_hooks import ignore_deprecations
from exporter.common.torch_internals import HAS_TORCH_SCRIPT, optimized_execution, require_torch_script
from exporter.graph.reader import read_methods
from exporter.saved_code.ir import SavedGraphs
from exporter.saved_code.saved_module import SavedModule


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
    """Load any TorchScript file.

    Raises ``ArchiveError`` if that fails, or if loading would run code of the file, and ``MissingRuntimeError`` where
    torch has no TorchScript."""
    require_torch_script()
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


class LoadedModule(Protocol):
    """A module of a file, whoever has loaded it: its tensors by dotted name, its graphs, and what they compute."""

    @property
    def method_names(self) -> Collection[str]:
        """Return the names of the methods of the module itself."""
        ...

    @property
    def named_parameters(self) -> Mapping[str, torch.Tensor]:
        """Return the parameters by name, to be written to in place."""
        ...

    @property
    def named_buffers(self) -> Mapping[str, torch.Tensor]:
        """Return the buffers by name, to be written to in place."""
        ...

    def get_value(self, path: str) -> Any:
        """Return an attribute that is no module."""
        ...

    def read_methods(self, methods: Collection[str], apart: Collection[str] = ()) -> SavedGraphs:
        """Read methods and what they call; a call of a submodule at a path of ``apart`` stays a node."""
        ...

    def run(self, method: str, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Run a method a few times at most: nothing is optimised first."""
        ...


class ScriptedModule:
    """A module that torch has loaded, as a ``LoadedModule``."""

    def __init__(self, module: torch.jit.ScriptModule) -> None:
        self._module = module
        self.method_names: Collection[str] = module._c._method_names()
        self.named_parameters = dict(module.named_parameters())
        self.named_buffers = dict(module.named_buffers())

    def get_value(self, path: str) -> Any:
        """Return an attribute that is no module."""
        return functools.reduce(getattr, path.split("."), self._module)

    def read_methods(self, methods: Collection[str], apart: Collection[str] = ()) -> SavedGraphs:
        """Read methods, with the lines that they came from."""
        return read_methods(self._module, methods, apart)

    def run(self, method: str, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Run a method by torch's executor, without its optimisation."""
        with optimized_execution(False):
            return getattr(self._module, method)(*inputs)


def open_module(archive: Archive) -> LoadedModule:
    """Open the module of an archive: by torch, or from its records where this torch has no TorchScript.

    Raises ``ArchiveError`` if that fails, or if loading would run code of the file."""
    return ScriptedModule(load_module(archive.path)) if HAS_TORCH_SCRIPT else SavedModule(archive)


def resolve_captured_method(available: Collection[str], method: str) -> str:
    """Return the name of the graph behind a method of the contract, without the shape checks around it."""
    candidates = [f"{method}_batch", *([BLOCKS] if method == "jacobian" else [])]
    return next((name for name in candidates if name in available), method)
