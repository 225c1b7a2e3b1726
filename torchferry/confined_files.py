"""What the public functions do with files of others, in confined processes: compare, convert and adopt them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from exporter.archive.cases import Cases
from exporter.backends.backend import Backend, WriteOptions
from exporter.common.forking import tell_parent
from exporter.graph.archive_diff import Difference, diff_archives
from runtime_checks.file_verifier import FileVerifier
from runtime_checks.options import VerifyOptions
from runtime_checks.output_agreement import compare_outputs
from runtime_checks.runners.confined_calls import Confinement, call_confined, is_confined
from runtime_checks.runners.subprocesses import MEMORY_LIMIT
from torchferry.conversion import Converted, convert
from torchferry.pipeline import Exported

# Seconds of computing of the process that runs an adopted file in all stages of an export: a slow model takes about a
# hundred calls.
DAY = 86_400.0
_Event = tuple[str, tuple[Any, ...]]


def diff_confined(one: Path, other: Path, *, run: bool, time_limit: float, memory_limit: float) -> Difference:
    """Compare two files; ``run`` both on the stored cases of either."""

    def run_both(a: Any, b: Any, cases: Mapping[str, Cases]) -> Any:
        return compare_outputs((a.file.path, a.contract), (b.file.path, b.contract), cases)

    # The fresh processes that run the files are Python's.
    confinement = Confinement(one, (), time_limit, memory_limit, (sys.executable,) if run else ())
    return call_confined(functools.partial(diff_archives, one, other, run_both if run else None), confinement)


def convert_confined(
    source: Path, output: Path, backend: Backend, options: WriteOptions, verify_options: VerifyOptions
) -> Converted:
    """Convert an archive, and verify what was written."""
    verifier = FileVerifier(verify_options, [backend.format.name])
    work = functools.partial(convert, source, output, backend, options, verifier)
    limits, has_devices = (verify_options.time_limit, verify_options.memory_limit), _needs_devices(verify_options)
    return call_confined(work, Confinement(source, (output,), *limits, programs=None, has_devices=has_devices))


def adopt_confined(path: Path, adopt: Callable[..., list[Exported]], options: dict[str, Any]) -> Exported:
    """Call ``adopt`` with the options of an export; those of them that are functions of the caller's run here."""
    listeners = {name: value for name, value in options.items() if callable(value)}
    forwarding = {name: functools.partial(_forward, name) for name in listeners}

    def hear(event: _Event) -> None:
        listeners[event[0]](*event[1])

    has_devices = _needs_devices(VerifyOptions(devices=options.get("devices", "cpu")))
    limits = max(options.get("time_limit", DAY), DAY), options.get("memory_limit", MEMORY_LIMIT)
    confinement = Confinement(path, (Path(options.get("output") or ""),), *limits, None, has_devices)
    # A wrong argument is the caller's.
    inspect.signature(adopt).bind(**options)
    if is_confined():
        (adopted,) = adopt(**options)
        return adopted
    (adopted,) = call_confined(functools.partial(adopt, **options | forwarding), confinement, hear)
    return adopted


def _forward(name: str, *arguments: Any) -> None:
    tell_parent((name, arguments))


def _needs_devices(options: VerifyOptions) -> bool:
    """Return whether something is run on more than the CPU."""
    return options.device_names != ("cpu",)
