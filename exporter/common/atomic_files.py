"""Atomic writes: files that appear complete or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from exporter.common.errors import OutputError
from exporter.common.temporary_folders import hold_temporary, name_temporary

# Of temporary files and folders beside the output; hidden, and of a length of their own.
_PREFIX, _SUFFIX = ".torchferry-", ".tmp"


@contextlib.contextmanager
def atomic_write_path(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; its file replaces ``path`` only if the block ends without an error.

    ``mode`` are its permissions, less those that the user's umask takes."""
    check_output_path(path)
    # The target of a link is replaced, not the link.
    try:
        path = path.resolve()
    except (OSError, RuntimeError):
        what, mend = "the output is a link that leads back to itself", "remove the link, or name another output with -o"
        raise OutputError(what, where=str(path), mend=mend) from None
    folder = path.parent
    temporary = name_temporary(folder, _PREFIX, _SUFFIX)

    def make() -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except OSError as error:
            raise make_write_error(path, error) from None

    with hold_temporary(temporary, make, _list_new_folders(folder)):
        with _explain_full_disk(path):
            yield temporary
        try:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            # Until now others had no access; the archive gets the permissions of any new file.
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(mode & ~umask)
            temporary.replace(path)
        except OSError as error:
            raise make_write_error(path, error) from None


@contextlib.contextmanager
def atomic_write_folder(folder: Path, last: str, old: Callable[[], Collection[str]]) -> Iterator[Path]:
    """Yield a new folder within ``folder``; its files move into ``folder`` only if the block ends without an error,
    the file ``last`` at the end, replacing the files ``old``. Other files in the folder are not touched."""
    temporary = name_temporary(folder, _PREFIX, _SUFFIX)

    def make() -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
        except OSError as error:
            raise make_write_error(folder, error) from None

    with hold_temporary(temporary, make, _list_new_folders(folder)):
        with _explain_full_disk(folder):
            yield temporary
        try:
            old_names = set(old())
            new_files = sorted(temporary.iterdir(), key=lambda file: file.name == last)
            for file in new_files:
                file.replace(folder / file.name)
            for name in old_names - {file.name for file in new_files}:
                (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise make_write_error(folder, error) from None


@contextlib.contextmanager
def _explain_full_disk(path: Path) -> Iterator[None]:
    """Raise ``OutputError`` where the disk is full, or the user's part of it, in whatever library that shows."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise make_write_error(Path(error.filename or path), error) from None


def _list_new_folders(folder: Path) -> list[Path]:
    """Return the folders that have to be made for what is written to one, the innermost first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def write_atomically(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write the whole file or nothing. Raises ``OutputError`` if that fails, or if ``path`` is not a regular file."""
    with atomic_write_path(path, mode) as temporary:
        try:
            temporary.write_bytes(data)
        except OSError as error:
            raise make_write_error(path, error) from None


def check_output_path(path: Path) -> None:
    """Raise ``OutputError`` if ``path`` exists and is not a regular file, or cannot be the name of one."""
    try:
        is_there = path.exists()
    except OSError as error:
        raise make_write_error(path, error) from None
    if is_there and not path.is_file():
        suffix = path.suffix or ".pt"
        what = f"the output is {'a folder' if path.is_dir() else 'not a regular file'}"
        mend = f"write {path / 'NAME'}{suffix}" if path.is_dir() else "name another output with -o"
        raise OutputError(what, where=str(path), expected="the name of a new file, or of a file to replace", mend=mend)


def make_write_error(path: Path, error: OSError) -> OutputError:
    """Make the ``OutputError`` for a file that cannot be written."""
    expected, mend = "a writable folder, on a disk with free space", "name another output with -o, or free disk space"
    got = error.strerror or str(error)
    return OutputError("the file cannot be written", where=str(path), got=got, expected=expected, mend=mend)
