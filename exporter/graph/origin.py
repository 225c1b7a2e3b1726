"""Where an operation of a captured backward pass comes from, as it stands in the file."""

from __future__ import annotations

from dataclasses import dataclass

FORWARD, BACKWARD, HOOK, AFTER = "forward", "backward", "hook", "after the backward pass"


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
