"""Machine requirements of compiled code: processor type, its instructions, torch version. Imports no torch."""

from __future__ import annotations

import dataclasses
import json
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from exporter.archive.contract_text import StrictlyRead, check_limits, describe_invalid, parse_strictly
from exporter.common.errors import ArchiveError, RunError

_CPUINFO = Path("/proc/cpuinfo")
# Instruction sets that compilers use, by their Linux names.
_INSTRUCTION_SETS = re.compile(
    r"(avx|sse|ssse|fma|f16c|bmi|amx|popcnt|movbe|abm|asimd|sve|neon|fp16|bf16|i8mm|vnni|gfni)\w*$"
)


@dataclass(frozen=True)
class TargetMachine(StrictlyRead):
    """A machine. ``torch`` is a version without build; ``device`` runs the code; ``instructions`` are extensions."""

    system: str
    processor: str
    instructions: tuple[str, ...]
    torch: str
    device: str

    def to_json(self) -> bytes:
        """Return the machine as JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True).encode()


_ADAPTER = TypeAdapter(TargetMachine)
_DAMAGED = "the record of the machine is damaged"


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
        raw = parse_strictly(data)
    except ValueError as error:
        raise ArchiveError("the record of the machine is not JSON", where=where, got=str(error)) from None
    check_limits(raw, _DAMAGED, where)
    try:
        return _ADAPTER.validate_json(data)
    except ValidationError as error:
        expected, mend = "a machine as torchferry writes it", "convert the .pt again"
        raise ArchiveError(_DAMAGED, where=where, got=describe_invalid(error), expected=expected, mend=mend) from None


def _get_minor(version: str) -> list[str]:
    return version.partition("+")[0].split(".")[:2]


def check_compatible(compiled: TargetMachine, current: TargetMachine, where: str) -> None:
    """Raise ``RunError`` if code compiled for one machine does not run on this one."""
    attributes = ((name, getattr(current, name), getattr(compiled, name)) for name in ("system", "processor", "device"))
    differences = [(f"{name} {got}", f"{name} {expected}") for name, got, expected in attributes if got != expected]
    missing = sorted(set(compiled.instructions) - set(current.instructions))
    if missing and not differences:
        differences.append((f"a processor without {', '.join(missing)}", "those instructions"))
    if _get_minor(compiled.torch) != _get_minor(current.torch):
        differences.append((f"torch {current.torch}", f"torch {compiled.torch}"))
    if differences:
        raise RunError(
            "the compiled code in this file is for another machine",
            where=where,
            got="; ".join(got for got, _ in differences),
            expected="; ".join(expected for _, expected in differences),
            mend="make the .pt2 here with `torchferry convert ARCHIVE --to pt2`, or load the .pt",
        )
