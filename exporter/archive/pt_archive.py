"""Archives as bytes: atomic write, integrity, reading. The README describes the format.

A ``.pt`` written by ``torch.jit.save`` (a zip whose records share one top folder) with four records of ours below
``extra/torchferry/``. The manifest is written last and holds the sha256 of every other record, torch's own
included, so an added, removed or changed record is found before torch sees the file. The zip comment seals
the rest: it holds the sha256 of every byte before it, zip headers included, which readers interpret differently.
Only the functions that need torch import it: inspecting an archive does not."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from exporter.archive import container_kinds
from exporter.archive.cases import Cases, ReferenceCase, pack_cases, unpack_cases
from exporter.archive.code_check import check_code
from exporter.archive.container_kinds import GRAPHS
from exporter.archive.contract import Contract, contract_from_json
from exporter.archive.format_limits import (
    MAX_CODE_NESTING,
    MAX_CONSTANT_PARTS,
    MAX_CONTRACT_BYTES,
    MAX_INFLATED_BYTES,
    MAX_NAME,
    MAX_RECORDS,
    MAX_SHARED_VALUES,
)
from exporter.archive.nesting import measure_code_depth, measure_depth
from exporter.archive.packed_tensors import load_tensors
from exporter.archive.target_machine import TargetMachine, machine_from_json
from exporter.archive.zip_records import add_serial, check_one_directory, write_zip
from exporter.common.atomic_files import make_write_error
from exporter.common.errors import ArchiveError, ForeignError
from exporter.common.file_digest import compute_stream_digest
from exporter.common.frozen_files import FrozenFile
from exporter.common.plain_text import find_unsafe

if TYPE_CHECKING:
    import torch

CONTRACT = "torchferry/contract.json"
CASES = "torchferry/cases.pt"
GRAPH = "torchferry/graph.txt"
MANIFEST = "torchferry/manifest.json"
# In packages (.pt2): the machine that the compiled code is for, and the parameter values.
MACHINE = "torchferry/machine.json"
PARAMETERS = "torchferry/parameters.pt"
# In a .pt that embeds its kernel: the sources and their manifest.
KERNEL = "torchferry/kernel/"
REQUIRED_RECORDS = (CONTRACT, CASES, GRAPH, MANIFEST)
SEAL = b"torchferry sha256 "
# Characters of a digest.
DIGEST = 64
_RUNS_AT_LOAD = ("__setstate__", "torch.classes")
# torch's optimising executor takes time with the square of a graph's size: minutes for an unrolled iteration of
# 125,000 nodes. Graphs of more nodes than this run as they are, and reports say so.
MAX_OPTIMISED_NODES = 20_000


@dataclass(frozen=True)
class Archive:
    """An archive whose records agree with its manifest; ``holds`` is its kind: ``graphs`` (TorchScript), ``code``
    (compiled) or ``programs`` (of torch.export). Its bytes are read from ``content``: the file itself, or what does not
    change with it."""

    path: Path
    contract: Contract
    records: Mapping[str, int]
    graph: str
    holds: str
    content: os.PathLike[str]

    def record(self, name: str) -> bytes:
        """Return the bytes of the record ``name``."""
        with _open_zip(self.path, self.content) as archive:
            return archive.read(f"{_find_folder(archive.namelist(), self.path)}/{name}")

    def read_records(self, names: Collection[str]) -> dict[str, bytes]:
        """Return the bytes of several records by name."""
        with _open_zip(self.path, self.content) as archive:
            folder = _find_folder(archive.namelist(), self.path)
            return {name: archive.read(f"{folder}/{name}") for name in names}

    def read_case_bytes(self) -> bytes:
        """Return the bytes of the record of stored cases."""
        return self.record(self._find_record_name(CASES))

    def _find_record_name(self, name: str) -> str:
        return next((place for place in _list_record_names(name) if place in self.records), _list_record_names(name)[0])

    def machine(self) -> TargetMachine | None:
        """Return the machine that the compiled code is for, or None."""
        place = f"extra/{MACHINE}"
        return machine_from_json(self.record(place), f"{self.path}, record {place}") if place in self.records else None

    def parameters(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return what each method of compiled code or programs takes after its inputs, by name, in order."""
        name = self._find_record_name(PARAMETERS)
        place = f"{self.path}, record {name}"
        tensors = load_tensors(self.record(name), "the parameters", place)
        if not all(isinstance(values, dict) for values in tensors.values()):
            raise ArchiveError("the parameters are not tensors by method and name", where=place)
        return {method: dict(values) for method, values in tensors.items()}

    def list_sizes(self) -> dict[str, int]:
        """List the bytes of each record by name."""
        return dict(self.records)

    def kernel(self) -> dict[str, bytes]:
        """Return the files of the embedded kernel by name; empty without one."""
        place = f"extra/{KERNEL}"
        records = self.read_records([name for name in self.records if name.startswith(place)])
        return {name.removeprefix(place): data for name, data in records.items()}

    def cases(self) -> tuple[ReferenceCase, ...]:
        """Return the stored cases; raise ``ArchiveError`` if they do not fit the contract."""
        return unpack_cases(self.read_case_bytes(), self.contract, str(self.path))


def write(
    path: Path,
    records: Mapping[str, bytes],
    contract: Contract,
    cases: Cases,
    graph: str,
    extra_records: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Write to ``path`` the module's records as ``capture.serialization`` gives them, ours, and extra ones.
    For a file that appears only when it is complete, see ``common.atomic_files``."""
    texts = {CONTRACT: contract.to_json().encode(), CASES: pack_cases(cases), GRAPH: graph.encode()}
    is_package, named = PARAMETERS in extra_records, {**texts, **extra_records}
    placed = {_list_record_names(n)[0] if is_package else f"extra/{n}": data for n, data in named.items()}
    contents = add_serial({**records, **placed})
    manifest = _encode_manifest({name: hashlib.sha256(data).hexdigest() for name, data in contents.items()})
    data = write_zip({**contents, f"extra/{MANIFEST}": manifest}, SEAL + b"0" * DIGEST)
    data[-DIGEST:] = hashlib.sha256(data[:-DIGEST]).hexdigest().encode()
    try:
        path.write_bytes(data)
    except OSError as error:
        raise make_write_error(path.parent, error) from None


def read(path: Path, content: os.PathLike[str] | None = None) -> Archive:
    """Check every record against the manifest, then read the contract. Imports no torch.

    ``content`` is where the bytes of the file are, if not at ``path``: a ``FrozenFile`` that is loaded later, too.

    Raises ``ArchiveError`` for a file that is missing, not an archive, damaged, or has records that the manifest
    does not know; ``SchemaError`` for another schema."""
    where = str(path)
    if not path.is_file():
        what = "the archive does not exist"
        got = "a folder" if path.is_dir() else "no such file"
        raise ArchiveError(what, where=where, got=got, expected="a .pt file that torchferry wrote")
    if path.suffix == ".onnx":
        what = "an ONNX container is not an archive"
        mend = "use torchferry verify, bench or load, which accept it"
        raise ArchiveError(what, where=where, expected="a .pt that torchferry wrote", mend=mend)
    if path.stat().st_size == 0:
        raise ArchiveError("the archive is empty", where=where, got="0 bytes", mend="export it again")
    with _open_zip(path, content or path) as archive:
        return _read(archive, path, content or path)


def freeze_archive(path: Path) -> os.PathLike[str]:
    """Return the bytes of a file as they are now, to be checked and loaded; the path of one that is no archive."""
    # A name may be too long, or none; a pipe is not opened.
    with contextlib.suppress(OSError, ValueError):
        if path.is_file() and zipfile.is_zipfile(path):
            return FrozenFile(path)
    return path


def is_shared_object(path: os.PathLike[str]) -> bool:
    """Return whether a file is a shared object, which a kernel's sources can be built to."""
    if not Path(path).is_file():
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


@contextlib.contextmanager
def _open_zip(path: Path, content: os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
    """Open a zip file; an error of reading it, in the block too, is an ``ArchiveError``, which names ``path``."""
    where = str(path)
    try:
        if is_shared_object(content):
            raise ArchiveError(
                "a shared object is not an archive",
                where=where,
                expected="a .pt that torchferry wrote",
                mend="load a kernel's shared object with the native runtime; here, pass the folder of its sources",
            )
        with zipfile.ZipFile(content) as archive:
            check_one_directory(archive, os.stat(content).st_size)
            yield archive
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise ArchiveError(
            "the archive is damaged, or is no TorchScript archive at all",
            where=where,
            got=str(error),
            expected="a zip file as torch.jit.save writes it",
            mend="copy it again (in binary mode), or export it again",
        ) from None


def _read(archive: zipfile.ZipFile, path: Path, content: os.PathLike[str]) -> Archive:
    where = str(path)
    names = archive.namelist()
    _check_record_names(names, where)
    folder = _find_folder(names, path)
    sizes = {info.filename.removeprefix(f"{folder}/"): info.file_size for info in archive.infolist()}
    if len(sizes) != len(names):
        raise ArchiveError("a record stands in the archive twice", where=where)
    _check_sizes(sizes.values(), os.stat(content).st_size, where)
    if (length := sizes.get(f"extra/{CONTRACT}", 0)) > MAX_CONTRACT_BYTES:
        what, expected = "the contract is too long", f"at most {MAX_CONTRACT_BYTES}"
        raise ArchiveError(what, where=where, got=str(length), expected=expected)
    for name, digest in _read_manifest(archive, folder, sizes, where).items():
        if _compute_digest(archive, f"{folder}/{name}") != digest:
            raise ArchiveError(
                "a record of the archive was changed",
                where=f"{where}, record {name}",
                got="bytes whose sha256 is not the manifest's",
                mend="copy it again, or export it again",
            )
    _check_seal(archive, path, content)
    kind = container_kinds.classify_records(sizes, where)
    container_kinds.check_suffix(path.name, kind, where)
    if kind == GRAPHS:
        check_no_code_at_load([(name, archive.read(f"{folder}/{name}")) for name in sizes if is_code(name)], where)
    elif f"data/{PARAMETERS}" not in sizes:
        what = "this package has no parameters"
        raise ArchiveError(what, where=where, expected=f"the record data/{PARAMETERS}", mend="convert it again")
    contract = contract_from_json(archive.read(f"{folder}/extra/{CONTRACT}"), where)
    graph = archive.read(f"{folder}/extra/{GRAPH}")
    if contract.graph and hashlib.sha256(graph).hexdigest() != contract.graph:
        what = "the contract names a different graph than the archive contains"
        expected = f"the sha256 of the record extra/{GRAPH}"
        mend = "export the model again"
        raise ArchiveError(what, where=f"{where}, field graph", got=contract.graph, expected=expected, mend=mend)
    return Archive(path, contract, sizes, graph.decode(errors="replace"), kind, content)


def _check_sizes(sizes: Collection[int], file_size: int, where: str) -> None:
    """Raise ``ArchiveError`` for more records, or larger ones, than the format allows."""
    largest = file_size + MAX_INFLATED_BYTES
    for what, got, limit in (
        ("the archive has too many records", len(sizes), MAX_RECORDS),
        ("the archive's records expand to an implausible size", sum(sizes), largest),
    ):
        if got > limit:
            raise ArchiveError(what, where=where, got=str(got), expected=f"at most {limit}")


def _compute_digest(archive: zipfile.ZipFile, name: str) -> str:
    with archive.open(name) as record:
        return compute_stream_digest(record)


def list_records(path: Path) -> list[str]:
    """List the records of a file of torch of any origin, without its top folder. Raises ``ArchiveError``."""
    with _open_zip(path, path) as archive:
        return [name.partition("/")[2] for name in archive.namelist()]


def check_file_runs_nothing(path: Path) -> None:
    """Check that loading a TorchScript file of any origin runs none of its code. Raises ``ArchiveError``."""
    with _open_zip(path, path) as archive:
        _check_sizes([entry.file_size for entry in archive.infolist()], path.stat().st_size, str(path))
        # By entry: a name may be there twice, and readers differ in which of the two they take.
        records = ((entry.filename.partition("/")[2], entry) for entry in archive.infolist())
        check_no_code_at_load([(name, archive.read(entry)) for name, entry in records if is_code(name)], str(path))


def is_code(name: str) -> bool:
    """Return whether torch makes classes and objects from this record of a TorchScript file.

    Its reader of zip files does not look at the case of letters."""
    name = name.lower()
    return (name.startswith("code/") and not name.endswith(".debug_pkl")) or name.endswith(".pkl")


def check_no_code_at_load(records: Collection[tuple[str, bytes]], where: str) -> None:
    """Check that ``torch.jit.load`` runs nothing of these records, by name, and that it survives them.

    It calls ``__setstate__`` of TorchScript's own classes, and of the C++ classes that are registered with torch
    (torch/csrc/jit/serialization/import.cpp and unpickler.cpp). Code may have white space within a dotted name, and
    pickles may not. What is nested deeply overflows the stack of torch's parsers. Raises ``ArchiveError``."""
    mend = "do not load this file: nothing that torchferry writes is like it; of a quantised model, save it as it was"
    for name, data in records:
        is_pickle = name.lower().endswith(".pkl")
        text = data if is_pickle else data.translate(None, b" \t\r\n\f\v\\")
        forbidden = next((word for word in _RUNS_AT_LOAD if word.encode() in text), "")
        if forbidden:
            what, got = "the file has code that runs while it is loaded", f"{forbidden} in the record {name}"
            raise ArchiveError(what, where=where, got=got, expected="methods that a host calls", mend=mend)
        most = MAX_CONSTANT_PARTS if name.lower() == "constants.pkl" else MAX_SHARED_VALUES
        depth = measure_depth(data, most) if is_pickle else measure_code_depth(data)
        if depth > MAX_CODE_NESTING:
            what, got = "a record of the file is nested too deeply", f"{depth} levels in the record {name}"
            raise ArchiveError(what, where=where, got=got, expected=f"at most {MAX_CODE_NESTING}", mend=mend)
    try:
        check_code([(name, data) for name, data in records if name.lower().endswith(".py")])
    except ValueError as error:
        what = "the file's code costs torch more than it may, or is not what torch writes"
        expected = "code as torch.jit.save writes it, with types of few parts"
        raise ArchiveError(what, where=where, got=str(error), expected=expected, mend=mend) from None


def _read_manifest(archive: zipfile.ZipFile, folder: str, sizes: Mapping[str, int], where: str) -> dict[str, str]:
    """Return the digests by record; raise ``ArchiveError`` if the archive does not have exactly those records."""
    missing = [name for name in REQUIRED_RECORDS if not sizes.keys() & {*_list_record_names(name)}]
    if len(missing) == len(REQUIRED_RECORDS):
        what, mend = "this file is not a torchferry archive", "make it with `torchferry export`"
        error, got = ArchiveError, "a zip file with other content"
        if "constants.pkl" in sizes or "data.pkl" in sizes:
            error, got = ForeignError, "a TorchScript or other zip file without torchferry's records"
        raise error(what, where=where, got=got, expected=f"the record extra/{CONTRACT} and its companions", mend=mend)
    manifest_bytes = archive.read(f"{folder}/extra/{MANIFEST}") if MANIFEST not in missing else b"{}"
    try:
        manifest = json.loads(manifest_bytes)
        # Only one spelling is valid: otherwise a changed byte between two tokens would pass unnoticed.
        is_canonical = isinstance(manifest, dict) and _encode_manifest(manifest) == manifest_bytes
    except ValueError:
        is_canonical, manifest = False, {}
    if not is_canonical:
        raise ArchiveError("the manifest is damaged", where=where, mend="export it again")
    listed = {*manifest, f"extra/{MANIFEST}"}
    if missing or set(sizes) != listed:
        absent = sorted({f"extra/{name}" for name in missing} | (listed - set(sizes)))
        added = sorted(set(sizes) - listed) if not missing else []
        what = "the archive does not have the records that its manifest names"
        sides = (("missing", absent), ("added", added))
        got = "; ".join(f"{side}: {', '.join(records)}" for side, records in sides if records)
        raise ArchiveError(what, where=where, got=got, mend="export it again")
    return manifest


def _check_seal(archive: zipfile.ZipFile, path: Path, content: os.PathLike[str]) -> None:
    """Check the digest at the end of the file, which holds the bytes between the records too."""
    with open(content, "rb") as file:
        digest = compute_stream_digest(file, os.stat(content).st_size - DIGEST)
    if not archive.comment.endswith(SEAL + digest.encode()):
        what = "a byte between the records of the archive was changed"
        got = "bytes whose sha256 is not the one at the end of the file"
        raise ArchiveError(what, where=str(path), got=got, mend="copy it again, or export it again")


def _list_record_names(name: str) -> tuple[str, ...]:
    """Return the possible names of one of our records: torch reads all below ``extra/`` of a package as text."""
    places = {CASES: (f"data/{name}", f"extra/{name}"), PARAMETERS: (f"data/{name}",)}
    return places.get(name, (f"extra/{name}",))


def _check_record_names(names: Sequence[str], where: str) -> None:
    """Raise ``ArchiveError`` for names that lead out of the folder that a loader unpacks to, and for no names."""
    for name in names:
        if len(name) > MAX_NAME or name.endswith("/") or find_unsafe(name, is_name=True):
            what, expected = "a record's name is not a name", f"at most {MAX_NAME} characters, no control characters"
            raise ArchiveError(what, where=where, got=repr(name[:MAX_NAME]), expected=expected)
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\0" in name:
            what = "a record's name leads out of the archive"
            mend = "do not load this file: nothing that torchferry writes has such names"
            raise ArchiveError(what, where=where, got=repr(name), expected="names below one folder", mend=mend)


def _find_folder(names: Sequence[str], path: Path) -> str:
    folders = {name.split("/", 1)[0] for name in names}
    if len(folders) != 1 or any("/" not in name for name in names):
        what = "this file is not a TorchScript archive"
        got = f"a zip file with {len(folders)} top folders"
        raise ArchiveError(what, where=str(path), got=got, expected="one top folder, as torch.jit.save writes it")
    return folders.pop()


def _encode_manifest(manifest: Mapping[str, str]) -> bytes:
    return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
