"""The operations of an archive's methods, each with where it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from exporter.archive import pt_archive
from exporter.archive.method_names import METHOD
from exporter.archive.pt_archive import Archive
from exporter.graph.ir import Graph
from exporter.graph.loading import loaded
from exporter.graph.origin import BACKWARD, HOOK, Origin
from exporter.graph.reader import Saved, read, settable_names

# What only makes lists and numbers of what is there.
_PLUMBING = ("prim::ListConstruct", "prim::TupleConstruct", "prim::NumToTensor")


@dataclass(frozen=True)
class Step:
    operator: str
    origin: Origin

    @property
    def of_backward(self) -> bool:
        return self.origin.part in (BACKWARD, HOOK)


@dataclass(frozen=True)
class Opened:
    """An archive, its module as torch loads it, and the module's graphs."""

    archive: Archive
    module: torch.jit.ScriptModule
    saved: Saved


def opened(path: Path) -> Opened:
    """Raises ``ArchiveError`` for a file that is damaged or does not load."""
    records = pt_archive.read(path)
    module = loaded(path)
    return Opened(records, module, read(module, settable_names(records.contract)))


def captured_methods(saved: Saved) -> dict[str, tuple[Step, ...]]:
    """The methods that were captured, by name: those behind ``forward``, ``jvp`` and their kin."""
    names = [n for n in saved.graphs if n.endswith("_batch") and n != "broadcast_batch"]
    return {name: steps(saved.graphs[name]) for name in names}


def steps(graph: Graph) -> tuple[Step, ...]:
    """What the method computes, in order."""
    return tuple(Step(node.kind, node.origin) for node in graph if node.kind not in _PLUMBING)


def captured_steps(one: Opened) -> Sequence[Step]:
    """Those of the model itself."""
    return steps(one.saved.graphs[METHOD])
