"""The export pipeline: the only place that composes the stages, from a source to a verified archive."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from exporter import __version__
from exporter.archive import derivative_request, kernel_container, pt_archive
from exporter.archive.cases import ReferenceCase
from exporter.archive.contract import (
    NEWTON_OUTPUTS,
    SCHEMA,
    Contract,
    CreatedWith,
    Envelope,
    Finding,
    MethodSpec,
    ParameterSpec,
    Range,
    Solver,
    Tolerance,
)
from exporter.archive.derivative_request import DerivativeRequest
from exporter.archive.formats import KERNEL, choose_output_path, path_for_format
from exporter.archive.input_files import InputValues, read_inputs
from exporter.archive.tensor_spec import TensorSpec
from exporter.archive.variable_renaming import RenameRule, rename_variables
from exporter.backends.c_kernel.package import package_kernel
from exporter.backends.convert import Converted, check_suffix, convert
from exporter.backends.onnx.export import OPSET
from exporter.capture.autograd_detection import detect_inner_autograd
from exporter.capture.serialization import serialize_module
from exporter.capture.tracing import CaptureResult
from exporter.common import atomic_files
from exporter.common.errors import UnsupportedError, UsageError
from exporter.common.source_paths import strip_local_paths
from exporter.common.torch_hooks import ignore_deprecations
from exporter.frontends import python_factory, resolve
from exporter.frontends.neml2 import input_file
from exporter.graph.canonical_text import format_canonical_text, hash_graph_text
from exporter.graph.provenance import open_archive
from exporter.graph.reader import reload_graphs
from exporter.graph.respecialization import Reason, respecialization_reasons
from exporter.model.eager.case_generation import METHOD, make_fresh_cases, make_method_cases, make_stored_cases
from exporter.model.eager.evaluation import eager_context
from exporter.model.eager.warmup import Warmup, run_first, warm_up
from exporter.model.implicit.newton_solver import OnFailure, find_solvers
from exporter.model.implicit.solver_tolerances import solver_tolerances
from exporter.model.source import Listing, Source
from exporter.soundness import gate
from exporter.soundness.checked_capture import Announce, Stopwatch, checked_capture, derive_seed, summarize_model
from exporter.soundness.gate import Allowance

# Verifies the archive at the first path, reported under the second path, with fresh cases of the model; raises if a
# check fails.
Verify = Callable[[Path, Path, Sequence[ReferenceCase]], Any]


@dataclass(frozen=True)
class OutputFormats:
    """The formats to write: ``formats`` by name, ONNX's ``opset``, and ``verify`` for non-archives."""

    formats: tuple[str, ...] = ("pt",)
    opset: int = OPSET
    verify: Verify | None = None


@dataclass(frozen=True)
class Exported:
    """One verified archive; without ``pt`` among the formats it is deleted, and ``path`` is the first container.
    ``seconds`` are by stage, in order."""

    path: Path
    contract: Contract
    report: Any
    seconds: dict[str, float] = field(default_factory=dict)
    # The other containers written from the archive.
    containers: tuple[Converted, ...] = ()
    # Why it is another specialisation than an earlier export; None if it was not compared with one.
    reasons: tuple[Reason, ...] | None = None


def export(
    source: str | nn.Module | Callable[..., Any],
    *,
    models: Sequence[str] = (),
    output: Path | None = None,
    renames: Sequence[str] = (),
    inputs: Path | InputValues | None = None,
    seed: int = 0,
    devices: Sequence[str] = ("cpu",),
    allow: Sequence[str] = (),
    derivative_request: DerivativeRequest | None = None,
    against: Path | None = None,
    on_failure: OnFailure | None = None,
    containers: OutputFormats = OutputFormats(),
    verify: Verify,
    announce: Announce = lambda listing: None,
) -> list[Exported]:
    """Export models of ``source``, each to a file that appears only once it has been verified.

    ``source`` is what the command line takes, a module, or a function of tensors; ``inputs`` is a file of warmup
    inputs, or a dict by name. ``output`` is the file, or a folder if several models are exported or if it exists as a
    folder; the default is ``NAME.pt`` in the current folder. ``verify`` runs the file on ``devices``; ``allow`` lets
    findings of the soundness gate pass, each as ``CHECK:REASON``; ``derivative_request`` names derivatives; ``against``
    is an earlier archive; ``on_failure`` overrides what an implicit model returns for elements that do not converge;
    ``containers`` are the formats written from each archive. Raises the errors of
    ``exporter.common.errors``; a failure leaves no file behind, and the files of models before the one that failed
    stay: each stands for itself.
    """
    if against is not None and "pt" not in containers.formats:
        raise UsageError("--against compares archives only", where="--against", expected="pt among the formats")
    if output is not None and not output.is_dir() and not str(output).endswith("/") and len(models) < 2:
        check_suffix(output, containers.formats)
    rules = [RenameRule.parse(text) for text in renames]
    allowances = [Allowance.parse(text) for text in allow]
    results = []
    loads = resolve_sources(source, models, inputs)
    if against is not None and len(loads) > 1:
        raise UsageError(
            "one earlier archive cannot be compared with several models",
            where=f"--against {against}",
            got=", ".join(models),
            mend="export one model at a time",
        )
    earlier = open_archive(against) if against is not None else None
    for load in loads:
        clock = Stopwatch()
        with clock("load"):
            model_source = load()
            if on_failure is not None:
                apply_failure_policy(model_source, on_failure)
        path = choose_output_path(output, model_source.name, several=len(loads) > 1, format_name=containers.formats[0])
        result = run_export_stages(
            model_source,
            path,
            rules,
            seed,
            verify,
            announce,
            clock,
            devices,
            allowances,
            derivative_request,
            containers,
        )
        if earlier is not None:
            result = dataclasses.replace(result, reasons=respecialization_reasons(earlier, open_archive(path)))
        results.append(result)
    return results


def apply_failure_policy(source: Source, on_failure: OnFailure) -> None:
    solvers = find_solvers(source.parameter_module)
    if not solvers:
        raise UsageError(
            f"model {source.name!r} solves nothing that could fail to converge",
            where="--on-failure",
            got=on_failure,
            expected="a model with an implicit update",
        )
    for loop in solvers.values():
        loop.set_failure_policy(on_failure)


def run_export_stages(
    source: Source,
    path: Path,
    renames: Sequence[RenameRule],
    seed: int,
    verify: Verify,
    announce: Announce,
    clock: Stopwatch,
    devices: Sequence[str] = ("cpu",),
    allowances: Sequence[Allowance] = (),
    derivative_request: DerivativeRequest | None = None,
    containers: OutputFormats = OutputFormats(),
) -> Exported:
    """Run the stages of one export in order. The random draws of each stage have their own seed."""
    with clock("warmup"):
        source = detect_inner_autograd(source, derive_seed(seed, "warmup"))
    if len(containers.formats) > 1 and "pt" in containers.formats:
        path = path_for_format(path, "pt")
    kernel: dict[str, bytes] = {}
    kernel_error: UnsupportedError | None = None
    with (
        atomic_files.atomic_write_path(path)
        if "pt" in containers.formats
        else temporary_archive(path) as temporary_path
    ):
        warm, captured, findings = checked_capture(source, seed, allowances, announce, clock, asked=derivative_request)
        with clock("cases"):
            stored = make_stored_cases(warm, derive_seed(seed, "stored cases"))
            fresh, limits = make_fresh_cases(warm, derive_seed(seed, "fresh cases"))
            stored = (*stored, *make_method_cases(warm, captured.methods, stored, derive_seed(seed, "tangents")))
            fresh = (*fresh, *make_method_cases(warm, captured.methods, fresh, derive_seed(seed, "fresh tangents")))
        envelope = compute_envelope(warm.source.inputs, [*stored, *fresh])
        contract = rename_variables(
            build_contract(warm, captured, (*findings, *limits), envelope, devices, derivative_request), renames
        )
        # The file's parameters require no gradients: it needs no autograd at run time.
        frozen_source = dataclasses.replace(source, uses_autograd=False)
        with clock("write"), eager_context(frozen_source), ignore_deprecations():
            records = serialize_module(captured.module)
            text = format_canonical_text(reload_graphs(records, contract))
            contract = dataclasses.replace(contract, graph=hash_graph_text(text))
            pt_archive.write(temporary_path, records, contract, stored, text)
            if KERNEL in containers.formats:
                kernel, kernel_error = _package_kernel(temporary_path)
                embedded_files = {
                    pt_archive.KERNEL + name: kernel[name] for name in kernel_container.list_build_files(kernel)
                }
                pt_archive.write(temporary_path, records, contract, stored, text, embedded_files)
        with clock("verify"):
            report = verify(temporary_path, path, fresh)
        other_formats = [name for name in containers.formats if name != "pt" and not (name == KERNEL and kernel_error)]
        conversions: list[Converted] = []
        for name in other_formats:
            assert containers.verify is not None
            with clock(name):
                conversions.append(
                    convert(
                        temporary_path,
                        path_for_format(path, name),
                        name,
                        opset=containers.opset,
                        kernel=kernel,
                        fresh=fresh,
                        verify=containers.verify,
                    )
                )
    if kernel_error is not None:
        # The archive, if requested, is already in its place.
        raise kernel_error
    first_path = path if "pt" in containers.formats else conversions[0].path
    return Exported(first_path, contract, report, clock.seconds, tuple(conversions))


def _package_kernel(path: Path) -> tuple[dict[str, bytes], UnsupportedError | None]:
    """Return the files of the C kernel of the archive at ``path``, or no files and the error if it has no kernel."""
    try:
        return package_kernel(pt_archive.read(path)), None
    except UnsupportedError as error:
        return {}, error


@contextlib.contextmanager
def temporary_archive(path: Path) -> Iterator[Path]:
    """Yield the path of an archive that only serves as the source of other containers."""
    with tempfile.TemporaryDirectory(prefix="torchferry-") as folder:
        yield Path(folder, f"{path.stem}.pt")


@dataclass(frozen=True)
class Checked:
    """A model that passed the soundness gate, with the findings about it.

    ``checks`` are the checks that ran, ``not_run`` those that could not run."""

    name: str
    findings: tuple[Finding, ...]
    checks: tuple[str, ...]
    not_run: tuple[str, ...]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return dataclasses.asdict(self) | {"sound": True}


def check(
    source: str | nn.Module | Callable[..., Any],
    *,
    models: Sequence[str] = (),
    inputs: Path | InputValues | None = None,
    seed: int = 0,
    allow: Sequence[str] = (),
    second_opinion: bool = False,
) -> list[Checked]:
    """Run the soundness gate alone for the models that ``export`` would export, and raise the same errors."""
    allowances = [Allowance.parse(text) for text in allow]
    reports = []
    # The user's own module is put back into its previous mode.
    modes = {m: m.training for m in source.modules()} if isinstance(source, nn.Module) else {}
    for load in resolve_sources(source, models, inputs):
        clock = Stopwatch()
        try:
            marked_source = detect_inner_autograd(load(), derive_seed(seed, "warmup"))
            _, _, findings = checked_capture(marked_source, seed, allowances, clock=clock, opinion=second_opinion)
        finally:
            for module, training in modes.items():
                module.training = training
        not_run = tuple(f.check for f in findings if f.severity == "not run")
        ran = tuple(name for name in gate.RUNS if name not in not_run)
        reports.append(Checked(marked_source.name, findings, ran, not_run, round(sum(clock.seconds.values()), 3)))
    return reports


def resolve_sources(
    source: str | nn.Module | Callable[..., Any], models: Sequence[str], inputs: Path | InputValues | None
) -> list[Callable[[], Source]]:
    """Return one function for each model, which loads it when called."""
    example_inputs = read_inputs(inputs) if isinstance(inputs, Path) else inputs
    if isinstance(source, nn.Module):
        name = type(getattr(source, "_orig_mod", source)).__name__
        return [lambda: python_factory.source_from_module(source, name, example_inputs, f"the {name} that was given")]
    if callable(source):
        return [lambda: python_factory.source_from_callable(source, example_inputs)]
    return [
        functools.partial(resolve.load, source, name, example_inputs) for name in resolve.choose_models(source, models)
    ]


def build_contract(
    warm: Warmup,
    captured: CaptureResult,
    findings: tuple[Finding, ...],
    envelope: Envelope,
    devices: Sequence[str],
    asked: DerivativeRequest | None = None,
) -> Contract:
    """Build the contract of a captured model."""
    source = warm.source
    outputs = warm.output_specs
    parameter_names = [name for name, _ in source.parameter_module.named_parameters()]
    wrt_names = {o[1] for m in captured.methods.values() for o in m.outputs if not isinstance(o, str)}
    wrt_names -= {s.name for s in source.inputs}
    solvers = find_solvers(source.parameter_module)
    shape = () if len(solvers) == 1 else (len(solvers),)
    settable = derivative_request.resolve_settable_parameters(
        asked.parameters if asked else (), captured.parameters, parameter_names, wrt_names
    )
    return Contract(
        schema=SCHEMA,
        name=source.name,
        source=source.origin,
        created_with=CreatedWith(__version__, torch.__version__, platform.python_version()),
        inputs=source.inputs,
        outputs=outputs,
        batch=warm.batch,
        methods={
            METHOD: MethodSpec(tuple(s.name for s in source.inputs), tuple(s.name for s in outputs)),
            **captured.methods,
        },
        parameters=tuple(
            ParameterSpec(name, tuple(p.shape), str(p.dtype).removeprefix("torch."))
            for name, p in source.parameter_module.named_parameters()
            if name in settable
        ),
        tolerance=solver_tolerances(warm, captured.methods) if solvers else Tolerance(),
        devices=tuple(devices),
        operators=captured.operators,
        findings=tuple(map(_strip_finding_paths, (*warm.findings, *findings))),
        envelope=envelope,
        differentiable=asked is not None and asked.differentiable,
        solvers=tuple(Solver(path, loop.read_settings(), loop.get_failure_policy()) for path, loop in solvers.items()),
        info=tuple(TensorSpec(n, shape, d) for n, d in NEWTON_OUTPUTS.items()) if solvers else (),
    )


def _strip_finding_paths(finding: Finding) -> Finding:
    """Return the finding without local folders in its texts: a file must not name the folders it was made in."""
    texts = {f.name: strip_local_paths(getattr(finding, f.name)) for f in dataclasses.fields(finding)}
    return Finding(**texts)  # pyright: ignore[reportArgumentType]


def compute_envelope(specs: Sequence[TensorSpec], cases: Sequence[ReferenceCase]) -> Envelope:
    """Return the range of finite values that each real input had in these cases."""
    values = {}
    for i, spec in enumerate(specs):
        samples = [case.inputs[i].flatten() for case in cases]
        if spec.dtype == "bool" or spec.dtype.startswith("complex"):
            continue
        numbers = torch.cat([t.to(torch.float64) for t in samples]) if samples else torch.empty(0)
        finite = numbers[torch.isfinite(numbers)]
        if finite.numel():
            values[spec.name] = Range(float(finite.min()), float(finite.max()))
    return Envelope(values, tuple(dict.fromkeys(spec.dtype for spec in specs)))


def show(source: str, *, models: Sequence[str] = (), inputs: Path | None = None) -> list[Listing]:
    """Return name, inputs and outputs of the chosen models; of all models of an input file if none is chosen.

    An input file is only read. A Python model is run, as its outputs need not be declared."""
    if resolve.is_python(source):
        (name,) = resolve.choose_models(source, models)
        seed = derive_seed(0, "warmup")
        model_source = detect_inner_autograd(resolve.load(source, name, read_inputs(inputs) if inputs else None), seed)
        return [summarize_model(warm_up(run_first(model_source, seed), derive_seed(0, "more warmup")))]
    path = Path(source)
    return [input_file.build_listing(path, name) for name in models or input_file.list_model_names(path)]


def result_to_dict(result: Exported) -> dict[str, Any]:
    """Return an export's result as JSON-ready values."""
    return {
        "path": str(result.path),
        "name": result.contract.name,
        "report": result.report.as_dict(),
        "seconds": dict(result.seconds),
        "findings": [dataclasses.asdict(f) for f in result.contract.findings],
        **(
            {"containers": [{"path": str(c.path), "report": c.report.as_dict()} for c in result.containers]}
            if result.containers
            else {}
        ),
        **({"against": list(map(dataclasses.asdict, result.reasons))} if result.reasons is not None else {}),
    }
