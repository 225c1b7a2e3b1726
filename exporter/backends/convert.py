"""Conversion of an archive to another format: written to a temporary place, verified, and only then moved."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from exporter.archive import kernel_container, onnx_container, pt_archive
from exporter.archive.cases import ReferenceCase, supports_case
from exporter.archive.contract import Batch, Contract, Finding
from exporter.archive.formats import FORMATS, KERNEL, SUFFIXES, infer_format
from exporter.archive.pt_archive import Archive
from exporter.archive.target_machine import current_machine
from exporter.backends.c_kernel.package import package_kernel
from exporter.backends.onnx import export
from exporter.backends.torch_export import aot_inductor, program_package
from exporter.backends.torch_export.program import Overrides, Program, export_program
from exporter.common import atomic_files
from exporter.common.atomic_files import check_output_path, make_write_error
from exporter.common.errors import OutputError, UsageError, suggest_names
from exporter.common.torch_hooks import ignore_deprecations
from exporter.graph.loading import load_module

# Verifies the container at the first path, whose final path is the second, with fresh cases of the model; raises if it
# fails.
Verify = Callable[[Path, Path, Sequence[ReferenceCase]], Any]
# A protobuf ends at 2 GiB; tensors of a model beyond this are written beside it.
LARGEST_INSIDE = 2**30


@dataclass(frozen=True)
class Converted:
    """A container that was written and verified."""

    path: Path
    contract: Contract
    report: Any


def resolve_formats(requested: Sequence[str], output: Path | None) -> tuple[str, ...]:
    """Return the requested formats, by name or by the output's suffix; raise ``UsageError`` for unknown ones."""
    names = [n.strip() for text in requested for n in text.split(",") if n.strip()]
    unknown = next((n for n in names if n not in FORMATS), None)
    if unknown is not None:
        raise UsageError(f"there is no format {unknown!r}", where="--format", expected=suggest_names(unknown, FORMATS))
    return tuple(dict.fromkeys(names)) or ((output and infer_format(output)) or "pt",)


def check_suffix(output: Path, formats: Sequence[str]) -> None:
    """Raise ``UsageError`` if the output's suffix belongs to another format."""
    suffix_format = infer_format(output)
    if suffix_format is None and KERNEL in formats:
        return
    if suffix_format not in formats and (suffix_format is not None or "pt" not in formats) and not output.is_dir():
        raise UsageError(
            "the output's name does not fit the format",
            where=str(output),
            got=SUFFIXES.get(suffix_format, "a kernel's folder") if suffix_format else output.suffix or "no suffix",
            expected=" or ".join(SUFFIXES.get(name, "a folder") for name in formats),
            mend="name the output accordingly, or ask for its format with --format",
        )


def require(formats: Sequence[str]) -> None:
    """Raise ``MissingRuntimeError`` if packages for a format are missing, before anything is run."""
    if "onnx" in formats:
        export.require()
    if "pt2" in formats:
        aot_inductor.require()


def convert(
    source: Path,
    output: Path,
    to: str,
    *,
    opset: int = export.OPSET,
    finite_math: bool = False,
    kernel: Mapping[str, bytes] | None = None,
    fresh: Sequence[ReferenceCase] = (),
    verify: Verify,
) -> Converted:
    """Convert the archive ``source`` to another format: ``output``, and for ``onnx`` the files beside it
    (``exporter.archive.onnx_container``).

    ``opset`` is ONNX's version of operators; ``finite_math`` is for a kernel, and ``kernel`` its files if they exist
    already. Raises ``UnsupportedError``, with the model and line in the way, if there is no such form,
    ``MismatchError`` if the numbers differ; a failure leaves or changes no file."""
    require([to])
    if opset not in export.OPSETS:
        expected = f"{export.OPSETS[0]} to {export.OPSETS[-1]}"
        raise UsageError("this opset is not supported", where="--opset", got=str(opset), expected=expected)
    check_suffix(output, [to])
    if output.resolve() == source.resolve():
        raise UsageError("the output is the archive itself", where=str(output), mend="name another output with -o")
    opened = pt_archive.read(source)
    if opened.holds != "graphs":
        raise UsageError("only an archive is convertible", where=str(source), expected="the .pt that it was made from")
    if to == KERNEL:
        with ignore_deprecations():
            sources = kernel or package_kernel(opened, finite_math=finite_math)
        return _write_kernel(output, fresh, verify, sources)
    if to != "onnx":
        with atomic_files.atomic_write_path(output) as path, ignore_deprecations():
            contract = write_package(path, opened, compiled=to == "pt2")
            report = verify(path, output, [case for case in fresh if supports_case(contract, case)])
        return Converted(output, contract, report)
    export.check_dtypes(opened.contract)
    export.check_names(opened.contract)
    with _temporary_container(output) as path, ignore_deprecations():
        contract = write_onnx_container(path, opened, opset)
        report = verify(path, output, [case for case in fresh if supports_case(contract, case)])
    return Converted(output, contract, report)


def _write_kernel(
    output: Path, fresh: Sequence[ReferenceCase], verify: Verify, sources: Mapping[str, bytes]
) -> Converted:
    """Write a folder of sources; other files in it stay."""
    if output.exists() and not output.is_dir():
        raise OutputError("a kernel is a folder", where=str(output), got="a file", mend="name a folder with -o")
    requested_output, output = output, output.resolve()
    with atomic_files.atomic_write_folder(
        output, kernel_container.MANIFEST, lambda: _list_old_kernel_files(output)
    ) as folder:
        foreign_files = [
            name for name in sources if (output / name).exists() and name not in _list_old_kernel_files(output)
        ]
        if foreign_files:
            raise OutputError(
                "a file that is not part of a kernel is in the way",
                where=str(output / foreign_files[0]),
                expected="a new folder, or that of an earlier kernel",
                mend="name another folder with -o",
            )
        try:
            for name, data in sources.items():
                (folder / name).write_bytes(data)
        except OSError as error:
            raise make_write_error(output, error) from None
        contract = kernel_container.read(folder).contract
        report = verify(folder, output, [case for case in fresh if supports_case(contract, case)])
    return Converted(requested_output, contract, report)


def _list_old_kernel_files(output: Path) -> set[str]:
    try:
        return {*kernel_container.read_manifest(output)["files"], kernel_container.MANIFEST}
    except Exception:
        return set()


def write_package(path: Path, opened: Archive, *, compiled: bool) -> Contract:
    """Write one package with the same torchferry records as the archive."""
    programs, _, contract = _export_programs(opened)
    records = aot_inductor.compile_programs(programs) if compiled else program_package.package_programs(programs)
    buffer = io.BytesIO()
    torch.save({name: dict(method_program.parameters) for name, method_program in programs.items()}, buffer)
    more_records = {pt_archive.PARAMETERS: buffer.getvalue()}
    if compiled:
        more_records[pt_archive.MACHINE] = current_machine(torch.__version__, "cpu").to_json()
    pt_archive.write(path, records, contract, _select_cases(opened, contract), opened.graph, more_records)
    return contract


def write_onnx_container(path: Path, opened: Archive, opset: int) -> Contract:
    """Write every file of the container at ``path``."""
    import onnx_ir

    programs, parameters, contract = _export_programs(opened, export.decomposition_overrides())
    models = {
        name: export.build_onnx_model(method_program, contract, opset) for name, method_program in programs.items()
    }
    contract = dataclasses.replace(contract, operators=export.list_operators(list(models.values())))
    if refusal := export.probe_empty_batch(models, contract):
        batch = contract.batch
        limits = "; ".join(filter(None, (batch.limits, f"0: {refusal}")))
        sizes = tuple(n for n in batch.sizes if n)
        contract = dataclasses.replace(contract, batch=dataclasses.replace(batch, sizes=sizes, limits=limits))
    paths, methods = [], {}
    for name, model in models.items():
        file = onnx_container.method_path(path, name)
        model.metadata_props[export.CONTRACT] = contract.to_json()
        large = sum(v.const_value.nbytes for v in model.graph.initializers.values()) > LARGEST_INSIDE
        data = onnx_container.data_path(file)
        onnx_ir.save(model, file, external_data=data.name if large else None)
        paths += [file, *([data] if large else [])]
        methods[name] = (file.name, *export.list_names(contract, name))
    onnx_container.cases_path(path).write_bytes(onnx_container.pack_arrays(_select_cases(opened, contract), parameters))
    paths.append(onnx_container.cases_path(path))
    onnx_container.manifest_path(path).write_bytes(onnx_container.build_manifest(contract, opset, paths, methods))
    return contract


def _export_programs(
    opened: Archive, overrides: Overrides = MappingProxyType({})
) -> tuple[dict[str, Program], dict[str, torch.Tensor], Contract]:
    """Return the programs by method, the tensors settable in any of them, and the contract that holds for them."""
    module = load_module(opened.path)
    programs = {name: export_program(module, opened.contract, name, overrides) for name in opened.contract.methods}
    parameters = {n: t for method_program in programs.values() for n, t in method_program.parameters.items()}
    return programs, parameters, _adapt_contract(opened.contract, programs, parameters)


def _select_cases(opened: Archive, contract: Contract) -> list[ReferenceCase]:
    return [case for case in opened.cases() if supports_case(contract, case)]


def _adapt_contract(contract: Contract, programs: dict[str, Program], parameters: dict[str, torch.Tensor]) -> Contract:
    notes = dict.fromkeys(note for method_program in programs.values() for note in method_program.notes)
    unsettable = [p.name for p in contract.parameters if p.name not in parameters]
    findings = [Finding("container", note, reason="the container raises no errors") for note in notes]
    if unsettable:
        what = f"not settable here: {', '.join(unsettable)}"
        findings.append(Finding("container", what, reason="no method reads it, or the solver does without it"))
    solvers = tuple(
        dataclasses.replace(
            s,
            settings={n: v for n, v in s.settings.items() if f"{s.path}.{n}" in parameters},
            on_failure="nan" if s.on_failure == "raise" else s.on_failure,
        )
        for s in contract.solvers
    )
    batch = contract.batch
    return dataclasses.replace(
        contract,
        batch=Batch(batch.ndim, batch.sizes, (1,) if batch.ndim else batch.ranks, batch.limits),
        parameters=tuple(p for p in contract.parameters if p.name in parameters),
        findings=(*contract.findings, *findings),
        devices=("cpu",),
        differentiable=False,
        solvers=solvers,
    )


@contextlib.contextmanager
def _temporary_container(output: Path) -> Iterator[Path]:
    """Yield a path of the same name in a temporary folder; what is written there replaces an earlier container only if
    the block succeeds."""
    check_output_path(output)
    output = output.resolve()
    last = onnx_container.manifest_path(output).name
    with atomic_files.atomic_write_folder(output.parent, last, lambda: _list_old_files(output)) as folder:
        yield folder / output.name


def _list_old_files(output: Path) -> set[str]:
    """Return the files of the container that is at this path already."""
    try:
        return set(onnx_container.read(output).files)
    except Exception:
        # There is none, or it is incomplete.
        return set()
