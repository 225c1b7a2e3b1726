"""The sha256 of what is in a file, read in blocks."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import IO


def compute_stream_digest(stream: IO[bytes], size: int = sys.maxsize) -> str:
    """Return the sha256 of the next ``size`` bytes of a stream: of all that is left, if that is less."""
    hasher = hashlib.sha256()
    while size > 0 and (block := stream.read(min(size, 2**20))):
        hasher.update(block)
        size -= len(block)
    return hasher.hexdigest()


def compute_file_digest(path: os.PathLike[str]) -> str:
    """Return the sha256 of a file."""
    with open(path, "rb") as file:
        return compute_stream_digest(file)
