"""Zip files that somebody has put together by hand: both readers see the same records in one, or refuse it."""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from project import ROOT
from tampering import Records, lengthen, records, reseal, rewrite, seal
from two_readers import Forge, expect_taken, list_wrong_answers

from exporter.archive.pt_archive import MANIFEST, SEAL

ROBERTSON = ROOT / "artifacts" / "robertson.pt"
RECORD = f"extra/{MANIFEST}"
DAMAGED = "damaged"
ENTRY, LOCAL, END = b"PK\1\2", b"PK\3\4", b"PK\5\6"
# Places of fields in an entry of the list of records, and in front of a record (APPNOTE.TXT, 4.3.7 and 4.3.12).
FLAGS, METHOD, CRC, SMALL, LARGE, NAME_LENGTH, DISK, PLACE = 8, 10, 16, 20, 24, 28, 34, 42


def patch(change: Callable[[bytearray], object]) -> Forge:
    """Change bytes before the seal, and seal the file again."""

    def apply(path: Path) -> None:
        data = bytearray(path.read_bytes())
        change(data)
        path.write_bytes(data)
        reseal(path)

    return apply


def find_entry(data: bytearray, record: bytes = b"constants.pkl") -> int:
    """The place of a record's entry in the list of records."""
    return next(m.start() for m in re.finditer(re.escape(ENTRY), bytes(data)) if record in data[m.end() : m.end() + 90])


def find_local(data: bytearray) -> int:
    return struct.unpack_from("<L", data, find_entry(data) + PLACE)[0]


def rename_both(data: bytearray, old: bytes, new: bytes) -> None:
    """In the list of records, and in front of the record."""
    for place in (find_entry(data), find_local(data)):
        start = data.index(old, place)
        data[start : start + len(old)] = new


def put(offset: int, layout: str, value: int) -> Forge:
    """A field of the entry of a record."""
    return patch(lambda data: struct.pack_into(layout, data, find_entry(data) + offset, value))


def put_local(offset: int, layout: str, value: int) -> Forge:
    return patch(lambda data: struct.pack_into(layout, data, find_local(data) + offset, value))


def put_end(offset: int, layout: str, value: int) -> Forge:
    return patch(lambda data: struct.pack_into(layout, data, data.rfind(END) + offset, value))


def replace(old: bytes, new: bytes, place: Callable[[bytearray], int]) -> Forge:
    """Bytes of the same number behind a place."""
    assert len(old) == len(new)

    def change(data: bytearray) -> None:
        start = data.index(old, place(data))
        data[start : start + len(old)] = new

    return patch(change)


def write_manifest(change: Callable[[dict], object], **layout: object) -> Forge:
    def apply(path: Path) -> None:
        folder, whole = records(path)
        manifest = json.loads(whole[RECORD])
        changed = change(manifest)
        text = json.dumps(
            manifest if changed is None else changed, **{"sort_keys": True, "separators": (",", ":"), **layout}
        )
        whole[RECORD] = text.encode()
        write(path, [(f"{folder}/{name}", data) for name, data in whole.items()])

    return apply


def write(path: Path, entries: list[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries:
            archive.writestr(name, data)
    seal(path)


def move(change: Callable[[str, str], str]) -> Forge:
    """Records in another folder each."""

    def apply(path: Path) -> None:
        folder, whole = records(path)
        write(path, [(change(folder, name), data) for name, data in whole.items()])

    return apply


def put_in_front(path: Path) -> None:
    """Bytes in front of the first record, with all places moved, as in a file that unpacks itself."""
    data = bytearray(path.read_bytes())
    for match in list(re.finditer(re.escape(ENTRY), bytes(data))):
        (place,) = struct.unpack_from("<L", data, match.start() + PLACE)
        struct.pack_into("<L", data, match.start() + PLACE, place + 8)
    end = data.rfind(END)
    (begin,) = struct.unpack_from("<L", data, end + 16)
    struct.pack_into("<L", data, end + 16, begin + 8)
    path.write_bytes(b"#!/bin/a" + data)
    reseal(path)


def put_comment(path: Path) -> None:
    """On the last record, in the list of records, which becomes longer by it."""
    data = bytearray(path.read_bytes())
    end = data.rfind(END)
    length, begin = struct.unpack_from("<LL", data, end + 12)
    entries = lengthen(bytes(data[begin:end]), length + 5)
    struct.pack_into("<L", data, end + 12, len(entries))
    path.write_bytes(data[:begin] + entries + data[end:])
    reseal(path)


def change_records(change: Callable[[Records], object]) -> Forge:
    return lambda path: rewrite(path, change, manifest=True)


def first(manifest: dict) -> str:
    return next(iter(manifest))


HOSTILE: dict[str, tuple[Forge, str]] = {
    "another name in front of the record": (replace(b"constants.pkl", b"constantz.pkl", find_local), DAMAGED),
    "a record that begins elsewhere": (put(PLACE, "<L", 7), DAMAGED),
    "a record that begins beyond the end": (put(PLACE, "<L", 2**31), DAMAGED),
    "no sign in front of the record": (put_local(0, "<L", 0), DAMAGED),
    "a shorter name in front": (put_local(26, "<H", 3), DAMAGED),
    "a longer record than there is": (put(LARGE, "<L", 2**30), f"{DAMAGED}|implausible"),
    "a shorter record": (put(LARGE, "<L", 1), DAMAGED),
    "an encrypted record": (put(FLAGS, "<H", 1), DAMAGED),
    "a patch of a record": (put(FLAGS, "<H", 1 << 5), DAMAGED),
    "another method": (put(METHOD, "<H", 12), DAMAGED),
    "an unknown method": (put(METHOD, "<H", 99), DAMAGED),
    "a wrong checksum": (put(CRC, "<L", 1), DAMAGED),
    "a name beyond the entry": (put(NAME_LENGTH, "<H", 60_000), f"{DAMAGED}|not a name"),
    "an empty name": (put(NAME_LENGTH, "<H", 0), f"{DAMAGED}|folder|leads out"),
    "a NUL in a name": (replace(b"constants.pkl", b"constants\0pkl", find_entry), f"{DAMAGED}|not a name|kind|names"),
    "a name of no code page": (replace(b"constants.pkl", b"constants\xffpkl", find_entry), DAMAGED),
    "letters that are not said to be UTF-8": (
        patch(lambda data: [rename_both(data, b"constants.pkl", "constantsé.kl".encode())]),
        DAMAGED,
    ),
    "more records than there are": (put_end(10, "<H", 60_000), DAMAGED),
    "fewer records than there are": (put_end(10, "<H", 1), f"{DAMAGED}|folder|names"),
    "another disk": (put_end(4, "<H", 1), DAMAGED),
    "a list of another length": (put_end(12, "<L", 1), DAMAGED),
    "a list of no length": (put_end(12, "<L", 0), DAMAGED),
    "a list that begins elsewhere": (put_end(16, "<L", 1), DAMAGED),
    "a list beyond the end": (put_end(16, "<L", 2**31), DAMAGED),
    "a list of the large kind, without one": (put_end(16, "<L", 2**32 - 1), DAMAGED),
    "an end of the large kind": (
        patch(lambda d: d.__setitem__(slice(d.rfind(END) - 20, d.rfind(END) - 16), b"PK\6\7")),
        DAMAGED,
    ),
    "half of a file": (lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]), DAMAGED),
    "its end alone": (lambda p: p.write_bytes(p.read_bytes()[p.read_bytes().rfind(END) :]), DAMAGED),
    "no file of a zip": (lambda p: p.write_bytes(b"x" * 1000), DAMAGED),
    "no seal": (
        patch(lambda d: d.__setitem__(slice(d.rfind(SEAL), d.rfind(SEAL) + 10), b"0123456789")),
        "between the records|damaged",
    ),
    "a seal of capital letters": (
        lambda p: p.write_bytes(p.read_bytes()[:-64] + p.read_bytes()[-64:].upper()),
        "between the records",
    ),
    "a byte between two records": (
        lambda p: p.write_bytes(p.read_bytes().replace(b"ZZZZ", b"ZZZY", 1)),
        "between the records|damaged|changed",
    ),
    "two folders": (move(lambda folder, name: f"{folder if name < 'd' else 'other'}/{name}"), "folder|names"),
    "no folder": (move(lambda folder, name: name), "folder|names|not a torchferry|kind|damaged"),
    "a folder above": (move(lambda folder, name: f"../{name}"), "leads out"),
    "an absolute folder": (move(lambda folder, name: f"/{folder}/{name}"), "leads out"),
    "a folder of a drive": (move(lambda folder, name: f"..\\{folder}/{name}"), "leads out"),
    "a folder with an escape": (move(lambda folder, name: f"a\x1b[2J/{name}"), "not a name"),
    "a folder that nobody sees": (move(lambda folder, name: f"a\u202eb/{name}"), "not a name"),
    "a record that is a folder": (
        change_records(lambda r: r.update({"code/": b""})),
        "kind|damaged|folder|not a name|names|leads",
    ),
    "a manifest with spaces": (write_manifest(lambda m: None, separators=(", ", ": ")), "manifest is damaged"),
    "a manifest in another order": (
        write_manifest(lambda m: dict(reversed(m.items())), sort_keys=False),
        "manifest is damaged",
    ),
    "a list for a manifest": (write_manifest(lambda m: [m]), "manifest is damaged"),
    "a digest that is a number": (write_manifest(lambda m: m.update({first(m): 1})), "manifest is damaged|was changed"),
    "no digest": (write_manifest(lambda m: m.update({first(m): None})), "manifest is damaged|was changed"),
    "a digest of capital letters": (write_manifest(lambda m: m.update({first(m): m[first(m)].upper()})), "was changed"),
    "a digest of another record": (write_manifest(lambda m: m.update({first(m): m["version"]})), "was changed"),
    "a digest of nothing": (write_manifest(lambda m: m.update({first(m): ""})), "was changed"),
    "a record less in the manifest": (write_manifest(lambda m: [m.pop(first(m)), None][1]), "names"),
    "a record more in the manifest": (write_manifest(lambda m: m.update({"data/9": m["version"]})), "names"),
    "the manifest in the manifest": (write_manifest(lambda m: m.update({RECORD: m["version"]})), "names|was changed"),
}
HONEST = expect_taken(
    {
        "another folder": move(lambda folder, name: f"model/{name}"),
        "a folder of other letters": move(lambda folder, name: f"модель/{name}"),
        "records in another order": lambda p: write(p, [(f"a/{n}", d) for n, d in reversed(records(p)[1].items())]),
        "a comment on a record": put_comment,
        "rights of a link": put(38, "<L", 0o120777 << 16),
        "another time": put(12, "<L", 0x5A5A5A5A),
        "bytes in front of the first record": put_in_front,
    }
)


@pytest.mark.parametrize("forgeries", [HOSTILE, HONEST], ids=["forged", "unusual"])
def test_both_readers(forgeries, tmp_path):
    problems = list_wrong_answers(ROBERTSON, forgeries, tmp_path)
    assert not problems, "\n".join(problems)
