"""Files that nobody can change between a check of their bytes and the use of them."""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path
from typing import NoReturn

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

# As much as one call copies (sendfile(2)).
_MOST_AT_ONCE = 2**30


class FrozenFile(os.PathLike[str]):
    """The bytes of a file as they are now, in memory, for as long as this object lives: whoever opens it reads these.

    Nobody can write to them any more (memfd_create(2), fcntl(2) on sealing files). Where the system offers no such
    memory it is the file itself, and so is what is no regular file, or cannot be read: opening it says why.

    Args:
        path: The file.

    Example:
        ```python
        frozen = FrozenFile(Path("model.pt"))
        digest = compute_file_digest(frozen)
        module = torch.jit.load(os.fspath(frozen))  # what has this digest
        ```
    """

    def __init__(self, path: Path) -> None:
        self._place = str(path)
        if fcntl is None or not hasattr(os, "memfd_create"):
            return
        # A name may be too long, or none.
        with contextlib.suppress(OSError, ValueError):
            if path.is_file():
                descriptor = _copy_to_memory(path)
                weakref.finalize(self, os.close, descriptor)
                self._place = _name_descriptor(descriptor)

    def __fspath__(self) -> str:
        return self._place

    def __reduce__(self) -> NoReturn:
        raise TypeError("a FrozenFile is of this process, and is not copied")


def _name_descriptor(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _copy_to_memory(path: Path) -> int:
    """Return a descriptor of a sealed copy of a file. Raises ``OSError``."""
    assert fcntl is not None
    descriptor = os.memfd_create("torchferry", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        with path.open("rb") as file:
            copied = 0
            while count := os.sendfile(descriptor, file.fileno(), copied, _MOST_AT_ONCE):
                copied += count
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        # Where /proc is not mounted there is no such place.
        if not os.path.samestat(os.stat(_name_descriptor(descriptor)), os.fstat(descriptor)):
            raise FileNotFoundError(_name_descriptor(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
