"""``export``: the only place that composes the stages, from a source to a verified archive."""

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
from exporter.archive.cases import Case
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
from exporter.archive.derivative_request import Asked
from exporter.archive.formats import KERNEL, named, output_path
from exporter.archive.input_files import Given, read_inputs
from exporter.archive.tensor_spec import TensorSpec
from exporter.archive.variable_renaming import Rename, renamed
from exporter.backends.c_kernel.package import package
from exporter.backends.convert import Converted, convert, refuse_suffix
from exporter.backends.onnx.export import OPSET
from exporter.capture.autograd_detection import as_it_runs
from exporter.capture.serialization import packed
from exporter.capture.tracing import Captured
from exporter.common import atomic_files
from exporter.common.errors import UnsupportedError, UsageError
from exporter.common.source_paths import without_folders
from exporter.common.torch_hooks import quiet_deprecations
from exporter.frontends import python_factory, resolve
from exporter.frontends.neml2 import input_file
from exporter.graph.canonical_text import canonical_text, graph_hash
from exporter.graph.provenance import opened
from exporter.graph.reader import reloaded
from exporter.graph.respecialization import Reason, reasons
from exporter.model.eager.case_generation import METHOD, fresh_cases, method_cases, stored_cases
from exporter.model.eager.evaluation import inference_conditions
from exporter.model.eager.warmup import Warmup, first_run, warm_up
from exporter.model.implicit.newton_solver import OnFailure, loops
from exporter.model.implicit.solver_tolerances import of_solves
from exporter.model.source import Listing, Source
from exporter.soundness import gate
from exporter.soundness.checked_capture import Announce, Clock, derived_seed, listing_of, sound_capture
from exporter.soundness.gate import Allowance

# Verifies the archive at the first path, which is to be called by the second, with fresh cases of the model; raises
# where it does not hold.
Verify = Callable[[Path, Path, Sequence[Case]], Any]


@dataclass(frozen=True)
class Containers:
    """What is written: ``formats`` by name; ``opset`` of ONNX; ``verify`` for those that are no archive."""

    formats: tuple[str, ...] = ("pt",)
    opset: int = OPSET
    verify: Verify | None = None


@dataclass(frozen=True)
class Exported:
    """One archive that was written and verified; with no ``pt`` among the formats it is gone, and ``path`` is the first
    container. ``seconds`` by stage, in order."""

    path: Path
    contract: Contract
    report: Any
    seconds: dict[str, float] = field(default_factory=dict)
    # The other containers that were made of it.
    containers: tuple[Converted, ...] = ()
    # Why it is another specialisation than an earlier export; None where it was held against none.
    reasons: tuple[Reason, ...] | None = None


def export(
    source: str | nn.Module | Callable[..., Any],
    *,
    models: Sequence[str] = (),
    output: Path | None = None,
    renames: Sequence[str] = (),
    inputs: Path | Given | None = None,
    seed: int = 0,
    devices: Sequence[str] = ("cpu",),
    allow: Sequence[str] = (),
    asked: Asked | None = None,
    against: Path | None = None,
    on_failure: OnFailure | None = None,
    containers: Containers = Containers(),
    verify: Verify,
    announce: Announce = lambda listing: None,
) -> list[Exported]:
    """Export models of ``source``, each to a file that appears only once it has been verified.

    ``source`` is what the command line takes, a module, or a function of tensors; ``inputs`` a file of warmup inputs,
    or a dict by name. ``output`` is the file, or a folder where several models are exported or it exists as one; the
    default is ``NAME.pt`` here; ``devices`` are those on which ``verify`` runs it; ``allow`` lets findings of the
    soundness gate pass, each as ``CHECK:REASON``; ``asked`` are derivatives; ``against`` is an earlier archive;
    ``on_failure`` is what elements of an implicit model become that do not converge, where not what it says itself;
    ``containers`` are those that are made of each archive.
    Raises the errors of ``exporter.errors``; no file is left behind by a failure, and files of models before the one
    that failed stay: each stands for itself.
    """
    if against is not None and "pt" not in containers.formats:
        raise UsageError("an archive is compared with an archive", where="--against", expected="pt among the formats")
    if output is not None and not output.is_dir() and not str(output).endswith("/") and len(models) < 2:
        refuse_suffix(output, containers.formats)
    rules = [Rename.parse(text) for text in renames]
    allowed = [Allowance.parse(text) for text in allow]
    exported = []
    loads = sources_of(source, models, inputs)
    if against is not None and len(loads) > 1:
        raise UsageError(
            "one earlier archive cannot stand for several models",
            where=f"--against {against}",
            got=", ".join(models),
            mend="export one model at a time",
        )
    earlier = opened(against) if against is not None else None
    for load in loads:
        clock = Clock()
        with clock("load"):
            loaded = load()
            if on_failure is not None:
                _fail(loaded, on_failure)
        path = output_path(output, loaded.name, several=len(loads) > 1, kind=containers.formats[0])
        one = export_source(loaded, path, rules, seed, verify, announce, clock, devices, allowed, asked, containers)
        if earlier is not None:
            one = dataclasses.replace(one, reasons=reasons(earlier, opened(path)))
        exported.append(one)
    return exported


def _fail(source: Source, on_failure: OnFailure) -> None:
    within = loops(source.named)
    if not within:
        raise UsageError(
            f"model {source.name!r} solves nothing that could fail",
            where="--on-failure",
            got=on_failure,
            expected="a model with an implicit update",
        )
    for loop in within.values():
        loop.fail(on_failure)


def export_source(
    source: Source,
    path: Path,
    renames: Sequence[Rename],
    seed: int,
    verify: Verify,
    announce: Announce,
    clock: Clock,
    devices: Sequence[str] = ("cpu",),
    allowed: Sequence[Allowance] = (),
    asked: Asked | None = None,
    containers: Containers = Containers(),
) -> Exported:
    """The stages, one after the other. Draws of each stage have a seed of their own."""
    with clock("warmup"):
        source = as_it_runs(source, derived_seed(seed, "warmup"))
    if len(containers.formats) > 1 and "pt" in containers.formats:
        path = named(path, "pt")
    kernel: dict[str, bytes] = {}
    without: UnsupportedError | None = None
    with atomic_files.replacing(path) if "pt" in containers.formats else _nowhere(path) as beside:
        warm, captured, findings = sound_capture(source, seed, allowed, announce, clock, asked=asked)
        with clock("cases"):
            stored = stored_cases(warm, derived_seed(seed, "stored cases"))
            fresh, limits = fresh_cases(warm, derived_seed(seed, "fresh cases"))
            stored = (*stored, *method_cases(warm, captured.methods, stored, derived_seed(seed, "tangents")))
            fresh = (*fresh, *method_cases(warm, captured.methods, fresh, derived_seed(seed, "fresh tangents")))
        envelope = envelope_of(warm.source.inputs, [*stored, *fresh])
        contract = renamed(contract_of(warm, captured, (*findings, *limits), envelope, devices, asked), renames)
        # The file's parameters ask for no gradients: it needs no autograd at run time.
        off = dataclasses.replace(source, differentiates=False)
        with clock("write"), inference_conditions(off), quiet_deprecations():
            records = packed(captured.module)
            text = canonical_text(reloaded(records, contract))
            contract = dataclasses.replace(contract, graph=graph_hash(text))
            pt_archive.write(beside, records, contract, stored, text)
            if KERNEL in containers.formats:
                kernel, without = _kernel(beside)
                carried = {pt_archive.KERNEL + name: kernel[name] for name in kernel_container.needed(kernel)}
                pt_archive.write(beside, records, contract, stored, text, carried)
        with clock("verify"):
            report = verify(beside, path, fresh)
        others = [name for name in containers.formats if name != "pt" and not (name == KERNEL and without)]
        made: list[Converted] = []
        for name in others:
            assert containers.verify is not None
            with clock(name):
                made.append(
                    convert(
                        beside,
                        named(path, name),
                        name,
                        opset=containers.opset,
                        kernel=kernel,
                        fresh=fresh,
                        verify=containers.verify,
                    )
                )
    if without is not None:
        # The archive is in its place by now, where it was asked for.
        raise without
    first = path if "pt" in containers.formats else made[0].path
    return Exported(first, contract, report, clock.seconds, tuple(made))


def _kernel(path: Path) -> tuple[dict[str, bytes], UnsupportedError | None]:
    """The files of the kernel of the archive at ``path``; none, and why, where it has none."""
    try:
        return package(pt_archive.read(path)), None
    except UnsupportedError as error:
        return {}, error


@contextlib.contextmanager
def _nowhere(path: Path) -> Iterator[Path]:
    """An archive that is only there for others to be made of it."""
    with tempfile.TemporaryDirectory(prefix="torchferry-") as folder:
        yield Path(folder, f"{path.stem}.pt")


@dataclass(frozen=True)
class Checked:
    """A model that the soundness gate let pass, and what was said of it.

    ``checks`` are those that ran, ``not_run`` those that could not.
    """

    name: str
    findings: tuple[Finding, ...]
    checks: tuple[str, ...]
    not_run: tuple[str, ...]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"sound": True}


def check(
    source: str | nn.Module | Callable[..., Any],
    *,
    models: Sequence[str] = (),
    inputs: Path | Given | None = None,
    seed: int = 0,
    allow: Sequence[str] = (),
    second_opinion: bool = False,
) -> list[Checked]:
    """The soundness gate alone, for the models that ``export`` would export. Raises the errors that it would."""
    allowed = [Allowance.parse(text) for text in allow]
    checked = []
    # The user's own module goes back to the mode that it was in.
    modes = {m: m.training for m in source.modules()} if isinstance(source, nn.Module) else {}
    for loaded in sources_of(source, models, inputs):
        clock = Clock()
        try:
            one = as_it_runs(loaded(), derived_seed(seed, "warmup"))
            _, _, findings = sound_capture(one, seed, allowed, clock=clock, opinion=second_opinion)
        finally:
            for module, training in modes.items():
                module.training = training
        not_run = tuple(f.check for f in findings if f.severity == "not run")
        ran = tuple(name for name in gate.RUNS if name not in not_run)
        checked.append(Checked(one.name, findings, ran, not_run, round(sum(clock.seconds.values()), 3)))
    return checked


def sources_of(
    source: str | nn.Module | Callable[..., Any], models: Sequence[str], inputs: Path | Given | None
) -> list[Callable[[], Source]]:
    """What loads each of the models, one at a time."""
    given = read_inputs(inputs) if isinstance(inputs, Path) else inputs
    if isinstance(source, nn.Module):
        name = type(getattr(source, "_orig_mod", source)).__name__
        return [lambda: python_factory.from_module(source, name, given, f"the {name} that was given")]
    if callable(source):
        return [lambda: python_factory.from_callable(source, given)]
    return [functools.partial(resolve.load, source, name, given) for name in resolve.chosen_models(source, models)]


def contract_of(
    warm: Warmup,
    captured: Captured,
    findings: tuple[Finding, ...],
    envelope: Envelope,
    devices: Sequence[str],
    asked: Asked | None = None,
) -> Contract:
    source = warm.source
    outputs = warm.output_specs
    named = [name for name, _ in source.named.named_parameters()]
    by = {o[1] for m in captured.methods.values() for o in m.outputs if not isinstance(o, str)}
    by -= {s.name for s in source.inputs}
    within = loops(source.named)
    shape = () if len(within) == 1 else (len(within),)
    kept = derivative_request.settable_names(asked.parameters if asked else (), captured.parameters, named, by)
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
            for name, p in source.named.named_parameters()
            if name in kept
        ),
        tolerance=of_solves(warm, captured.methods) if within else Tolerance(),
        devices=tuple(devices),
        operators=captured.operators,
        findings=tuple(map(_without_folders, (*warm.findings, *findings))),
        envelope=envelope,
        differentiable=asked is not None and asked.differentiable,
        solvers=tuple(Solver(path, loop.settings(), loop.fails_by()) for path, loop in within.items()),
        info=tuple(TensorSpec(n, shape, d) for n, d in NEWTON_OUTPUTS.items()) if within else (),
    )


def _without_folders(finding: Finding) -> Finding:
    """A file holds nothing of the folders that it was made in."""
    texts = {f.name: without_folders(getattr(finding, f.name)) for f in dataclasses.fields(finding)}
    return Finding(**texts)  # pyright: ignore[reportArgumentType]


def envelope_of(specs: Sequence[TensorSpec], cases: Sequence[Case]) -> Envelope:
    """The range of the finite values that each real input had in these cases."""
    values = {}
    for i, spec in enumerate(specs):
        given = [case.inputs[i].flatten() for case in cases]
        if spec.dtype == "bool" or spec.dtype.startswith("complex"):
            continue
        numbers = torch.cat([t.to(torch.float64) for t in given]) if given else torch.empty(0)
        finite = numbers[torch.isfinite(numbers)]
        if finite.numel():
            values[spec.name] = Range(float(finite.min()), float(finite.max()))
    return Envelope(values, tuple(dict.fromkeys(spec.dtype for spec in specs)))


def show(source: str, *, models: Sequence[str] = (), inputs: Path | None = None) -> list[Listing]:
    """Name, inputs and outputs of the chosen models; of all models, for an input file with none chosen.

    An input file is only read. A Python model is run, as its outputs need not be declared.
    """
    if resolve.is_python(source):
        (name,) = resolve.chosen_models(source, models)
        seed = derived_seed(0, "warmup")
        loaded = as_it_runs(resolve.load(source, name, read_inputs(inputs) if inputs else None), seed)
        return [listing_of(warm_up(first_run(loaded, seed), derived_seed(0, "more warmup")))]
    path = Path(source)
    return [input_file.listing(path, name) for name in models or input_file.model_names(path)]


def as_dict(exported: Exported) -> dict[str, Any]:
    return {
        "path": str(exported.path),
        "name": exported.contract.name,
        "report": exported.report.as_dict(),
        "seconds": dict(exported.seconds),
        "findings": [dataclasses.asdict(f) for f in exported.contract.findings],
        **(
            {"containers": [{"path": str(c.path), "report": c.report.as_dict()} for c in exported.containers]}
            if exported.containers
            else {}
        ),
        **({"against": list(map(dataclasses.asdict, exported.reasons))} if exported.reasons is not None else {}),
    }
