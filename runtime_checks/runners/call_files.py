"""Calls as a file, for processes without torchferry, or without Python."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_crc32_options, set_crc32_options

from exporter.common.errors import OutputError
from runtime_checks.runners.base import Call


def write_calls(calls: Sequence[Call], path: Path) -> None:
    """Write calls as torch and plain values only."""
    try:
        # Our own process reads them, and a checksum of hundreds of megabytes takes longer than to write them.
        with _leave_out_checksums():
            torch.save([_list_fields(call) for call in calls], path)
    except (OSError, RuntimeError) as error:
        what, where = "the calls for a fresh process cannot be written", str(path.parent)
        got, mend = str(error).splitlines()[0], "free the disk, or set TMPDIR to another one"
        raise OutputError(what, where=where, got=got, mend=mend) from None


@contextlib.contextmanager
def _leave_out_checksums() -> Iterator[None]:
    was_set = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(was_set)


def _list_fields(call: Call) -> tuple[Any, ...]:
    parameters, values = [*call.parameters], [*call.parameters.values()]
    device_fields = (call.default_dtype, call.moved, call.left_on_cpu)
    return (call.method, [*call.inputs], *device_fields, parameters, values, [*call.seeds], [*call.wrt])
