"""Zip files with the layout of torch's archives: the same bytes for the same records."""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
from collections.abc import Mapping

FOLDER = "archive"

_SERIAL = ".data/serialization_id"

# Tensors stand on boundaries of this many bytes, as torch writes them.
_ALIGNED = 64

_HEADER = 30  # bytes of a zip's local header, before the name


def zipped(records: Mapping[str, bytes]) -> bytes:
    """One zip file of these records: text deflated, tensors stored; the same bytes for the same records."""
    digest = hashlib.sha256()
    for name in sorted(records):
        digest.update(f"{name} {len(records[name])} ".encode() + records[name])
    whole = {**records, _SERIAL: f"{int.from_bytes(digest.digest(), 'big') % 10**40:040}".encode()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in whole.items():
            record(archive, f"{FOLDER}/{name}", data)
    return buffer.getvalue()


def record(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    """Put one record into the file."""
    info = zipfile.ZipInfo(name)
    info.create_system = 0
    tensor = "/data/" in name or "/constants/" in name
    if not tensor and len(data) > 128:
        info.compress_type = zipfile.ZIP_DEFLATED
    elif tensor:
        assert archive.fp is not None
        start = archive.fp.tell() + _HEADER + len(name.encode()) + 4
        info.extra = b"FB" + struct.pack("<H", -start % _ALIGNED) + b"Z" * (-start % _ALIGNED)
    archive.writestr(info, data)
