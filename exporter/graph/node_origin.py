"""Where a node of torch's graph came from: submodule, line of source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from exporter.graph.origin import Origin

# ``layers.0(Linear)``, of the calls that a node was inlined from.
_INSTANCE = re.compile(r"[^.()]+(?:\.[^.()]+)*\([^)]*\)")
_FRAME = re.compile(r"(.+)\((\d+)\): ")
_NO_MODEL = re.compile(r"(^|site-packages/)(torch|exporter|runtime_checks|neml2/types)/|^torchferry\.py$|^<")
_WRITTEN_AT = re.compile(r'File "([^"]+)", line (\d+)')


def origin_of(node: Any) -> Origin:
    """Submodule, and line of source; for an operation of a captured backward pass what stands behind it there."""
    source = node.sourceRange()
    lines = source.splitlines()
    at = next((i for i, line in enumerate(lines) if line.endswith("<--- HERE")), 0)
    said = Origin.parse(lines[at - 1].rpartition("  # ")[2]) if at else None
    return said or Origin("", module=_module(node), where=_place(lines) or _written(source))


def _module(node: Any) -> str:
    parts = [part.partition("(")[0] for part in _INSTANCE.findall(node.getModuleHierarchy())]
    return ".".join(p for p in parts if p not in ("SELF", "UNKNOWN_INSTANCE"))


def _place(stack: Sequence[str]) -> str:
    """The innermost line of the stack that is the model's: not torch's, not ours, not of a library's tensor types."""
    frames = [m for line in stack if (m := _FRAME.match(line)) and not _NO_MODEL.search(m[1])]
    return f"{frames[0][1]}:{frames[0][2]}" if frames else ""


def _written(source: str) -> str:
    match = _WRITTEN_AT.search(source)
    return f"{match[1]}:{match[2]}" if match and not match[1].startswith(("<", "code/")) else ""
