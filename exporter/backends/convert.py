"""An archive in another container: made of its graphs, written beside, verified, and only then in its place."""

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
from exporter.archive.cases import Case, admits
from exporter.archive.contract import Batch, Contract, Finding
from exporter.archive.formats import FORMATS, KERNEL, SUFFIXES, format_of
from exporter.archive.pt_archive import Archive
from exporter.archive.target_machine import here
from exporter.backends.c_kernel.package import package
from exporter.backends.onnx import export
from exporter.backends.torch_export import aot_inductor, program_package
from exporter.backends.torch_export.program import Instead, Program, program
from exporter.common import atomic_files
from exporter.common.atomic_files import refuse_place, unwritable
from exporter.common.errors import OutputError, UsageError, near
from exporter.common.torch_hooks import quiet_deprecations
from exporter.graph.loading import loaded

# Verifies the container at the first path, which is to be called by the second, with fresh cases of the model; raises
# where it does not hold.
Verify = Callable[[Path, Path, Sequence[Case]], Any]
# A protobuf ends at 2 GiB; tensors of a model beyond this are written beside it.
LARGEST_INSIDE = 2**30


@dataclass(frozen=True)
class Converted:
    """A container that was written and verified."""

    path: Path
    contract: Contract
    report: Any


def formats_of(asked: Sequence[str], output: Path | None) -> tuple[str, ...]:
    """The containers that are asked for, by name or by the output's suffix. Raises ``UsageError`` for others."""
    names = [n.strip() for text in asked for n in text.split(",") if n.strip()]
    unknown = next((n for n in names if n not in FORMATS), None)
    if unknown is not None:
        raise UsageError(f"there is no format {unknown!r}", where="--format", expected=near(unknown, FORMATS))
    return tuple(dict.fromkeys(names)) or ((output and format_of(output)) or "pt",)


def refuse_suffix(output: Path, formats: Sequence[str]) -> None:
    """Raises ``UsageError`` for a name that says another container than is written there."""
    said = format_of(output)
    if said is None and KERNEL in formats:
        return
    if said not in formats and (said is not None or "pt" not in formats) and not output.is_dir():
        raise UsageError(
            "the output's name is not of the format",
            where=str(output),
            got=SUFFIXES.get(said, "a kernel's folder") if said else output.suffix or "no suffix",
            expected=" or ".join(SUFFIXES.get(name, "a folder") for name in formats),
            mend="name the output accordingly, or ask for its format with --format",
        )


def require(formats: Sequence[str]) -> None:
    """Raises ``MissingRuntimeError`` for a format whose packages are missing, before anything is run."""
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
    fresh: Sequence[Case] = (),
    verify: Verify,
) -> Converted:
    """The archive ``source`` as another container: ``output``, and for ``onnx`` the files beside it
    (``exporter.onnx_files``).

    ``opset`` is ONNX's version of operators, ``finite_math`` of a kernel, whose files are ``kernel``
    where they are made already. Raises ``UnsupportedError`` where there is no
    such form, with the model and line that are in the way; ``MismatchError`` where the numbers differ; no file is left
    or changed by a failure.
    """
    require([to])
    if opset not in export.OPSETS:
        expected = f"{export.OPSETS[0]} to {export.OPSETS[-1]}"
        raise UsageError("this opset is not written", where="--opset", got=str(opset), expected=expected)
    refuse_suffix(output, [to])
    if output.resolve() == source.resolve():
        raise UsageError("the output is the archive itself", where=str(output), mend="name another output with -o")
    opened = pt_archive.read(source)
    if opened.holds != "graphs":
        raise UsageError("only an archive is converted", where=str(source), expected="the .pt that it was made of")
    if to == KERNEL:
        with quiet_deprecations():
            made = kernel or package(opened, finite_math=finite_math)
        return _kernel(output, fresh, verify, made)
    if to != "onnx":
        with atomic_files.replacing(output) as path, quiet_deprecations():
            contract = write_package(path, opened, compiled=to == "pt2")
            report = verify(path, output, [case for case in fresh if admits(contract, case)])
        return Converted(output, contract, report)
    export.refuse_dtypes(opened.contract)
    export.refuse_names(opened.contract)
    with _beside(output) as path, quiet_deprecations():
        contract = write(path, opened, opset)
        report = verify(path, output, [case for case in fresh if admits(contract, case)])
    return Converted(output, contract, report)


def _kernel(output: Path, fresh: Sequence[Case], verify: Verify, made: Mapping[str, bytes]) -> Converted:
    """A folder of sources. What else is in it stays."""
    if output.exists() and not output.is_dir():
        raise OutputError("a kernel is a folder", where=str(output), got="a file", mend="name a folder with -o")
    place, output = output, output.resolve()
    with atomic_files.replacing_files(output, kernel_container.MANIFEST, lambda: _of_old_kernel(output)) as folder:
        others = [name for name in made if (output / name).exists() and name not in _of_old_kernel(output)]
        if others:
            raise OutputError(
                "a file that is not of a kernel is in the way",
                where=str(output / others[0]),
                expected="a new folder, or that of an earlier kernel",
                mend="name another folder with -o",
            )
        try:
            for name, data in made.items():
                (folder / name).write_bytes(data)
        except OSError as error:
            raise unwritable(output, error) from None
        contract = kernel_container.read(folder).contract
        report = verify(folder, output, [case for case in fresh if admits(contract, case)])
    return Converted(place, contract, report)


def _of_old_kernel(output: Path) -> set[str]:
    try:
        return {*kernel_container.described(output)["files"], kernel_container.MANIFEST}
    except Exception:
        return set()


def write_package(path: Path, opened: Archive, *, compiled: bool) -> Contract:
    """One package with the same records of ours as the archive."""
    programs, _, contract = _programs(opened)
    records = aot_inductor.compiled(programs) if compiled else program_package.packaged(programs)
    buffer = io.BytesIO()
    torch.save({name: dict(one.parameters) for name, one in programs.items()}, buffer)
    further = {pt_archive.PARAMETERS: buffer.getvalue()}
    if compiled:
        further[pt_archive.MACHINE] = here(torch.__version__, "cpu").to_json()
    pt_archive.write(path, records, contract, _cases(opened, contract), opened.graph, further)
    return contract


def write(path: Path, opened: Archive, opset: int) -> Contract:
    """Every file of the container at ``path``."""
    import onnx_ir

    programs, parameters, contract = _programs(opened, export.instead())
    models = {name: export.model_of(one, contract, opset) for name, one in programs.items()}
    contract = dataclasses.replace(contract, operators=export.operators(list(models.values())))
    if refused := export.refuses_empty(models, contract):
        batch = contract.batch
        limits = "; ".join(filter(None, (batch.limits, f"0: {refused}")))
        sizes = tuple(n for n in batch.sizes if n)
        contract = dataclasses.replace(contract, batch=dataclasses.replace(batch, sizes=sizes, limits=limits))
    made, methods = [], {}
    for name, model in models.items():
        file = onnx_container.method_path(path, name)
        model.metadata_props[export.CONTRACT] = contract.to_json()
        large = sum(v.const_value.nbytes for v in model.graph.initializers.values()) > LARGEST_INSIDE
        data = onnx_container.data_path(file)
        onnx_ir.save(model, file, external_data=data.name if large else None)
        made += [file, *([data] if large else [])]
        methods[name] = (file.name, *export.names_of(contract, name))
    onnx_container.cases_path(path).write_bytes(onnx_container.pack(_cases(opened, contract), parameters))
    made.append(onnx_container.cases_path(path))
    onnx_container.manifest_path(path).write_bytes(onnx_container.manifest(contract, opset, made, methods))
    return contract


def _programs(
    opened: Archive, instead: Instead = MappingProxyType({})
) -> tuple[dict[str, Program], dict[str, torch.Tensor], Contract]:
    """By method; the tensors that can be set in any of them; the contract that holds for them."""
    module = loaded(opened.path)
    programs = {name: program(module, opened.contract, name, instead) for name in opened.contract.methods}
    parameters = {n: t for one in programs.values() for n, t in one.parameters.items()}
    return programs, parameters, _contract(opened.contract, programs, parameters)


def _cases(opened: Archive, contract: Contract) -> list[Case]:
    return [case for case in opened.cases() if admits(contract, case)]


def _contract(contract: Contract, programs: dict[str, Program], parameters: dict[str, torch.Tensor]) -> Contract:
    notes = dict.fromkeys(note for one in programs.values() for note in one.notes)
    gone = [p.name for p in contract.parameters if p.name not in parameters]
    findings = [Finding("container", note, reason="the container raises no errors") for note in notes]
    if gone:
        what = f"not settable here: {', '.join(gone)}"
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
def _beside(output: Path) -> Iterator[Path]:
    """A path of the same name in a folder of its own; what is written there takes the place of an earlier container
    only if the block ends well."""
    refuse_place(output)
    output = output.resolve()
    last = onnx_container.manifest_path(output).name
    with atomic_files.replacing_files(output.parent, last, lambda: _of_old(output)) as folder:
        yield folder / output.name


def _of_old(output: Path) -> set[str]:
    """The files of the container that stood here."""
    try:
        return set(onnx_container.read(output).files)
    except Exception:
        # None, or one that is not whole.
        return set()
