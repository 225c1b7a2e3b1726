"""Where a file is verified, and under which limits: one value, from the command line to the processes that run it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from exporter.archive.identity_signature import Signer
from runtime_checks.envelope import OFF, check_envelope_mode
from runtime_checks.native_code import GRAPHS, check_trust_mode
from runtime_checks.runners.subprocesses import MEMORY_LIMIT, TIME_LIMIT


def split_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Split names at commas, each name once."""
    parts = names.split(",") if isinstance(names, str) else names
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


@dataclass(frozen=True)
class VerifyOptions:
    """``runtimes`` (none: the usual one of the format) on ``devices``, each process within ``time_limit`` seconds and
    ``memory_limit`` GiB; ``envelope`` is ``error``, ``warn`` or ``off``; ``progress`` is told of long builds;
    ``jobs`` is how many processes may share the calls of a file; ``trust`` is ``native`` where native code may run
    that this user has not made here; ``public_key`` is the key, or the identity, that has to have signed the file.

    Names may be one text with commas. Raises ``UsageError`` for an unknown envelope or trust."""

    runtimes: str | Sequence[str] = ()
    devices: str | Sequence[str] = "cpu"
    time_limit: float = TIME_LIMIT
    memory_limit: float = MEMORY_LIMIT
    envelope: str = OFF
    progress: Callable[[str], Any] = lambda text: None
    jobs: int = 1
    trust: str = GRAPHS
    public_key: Signer | None = None

    def __post_init__(self) -> None:
        check_envelope_mode(self.envelope)
        check_trust_mode(self.trust)

    @property
    def runtime_names(self) -> tuple[str, ...]:
        return split_names(self.runtimes)

    @property
    def device_names(self) -> tuple[str, ...]:
        return split_names(self.devices)

    def with_runtimes(self, runtimes: Sequence[str]) -> VerifyOptions:
        return dataclasses.replace(self, runtimes=tuple(runtimes))
