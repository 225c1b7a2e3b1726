"""A kernel on disk: a folder of C sources, the contract, the cases, and a manifest of their digests.

``contract.json`` is the contract, ``cases.txt`` what C reads too: the parameters and the cases, floats as C writes them
with ``%a``. ``manifest.json`` names every file with its sha256, and of each method the workspace that it needs. What
reads the folder needs no torch; what calls the kernel needs NumPy.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.archive.cases import Case, cases_of
from exporter.archive.contract import Batch, Bounds, Contract, Finding, block_name, contract_from_json
from exporter.common.errors import ArchiveError, first_line

if TYPE_CHECKING:
    import torch

FORMAT = "torchferry kernel 1"
MANIFEST, CONTRACT, CASES = "manifest.json", "contract.json", "cases.txt"
HEAD = "torchferry cases 1"
_LINE = 8


@dataclass(frozen=True)
class KernelFiles:
    """Files that agree with their digests. ``name`` begins every C name; ``workspace`` are bytes by method;
    ``described`` is the whole manifest."""

    path: Path
    contract: Contract
    name: str
    files: Mapping[str, str]
    workspace: Mapping[str, int]
    described: Mapping[str, Any]

    def sources(self) -> dict[str, bytes]:
        """What a compiler is given, the file to be compiled first."""
        names = (f"{self.name}.c", f"{self.name}.h", f"{self.name}_lanes.h")
        return {name: (self.path / name).read_bytes() for name in names}

    def cases(self) -> tuple[Case, ...]:
        return _read_cases(self.path / CASES, self.contract)[1]

    def parameters(self) -> dict[str, torch.Tensor]:
        """Those of the contract, as they are in the sources."""
        return _read_cases(self.path / CASES, self.contract)[0]


def needed(files: Mapping[str, bytes]) -> list[str]:
    """What a host needs to build and call it: the file to be compiled first, what that includes, the manifest."""
    if not files:
        return []
    main = f"{json.loads(files[MANIFEST])['name']}.c"
    return [main, *sorted(n for n in files if n.endswith(".h")), MANIFEST]


def is_kernel(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def contract_of(contract: Contract, notes: Sequence[str] = ()) -> Contract:
    """What a kernel keeps of its archive's contract; ``notes`` are errors that it does not raise."""
    findings = [Finding("container", note, reason="a kernel raises no errors") for note in notes]
    batch = contract.batch
    outputs = dict(contract.tolerance.outputs)
    if contract.solvers:
        # What is left of a residual below the solver's own tolerance is rounding, in the order of this code.
        left = contract.tolerance.bounds("residual_norm", "float64")
        least = max(s.settings["abs_tol"] for s in contract.solvers)
        outputs["residual_norm"] = dataclasses.replace(left, floor=max(left.floor, least))
        outputs["iterations"] = Bounds(0.0, 0.0, 1.0)
        what = "iterations may differ by one from eager mode's, norms of residuals by the solver's abs_tol"
        findings.append(Finding("container", what, reason="sums are rounded in another order"))
    return dataclasses.replace(
        contract,
        batch=Batch(batch.ndim, batch.sizes, (1,) if batch.ndim else batch.ranks, batch.limits),
        findings=(*contract.findings, *findings),
        tolerance=dataclasses.replace(contract.tolerance, outputs=outputs),
        devices=("cpu",),
        differentiable=False,
        solvers=tuple(
            dataclasses.replace(s, on_failure="nan" if s.on_failure == "raise" else s.on_failure)
            for s in contract.solvers
        ),
    )


def identifier(text: str) -> str:
    """A name in C."""
    found = re.sub(r"\W", "_", text.replace("~", "_old"), flags=re.ASCII)
    return f"_{found}" if not found or found[0].isdigit() else found


def identifiers(names: Sequence[str]) -> list[str]:
    """One for each, none twice."""
    found: list[str] = []
    for name in names:
        one = identifier(name)
        while one in found:
            one += "_"
        found.append(one)
    return found


def manifest(
    contract: Contract,
    name: str,
    files: Mapping[str, bytes],
    workspace: Mapping[str, int],
    left_out: Sequence[str] = (),
) -> bytes:
    """``left_out`` are cases of the archive that say nothing of another runtime."""
    whole = {
        "format": FORMAT,
        "name": name,
        "files": {n: hashlib.sha256(data).hexdigest() for n, data in sorted(files.items())},
        "batched": bool(contract.batch.ndim),
        "workspace": dict(workspace),
        "left_out": list(left_out),
        "methods": methods_of(contract),
        "parameters": [_variable(p.name, p) for p in contract.parameters],
    }
    return json.dumps({**whole, "sha256": _seal(whole)}, indent=1, ensure_ascii=False).encode()


def methods_of(contract: Contract) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Name, dtype and shape of what each method takes and returns."""
    return {
        m: {
            "inputs": [_variable(n, contract.taken(n)) for n in spec.inputs],
            "outputs": [_variable(_said(o), contract.returned(o)) for o in spec.outputs],
        }
        for m, spec in contract.methods.items()
    }


def _said(output: str | tuple[str, str]) -> str:
    return output if isinstance(output, str) else block_name(*output)


def _variable(name: str, spec: Any) -> dict[str, Any]:
    return {"name": name, "dtype": spec.dtype, "shape": list(spec.shape)}


def _seal(whole: Mapping[str, Any]) -> str:
    text = json.dumps(whole, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def described(path: Path) -> dict[str, Any]:
    """The manifest, against its own digest. Raises ``ArchiveError``."""
    if not is_kernel(path):
        raise ArchiveError(
            "there is no kernel in this folder",
            where=str(path),
            got="a folder without manifest.json" if path.is_dir() else "no such folder",
            expected="a folder that `torchferry export --format c` wrote",
        )
    return parsed((path / MANIFEST).read_bytes(), path / MANIFEST)


def parsed(data: bytes, where: Path) -> dict[str, Any]:
    """A manifest, against its own digest. Raises ``ArchiveError``."""
    try:
        whole = json.loads(data)
        sealed = whole.pop("sha256")
        good = whole["format"] == FORMAT and sealed == _seal(whole)
        good = good and all(Path(n).name == n for n in whole["files"])
        good = good and {CONTRACT, CASES, *(f"{whole['name']}{end}" for end in (".c", ".h", "_lanes.h"))} <= set(
            whole["files"]
        )
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise _damaged(where, first_line(error)) from None
    if not good:
        raise _damaged(where, "a text whose sha256 is not the one at its end, or another format")
    return whole


def read(path: Path) -> KernelFiles:
    """Every file against its digest. Imports no torch; raises ``ArchiveError`` for what is missing or was changed."""
    whole = described(path)
    for name, wanted in whole["files"].items():
        file = path / name
        if not file.is_file():
            raise ArchiveError(
                "a file of the kernel is missing", where=str(file), expected=f"what {MANIFEST} names", mend=_AGAIN
            )
        if hashlib.sha256(file.read_bytes()).hexdigest() != wanted:
            raise ArchiveError(
                "a file of the kernel was changed",
                where=str(file),
                got=f"bytes whose sha256 is not the one in {MANIFEST}",
                mend=_AGAIN,
            )
    contract = contract_from_json((path / CONTRACT).read_bytes(), str(path / CONTRACT))
    return KernelFiles(path, contract, whole["name"], whole["files"], whole["workspace"], whole)


_AGAIN = "copy the folder again, or export the model again"


def _damaged(where: Path, got: str) -> ArchiveError:
    return ArchiveError(
        "the manifest of a kernel is damaged",
        where=str(where),
        got=got,
        expected=f"what torchferry wrote: {FORMAT}",
        mend=_AGAIN,
    )


def pack(contract: Contract, cases: Sequence[Case], parameters: Mapping[str, torch.Tensor]) -> bytes:
    """``cases.txt``: a head, the parameters, the cases, ``end``.

    ``parameter DTYPE COUNT NAME``, ``case ROWS METHOD NAME``, ``in DTYPE COUNT`` and ``out DTYPE COUNT RTOL ATOL
    FLOOR`` have their numbers in the lines that follow; names are percent-encoded.
    """
    lines = [HEAD]
    for name, value in parameters.items():
        lines += [f"parameter {_dtype(value)} {value.numel()} {_quoted(name)}", *_numbers(value)]
    for case in cases:
        spec = contract.methods[case.method]
        values = case.inputs or case.outputs
        shape = (contract.taken(spec.inputs[0]) if case.inputs else contract.returned(spec.outputs[0])).fixed
        rows = values[0].numel() // max(prod(shape), 1) if contract.batch.ndim else 1
        if contract.batch.ndim and not prod(shape):
            rows = values[0].shape[0]
        lines.append(f"case {rows} {case.method} {_quoted(case.name)}")
        for value in case.inputs:
            lines += [f"in {_dtype(value)} {value.numel()}", *_numbers(value)]
        for output, value in zip(spec.outputs, case.outputs, strict=True):
            bounds = contract.tolerance.bounds(output, _dtype(value))
            said = " ".join(number.hex() for number in map(float, (bounds.rtol, bounds.atol, bounds.floor)))
            lines += [f"out {_dtype(value)} {value.numel()} {said}", *_numbers(value)]
    return "\n".join([*lines, "end", ""]).encode()


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="~/:")


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _numbers(value: torch.Tensor) -> Iterator[str]:
    found = value.detach().cpu().reshape(-1).tolist()
    written = [v.hex() if isinstance(v, float) else str(int(v)) for v in found]
    for i in range(0, len(written), _LINE):
        yield " ".join(written[i : i + _LINE])


def _read_cases(path: Path, contract: Contract) -> tuple[dict[str, torch.Tensor], tuple[Case, ...]]:
    import torch

    lines = iter(path.read_text().splitlines())
    tensors: dict[str, torch.Tensor] = {}
    parameters: dict[str, torch.Tensor] = {}
    shapes = {p.name: p.shape for p in contract.parameters}
    case, rows, places = "", 0, {"in": 0, "out": 0}
    method = ""
    try:
        if next(lines) != HEAD:
            raise ValueError(f"another head than {HEAD!r}")
        while (words := next(lines).split(" "))[0] != "end":
            if words[0] == "case":
                rows, method, case = int(words[1]), words[2], urllib.parse.unquote(words[3])
                places = {"in": 0, "out": 0}
                continue
            kind, dtype, count = words[0], words[1], int(words[2])
            numbers: list[float | int] = []
            while len(numbers) < count:
                numbers += [float.fromhex(w) if "float" in dtype else int(w) for w in next(lines).split(" ")]
            value = torch.tensor(numbers, dtype=getattr(torch, dtype))
            if kind == "parameter":
                name = urllib.parse.unquote(words[3])
                parameters[name] = value.reshape(shapes[name])
                continue
            spec = contract.methods[method]
            at = places[kind]
            of = contract.taken(spec.inputs[at]) if kind == "in" else contract.returned(spec.outputs[at])
            lead = (rows,) if contract.batch.ndim else ()
            tensors[f"{case}/{method}/{kind}/{at}"] = value.reshape((*lead, *of.fixed))
            places[kind] = at + 1
    except (ValueError, IndexError, KeyError, StopIteration, RuntimeError) as error:
        raise ArchiveError("the cases cannot be read", where=str(path), got=first_line(error)) from None
    return parameters, cases_of(tensors, contract, str(path))
