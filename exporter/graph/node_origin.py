"""Origin of a node of torch's graph: submodule and source line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from exporter.graph.origin import Origin

# ``layers.0(Linear)`` in the calls that a node was inlined from.
_INSTANCE = re.compile(r"[^.()]+(?:\.[^.()]+)*\([^)]*\)")
_FRAME = re.compile(r"(.+)\((\d+)\): ")
_NOT_MODEL_PATH = re.compile(r"(^|site-packages/)(torch|exporter|runtime_checks|neml2/types)/|^torchferry\.py$|^<")
_FILE_LINE = re.compile(r'File "([^"]+)", line (\d+)')


def find_origin(node: Any) -> Origin:
    """Return submodule and source line; for an operation of a captured backward pass the origin noted there."""
    source = node.sourceRange()
    lines = source.splitlines()
    index = next((i for i, line in enumerate(lines) if line.endswith("<--- HERE")), 0)
    noted_origin = Origin.parse(lines[index - 1].rpartition("  # ")[2]) if index else None
    where = _find_user_line(lines) or _find_script_line(source)
    return noted_origin or Origin("", module=_find_module(node), where=where)


def _find_module(node: Any) -> str:
    parts = [part.partition("(")[0] for part in _INSTANCE.findall(node.getModuleHierarchy())]
    return ".".join(p for p in parts if p not in ("SELF", "UNKNOWN_INSTANCE"))


def _find_user_line(stack: Sequence[str]) -> str:
    """Return the innermost stack line of the model: not torch's, not ours, not of a library's tensor types."""
    frames = [m for line in stack if (m := _FRAME.match(line)) and not _NOT_MODEL_PATH.search(m[1])]
    return f"{frames[0][1]}:{frames[0][2]}" if frames else ""


def _find_script_line(source: str) -> str:
    match = _FILE_LINE.search(source)
    return f"{match[1]}:{match[2]}" if match and not match[1].startswith(("<", "code/")) else ""
