"""The codecs that a Zarr store names, looked at before anything of the store is read: one of them is Python's pickle,
which runs what it reads.

Source: the Zarr specifications 2 and 3 (zarr-specs.readthedocs.io), ``.zarray`` and ``zarr.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exporter.common.errors import UsageError

# Those of the specifications, and of numcodecs, that only compute.
KNOWN = frozenset(
    [
        "adler32",
        "astype",
        "bitround",
        "blosc",
        "bytes",
        "bz2",
        "cast_value",
        "crc32",
        "crc32c",
        "delta",
        "fixedscaleoffset",
        "fletcher32",
        "gzip",
        "jenkins_lookup3",
        "lz4",
        "lzma",
        "packbits",
        "pcodec",
        "quantize",
        "scale_offset",
        "sharding_indexed",
        "shuffle",
        "transpose",
        "vlen-array",
        "vlen-bytes",
        "vlen-utf8",
        "zfpy",
        "zlib",
        "zstd",
    ]
)
GROUPS, ARRAYS = (".zgroup", "zarr.json"), (".zarray", "zarr.json")
# Keys of the metadata under which codecs stand, in lists or alone.
_PLACES = ("codecs", "index_codecs", "filters", "compressor")
DEPTH, BYTES = 32, 64 * 2**20


def is_zarr(path: Path) -> bool:
    """Return whether a folder is a group or an array of Zarr."""
    return any((path / name).is_file() for name in (*GROUPS, ".zarray"))


def check_codecs(store: Path) -> None:
    """Raise ``UsageError`` for a codec that is not known only to compute, and for metadata that cannot be read."""
    for path in _list_metadata(store, 0):
        try:
            if path.stat().st_size > BYTES:
                raise ValueError(f"{path.stat().st_size} bytes")
            metadata = json.loads(path.read_bytes())
            names = sorted(set(_list_codecs(metadata)) - KNOWN)
        except (OSError, ValueError, RecursionError) as error:
            what, expected = "the metadata of the data set cannot be read", "JSON, as the Zarr specification says"
            mend = "copy the store again"
            raise UsageError(what, where=str(path), got=str(error), expected=expected, mend=mend) from None
        if names:
            what, mend = "the data set has a codec that may run code", "write the variable anew, as plain numbers"
            expected = f"one of {', '.join(sorted(KNOWN))}"
            raise UsageError(what, where=str(path), got=", ".join(map(repr, names)), expected=expected, mend=mend)


def _list_metadata(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the files of metadata below a folder. What is in the folder of an array are its chunks."""
    for name in dict.fromkeys((*GROUPS, *ARRAYS)):
        if (folder / name).exists():
            yield folder / name
    if (folder / ".zarray").exists() or _is_array(folder / "zarr.json"):
        if (folder / ".zgroup").exists() or ((folder / ".zarray").exists() and (folder / "zarr.json").exists()):
            what, mend = "a folder of the data set is a group and an array at once", "write the data set anew"
            raise UsageError(what, where=str(folder), expected="metadata of one version", mend=mend)
        return
    if depth == DEPTH:
        what, expected = "the data set has too many levels of groups", f"{DEPTH}"
        raise UsageError(what, where=str(folder), expected=expected, mend="name the group itself")
    with os.scandir(folder) as entries:
        folders = sorted(entry.name for entry in entries if entry.is_dir())
    for name in folders:
        yield from _list_metadata(folder / name, depth + 1)


def _is_array(path: Path) -> bool:
    try:
        return path.stat().st_size <= BYTES and json.loads(path.read_bytes()).get("node_type") == "array"
    except (OSError, ValueError, RecursionError, AttributeError):
        return False


def _list_codecs(value: Any) -> Iterator[str]:
    """Yield the names of all codecs in metadata, in lower case and without the prefix of numcodecs."""
    if isinstance(value, list):
        for item in value:
            yield from _list_codecs(item)
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        if key == "attributes":
            continue
        for codec in (item if isinstance(item, list) else [item]) if key in _PLACES else []:
            if isinstance(codec, dict):
                # The versions have different keys: whichever a reader takes has to be known.
                names = [codec[key] for key in ("id", "name") if key in codec] or [None]
                yield from (str(name).lower().removeprefix("numcodecs.") for name in names)
            elif codec is not None:
                # The third version allows a codec without settings to be its name alone.
                yield str(codec).lower().removeprefix("numcodecs.")
        yield from _list_codecs(item)
