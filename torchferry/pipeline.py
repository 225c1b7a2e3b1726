"""The export pipeline: the only place that composes the stages, from a source to a verified archive."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exporter.archive import kernel_container, pt_archive
from exporter.archive.cases import ReferenceCase
from exporter.archive.contract import Contract, Finding
from exporter.archive.formats import CUDA, KERNELS, choose_output_path, path_for_format
from exporter.archive.metadata_file import assign_metadata
from exporter.archive.variable_renaming import rename_variables
from exporter.archive.variable_units import assign_units
from exporter.backends.backend import KernelOptions, load_backend
from exporter.capture.autograd_detection import detect_inner_autograd
from exporter.capture.passes import CaptureResult
from exporter.capture.serialization import serialize_module
from exporter.common.atomic_files import atomic_write_path
from exporter.common.errors import UnsupportedError, UsageError
from exporter.common.forking import run_beside
from exporter.common.stopwatch import Stopwatch
from exporter.common.temporary_folders import temporary_folder
from exporter.common.torch_hooks import ignore_deprecations
from exporter.common.torch_internals import require_torch_script
from exporter.graph.canonical_text import format_canonical_text, hash_graph_text
from exporter.graph.provenance import open_archive
from exporter.graph.reader import reload_graphs
from exporter.graph.respecialization import Reason, respecialization_reasons
from exporter.model.eager.case_generation import make_fresh_cases, make_method_cases, make_stored_cases
from exporter.model.eager.evaluation import eager_context
from exporter.model.eager.gradient_outputs import add_gradients
from exporter.model.eager.warmup import Warmup
from exporter.model.source import Source
from exporter.soundness.checked_capture import capture_beside_checks, derive_seed
from runtime_checks.file_verifier import FileVerifier
from runtime_checks.report import Report
from runtime_checks.runners.confined_calls import Confinement, call_confined
from torchferry.contract_assembly import add_evidence, build_contract
from torchferry.conversion import Converted, convert
from torchferry.options import ExportOptions
from torchferry.sources import AnySource, apply_failure_policy, resolve_sources, run_with_sizes


@dataclass(frozen=True)
class Exported:
    """One verified archive and what is known of it.

    Attributes:
        path: The archive; without ``pt`` among the formats it is deleted, and this is the first container.
        contract: What the file promises: variables, shapes, methods, tolerances.
        report: The report of its verification.
        seconds: Seconds by stage, in order.
        parts: Seconds of parts of stages, by stage and part; parts run side by side.
        containers: The other containers that were written from the archive.
        reasons: Why an earlier archive does not serve this model; None if it was not compared with one.
    """

    path: Path
    contract: Contract
    report: Report
    seconds: dict[str, float] = field(default_factory=dict)
    parts: dict[tuple[str, str], float] = field(default_factory=dict)
    containers: tuple[Converted, ...] = ()
    reasons: tuple[Reason, ...] | None = None


def export(source: AnySource, options: ExportOptions) -> list[Exported]:
    """Export models of ``source``, each to a file that appears only once it has been verified.

    Raises the errors of ``exporter.common.errors``; a failure leaves no file behind, and the files of models before the
    one that failed stay: each stands for itself."""
    require_torch_script()
    for name in options.container_formats:
        load_backend(name).require()
    verifier = FileVerifier(options.verify, ("pt", *options.container_formats))
    seed = derive_seed(options.capture.seed, "per element")
    request = options.capture.derivative_request
    needs_shapes = options.has_kernel or (request is not None and request.has_derivatives)
    shapes = dataclasses.replace(options.shapes, may_open=not needs_shapes)
    loads = resolve_sources(source, options.models, options.inputs, options.per_element, shapes, seed)
    if options.against is not None and len(loads) > 1:
        what, where = "one earlier archive cannot be compared with several models", f"--against {options.against}"
        raise UsageError(what, where=where, got=", ".join(options.models), mend="export one model at a time")
    if options.against is not None:
        # One that is damaged, or does not load, is said before the export.
        call_confined(functools.partial(check_opens, options.against), Confinement(options.against))
    results = []
    for load in loads:
        clock = Stopwatch(options.watch)
        with clock("load"):
            model_source = load()
        try:
            if options.on_failure is not None:
                apply_failure_policy(model_source, options.on_failure)
            model_source, model_options = add_second_derivatives(model_source, options, clock)
            name, several, format_name = model_source.name, len(loads) > 1, options.formats[0]
            path = choose_output_path(options.output, name, several=several, format_name=format_name)
            run = functools.partial(export_model, path=path, options=model_options, verifier=verifier, clock=clock)
            result = run_with_sizes(model_source, run)
        finally:
            model_source.take_back()
        if options.against is not None:
            reasons = functools.partial(compare_with_earlier, options.against, path)
            result = dataclasses.replace(result, reasons=call_confined(reasons, Confinement(options.against)))
        results.append(result)
    return results


def check_opens(path: Path) -> None:
    """Raise ``ArchiveError`` if an archive is damaged or does not load."""
    open_archive(path)


def compare_with_earlier(earlier: Path, path: Path) -> tuple[Reason, ...]:
    """Return why an earlier archive does not serve the model of another one."""
    return respecialization_reasons(open_archive(earlier), open_archive(path))


def add_second_derivatives(source: Source, options: ExportOptions, clock: Stopwatch) -> tuple[Source, ExportOptions]:
    """Return the model with the gradients that second derivatives are of, and the options that ask for these."""
    request, seed = options.capture.derivative_request, derive_seed(options.capture.seed, "second derivatives")
    # Names may have commas, too.
    if request is None or not any("," in block for block in request.blocks):
        return source, options
    with clock("load"):
        source, request = add_gradients(detect_inner_autograd(source, seed), request, seed)
    capture = dataclasses.replace(options.capture, derivative_request=request)
    return source, dataclasses.replace(options, capture=capture)


def export_model(
    source: Source, path: Path, options: ExportOptions, verifier: FileVerifier, clock: Stopwatch
) -> Exported:
    """Run the stages of one export in order. The random draws of each stage have their own seed."""
    is_kept = "pt" in options.formats
    if is_kept and options.container_formats:
        path = path_for_format(path, "pt")
    with atomic_write_path(path) if is_kept else temporary_archive(path) as archive_path:
        contract, fresh, kernel = write_archive(source, archive_path, options, clock)
        with clock("verify"):
            report = verifier.verify(archive_path, "pt", fresh=fresh, shown_as=path)
        write_options = options.write
        if not isinstance(kernel, UnsupportedError):
            write_options = dataclasses.replace(write_options, kernel_files=kernel)
        containers: list[Converted] = []
        for name in options.container_formats:
            if name not in KERNELS or not isinstance(kernel, UnsupportedError):
                output = path_for_format(path, name)
                with clock(name):
                    containers.append(convert(archive_path, output, load_backend(name), write_options, verifier, fresh))
    if isinstance(kernel, UnsupportedError):
        # The archive, if requested, is already in its place.
        raise kernel
    first_path = path if is_kept else containers[0].path
    return Exported(first_path, contract, report, clock.seconds, clock.parts, tuple(containers))


def write_archive(
    source: Source, path: Path, options: ExportOptions, clock: Stopwatch
) -> tuple[Contract, tuple[ReferenceCase, ...], dict[str, bytes] | UnsupportedError | None]:
    """Capture a model and write its archive, unverified.

    Returns the contract, fresh cases that are not in the file, and the files of its kernel if that is requested, or the
    error that says why there is none."""
    seed = options.capture.seed
    with clock("warmup"):
        source = detect_inner_autograd(source, derive_seed(seed, "warmup"))
    # The file's parameters require no gradients: it needs no autograd at run time.
    frozen_source = dataclasses.replace(source, uses_autograd=False)
    is_beside = options.capture.jobs > 1
    with (
        capture_beside_checks(source, options.capture, clock) as (warm, captured, wait_for_findings),
        run_beside(make_cases, warm, captured, seed, is_beside=is_beside) as wait_for_cases,
    ):
        with clock("write"):
            contract = build_contract(
                warm, captured, options.verify.device_names, options.capture.derivative_request, options.command
            )
            with eager_context(frozen_source), ignore_deprecations():
                records = serialize_module(captured.module)
                text = format_canonical_text(reload_graphs(records, contract))
        findings = wait_for_findings()
        with clock("cases"):
            stored, fresh, limits = wait_for_cases()
    contract = add_evidence(contract, [*stored, *fresh], [*findings, *limits])
    contract = assign_metadata(rename_variables(contract, options.renames), options.metadata)
    contract = assign_units(contract, options.units)
    contract = dataclasses.replace(contract, graph=hash_graph_text(text))
    kernel = None
    with clock("write"), eager_context(frozen_source), ignore_deprecations():
        pt_archive.write(path, records, contract, stored, text)
        if options.has_kernel:
            kernel = _package_kernel(path, dataclasses.replace(options.write.kernel, has_cuda=CUDA in options.formats))
            if isinstance(kernel, dict):
                names = kernel_container.list_build_files(kernel)
                embedded_files = {pt_archive.KERNEL + name: kernel[name] for name in names}
                pt_archive.write(path, records, contract, stored, text, embedded_files)
    return contract, fresh, kernel


def make_cases(
    warm: Warmup, captured: CaptureResult, seed: int
) -> tuple[tuple[ReferenceCase, ...], tuple[ReferenceCase, ...], Sequence[Finding]]:
    """Make the cases to store, fresh ones to verify with, and the findings about what could not be drawn."""
    stored = make_stored_cases(warm, derive_seed(seed, "stored cases"))
    fresh, limits = make_fresh_cases(warm, derive_seed(seed, "fresh cases"))
    stored_methods = make_method_cases(warm, captured.methods, stored, derive_seed(seed, "tangents"))
    fresh_methods = make_method_cases(warm, captured.methods, fresh, derive_seed(seed, "fresh tangents"))
    forward_cases = [tuple(evaluated.forward for evaluated in cases) for cases in (stored, fresh)]
    return (*forward_cases[0], *stored_methods), (*forward_cases[1], *fresh_methods), limits


def _package_kernel(path: Path, options: KernelOptions) -> dict[str, bytes] | UnsupportedError:
    """Return the files of the C kernel of the archive at ``path``, or the error if it has no kernel."""
    # With what it needs of torch it takes a third of a second to import, and few exports write a kernel.
    from exporter.backends.c_kernel.package import package_kernel

    try:
        return package_kernel(pt_archive.read(path), options)
    except UnsupportedError as error:
        return error


@contextlib.contextmanager
def temporary_archive(path: Path) -> Iterator[Path]:
    """Yield the path of an archive that only serves as the source of other containers."""
    with temporary_folder() as folder:
        yield folder / f"{path.stem}.pt"


def result_to_dict(result: Exported) -> dict[str, Any]:
    """Return an export's result as JSON-ready values."""
    values: dict[str, Any] = {
        "path": str(result.path),
        "name": result.contract.name,
        "report": result.report.as_dict(),
        "seconds": dict(result.seconds),
        "findings": [dataclasses.asdict(f) for f in result.contract.findings],
    }
    if result.containers:
        values["containers"] = [{"path": str(c.path), "report": c.report.as_dict()} for c in result.containers]
    if result.reasons is not None:
        values["against"] = list(map(dataclasses.asdict, result.reasons))
    return values
