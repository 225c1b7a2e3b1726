"""The cache of what is built here: ``$TORCHFERRY_CACHE``, else ``$XDG_CACHE_HOME/torchferry``, else
``~/.cache/torchferry``.

What is in it is run: a folder of it that somebody else could write to is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from exporter.common.errors import ArchiveError, MissingRuntimeError

# In a folder that is whole.
_READY = "ready.txt"


def cache_folder() -> Path:
    """Return the folder of the cache. Raises ``MissingRuntimeError`` if it has no absolute path.

    Below the folder that a command works in, somebody else may have put one."""
    if setting := os.environ.get("TORCHFERRY_CACHE"):
        return Path(setting)
    # Without a home it stays what it is, and is not absolute.
    base = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if not base.is_absolute():
        what, mend = "there is no place for the cache", "set TORCHFERRY_CACHE to a folder of one's own"
        where, expected = "HOME, XDG_CACHE_HOME", "an absolute path"
        raise MissingRuntimeError(what, where=where, got=str(base), expected=expected, mend=mend)
    return base / "torchferry"


def make_private_folder(name: str) -> Path:
    """Make a folder of the cache, and return it.

    Raises ``MissingRuntimeError`` if it cannot be made, ``ArchiveError`` if somebody else could put code into it."""
    folder = cache_folder() / name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        check_private_folder(folder)
    except OSError as error:
        raise make_cache_error("there is no writable folder in the cache", folder, error) from None
    return folder


def fill_once(folder: Path, fill: Callable[[], None]) -> None:
    """Let ``fill`` fill a folder of the cache, unless it has done so before; only one process at a time does.

    What a call that did not come to its end has left is removed."""
    ready = folder / _READY
    with FileLock(f"{folder}.lock"):
        if not ready.exists():
            shutil.rmtree(folder, ignore_errors=True)
            fill()
            ready.touch()


def check_private_folder(folder: Path) -> None:
    """Raise ``ArchiveError`` if somebody else could put code into the folder."""
    status = folder.stat()
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        what = "others can write to a folder of the cache"
        got = f"owner {status.st_uid}, mode {status.st_mode & 0o777:o}"
        expected, mend = "a folder of one's own, with mode 700", "remove it, or set TORCHFERRY_CACHE to another folder"
        raise ArchiveError(what, where=str(folder), got=got, expected=expected, mend=mend)


def make_cache_error(what: str, folder: Path, error: OSError) -> MissingRuntimeError:
    """Return the error for a folder of the cache that cannot be written."""
    got, mend = error.strerror or str(error), "set TORCHFERRY_CACHE to a folder that can be written, with free space"
    return MissingRuntimeError(what, where=str(folder), got=got, mend=mend)
