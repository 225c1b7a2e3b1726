"""Temporary files and folders of this process, listed, so that an early end can remove them too."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

# Temporary paths, and new folders around them, which go if they are empty.
_PATHS: dict[Path, Sequence[Path]] = {}


@contextlib.contextmanager
def list_temporary(path: Path, new_folders: Sequence[Path] = ()) -> Iterator[None]:
    """List a file or a folder as temporary inside the context, and the folders that were made for it."""
    _PATHS[path] = new_folders
    try:
        yield
    finally:
        _PATHS.pop(path, None)


@contextlib.contextmanager
def temporary_folder(prefix: str = "torchferry-", parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder, by default among the system's temporary ones, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as name, list_temporary(Path(name)):
        yield Path(name)


def remove_temporary_paths() -> None:
    """Remove what is listed now: for a process that ends without leaving its contexts."""
    for path, new_folders in list(_PATHS.items()):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        for folder in new_folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
