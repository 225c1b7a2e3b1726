"""Temporary files and folders of this process, listed, so that an early end can remove them too."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PATHS: set[Path] = set()


@contextlib.contextmanager
def list_temporary(path: Path) -> Iterator[None]:
    """List a file or a folder as temporary inside the context."""
    _PATHS.add(path)
    try:
        yield
    finally:
        _PATHS.discard(path)


@contextlib.contextmanager
def temporary_folder(prefix: str = "torchferry-", parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder, by default among the system's temporary ones, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as name, list_temporary(Path(name)):
        yield Path(name)


def remove_temporary_paths() -> None:
    """Remove what is listed now: for a process that ends without leaving its contexts."""
    for path in list(_PATHS):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
