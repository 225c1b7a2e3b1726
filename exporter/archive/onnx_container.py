"""ONNX containers on disk: a model for each method, and beside them the contract, the cases and the digests.

``m.onnx`` is ``forward``, ``m.jacobian.onnx`` the method ``jacobian``. ``m.onnx.json`` names every file with its
sha256 and holds the contract; ``m.onnx.npz`` holds the cases, ``CASE/METHOD/in/I`` and ``.../out/I``, and the
parameters as they are in the file, ``parameter/NAME``. Reading it needs NumPy and JSON, and no torch."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from exporter.archive.cases import Cases, ReferenceCase, cases_from_tensors, list_tensors
from exporter.archive.contract import Contract, contract_from_json
from exporter.archive.contract_text import StrictlyRead
from exporter.archive.onnx_data import find_references
from exporter.archive.sealed_manifest import Manifest, parse_manifest, seal_manifest
from exporter.common.errors import ArchiveError, MissingRuntimeError, summarize_error
from exporter.common.file_digest import compute_file_digest

if TYPE_CHECKING:
    import torch

FORMAT = "torchferry onnx 1"
SUFFIX = ".onnx"
MAIN = "forward"
_PARAMETER = "parameter/"
_COPY_ADVICE = "copy it again, or export the model again"


@dataclass(frozen=True)
class _Method(StrictlyRead):
    file: str
    inputs: list[str]
    outputs: list[str]


@dataclass(frozen=True)
class _Manifest(Manifest):
    opset: int
    methods: dict[str, _Method]
    contract: dict[str, Any]


_ADAPTER = TypeAdapter(_Manifest)


@dataclass(frozen=True)
class OnnxFiles:
    """The files of a container, which agree with their digests. ``files`` are sizes by name; ``methods`` file names by
    method; ``inputs`` and ``outputs`` are the names in the models."""

    path: Path
    contract: Contract
    opset: int
    files: Mapping[str, int]
    methods: Mapping[str, str]
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]

    def list_sizes(self) -> dict[str, int]:
        """List the bytes of each file by name."""
        return dict(self.files)

    def cases(self) -> tuple[ReferenceCase, ...]:
        """Return the stored cases."""
        arrays = {k: v for k, v in _read_arrays(self.path).items() if not k.startswith(_PARAMETER)}
        return cases_from_tensors(arrays, self.contract, str(cases_path(self.path)))

    def parameters(self) -> dict[str, torch.Tensor]:
        """Return the parameters of the contract, as they are in the file."""
        arrays = _read_arrays(self.path)
        return {k.removeprefix(_PARAMETER): v for k, v in arrays.items() if k.startswith(_PARAMETER)}


def manifest_path(path: Path) -> Path:
    """Return the path of the manifest beside the model at ``path``."""
    return path.with_name(path.name + ".json")


def cases_path(path: Path) -> Path:
    """Return the path of the cases beside the model at ``path``."""
    return path.with_name(path.name + ".npz")


def method_path(path: Path, method: str) -> Path:
    """Return the path of the model of ``method``."""
    return path if method == MAIN else path.with_name(f"{path.name.removesuffix(SUFFIX)}.{method}{SUFFIX}")


def data_path(path: Path) -> Path:
    """Return the path of the file for tensors too large for the model's own file."""
    return path.with_name(path.name + ".data")


def pack_arrays(cases: Cases, parameters: Mapping[str, torch.Tensor]) -> bytes:
    """Serialize the cases and the parameters as ``.npz``."""
    import numpy

    arrays = {key: value.cpu().contiguous().numpy() for key, value in list_tensors(cases).items()}
    arrays |= {f"{_PARAMETER}{name}": value.detach().cpu().numpy() for name, value in parameters.items()}
    buffer = io.BytesIO()
    numpy.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def build_manifest(
    contract: Contract,
    opset: int,
    files: Sequence[Path],
    methods: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]],
) -> bytes:
    """Build the manifest. ``methods``: file, inputs and outputs of each. Digests are of the files as they are now."""
    content = {
        "format": FORMAT,
        "opset": opset,
        "methods": {n: {"file": f, "inputs": i, "outputs": o} for n, (f, i, o) in methods.items()},
        "files": {file.name: compute_file_digest(file) for file in files},
        "contract": dataclasses.asdict(contract),
    }
    return seal_manifest(content)


def read(path: Path) -> OnnxFiles:
    """Check every file against its digest. Imports no torch; raises ``ArchiveError`` if one is missing or changed."""
    where = manifest_path(path)
    if not path.is_file():
        raise ArchiveError("the ONNX container does not exist", where=str(path), got="no such file")
    if not where.is_file():
        what = "an ONNX file lacks the files that torchferry wrote beside it"
        expected = f"{where.name} and {cases_path(path).name} in the same folder"
        mend = "copy them too; or make the file with `torchferry export --format onnx`"
        raise ArchiveError(what, where=str(path), got=f"no {where.name}", expected=expected, mend=mend)
    content = parse_manifest(where.read_bytes(), _ADAPTER, FORMAT, owner="ONNX container", where=str(where))
    files, methods = content["files"], content["methods"]
    needed = {path.name, cases_path(path).name, *(entry["file"] for entry in methods.values())}
    if missing := sorted(needed - set(files)):
        raise _make_damaged_error(where, f"no digests of {', '.join(missing)}")
    for name, expected_digest in files.items():
        file = path.with_name(name)
        if not file.is_file():
            raise ArchiveError(
                "a file of the ONNX container is missing",
                where=str(file),
                got="no such file",
                expected=f"the files listed in {where.name}",
                mend="copy it too, or export the model again",
            )
        if compute_file_digest(file) != expected_digest:
            got = f"bytes whose sha256 is not the one in {where.name}"
            raise ArchiveError("a file of the ONNX container was changed", where=str(file), got=got, mend=_COPY_ADVICE)
    for model in sorted({entry["file"] for entry in methods.values()}):
        _check_references(path.with_name(model), files)
    contract = contract_from_json(json.dumps(content["contract"]), str(where))
    sizes = {name: (len(spec.inputs), len(spec.outputs)) for name, spec in contract.methods.items()}
    if sizes != {name: (len(entry["inputs"]), len(entry["outputs"])) for name, entry in methods.items()}:
        raise _make_damaged_error(where, "other methods than the contract's, or other numbers of inputs or outputs")
    return OnnxFiles(
        path,
        contract,
        content["opset"],
        {name: path.with_name(name).stat().st_size for name in (*files, where.name)},
        {name: entry["file"] for name, entry in methods.items()},
        {name: tuple(entry["inputs"]) for name, entry in methods.items()},
        {name: tuple(entry["outputs"]) for name, entry in methods.items()},
    )


def _check_references(model: Path, files: Collection[str]) -> None:
    """Raise ``ArchiveError`` if a model takes tensors from a file that has no digest, or has operators of others."""
    try:
        references = find_references(model.read_bytes())
    except ValueError as error:
        what, got = "the file is no ONNX model", str(error)
        raise ArchiveError(what, where=str(model), got=got, mend=_COPY_ADVICE) from None
    if references.strange:
        what, got = "a model has what is no operator that only computes", sorted(references.strange)[0]
        expected = "operators of the standard, without random numbers, that torchferry writes"
        raise ArchiveError(what, where=str(model), got=got, expected=expected, mend="export it again")
    if strange := sorted(references.files - set(files)):
        what, expected = "a model takes tensors from a file that its manifest does not name", ", ".join(sorted(files))
        raise ArchiveError(what, where=str(model), got=strange[0], expected=expected, mend="export it again")


def _make_damaged_error(where: Path, got: str) -> ArchiveError:
    what, expected = "the ONNX container's manifest is damaged", f"a manifest written by torchferry: {FORMAT}"
    return ArchiveError(what, where=str(where), got=got, expected=expected, mend=_COPY_ADVICE)


def _read_arrays(path: Path) -> dict[str, torch.Tensor]:
    try:
        import numpy
    except ImportError as error:
        what = "numpy is needed to read an ONNX container"
        raise MissingRuntimeError(what, got=str(error), mend="pip install numpy") from None
    import torch

    where = cases_path(path)
    try:
        with numpy.load(io.BytesIO(where.read_bytes()), allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except (ValueError, OSError, KeyError) as error:
        raise ArchiveError("the cases cannot be read", where=str(where), got=summarize_error(error)) from None
