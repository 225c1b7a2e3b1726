"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from exporter.common.errors import OutputError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write to; it takes the place of ``path`` only if the block ends well."""
    refuse_place(path)
    # What a link points to is replaced, not the link.
    path = path.resolve()
    folder = path.parent
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from None
    # Named before it is there: an interrupt may come at once.
    beside = folder / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        try:
            os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except OSError as error:
            raise unwritable(path, error) from None
        yield beside
        try:
            with beside.open("rb") as file:
                os.fsync(file.fileno())
            # Others were kept out; the archive gets what any new file would.
            umask = os.umask(0)
            os.umask(umask)
            beside.chmod(0o666 & ~umask)
            beside.replace(path)
        except OSError as error:
            raise unwritable(path, error) from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        if not path.exists():
            for empty in made:
                with contextlib.suppress(OSError):
                    empty.rmdir()


@contextlib.contextmanager
def replacing_files(folder: Path, last: str, old: Callable[[], Collection[str]]) -> Iterator[Path]:
    """A new folder within ``folder``; what is written there is moved into it only if the block ends well, the file
    ``last`` at the end, in the place of the files ``old``. Nothing else in the folder is touched."""
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    beside = folder / f".{secrets.token_hex(4)}.tmp"
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            beside.mkdir()
        except OSError as error:
            raise unwritable(folder, error) from None
        yield beside
        try:
            before = set(old())
            new = sorted(beside.iterdir(), key=lambda file: file.name == last)
            for file in new:
                file.replace(folder / file.name)
            for name in before - {file.name for file in new}:
                (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        for empty in made:
            with contextlib.suppress(OSError):
                empty.rmdir()


def written(path: Path, data: bytes) -> None:
    """The whole file or none. Raises ``OutputError`` where it cannot be written, or where something else stands."""
    with replacing(path) as beside:
        try:
            beside.write_bytes(data)
        except OSError as error:
            raise unwritable(path, error) from None


def refuse_place(path: Path) -> None:
    """Raises ``OutputError`` where something stands at ``path`` that is no file."""
    if path.exists() and not path.is_file():
        suffix = path.suffix or ".pt"
        raise OutputError(
            f"the output is {'a folder' if path.is_dir() else 'no regular file'}",
            where=str(path),
            expected="the name of a file, new or to be replaced",
            mend=f"write {path / 'NAME'}{suffix}" if path.is_dir() else "name another output with -o",
        )


def unwritable(path: Path, error: OSError) -> OutputError:
    return OutputError(
        "the file cannot be written",
        where=str(path),
        got=error.strerror or str(error),
        expected="a folder that can be written, on a disk with room",
        mend="name another output with -o, or free the disk",
    )
