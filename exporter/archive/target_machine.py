"""Machine requirements of compiled code: processor type, its instructions, torch version. Imports no torch."""

from __future__ import annotations

import dataclasses
import json
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from exporter.common.errors import ArchiveError, RunError

_CPUINFO = Path("/proc/cpuinfo")
# Instruction sets that compilers use, by their Linux names.
_INSTRUCTION_SETS = re.compile(
    r"(avx|sse|ssse|fma|f16c|bmi|amx|popcnt|movbe|abm|asimd|sve|neon|fp16|bf16|i8mm|vnni|gfni)\w*$"
)


@dataclass(frozen=True)
class TargetMachine:
    """A machine. ``torch`` is a version without build; ``device`` runs the code; ``instructions`` are extensions."""

    system: str
    processor: str
    instructions: tuple[str, ...]
    torch: str
    device: str

    def to_json(self) -> bytes:
        """Return the machine as JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True).encode()


def current_machine(torch_version: str, device: str) -> TargetMachine:
    """Describe this machine."""
    release, kind = torch_version.partition("+")[0], device.partition(":")[0]
    return TargetMachine(platform.system(), platform.machine(), read_instruction_sets(), release, kind)


def read_instruction_sets() -> tuple[str, ...]:
    """Read the processor's instruction sets; empty if the system does not tell."""
    if not _CPUINFO.exists():
        return ()
    for line in _CPUINFO.read_text(errors="replace").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return tuple(sorted({f for f in flags.split() if _INSTRUCTION_SETS.match(f)}))
    return ()


def machine_from_json(data: bytes, where: str) -> TargetMachine:
    """Parse the record of a machine. Raises ``ArchiveError``."""
    try:
        raw = json.loads(data)
        machine = TargetMachine(**{**raw, "instructions": tuple(raw["instructions"])})
        texts = (machine.system, machine.processor, machine.torch, machine.device, *machine.instructions)
        if not isinstance(raw["instructions"], list) or not all(isinstance(text, str) for text in texts):
            raise ValueError("a value that is no text")
        return machine
    except (ValueError, TypeError, KeyError) as error:
        raise ArchiveError("the record of the machine is damaged", where=where, got=str(error)) from None


def check_compatible(compiled: TargetMachine, current: TargetMachine, where: str) -> None:
    """Raise ``RunError`` if code compiled for one machine does not run on this one."""
    attributes = ((name, getattr(current, name), getattr(compiled, name)) for name in ("system", "processor", "device"))
    differences = [(f"{name} {got}", f"{name} {expected}") for name, got, expected in attributes if got != expected]
    missing = sorted(set(compiled.instructions) - set(current.instructions))
    if missing and not differences:
        differences.append((f"a processor without {', '.join(missing)}", "those instructions"))
    if compiled.torch.split(".")[:2] != current.torch.split(".")[:2]:
        differences.append((f"torch {current.torch}", f"torch {compiled.torch}"))
    if differences:
        raise RunError(
            "the compiled code in this file is for another machine",
            where=where,
            got="; ".join(got for got, _ in differences),
            expected="; ".join(expected for _, expected in differences),
            mend="make the .pt2 here with `torchferry convert ARCHIVE --to pt2`, or load the .pt",
        )
