"""Kernels on disk: a folder of C sources, the contract, the cases, and a manifest of their digests.

``contract.json`` is the contract; ``cases.txt``, which C reads too, has the parameters and the cases, with floats as C
writes them with ``%a``. ``manifest.json`` names every file with its sha256, and the workspace that each method needs.
Reading the folder needs no torch; calling the kernel needs NumPy."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from exporter.archive import sealed_manifest, text_cases
from exporter.archive.cases import ReferenceCase
from exporter.archive.contract import Bounds, Contract, Finding, contract_from_json, name_output
from exporter.archive.contract_text import StrictlyRead, is_identifier
from exporter.archive.format_limits import MAX_SIZE
from exporter.archive.text_cases import CaseNumbers, StoredNumbers
from exporter.common.errors import ArchiveError

if TYPE_CHECKING:
    import torch

FORMAT = "torchferry kernel 1"
MANIFEST, CONTRACT, CASES = "manifest.json", "contract.json", "cases.txt"
_COPY_ADVICE = "copy the folder again, or export the model again"


@dataclass(frozen=True)
class _Variable(StrictlyRead):
    name: str
    dtype: str
    shape: list[int]


@dataclass(frozen=True)
class _Manifest(sealed_manifest.Manifest):
    name: str
    batched: bool
    workspace: dict[str, int]
    left_out: list[str]
    methods: dict[str, dict[str, list[_Variable]]]
    parameters: list[_Variable]


_ADAPTER = TypeAdapter(_Manifest)


@dataclass(frozen=True)
class KernelFiles:
    """A kernel's files, which agree with their digests. All C names begin with ``name``; ``workspace`` gives bytes by
    method; ``manifest`` is the whole manifest, ``contents`` the bytes of each file that it names and its own: what was
    held against the digests is what is used."""

    path: Path
    contract: Contract
    name: str
    files: Mapping[str, str]
    workspace: Mapping[str, int]
    manifest: Mapping[str, Any]
    contents: Mapping[str, bytes]

    def list_sizes(self) -> dict[str, int]:
        """List the bytes of each file by name."""
        return {name: len(data) for name, data in sorted(self.contents.items())}

    def sources(self) -> dict[str, bytes]:
        """Return the compiler's input by file name, the file to be compiled first."""
        return {name: self.contents[name] for name in _list_sources(self.name)}

    @property
    def has_cuda(self) -> bool:
        """Return whether there are sources for GPUs as well."""
        return list_cuda_files(self.name)[-1] in self.contents

    def cuda_sources(self) -> dict[str, bytes]:
        """Return the sources for GPUs by file name, the file to be compiled first."""
        names = (*list_cuda_files(self.name)[:2], *_list_sources(self.name)[1:])
        return {name: self.contents[name] for name in names}

    def cuda_host_sources(self) -> dict[str, bytes]:
        """Return the same with the methods for the host's arrays, which are the file to be compiled then."""
        main = list_cuda_files(self.name)[2]
        return {main: self.contents[main], **self.cuda_sources()}

    def build_files(self) -> dict[str, bytes]:
        """Return the sources and the manifest by file name: what an archive that carries the kernel has of it."""
        return self.sources() | {MANIFEST: self.contents[MANIFEST]}

    def cases(self) -> tuple[ReferenceCase, ...]:
        """Return the stored cases."""
        return text_cases.unpack_cases(self.contents[CASES], self.contract, str(self.path / CASES))

    def parameters(self) -> dict[str, torch.Tensor]:
        """Return the parameters of the contract, as they are in the sources."""
        return text_cases.unpack_parameters(self.contents[CASES], self.contract, str(self.path / CASES))

    def read_parameter_numbers(self) -> dict[str, tuple[float | int, ...]]:
        """Read the parameters as plain numbers, without torch."""
        return {name: numbers.values for name, numbers in self._numbers.parameters.items()}

    def read_case_numbers(self) -> tuple[CaseNumbers, ...]:
        """Read the stored cases as plain numbers, without torch."""
        return self._numbers.cases

    @functools.cached_property
    def _numbers(self) -> StoredNumbers:
        return text_cases.parse_cases(self.contents[CASES], self.contract, str(self.path / CASES))


def list_build_files(files: Mapping[str, bytes]) -> list[str]:
    """List the files a host needs to build and call the kernel: the main C file first, its headers, the manifest."""
    if not files:
        return []
    return [*_list_sources(json.loads(files[MANIFEST])["name"]), MANIFEST]


def is_kernel(path: Path) -> bool:
    """Return whether ``path`` is a kernel's folder."""
    return (path / MANIFEST).is_file()


def has_cuda_files(path: Path) -> bool:
    """Return whether a kernel's folder says that it has sources for GPUs; what it says is checked when it is read."""
    try:
        content = json.loads((path / MANIFEST).read_bytes())
        return list_cuda_files(content["name"])[0] in content["files"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def derive_kernel_contract(
    contract: Contract, notes: Sequence[str] = (), reductions: Sequence[str] | None = None
) -> Contract:
    """Derive a kernel's contract from its archive's.

    ``notes`` are errors that the kernel does not raise, ``reductions`` what its Newton loops solve for instead of their
    unknowns; None where that is not known."""
    findings = [Finding("container", note, reason="a kernel raises no errors") for note in notes]
    known = "once these are known the rest is linear; the whole residual decides"
    findings += [Finding("container", reduction, reason=known) for reduction in reductions or ()]
    outputs = dict(contract.tolerance.outputs)
    if contract.solvers:
        # A residual below the solver's own tolerance is rounding, which depends on this code's order of operations.
        bounds = contract.tolerance.bounds("residual_norm", "float64")
        least = max(s.settings["abs_tol"] for s in contract.solvers)
        outputs["residual_norm"] = dataclasses.replace(bounds, floor=max(bounds.floor, least))
        has_own_steps = reductions is None or bool(reductions)
        most = max(s.settings["max_its"] for s in contract.solvers) if has_own_steps else 1.0
        outputs["iterations"] = Bounds(0.0, 0.0, float(most))
        what = "iterations may differ by one from eager mode's, norms of residuals by the solver's abs_tol"
        reason = "sums are rounded in another order"
        if has_own_steps:
            what = (
                "iterations are the kernel's own, and elements may converge that eager mode gives up; "
                "norms of residuals may differ by the solver's abs_tol"
            )
            reason = "it may solve for fewer numbers"
        findings.append(Finding("container", what, reason=reason))
    return dataclasses.replace(
        contract,
        batch=contract.batch.with_one_dimension(),
        findings=(*contract.findings, *findings),
        tolerance=dataclasses.replace(contract.tolerance, outputs=outputs),
        devices=("cpu",),
        differentiable=False,
        solvers=tuple(solver.without_errors() for solver in contract.solvers),
    )


def build_manifest(
    contract: Contract,
    name: str,
    files: Mapping[str, bytes],
    workspace: Mapping[str, int],
    left_out: Sequence[str] = (),
) -> bytes:
    """Build the manifest; ``left_out`` are cases of the archive that do not apply to another runtime."""
    content = {
        "format": FORMAT,
        "name": name,
        "files": {n: hashlib.sha256(data).hexdigest() for n, data in sorted(files.items())},
        "batched": bool(contract.batch.ndim),
        "workspace": dict(workspace),
        "left_out": list(left_out),
        "methods": describe_methods(contract),
        "parameters": [_describe_variable(p.name, p) for p in contract.parameters],
    }
    return sealed_manifest.seal_manifest(content)


def describe_methods(contract: Contract) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Describe name, dtype and shape of each method's inputs and outputs."""
    return {
        m: {
            "inputs": [_describe_variable(n, contract.input_spec(n)) for n in spec.inputs],
            "outputs": [_describe_variable(name_output(o), contract.output_spec(o)) for o in spec.outputs],
        }
        for m, spec in contract.methods.items()
    }


def _describe_variable(name: str, spec: Any) -> dict[str, Any]:
    return {"name": name, "dtype": spec.dtype, "shape": list(spec.shape)}


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest and check it against its own digest. Raises ``ArchiveError``."""
    return parse_manifest(_read_manifest_bytes(path), path / MANIFEST)


def _read_manifest_bytes(path: Path) -> bytes:
    if not is_kernel(path):
        expected = "a folder that `torchferry export --format c` wrote"
        if path.is_file():
            folder = path.with_suffix("") if path.suffix else path.with_name(f"{path.name}_kernel")
            mend = f"for an archive: torchferry convert {shlex.quote(str(path))} --to c -o {shlex.quote(str(folder))}"
            raise ArchiveError("a kernel is a folder", where=str(path), got="a file", expected=expected, mend=mend)
        got = "a folder without manifest.json" if path.is_dir() else "no such folder"
        raise ArchiveError("this folder does not contain a kernel", where=str(path), got=got, expected=expected)
    return (path / MANIFEST).read_bytes()


def parse_manifest(data: bytes, where: Path) -> dict[str, Any]:
    """Parse a manifest and check it against its own digest. Raises ``ArchiveError``."""
    content = sealed_manifest.parse_manifest(data, _ADAPTER, FORMAT, owner="kernel", where=str(where))
    name, sizes = content["name"], content["workspace"].values()
    if not is_identifier(name) or not all(0 <= size <= MAX_SIZE for size in sizes):
        what, got = "the kernel's manifest is damaged", f"the name {name!r}, the workspaces {list(sizes)}"
        raise ArchiveError(what, where=str(where), got=got, mend=_COPY_ADVICE)
    cuda_files = list_cuda_files(name)
    others = () if set(cuda_files).isdisjoint(content["files"]) else cuda_files
    if missing := sorted({CONTRACT, CASES, *_list_sources(name), *others} - set(content["files"])):
        what, expected = "a file of the kernel is missing", f"the files listed in {MANIFEST}, and {', '.join(missing)}"
        raise ArchiveError(what, where=str(where), expected=expected, mend=_COPY_ADVICE)
    return content


def list_cuda_files(name: str) -> tuple[str, str, str]:
    """Return the names of a kernel's sources for GPUs: the methods, their header, the methods for the host's arrays."""
    return f"{name}.cu", f"{name}_cuda.h", f"{name}_host.cu"


def _list_sources(name: str) -> tuple[str, str, str]:
    """Return the names of the kernel's sources, the file to be compiled first."""
    return f"{name}.c", f"{name}.h", f"{name}_lanes.h"


def read(path: Path) -> KernelFiles:
    """Check every file against its digest. Imports no torch; raises ``ArchiveError`` if one is missing or changed."""
    contents = {MANIFEST: _read_manifest_bytes(path)}
    content = parse_manifest(contents[MANIFEST], path / MANIFEST)
    for name, expected_digest in content["files"].items():
        file = path / name
        if not file.is_file():
            what = "a file of the kernel is missing"
            raise ArchiveError(what, where=str(file), expected=f"the files listed in {MANIFEST}", mend=_COPY_ADVICE)
        contents[name] = file.read_bytes()
        if hashlib.sha256(contents[name]).hexdigest() != expected_digest:
            got = f"bytes whose sha256 is not the one in {MANIFEST}"
            raise ArchiveError("a file of the kernel was changed", where=str(file), got=got, mend=_COPY_ADVICE)
    contract = contract_from_json(contents[CONTRACT], str(path / CONTRACT))
    check_description(content, contract, str(path))
    return KernelFiles(path, contract, content["name"], content["files"], content["workspace"], content, contents)


def check_description(manifest: Mapping[str, Any], contract: Contract, where: str) -> None:
    """Raise ``ArchiveError`` if a manifest has other variables or methods than the contract: hosts call by them."""
    parameters = [_describe_variable(p.name, p) for p in contract.parameters]
    described = (manifest["methods"], manifest["parameters"], manifest["batched"], set(manifest["workspace"]))
    if described != (describe_methods(contract), parameters, bool(contract.batch.ndim), set(contract.methods)):
        what = "the kernel has other variables or methods than the contract"
        raise ArchiveError(what, where=where, mend="export it again")
