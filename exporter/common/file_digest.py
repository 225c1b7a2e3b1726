"""The sha256 of what is in a file, read in blocks."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import IO


def compute_stream_digest(stream: IO[bytes]) -> str:
    """Return the sha256 of the rest of a stream."""
    hasher = hashlib.sha256()
    while block := stream.read(2**20):
        hasher.update(block)
    return hasher.hexdigest()


def compute_file_digest(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return compute_stream_digest(file)
