"""The archive as bytes: atomic write, integrity, reading. The format is in the README.

A ``.pt`` written by ``torch.jit.save`` (a zip whose records share one top folder) with four records of ours below
``extra/torchferry/``. The manifest is written last and holds the sha256 of every other record, torch's own
included, so a record that was added, removed or changed is found before torch sees the file. The zip comment seals
the rest: it holds the sha256 of every byte before it, zip headers included, which readers interpret differently.
torch is imported only by what needs it: looking at an archive does not.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from exporter.archive.cases import Case, pack_cases, unpack_cases
from exporter.archive.contract import Contract, contract_from_json
from exporter.archive.target_machine import Machine, of_json
from exporter.archive.zip_records import FOLDER, record, zipped
from exporter.common.atomic_files import unwritable
from exporter.common.errors import ArchiveError, ForeignError

if TYPE_CHECKING:
    import torch

CONTRACT = "torchferry/contract.json"
CASES = "torchferry/cases.pt"
GRAPH = "torchferry/graph.txt"
MANIFEST = "torchferry/manifest.json"
# Of packages (.pt2): the machine that compiled code is for, and the values of parameters.
MACHINE = "torchferry/machine.json"
PARAMETERS = "torchferry/parameters.pt"
COMPILED = "data/aotinductor/"
# Of programs of torch.export.
PROGRAMS = "models/"
# Of a .pt that carries its kernel: the sources and their manifest.
KERNEL = "torchferry/kernel/"
OURS = (CONTRACT, CASES, GRAPH, MANIFEST)
SEAL = b"torchferry sha256 "
# A zip of a few kB can expand to terabytes; no archive of ours comes near this.
LARGEST = 16 * 2**30


# torch's optimising executor takes time with the square of a graph's size: minutes for an unrolled iteration of
# 125,000 nodes. Graphs of more nodes than this run as they are, and reports say so.
LARGEST_OPTIMISED = 20_000


@dataclass(frozen=True)
class Archive:
    """An archive whose records agree with its manifest."""

    path: Path
    contract: Contract
    records: Mapping[str, int]
    graph: str

    def record(self, name: str) -> bytes:
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(f"{_folder(archive.namelist(), self.path)}/{name}")

    def case_bytes(self) -> bytes:
        return self.record(self._place(CASES))

    def _place(self, name: str) -> str:
        return next((place for place in _places(name) if place in self.records), _places(name)[0])

    @property
    def holds(self) -> str:
        """``graphs`` of TorchScript, compiled ``code``, or ``programs`` of torch.export."""
        for kind, place in (("code", COMPILED), ("programs", PROGRAMS)):
            if any(name.startswith(place) for name in self.records):
                return kind
        return "graphs"

    def machine(self) -> Machine | None:
        """What the compiled code is for."""
        place = f"extra/{MACHINE}"
        return of_json(self.record(place), f"{self.path}, record {place}") if place in self.records else None

    def parameters(self) -> dict[str, dict[str, torch.Tensor]]:
        """Of compiled code and of programs: what each method takes behind its inputs, by name and in that order."""
        import torch

        try:
            found = torch.load(io.BytesIO(self.record(self._place(PARAMETERS))), weights_only=True)
        except Exception as error:
            place = f"{self.path}, record {self._place(PARAMETERS)}"
            raise ArchiveError("the parameters cannot be read", where=place, got=str(error)) from None
        return {method: dict(of) for method, of in found.items()}

    def kernel(self) -> dict[str, bytes]:
        """The files of the kernel that it carries, by name; none where it carries none."""
        place = f"extra/{KERNEL}"
        return {name.removeprefix(place): self.record(name) for name in self.records if name.startswith(place)}

    def cases(self) -> tuple[Case, ...]:
        """The stored cases; raises ``ArchiveError`` where they do not fit the contract."""
        return unpack_cases(self.case_bytes(), self.contract, str(self.path))


def write(
    path: Path,
    records: Mapping[str, bytes],
    contract: Contract,
    cases: Sequence[Case],
    graph: str,
    further: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Write all records to ``path``: those of the module as ``packing.packed`` gives them, and ours, with ``further``
    ones. For a file that appears only when it is whole, see ``files.replacing``."""

    ours = {CONTRACT: contract.to_json().encode(), CASES: pack_cases(cases), GRAPH: graph.encode(), **further}
    placed = {_places(name)[0] if PARAMETERS in further else f"extra/{name}": data for name, data in ours.items()}
    buffer = io.BytesIO(zipped({**records, **placed}))
    with zipfile.ZipFile(buffer, "a") as archive:
        manifest = {
            name.removeprefix(f"{FOLDER}/"): hashlib.sha256(archive.read(name)).hexdigest()
            for name in archive.namelist()
        }
        record(archive, f"{FOLDER}/extra/{MANIFEST}", _manifest_bytes(manifest))
    try:
        path.write_bytes(buffer.getvalue())
        seal(path)
    except OSError as error:
        raise unwritable(path.parent, error) from None


def seal(path: Path) -> None:
    """Put the sha256 of all bytes before it into the zip comment."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = SEAL + b"0" * 64
    whole = path.read_bytes()
    path.write_bytes(whole[:-64] + hashlib.sha256(whole[:-64]).hexdigest().encode())


def read(path: Path) -> Archive:
    """Check every record against the manifest, then read the contract. Imports no torch.

    Raises ``ArchiveError`` for a file that is missing, not an archive, damaged, or has records that the manifest
    does not know; ``SchemaError`` for another schema.
    """
    where = str(path)
    if not path.is_file():
        raise ArchiveError(
            "there is no archive",
            where=where,
            got="a folder" if path.is_dir() else "no such file",
            expected="a .pt file that torchferry wrote",
        )
    if path.suffix == ".onnx":
        raise ArchiveError(
            "an ONNX container is no archive",
            where=where,
            expected="a .pt that torchferry wrote",
            mend="torchferry verify, bench and load take it",
        )
    if path.stat().st_size == 0:
        raise ArchiveError("the archive is empty", where=where, got="0 bytes", mend="export it again")
    try:
        with path.open("rb") as file:
            compiled = file.read(4) == b"\x7fELF"
        if compiled:
            raise ArchiveError(
                "a shared object is no archive",
                where=where,
                expected="a .pt that torchferry wrote",
                mend="of a kernel: the native runtime loads it, here give the folder of its sources",
            )
        with zipfile.ZipFile(path) as archive:
            return _read(archive, path)
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise ArchiveError(
            "the archive is damaged, or is no TorchScript archive at all",
            where=where,
            got=str(error),
            expected="a zip file as torch.jit.save writes it",
            mend="copy it again (in binary mode), or export it again",
        ) from None


def _read(archive: zipfile.ZipFile, path: Path) -> Archive:
    where = str(path)
    names = archive.namelist()
    _refuse_hostile(names, where)
    folder = _folder(names, path)
    sizes = {info.filename.removeprefix(f"{folder}/"): info.file_size for info in archive.infolist()}
    if len(sizes) != len(names):
        raise ArchiveError("a record stands in the archive twice", where=where)
    if sum(sizes.values()) > LARGEST:
        raise ArchiveError(
            "the archive's records expand to more than is plausible",
            where=where,
            got=f"{sum(sizes.values())} bytes",
            expected=f"at most {LARGEST}",
        )
    missing = [name for name in OURS if not sizes.keys() & {*_places(name)}]
    if len(missing) == len(OURS):
        torchscript = "constants.pkl" in sizes or "data.pkl" in sizes
        raise (ForeignError if torchscript else ArchiveError)(
            "this file is not a torchferry archive",
            where=where,
            got="a TorchScript or other zip file without torchferry's records"
            if torchscript
            else "a zip file of something else",
            expected=f"the record extra/{CONTRACT} and its companions",
            mend="make it with `torchferry export`",
        )
    manifest_bytes = archive.read(f"{folder}/extra/{MANIFEST}") if MANIFEST not in missing else b"{}"
    manifest = _parse_manifest(manifest_bytes, where)
    listed = {*manifest, f"extra/{MANIFEST}"}
    if missing or set(sizes) != listed:
        gone = sorted({f"extra/{name}" for name in missing} | (listed - set(sizes)))
        added = sorted(set(sizes) - listed) if not missing else []
        raise ArchiveError(
            "the archive does not have the records that its manifest names",
            where=where,
            got="; ".join(
                text
                for text in (
                    f"missing: {', '.join(gone)}" if gone else "",
                    f"added: {', '.join(added)}" if added else "",
                )
                if text
            ),
            mend="export it again",
        )
    for name, digest in manifest.items():
        if hashlib.sha256(archive.read(f"{folder}/{name}")).hexdigest() != digest:
            raise ArchiveError(
                "a record of the archive was changed",
                where=f"{where}, record {name}",
                got="bytes whose sha256 is not the manifest's",
                mend="copy it again, or export it again",
            )
    whole = path.read_bytes()
    if not whole[:-64].endswith(SEAL) or hashlib.sha256(whole[:-64]).hexdigest().encode() != whole[-64:]:
        raise ArchiveError(
            "a byte between the records of the archive was changed",
            where=where,
            got="bytes whose sha256 is not the one at the end of the file",
            mend="copy it again, or export it again",
        )
    if any(name.startswith((COMPILED, PROGRAMS)) for name in sizes) and f"data/{PARAMETERS}" not in sizes:
        raise ArchiveError(
            "this package has no parameters",
            where=where,
            expected=f"the record data/{PARAMETERS}",
            mend="convert it again",
        )
    contract = contract_from_json(archive.read(f"{folder}/extra/{CONTRACT}"), where)
    graph = archive.read(f"{folder}/extra/{GRAPH}")
    if contract.graph and hashlib.sha256(graph).hexdigest() != contract.graph:
        raise ArchiveError(
            "the contract names another graph than the archive holds",
            where=f"{where}, field graph",
            got=contract.graph,
            expected=f"the sha256 of the record extra/{GRAPH}",
            mend="export the model again",
        )
    return Archive(path, contract, sizes, graph.decode())


def _places(name: str) -> tuple[str, ...]:
    """Where a record of ours may be: torch reads all that is below ``extra/`` of a package as text."""
    places = {CASES: (f"data/{name}", f"extra/{name}"), PARAMETERS: (f"data/{name}",)}
    return places.get(name, (f"extra/{name}",))


def _refuse_hostile(names: Sequence[str], where: str) -> None:
    """Names that lead out of the folder that a loader unpacks to."""
    for name in names:
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\0" in name:
            raise ArchiveError(
                "a record's name leads out of the archive",
                where=where,
                got=repr(name),
                expected="names below one folder",
                mend="do not load this file: nothing that torchferry writes has such names",
            )


def _folder(names: Sequence[str], path: Path) -> str:
    folders = {name.split("/", 1)[0] for name in names}
    if len(folders) != 1 or any("/" not in name for name in names):
        raise ArchiveError(
            "this file is not a TorchScript archive",
            where=str(path),
            got=f"a zip file with {len(folders)} top folders",
            expected="one top folder, as torch.jit.save writes it",
        )
    return folders.pop()


def _manifest_bytes(manifest: Mapping[str, str]) -> bytes:
    return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()


def _parse_manifest(data: bytes, where: str) -> dict[str, str]:
    try:
        manifest = json.loads(data)
        # One spelling only: otherwise a changed byte between two tokens would go unseen.
        whole = isinstance(manifest, dict) and _manifest_bytes(manifest) == data
    except ValueError:
        whole, manifest = False, {}
    if not whole:
        raise ArchiveError("the manifest is damaged", where=where, mend="export it again")
    return manifest
