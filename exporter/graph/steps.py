"""The operations of an archive's methods, each with where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exporter import archive
from exporter.archive import Archive
from exporter.capture.boxes import BLOCKS, METHOD
from exporter.capture.operators import location, nodes
from exporter.capture.origins import BACKWARD, HOOK, Origin
from exporter.capture.trace import quiet_deprecations
from exporter.errors import ArchiveError, first_line

# What only makes constants and lists of them.
_PLUMBING = ("prim::Constant", "prim::GetAttr", "prim::ListConstruct", "prim::TupleConstruct", "prim::NumToTensor")


@dataclass(frozen=True)
class Step:
    operator: str
    origin: Origin

    @property
    def of_backward(self) -> bool:
        return self.origin.part in (BACKWARD, HOOK)


@dataclass(frozen=True)
class Opened:
    """An archive, and its module as torch loads it."""

    archive: Archive
    module: torch.jit.ScriptModule


def opened(path: Path) -> Opened:
    """Raises ``ArchiveError`` for a file that is damaged or does not load."""
    records = archive.read(path)
    with quiet_deprecations():
        try:
            return Opened(records, torch.jit.load(str(path), map_location="cpu"))
        except Exception as error:
            raise ArchiveError("the archive does not load", where=str(path), got=first_line(error)) from error


def captured_methods(module: torch.jit.ScriptModule) -> dict[str, tuple[Step, ...]]:
    """The methods that were captured, by name: those behind ``forward``, ``jvp`` and their kin."""
    names = sorted(n for n in module._c._method_names() if n.endswith("_batch") and n != "broadcast_batch")
    return {name: steps(module, name) for name in names}


def steps(module: torch.jit.ScriptModule, method: str = METHOD) -> tuple[Step, ...]:
    """What the method computes, in order. Calls of submodules are inlined; one method's call of another is not."""
    graph = module._c._get_method(method).graph.copy()
    if method in (METHOD, BLOCKS):
        torch._C._jit_pass_inline(graph)
    return tuple(Step(node.kind(), _origin(node)) for node in nodes(graph) if node.kind() not in _PLUMBING)


def _origin(node: Any) -> Origin:
    """From the comment that stands behind the operation in its source; a traced one has its line."""
    lines = node.sourceRange().splitlines()
    at = next((i for i, line in enumerate(lines) if line.endswith("<--- HERE")), 0)
    found = Origin.parse(lines[at - 1].rpartition("  # ")[2]) if at else None
    return found or Origin("", where=location(node))
