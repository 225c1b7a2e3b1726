"""What compiled code needs of a machine: kind of processor, its instructions, torch. Imports no torch."""

from __future__ import annotations

import dataclasses
import json
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from exporter.common.errors import ArchiveError, RunError

_CPUINFO = Path("/proc/cpuinfo")
# Instruction sets that compilers use, by the names of Linux.
_SETS = re.compile(r"(avx|sse|ssse|fma|f16c|bmi|amx|popcnt|movbe|abm|asimd|sve|neon|fp16|bf16|i8mm|vnni|gfni)\w*$")


@dataclass(frozen=True)
class Machine:
    """``torch`` is its version without the build; ``device`` where the code runs; ``instructions`` beyond the usual."""

    system: str
    processor: str
    instructions: tuple[str, ...]
    torch: str
    device: str

    def to_json(self) -> bytes:
        return json.dumps(dataclasses.asdict(self), sort_keys=True).encode()


def here(torch_version: str, device: str) -> Machine:
    return Machine(
        platform.system(), platform.machine(), instructions(), torch_version.partition("+")[0], device.partition(":")[0]
    )


def instructions() -> tuple[str, ...]:
    """Empty where the system does not tell."""
    if not _CPUINFO.exists():
        return ()
    for line in _CPUINFO.read_text(errors="replace").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return tuple(sorted({f for f in flags.split() if _SETS.match(f)}))
    return ()


def of_json(data: bytes, where: str) -> Machine:
    try:
        raw = json.loads(data)
        return Machine(**{**raw, "instructions": tuple(raw["instructions"])})
    except (ValueError, TypeError, KeyError) as error:
        raise ArchiveError("the record of the machine is damaged", where=where, got=str(error)) from None


def hold(compiled: Machine, current: Machine, where: str) -> None:
    """Raises ``RunError`` where code that was compiled for one machine does not run on this one."""
    wrong = []
    for what in ("system", "processor", "device"):
        if getattr(compiled, what) != getattr(current, what):
            wrong.append((f"{what} {getattr(current, what)}", f"{what} {getattr(compiled, what)}"))
    missing = sorted(set(compiled.instructions) - set(current.instructions))
    if missing and not wrong:
        wrong.append((f"a processor without {', '.join(missing)}", "those instructions"))
    if compiled.torch.split(".")[:2] != current.torch.split(".")[:2]:
        wrong.append((f"torch {current.torch}", f"torch {compiled.torch}"))
    if wrong:
        raise RunError(
            "the compiled code in this file is for another machine",
            where=where,
            got="; ".join(got for got, _ in wrong),
            expected="; ".join(expected for _, expected in wrong),
            mend="make the .pt2 here with `torchferry convert ARCHIVE --to pt2`, or load the .pt",
        )
