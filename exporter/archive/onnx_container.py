"""An ONNX container on disk: a model for each method, and beside them the contract, the cases and the digests.

``m.onnx`` is ``forward``, ``m.jacobian.onnx`` the method ``jacobian``. ``m.onnx.json`` names every file with its
sha256 and holds the contract; ``m.onnx.npz`` holds the cases, ``CASE/METHOD/in/I`` and ``.../out/I``, and the
parameters as they are in the file, ``parameter/NAME``. What reads it needs NumPy and JSON, and no torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.archive.cases import Case, cases_of
from exporter.archive.contract import Contract, contract_from_json
from exporter.common.errors import ArchiveError, MissingRuntimeError, first_line

if TYPE_CHECKING:
    import torch

FORMAT = "torchferry onnx 1"
SUFFIX = ".onnx"
MAIN = "forward"
_PARAMETER = "parameter/"


@dataclass(frozen=True)
class OnnxFiles:
    """Files that agree with their digests. ``files`` are sizes by name; ``methods`` file names by method; ``inputs``
    and ``outputs`` are the names in the models."""

    path: Path
    contract: Contract
    opset: int
    files: Mapping[str, int]
    methods: Mapping[str, str]
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]

    def cases(self) -> tuple[Case, ...]:
        arrays = {k: v for k, v in _arrays(self.path).items() if not k.startswith(_PARAMETER)}
        return cases_of(arrays, self.contract, str(cases_path(self.path)))

    def parameters(self) -> dict[str, torch.Tensor]:
        """Those of the contract, as they are in the file."""
        found = _arrays(self.path)
        return {k.removeprefix(_PARAMETER): v for k, v in found.items() if k.startswith(_PARAMETER)}


def manifest_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def cases_path(path: Path) -> Path:
    return path.with_name(path.name + ".npz")


def method_path(path: Path, method: str) -> Path:
    return path if method == MAIN else path.with_name(f"{path.name.removesuffix(SUFFIX)}.{method}{SUFFIX}")


def data_path(path: Path) -> Path:
    """Of tensors too large for the model's own file."""
    return path.with_name(path.name + ".data")


def pack(cases: Sequence[Case], parameters: Mapping[str, torch.Tensor]) -> bytes:
    import numpy

    arrays = {
        f"{case.name}/{case.method}/{side}/{i}": value.detach().cpu().contiguous().numpy()
        for case in cases
        for side, values in (("in", case.inputs), ("out", case.outputs))
        for i, value in enumerate(values)
    }
    arrays |= {f"{_PARAMETER}{name}": value.detach().cpu().numpy() for name, value in parameters.items()}
    buffer = io.BytesIO()
    numpy.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def manifest(
    contract: Contract,
    opset: int,
    files: Sequence[Path],
    methods: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]],
) -> bytes:
    """``methods``: file, inputs and outputs of each. Digests are those of the files as they are now."""
    whole = {
        "format": FORMAT,
        "opset": opset,
        "methods": {n: {"file": f, "inputs": i, "outputs": o} for n, (f, i, o) in methods.items()},
        "files": {file.name: digest(file) for file in files},
        "contract": dataclasses.asdict(contract),
    }
    sealed = {**whole, "sha256": _seal(whole)}
    return json.dumps(sealed, indent=1, ensure_ascii=False, allow_nan=False).encode()


def _seal(whole: Mapping[str, Any]) -> str:
    text = json.dumps(whole, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            found.update(block)
    return found.hexdigest()


def read(path: Path) -> OnnxFiles:
    """Every file against its digest. Imports no torch; raises ``ArchiveError`` for what is missing or was changed."""
    where = manifest_path(path)
    if not path.is_file():
        raise ArchiveError("there is no ONNX container", where=str(path), got="no such file")
    if not where.is_file():
        raise ArchiveError(
            "an ONNX file stands alone, without what torchferry wrote beside it",
            where=str(path),
            got=f"no {where.name}",
            expected=f"{where.name} and {cases_path(path).name} in the same folder",
            mend="copy them along; or make the file with `torchferry export --format onnx`",
        )
    try:
        whole = json.loads(where.read_bytes())
        sealed = whole.pop("sha256")
        agrees = whole["format"] == FORMAT and sealed == _seal(whole)
        files, methods = dict(whole["files"]), dict(whole["methods"])
        names = {str(of["file"]) for of in methods.values()}
        agrees = agrees and {path.name, cases_path(path).name, *names} <= set(files)
        # Only names: a manifest cannot speak of files elsewhere.
        agrees = agrees and all(Path(name).name == name for name in files)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise _damaged(where, first_line(error)) from None
    if not agrees:
        raise _damaged(where, "a text whose sha256 is not the one at its end, or another format")
    for name, wanted in files.items():
        file = path.with_name(name)
        if not file.is_file():
            raise ArchiveError(
                "a file of the ONNX container is missing",
                where=str(file),
                got="no such file",
                expected=f"what {where.name} names",
                mend="copy it along, or export the model again",
            )
        if digest(file) != wanted:
            raise ArchiveError(
                "a file of the ONNX container was changed",
                where=str(file),
                got=f"bytes whose sha256 is not the one in {where.name}",
                mend="copy it again, or export the model again",
            )
    contract = contract_from_json(json.dumps(whole["contract"]), str(where))
    return OnnxFiles(
        path,
        contract,
        int(whole["opset"]),
        {name: path.with_name(name).stat().st_size for name in (*files, where.name)},
        {name: str(of["file"]) for name, of in methods.items()},
        {name: tuple(of["inputs"]) for name, of in methods.items()},
        {name: tuple(of["outputs"]) for name, of in methods.items()},
    )


def _damaged(where: Path, got: str) -> ArchiveError:
    return ArchiveError(
        "the manifest of an ONNX container is damaged",
        where=str(where),
        got=got,
        expected=f"what torchferry wrote: {FORMAT}",
        mend="copy it again, or export the model again",
    )


def _arrays(path: Path) -> dict[str, torch.Tensor]:
    try:
        import numpy
    except ImportError as error:
        raise MissingRuntimeError(
            "numpy is needed to read an ONNX container", got=str(error), mend="pip install numpy"
        ) from None
    import torch

    where = cases_path(path)
    try:
        with numpy.load(io.BytesIO(where.read_bytes()), allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except (ValueError, OSError, KeyError) as error:
        raise ArchiveError("the cases cannot be read", where=str(where), got=first_line(error)) from None
