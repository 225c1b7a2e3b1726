"""Files that commands write beside archives: pictures and reports."""

from __future__ import annotations

import contextlib
from pathlib import Path

from exporter.errors import OutputError


def written(path: Path, data: bytes) -> None:
    """The whole file or none; what a link points to is replaced, not the link.

    Raises ``OutputError`` where it cannot be written, or where something stands there that is no file.
    """
    refuse_place(path)
    path = path.resolve()
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


def refuse_place(path: Path) -> None:
    """Raises ``OutputError`` where something stands at ``path`` that is no file."""
    if path.exists() and not path.is_file():
        raise OutputError(
            f"the output is {'a folder' if path.is_dir() else 'no regular file'}",
            where=str(path),
            expected="the name of a file, new or to be replaced",
            mend=f"write {path / 'NAME'}{path.suffix}" if path.is_dir() else "name another output with -o",
        )
