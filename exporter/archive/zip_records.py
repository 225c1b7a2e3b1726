"""Zip files with the layout of torch's archives: the same bytes for the same records, and one reading of them."""

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


def add_serial(records: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the records with the one that torch tells files apart by: a digest of the others."""
    digest = hashlib.sha256()
    for name in sorted(records):
        digest.update(f"{name} {len(records[name])} ".encode())
        digest.update(records[name])
    return {**records, _SERIAL: f"{int.from_bytes(digest.digest(), 'big') % 10**40:040}".encode()}


def write_zip(records: Mapping[str, bytes], comment: bytes = b"") -> memoryview:
    """Build one zip file of these records: text deflated, tensors stored; the same bytes for the same records."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in records.items():
            _write_record(archive, f"{FOLDER}/{name}", data)
        archive.comment = comment
    return buffer.getbuffer()


def _write_record(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
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


# The end of a zip file, of a large one, and where the latter is: APPNOTE.TXT 4.3.14 to 4.3.16.
_END, _END_64, _PLACE_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_LONGEST_COMMENT = 2**16
# Of the flags of a record (4.4.4): its name is UTF-8.
_UTF_8 = 0x800


def check_one_directory(archive: zipfile.ZipFile, size: int) -> None:
    """Check that a zip file of ``size`` bytes has one list of its records, where its end says.

    Python's reader looks for the list directly before the end, and torch's where the end says that it begins: in a file
    with two of them each reads its own. Nor do they know the same methods of compression. Raises ``BadZipFile``."""
    file = archive.fp
    assert file is not None
    start = max(0, size - _LONGEST_COMMENT - _END.size)
    file.seek(start)
    tail = file.read()
    place = tail.rfind(b"PK\5\6")
    if place < 0 or place + _END.size > len(tail):
        raise zipfile.BadZipFile("no end of a zip file")
    _, *disks, count, total, length, begin, comment = _END.unpack_from(tail, place)
    end = start + place
    if end + _END.size + comment != size:
        raise zipfile.BadZipFile("more bytes behind the end of the zip file")
    file.seek(max(0, end - _PLACE_64.size))
    signature, _, large_end, _ = _PLACE_64.unpack(file.read(_PLACE_64.size).ljust(_PLACE_64.size))
    if signature == b"PK\6\7":
        if large_end != end - _PLACE_64.size - _END_64.size:
            raise zipfile.BadZipFile("another end of the zip file than the last")
        file.seek(large_end)
        *_, first, second, count, total, length, begin = _END_64.unpack(file.read(_END_64.size))
        disks = [first, second]
        end = large_end
    if begin + length != end:
        raise zipfile.BadZipFile("the list of records is not where the end of the zip file says")
    if any(disks) or not count == total == len(archive.infolist()):
        raise zipfile.BadZipFile("another number of records than the end of the zip file says, or several disks")
    for entry in archive.infolist():
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.flag_bits & 1:
            raise zipfile.BadZipFile("a record is encrypted, or compressed by another method than deflate")
        if not entry.filename.isascii() and not entry.flag_bits & _UTF_8:
            raise zipfile.BadZipFile("a record's name is not said to be UTF-8")
