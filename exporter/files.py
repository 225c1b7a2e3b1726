"""Files that commands write beside archives: pictures and reports."""

from __future__ import annotations

import contextlib
from pathlib import Path

from exporter.errors import OutputError


def written(path: Path, data: bytes) -> None:
    """The whole file or none. Raises ``OutputError`` where it cannot be written."""
    beside = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise OutputError(
            "the file cannot be written",
            where=str(path),
            got=error.strerror or str(error),
            expected="the name of a file in a folder that can be written",
        ) from None
