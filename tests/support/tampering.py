"""Archives changed by hand: records replaced, with or without a manifest that agrees."""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

from exporter.archive.pt_archive import CASES, CONTRACT, DIGEST, MANIFEST, SEAL

Records = dict[str, bytes]
# Where the model's own class is.
CODE = "code/__torch__/torchferry/___torch_mangle_0.py"


def records(path: Path) -> tuple[str, Records]:
    with zipfile.ZipFile(path) as archive:
        folder = archive.namelist()[0].split("/")[0]
        return folder, {n.removeprefix(f"{folder}/"): archive.read(n) for n in archive.namelist()}


def rewrite(path: Path, change: Callable[[Records], object], *, manifest: bool) -> None:
    """Apply ``change`` to the records by name; ``manifest`` says whether the manifest is made to agree."""
    folder, result = records(path)
    change(result)
    if manifest:
        result.pop(f"extra/{MANIFEST}", None)
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in result.items()}
        text = json.dumps(digests, sort_keys=True, separators=(",", ":"))
        result[f"extra/{MANIFEST}"] = text.encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in result.items():
            archive.writestr(f"{folder}/{name}", data)
    seal(path)


def add(name: str, data: bytes = b"x") -> Callable[[Path], None]:
    """Return what puts a record into an archive, in place of one of that name."""
    return lambda path: rewrite(path, lambda found: found.update({name: data}), manifest=True)


def seal(path: Path) -> None:
    """Put the sha256 of all bytes before it at the end of the file."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = SEAL + b"0" * DIGEST
    reseal(path)


def reseal(path: Path) -> None:
    """Put the sha256 of all bytes before it in place of the last seal, also in a file that is no zip file any more."""
    data = path.read_bytes()
    body = data[: data.rfind(SEAL) + len(SEAL)]
    path.write_bytes(body + hashlib.sha256(body).hexdigest().encode())


def change_contract(path: Path, change: Callable[[dict], object]) -> None:
    change_json(path, CONTRACT, change)


def change_json(path: Path, record: str, change: Callable[[dict], object]) -> None:
    """A record that is JSON, in an archive that is else whole."""

    def apply(result: Records) -> None:
        raw = json.loads(result[f"extra/{record}"])
        change(raw)
        result[f"extra/{record}"] = json.dumps(raw).encode()

    rewrite(path, apply, manifest=True)


def change_cases(path: Path, change: Callable[[dict], object]) -> None:
    import io

    import torch

    def apply(result: Records) -> None:
        tensors = torch.load(io.BytesIO(result[f"extra/{CASES}"]), weights_only=True)
        change(tensors)
        buffer = io.BytesIO()
        torch.save(tensors, buffer)
        result[f"extra/{CASES}"] = buffer.getvalue()

    rewrite(path, apply, manifest=True)


def lengthen(records_list: bytes, length: int) -> bytes:
    """Make a list of records so long by a comment on its last record."""
    last, missing = records_list.rfind(b"PK\1\2"), length - len(records_list)
    head, tail = records_list[: last + 32], records_list[last + 34 :]
    return head + struct.pack("<H", missing) + tail + b" " * missing
