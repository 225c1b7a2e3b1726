"""Operations of an archive's methods, each with its origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from exporter.archive import pt_archive
from exporter.archive.method_names import METHOD
from exporter.archive.pt_archive import Archive
from exporter.graph.loading import load_module
from exporter.graph.reader import list_settable_tensors, read
from exporter.saved_code.ir import Graph, SavedGraphs
from exporter.saved_code.origin import BACKWARD, HOOK, Origin

# Operations that only make lists and numbers of existing values.
_PLUMBING = ("prim::ListConstruct", "prim::TupleConstruct", "prim::NumToTensor")


@dataclass(frozen=True)
class Step:
    """One operation of a method, with its origin."""

    operator: str
    origin: Origin

    @property
    def is_backward(self) -> bool:
        """Return whether the operation belongs to the backward pass or to a hook."""
        return self.origin.part in (BACKWARD, HOOK)


@dataclass(frozen=True)
class OpenedArchive:
    """An archive, its module as torch loads it, and the module's graphs."""

    archive: Archive
    module: torch.jit.ScriptModule
    saved: SavedGraphs


def open_archive(path: Path) -> OpenedArchive:
    """Open an archive; raise ``ArchiveError`` if it is damaged or does not load."""
    records = pt_archive.read(path)
    module = load_module(path)
    return OpenedArchive(records, module, read(module, list_settable_tensors(records.contract)))


def list_captured_methods(saved: SavedGraphs) -> dict[str, tuple[Step, ...]]:
    """Return the captured methods by name: those behind ``forward``, ``jvp`` and their kin."""
    names = [n for n in saved.graphs if n.endswith("_batch") and n != "broadcast_batch"]
    return {name: list_steps(saved.graphs[name]) for name in names}


def list_steps(graph: Graph) -> tuple[Step, ...]:
    """Return what the method computes, in order."""
    return tuple(Step(node.kind, node.origin) for node in graph if node.kind not in _PLUMBING)


def list_model_steps(source: OpenedArchive) -> Sequence[Step]:
    """Return the steps of the model itself."""
    return list_steps(source.saved.graphs[METHOD])
