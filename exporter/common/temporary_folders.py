"""Temporary files and folders of this process: listed, so that an early end can remove them too, and locked, so that
the next process can remove those of one that was killed.

A lock (flock(2)) ends with its process, however that ends. Where a system or a disk has none, leftovers stay."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

# The host is in the names of temporary files: locks of another one that shares the disk may not be seen here.
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
# Temporary paths, and new folders around them, which go if they are empty.
_PATHS: dict[Path, Sequence[Path]] = {}
# Folders that this process has looked through for leftovers.
_SWEPT: set[tuple[Path, str]] = set()


@contextlib.contextmanager
def hold_temporary(path: Path, make: Callable[[], object], new_folders: Sequence[Path] = ()) -> Iterator[None]:
    """Make a temporary file or folder, which is listed and locked inside the context, and removed at the end.

    ``new_folders`` are those that are made for it; they go too, if they are empty."""
    # Listed before it exists: an interrupt may come at once.
    _PATHS[path] = new_folders
    handle = -1
    try:
        make()
        while (handle := _lock(path)) < 0 and not path.exists():
            # Another process took it for a leftover before it was locked.
            make()
        yield
    finally:
        _remove(path, new_folders)
        _PATHS.pop(path, None)
        if handle >= 0:
            os.close(handle)


@contextlib.contextmanager
def temporary_folder(prefix: str = "torchferry-", parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder, by default among the system's temporary ones, which is removed at the end.

    Those of the same prefix that killed processes have left are removed at the start."""
    path = name_temporary(parent or Path(tempfile.gettempdir()), prefix)
    with hold_temporary(path, lambda: path.mkdir(mode=0o700)):
        yield path


def name_temporary(folder: Path, prefix: str, suffix: str = "") -> Path:
    """Return a new name for a temporary file or folder; remove what killed processes of this host have left of such.

    A process looks through a folder once."""
    if (folder, prefix) not in _SWEPT:
        _SWEPT.add((folder, prefix))
        _remove_leftovers(folder, f"{re.escape(prefix + _HOST)}[0-9a-f]{{8}}{re.escape(suffix)}")
    return folder / f"{prefix}{_HOST}{secrets.token_hex(4)}{suffix}"


def remove_temporary_paths() -> None:
    """Remove what is listed now: for a process that ends without leaving its contexts."""
    for path, new_folders in list(_PATHS.items()):
        _remove(path, new_folders)


def forget_temporary_paths() -> None:
    """Leave what is listed now to the process that this one was forked from."""
    _PATHS.clear()


def _remove_leftovers(folder: Path, pattern: str) -> None:
    """Remove temporary files and folders with names of this pattern that are this user's, and that no process holds."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            is_leftover = re.fullmatch(pattern, entry.name) and _is_ours(entry)
            if is_leftover and (handle := _lock(Path(entry.path), waits=False)) >= 0:
                _remove(Path(entry.path))
                os.close(handle)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    return not hasattr(os, "getuid") or entry.stat(follow_symlinks=False).st_uid == os.getuid()


def _lock(path: Path, *, waits: bool = True) -> int:
    """Open and lock a file or a folder; return its descriptor, or -1 if it is gone, held by somebody else, or if there
    are no locks."""
    if fcntl is None:
        return -1
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return -1
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        # Another process may have removed it before this one had the lock.
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle
    except OSError:
        pass
    os.close(handle)
    return -1


def _remove(path: Path, new_folders: Sequence[Path] = ()) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    for folder in new_folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
