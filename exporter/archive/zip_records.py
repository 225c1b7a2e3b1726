"""Zip files with the layout of torch's archives: the same bytes for the same records."""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
from collections.abc import Mapping

FOLDER = "archive"
_SERIAL = ".data/serialization_id"
# Tensors start at multiples of this many bytes, as torch writes them.
_ALIGNMENT = 64
_HEADER_SIZE = 30  # bytes of a zip's local header, before the name


def write_zip(records: Mapping[str, bytes]) -> bytes:
    """Build one zip file of these records: text deflated, tensors stored; the same bytes for the same records."""
    digest = hashlib.sha256()
    for name in sorted(records):
        digest.update(f"{name} {len(records[name])} ".encode() + records[name])
    all_records = {**records, _SERIAL: f"{int.from_bytes(digest.digest(), 'big') % 10**40:040}".encode()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in all_records.items():
            write_record(archive, f"{FOLDER}/{name}", data)
    return buffer.getvalue()


def write_record(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    """Write one record into the zip file."""
    info = zipfile.ZipInfo(name)
    info.create_system = 0
    tensor = "/data/" in name or "/constants/" in name
    if not tensor and len(data) > 128:
        info.compress_type = zipfile.ZIP_DEFLATED
    elif tensor:
        assert archive.fp is not None
        start = archive.fp.tell() + _HEADER_SIZE + len(name.encode()) + 4
        info.extra = b"FB" + struct.pack("<H", -start % _ALIGNMENT) + b"Z" * (-start % _ALIGNMENT)
    archive.writestr(info, data)
