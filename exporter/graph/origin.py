"""Where an operation of a captured backward pass comes from, as it stands in the file."""

from __future__ import annotations

from dataclasses import dataclass

FORWARD, BACKWARD, HOOK, AFTER = "forward", "backward", "hook", "after the backward pass"


@dataclass(frozen=True)
class Origin:
    """``of``: the node of autograd that runs, or the hook. ``where`` is the line of the forward pass for what the
    engine does itself, else the line that asked; without its folders in a file."""

    part: str
    of: str = ""
    module: str = ""
    where: str = ""

    def text(self) -> str:
        """One line, as it stands behind an operation in the file."""
        line = self.where.rpartition("/")[2]
        return f"{self.part} {self.of}".strip() + "".join(f" | {p}" for p in (self.module or "-", line or "-"))

    @classmethod
    def parse(cls, text: str) -> Origin | None:
        """None for a text that is no origin."""
        head, *rest = text.strip().split(" | ")
        part = next((p for p in (AFTER, FORWARD, BACKWARD, HOOK) if f"{head} ".startswith(f"{p} ")), None)
        if part is None or len(rest) != 2:
            return None
        return cls(part, head.removeprefix(part).strip(), *("" if r == "-" else r for r in rest))
