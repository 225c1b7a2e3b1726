"""Where an operation comes from: submodule and source line, and the part of a captured backward pass."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exporter.common.user_code import COMPILED_LINE, TRACED_LINE

FORWARD, BACKWARD, HOOK, AFTER = "forward", "backward", "hook", "after the backward pass"
# ``layers.0(Linear)`` in the calls that a node was inlined from.
_INSTANCE = re.compile(r"[^.()]+(?:\.[^.()]+)*\([^)]*\)")
_NOT_MODEL_PATH = re.compile(r"(^|site-packages/)(torch|exporter|runtime_checks|torchferry|neml2/types)/|^<")


@dataclass(frozen=True)
class Origin:
    """The origin of an operation. ``of``: the autograd node that runs, or the hook. ``where`` is the line of the
    forward pass for operations of the engine itself, else the line of the call; in a file without its folders."""

    part: str
    of: str = ""
    module: str = ""
    where: str = ""

    def to_text(self) -> str:
        """Return one line, as it stands after an operation in the file."""
        line = self.where.rpartition("/")[2]
        return f"{self.part} {self.of}".strip() + "".join(f" | {p}" for p in (self.module or "-", line or "-"))

    @classmethod
    def parse(cls, text: str) -> Origin | None:
        """Parse the text of an origin; return None for any other text."""
        head, *fields = text.strip().split(" | ")
        part = next((p for p in (AFTER, FORWARD, BACKWARD, HOOK) if f"{head} ".startswith(f"{p} ")), None)
        if part is None or len(fields) != 2:
            return None
        return cls(part, head.removeprefix(part).strip(), *("" if r == "-" else r for r in fields))


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
    frames = [m for line in stack if (m := TRACED_LINE.match(line)) and not _NOT_MODEL_PATH.search(m[1])]
    return f"{frames[0][1]}:{frames[0][2]}" if frames else ""


def _find_script_line(source: str) -> str:
    match = COMPILED_LINE.search(source)
    return f"{match[1]}:{match[2]}" if match and not match[1].startswith(("<", "code/")) else ""
