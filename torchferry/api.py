"""All of torchferry's public Python API."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from exporter import __version__
from exporter.archive.contract import Contract, Finding
from exporter.archive.derivative_request import DerivativeRequest
from exporter.archive.format_limits import MAX_TEXT
from exporter.archive.formats import path_for_format, resolve_formats
from exporter.archive.identity_signature import Identity, make_signer
from exporter.archive.kernel_container import is_kernel
from exporter.archive.metadata import Metadata
from exporter.archive.metadata_file import MetadataRules, read_metadata
from exporter.archive.tensor_spec import Sampling, Signature, TensorSpec
from exporter.archive.variable_renaming import RenameRule
from exporter.archive.variable_units import parse_unit_rule
from exporter.backends.backend import OPSET, KernelOptions, WriteOptions, load_backend
from exporter.common.errors import (
    ArchiveError,
    CaptureError,
    MismatchError,
    MissingRuntimeError,
    SignatureError,
    TorchferryError,
    TrustError,
    UnsoundError,
    UsageError,
)
from exporter.common.plain_text import escape_unsafe
from exporter.common.stopwatch import Step, Watch, ignore_step
from exporter.frontends.model_request import AdoptedFile
from exporter.graph.archive_diff import Difference
from exporter.model.composition import ComposedModel, Part
from exporter.model.eager.batch_choice import BatchChoice, ShapeChoice, SizeChoice
from exporter.model.function_model import declare
from exporter.model.implicit.implicit_update import ImplicitUpdate
from exporter.model.implicit.newton_solver import LineSearch, OnFailure, Settings
from exporter.model.jit_marks import mark
from exporter.model.source import Listing
from exporter.soundness.checked_capture import CaptureOptions
from exporter.soundness.gate import Allowance
from runtime_checks.containers import infer_file_format
from runtime_checks.engines.selection import EngineWarning
from runtime_checks.envelope import OutsideEnvelopeWarning
from runtime_checks.file_verifier import FileVerifier
from runtime_checks.kernels.numpy_kernel import Kernel
from runtime_checks.model import Model
from runtime_checks.model import load as _load
from runtime_checks.native_code import NATIVE
from runtime_checks.options import VerifyOptions
from runtime_checks.report import Report
from runtime_checks.runners.confined_calls import ConfinementWarning
from runtime_checks.runners.fork_server import start_runtime
from runtime_checks.runners.subprocesses import MEMORY_LIMIT, TIME_LIMIT
from torchferry import pipeline as _pipeline
from torchferry import soundness_check as _soundness_check
from torchferry.confined_files import adopt_confined, convert_confined, diff_confined
from torchferry.conversion import Converted
from torchferry.evaluation import evaluate, evaluate_to_file
from torchferry.options import ExportOptions, choose_jobs, select_archive_runtimes
from torchferry.pipeline import Exported
from torchferry.signing import sign
from torchferry.soundness_check import Checked
from torchferry.sources import make_request

__all__ = [
    "ArchiveError",
    "CaptureError",
    "Checked",
    "ComposedModel",
    "ConfinementWarning",
    "Contract",
    "Converted",
    "Difference",
    "EngineWarning",
    "Exported",
    "Finding",
    "Identity",
    "ImplicitUpdate",
    "Kernel",
    "LineSearch",
    "Listing",
    "Metadata",
    "MismatchError",
    "MissingRuntimeError",
    "Model",
    "OutsideEnvelopeWarning",
    "Part",
    "Report",
    "Sampling",
    "Settings",
    "Signature",
    "SignatureError",
    "Step",
    "TensorSpec",
    "TorchferryError",
    "TrustError",
    "UnsoundError",
    "UsageError",
    "__version__",
    "adopt",
    "check",
    "convert",
    "declare",
    "diff",
    "evaluate",
    "evaluate_to_file",
    "export",
    "load",
    "mark",
    "sign",
    "verify",
]


def export(
    source: str | nn.Module | Callable[..., Any],
    *,
    overrides: Sequence[str] = (),
    extensions: Sequence[str] = (),
    drivers: Sequence[str] = (),
    dtype: str = "",
    models: Sequence[str] = (),
    output: str | Path | None = None,
    renames: Sequence[str] = (),
    units: Sequence[str] = (),
    meta: str | Path | Mapping[str, Any] | None = None,
    inputs: str | Path | Mapping[str, Any] | None = None,
    seed: int = 0,
    runtimes: str | Sequence[str] = (),
    devices: str | Sequence[str] = "cpu",
    allow: Sequence[str] = (),
    derivatives: str | Sequence[str] = (),
    jvp: bool = False,
    vjp: bool = False,
    parameters: Sequence[str] = (),
    per_element: str | Sequence[str] = (),
    batch: BatchChoice = "auto",
    sizes: SizeChoice = "auto",
    differentiable: bool = False,
    symmetric: Sequence[str] = (),
    thorough: bool = False,
    budget: float | None = None,
    jobs: int | None = None,
    against: str | Path | None = None,
    on_failure: OnFailure | None = None,
    formats: str | Sequence[str] = (),
    opset: int = OPSET,
    reduce: str = "all",
    time_limit: float = TIME_LIMIT,
    memory_limit: float = MEMORY_LIMIT,
    command: str = "",
    announce: Callable[[Listing], Any] | None = None,
    progress: Callable[[str], Any] = lambda text: None,
    watch: Watch = ignore_step,
) -> list[Exported]:
    """Export models of an input file, of a Python factory, or a module; verify each file before it appears.

    The same as ``torchferry export``. A module is put into eval mode. Settings of torch are changed during the export
    and restored: one export at a time in a process.

    Args:
        source: An input file (``"model.i"``), a factory (``"file.py:factory"``, ``"package.module:factory"``), a
            module, or a function of tensors.
        overrides: What the input file leaves open, as ``"NAME=VALUE"``, and other values of what it has, as
            ``"PATH:=VALUE"``.
        extensions: Python files or modules that register types of NEML2, imported before the input file is read.
        drivers: Drivers of the input file: the models that they drive, with the inputs of these drivers alone.
        dtype: Precision of a model of an input file, ``"float64"`` or ``"float32"``; the report says what it loses.
        models: Names of models of the input file; by default its only one.
        output: The file, or a folder for several models; by default ``NAME.pt`` in the current folder.
        renames: Rules ``"OLD:NEW"`` for names of variables in the contract; ``*`` matches any text.
        units: Rules ``"NAME=UNIT"``, with globs, for units in the contract; else they are those of ``meta``.
        meta: A file in TOML, or a dict of the same keys: ``description``, ``authors``, ``license``, ``references``, and
            ``variables`` by name; what it does not say is as in the signature.
        inputs: A file of warmup inputs (``.pt``, ``.npz``, ``.json``), or a dict of example tensors by name, each of
            shape ``(*batch, *shape)``.
        seed: The seed of all random draws.
        runtimes: Where the archive is verified: ``"python"``, ``"libtorch"``, ``"interpreter"``, or several.
        devices: On what it is verified: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or several.
        allow: Findings of the soundness gate that may pass, each as ``"CHECK:REASON"``.
        derivatives: Blocks of the Jacobian, each ``"OUT:BY"`` with globs, or ``"all"``: the file then has a method
            ``jacobian``, which returns the outputs and then blocks of shape ``(*batch, *out, *by)``. ``"OUT:IN,BY"``
            makes the gradient of a number an output, ``d_OUT_d_IN``, and asks for its block by ``BY``.
        jvp: Whether to add the method ``jvp``, Jacobian times tangents.
        vjp: Whether to add the method ``vjp``, cotangents times Jacobian.
        parameters: Globs of the parameters that stay settable; by default all that can.
        per_element: Globs of parameters that become inputs, a value for each element; ``inputs`` may hold values.
        batch: Whether a model without a signature has a batch: ``"yes"``, ``"no"``, or ``"auto"``, if its inputs share
            a leading size that its outputs have too. Without one its shapes are whole.
        sizes: Of whole shapes without a signature: ``"open"`` if calls may have other sizes than the examples,
            ``"fixed"`` if not, ``"auto"`` for those at which the model and its file turn out to agree.
        differentiable: Whether torch's autograd through the loaded file is compared with eager mode's; adds ``vjp``.
        symmetric: Blocks ``"OUT:IN"`` that are second derivatives of a potential, and are checked as such.
        thorough: Whether large batches and all draws are run whatever they cost; else the contract names what was not.
        budget: About how many seconds large batches may take on one core, in all checks together; by default 1.5.
        jobs: How many checks of the gate, and methods of the file, run at the same time, and from 2 on cases beside
            the writing of the file; by default as many as this process has cores.
        against: An earlier archive of the model: each result's ``reasons`` say why it does not serve this model (a
            static size, the structure of the backward pass, ...), and are empty if it serves as well.
        on_failure: What an element of an implicit model becomes that does not converge: ``"nan"``, ``"last"`` (its last
            iterate) or ``"raise"`` (an error for the whole batch); by default the model's own setting, or ``"nan"``.
        formats: ``"pt"``, ``"onnx"``, ``"pt2"``, ``"program"`` and ``"c"`` (a folder of C sources), ``"cuda"`` (the
            same and those for GPUs); by default what the output's suffix says. Each is verified where it runs.
        opset: ONNX's version of operators.
        reduce: ``"none"`` for a kernel whose Newton loops solve for all their unknowns, as the archive does.
        time_limit: Seconds for each process that verifies.
        memory_limit: GiB for each process that verifies.
        command: What the contract says of how the file was made; the command line gives its own words.
        announce: Called with name, inputs and outputs of each model before it is captured.
        progress: Called with texts on the build of the native library.
        watch: Called with a ``Step`` when a stage begins or a check ends: ``stage``, ``part``, ``done``, ``total``.

    Returns:
        One ``Exported`` for each model: path, contract, report, seconds by stage.

    Raises:
        UsageError: An argument contradicts itself or names what is not there.
        UnsoundError: A capture would lose something that the model does; ``findings`` say what and where.
        CaptureError: The model has no capture, or a format cannot express it.
        MismatchError: The file does not agree with eager mode.
        MissingRuntimeError: A package, a runtime or a device is missing.

    Example:
        ```python
        (result,) = torchferry.export("spring.py:make_model", output="spring.pt", derivatives="force:stretch")
        print(result.path, result.report.passed)
        ```
    """
    output_path = Path(output) if output is not None else None
    format_names = resolve_formats([formats] if isinstance(formats, str) else formats, output_path)
    verify_options = VerifyOptions(
        runtimes, devices, time_limit, memory_limit, progress=progress, jobs=choose_jobs(jobs), trust=NATIVE
    )
    options = ExportOptions(
        models=tuple(models),
        output=output_path,
        formats=format_names,
        renames=tuple(map(RenameRule.parse, renames)),
        units=tuple(map(parse_unit_rule, units)),
        metadata=MetadataRules() if meta is None else read_metadata(Path(meta) if isinstance(meta, str) else meta),
        inputs=Path(inputs) if isinstance(inputs, str) else inputs,
        per_element=_to_tuple(per_element),
        shapes=ShapeChoice(batch, sizes),
        against=Path(against) if against is not None else None,
        on_failure=on_failure,
        command=escape_unsafe(command)[:MAX_TEXT],
        capture=CaptureOptions(
            seed,
            tuple(map(Allowance.parse, allow)),
            DerivativeRequest(_to_tuple(derivatives), jvp, vjp, tuple(parameters), differentiable, tuple(symmetric)),
            announce=announce or (lambda listing: None),
            thorough=thorough,
            budget=budget,
            jobs=choose_jobs(jobs),
        ),
        write=WriteOptions(opset, KernelOptions(reduce=reduce)),
        verify=select_archive_runtimes(verify_options, format_names),
        watch=watch,
    )
    # Archives run in Python where nothing else is asked for.
    with start_runtime(options.verify.runtime_names or ("python",)):
        return _pipeline.export(make_request(source, overrides, extensions, drivers, dtype), options)


def adopt(
    path: str | Path,
    *,
    inputs: str | Path | Mapping[str, Any] | None = None,
    allow_native: bool = False,
    **options: Any,
) -> Exported:
    """Make an archive of a file that something else wrote; verify it against that file before it appears.

    As ``torchferry adopt``: the file's code runs in a confined process. Graphs of TorchScript stay as they are,
    branches and loops too; gradients that they take themselves become operations.

    Args:
        path: TorchScript of ``torch.jit.save``, or a program of ``torch.export.save``.
        inputs: A file of inputs (``.pt``, ``.npz``, ``.json``), or a dict of example tensors by name of the arguments
            of its ``forward``, each of shape ``(*batch, *shape)``; lists and dicts of tensors for those that take
            them. A program may hold examples.
        allow_native: Whether a program may run code of its own while it is read: you trust who made it.
        options: Other arguments of ``export``: ``output``, ``derivatives``, ``batch``, ``formats`` and so on.

    Returns:
        The archive's path, contract, report, and seconds by stage.

    Raises:
        ArchiveError: The file is neither, or calls operators that do not only compute.
        TrustError: It is a program, which nobody has allowed to run code (a ``UsageError``).
        UsageError: It has a contract already, or the inputs are not those of its ``forward``.
        CaptureError: It fails on these inputs, or cannot be written as a function of them.
        UnsoundError: It draws random numbers, changes its own state, or depends on something outside of it.
        MismatchError: The archive does not agree with the file.

    Example:
        ```python
        adopted = torchferry.adopt("colleague.pt", inputs={"x": torch.rand(5, 3)}, output="net.pt")
        ```
    """
    source = cast("Any", AdoptedFile(Path(path), allow_native))
    return adopt_confined(Path(path), functools.partial(export, source), {"inputs": inputs, **options})


def _to_tuple(texts: str | Sequence[str]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)


def convert(
    path: str | Path,
    output: str | Path | None = None,
    *,
    to: str = "onnx",
    opset: int = OPSET,
    finite_math: bool = False,
    reduce: str = "all",
    devices: str | Sequence[str] = "cpu",
    time_limit: float = TIME_LIMIT,
    memory_limit: float = MEMORY_LIMIT,
) -> Converted:
    """Write an archive as another container, from the file alone, verified first; as ``torchferry convert``.

    Args:
        path: The archive.
        output: The container; by default the archive's name with the container's suffix.
        to: ``"onnx"``, ``"pt2"``, ``"program"``, ``"c"`` or ``"cuda"``.
        opset: ONNX's version of operators.
        reduce: ``"none"`` for a kernel whose Newton loops solve for all their unknowns, as the archive does.
        finite_math: Whether a kernel may take ``0 * x`` for 0, which is wrong if ``x`` is infinite or NaN.
        devices: On what it is verified.
        time_limit: Seconds for the confined process that converts, and for each that verifies.
        memory_limit: GiB for each of these.

    Returns:
        The container's path, its contract and the report of its verification.

    Raises:
        UnsupportedError: The container cannot represent the model (a ``CaptureError``).
        MismatchError: The container's numbers differ.
        MissingRuntimeError: A package is missing.

    Example:
        ```python
        torchferry.convert("spring.pt", "spring_kernel", to="c")
        ```
    """
    source = Path(path)
    (format_name,) = resolve_formats([to], None)
    backend = load_backend(format_name)
    output_path = Path(output) if output is not None else path_for_format(source, format_name)
    options = WriteOptions(opset, KernelOptions(finite_math, reduce))
    verify_options = VerifyOptions((), devices, time_limit, memory_limit, jobs=choose_jobs(None), trust=NATIVE)
    backend.require()
    return convert_confined(source, output_path, backend, options, verify_options)


def check(
    source: str | nn.Module | Callable[..., Any],
    *,
    overrides: Sequence[str] = (),
    extensions: Sequence[str] = (),
    drivers: Sequence[str] = (),
    dtype: str = "",
    models: Sequence[str] = (),
    inputs: str | Path | Mapping[str, Any] | None = None,
    per_element: str | Sequence[str] = (),
    batch: BatchChoice = "auto",
    sizes: SizeChoice = "auto",
    seed: int = 0,
    allow: Sequence[str] = (),
    second_opinion: bool = False,
    thorough: bool = False,
    budget: float | None = None,
    jobs: int | None = None,
    watch: Watch = ignore_step,
) -> list[Checked]:
    """Run the soundness gate alone, as ``torchferry check`` does; nothing is written.

    Args:
        source: As in ``export``.
        overrides: As in ``export``.
        extensions: As in ``export``.
        drivers: As in ``export``.
        dtype: As in ``export``.
        models: As in ``export``.
        inputs: As in ``export``.
        per_element: As in ``export``.
        batch: As in ``export``.
        sizes: As in ``export``.
        seed: The seed of all random draws.
        allow: Findings that may pass, each as ``"CHECK:REASON"``.
        second_opinion: Whether to ask ``torch.export`` too; its answer decides nothing.
        thorough: As in ``export``.
        budget: As in ``export``.
        jobs: As in ``export``.
        watch: As in ``export``.

    Returns:
        One ``Checked`` for each model: findings, the checks that ran, and those that could not.

    Raises:
        UnsoundError: A capture would lose something; ``findings`` say what. The other errors are those of ``export``.

    Example:
        ```python
        (report,) = torchferry.check("spring.py:make_model")
        print(report.checks, report.not_run)
        ```
    """
    allowances = tuple(map(Allowance.parse, allow))
    options = CaptureOptions(
        seed, allowances, second_opinion=second_opinion, thorough=thorough, budget=budget, jobs=choose_jobs(jobs)
    )
    return _soundness_check.check(
        make_request(source, overrides, extensions, drivers, dtype),
        models=models,
        inputs=Path(inputs) if isinstance(inputs, str) else inputs,
        per_element=_to_tuple(per_element),
        shapes=ShapeChoice(batch, sizes),
        options=options,
        watch=watch,
    )


def verify(
    path: str | Path,
    *,
    runtimes: str | Sequence[str] = (),
    devices: str | Sequence[str] = "cpu",
    time_limit: float = TIME_LIMIT,
    memory_limit: float = MEMORY_LIMIT,
    envelope: str = "off",
    trust: str = "graphs",
    public_key: str | Path | Identity | None = None,
    jobs: int | None = None,
    progress: Callable[[str], Any] = lambda text: None,
) -> Report:
    """Check a file in fresh processes without its source library, as ``torchferry verify`` does.

    Args:
        path: An archive, or a container of another format.
        runtimes: ``"python"``, ``"libtorch"``, ``"interpreter"`` (no TorchScript), ``"c"`` (its kernel), or the usual.
        devices: On what: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or several.
        time_limit: Seconds for each process.
        memory_limit: GiB for each process.
        envelope: What becomes of stored inputs outside the range that was checked: ``"error"``, ``"warn"``, ``"off"``.
        trust: ``"native"`` lets native code run that was not made here: a ``.pt2``, a kernel.
        public_key: The key, or the ``Identity``, that has to have signed the file.
        jobs: How many calls of an archive run at the same time in ``"python"``; by default as in ``export``.
        progress: Called with texts on the build of the native library.

    Returns:
        The report, with every check that ran and the errors of each output.

    Raises:
        MismatchError: A number differs from eager mode's.
        ArchiveError: The file is damaged.
        TrustError: It is native code that was not made here, and ``trust`` is not ``"native"``.
        SignatureError: It is not signed with ``public_key``.
        MissingRuntimeError: A runtime or a device is missing.

    Example:
        ```python
        report = torchferry.verify("spring.pt", runtimes="python,libtorch")
        ```
    """
    key = make_signer(public_key)
    jobs = choose_jobs(jobs)
    options = VerifyOptions(runtimes, devices, time_limit, memory_limit, envelope, progress, jobs, trust, key)
    format_name = infer_file_format(Path(path))
    return FileVerifier(options, [format_name]).verify(Path(path), format_name)


def diff(
    one: str | Path,
    other: str | Path,
    *,
    run: bool = False,
    time_limit: float = TIME_LIMIT,
    memory_limit: float = MEMORY_LIMIT,
) -> Difference:
    """Compare two archives, or any TorchScript files, as ``torchferry diff`` does: in a confined process.

    Args:
        one: The first file.
        other: The second file.
        run: Whether to run both on the stored cases of either, in fresh processes, and compare the outputs.
        time_limit: Seconds for that process.
        memory_limit: GiB for that process.

    Returns:
        The difference of graphs, contracts and outputs; ``verdict`` sums it up in a line.

    Raises:
        ArchiveError: A file is damaged or not TorchScript.
        UsageError: ``run`` is asked for, and no case is known to run.

    Example:
        ```python
        print(torchferry.diff("old.pt", "new.pt").verdict)
        ```
    """
    return diff_confined(Path(one), Path(other), run=run, time_limit=time_limit, memory_limit=memory_limit)


def load(
    path: str | Path,
    device: str | torch.device = "cpu",
    *,
    envelope: str = "off",
    threads: int = 1,
    engine: str = "torchscript",
    trust: str = "graphs",
    public_key: str | Path | Identity | None = None,
    batches: Sequence[int] = (1, 1000),
) -> Any:
    """Load an archive as a ``Model``, or a kernel's folder as a ``Kernel``.

    Args:
        path: An archive, a package (``.pt2``), an ONNX container, or a kernel's folder.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
        envelope: What becomes of a call with inputs outside the range of values that was checked: ``"off"`` lets it
            pass, ``"warn"`` gives an ``OutsideEnvelopeWarning``, ``"error"`` raises ``UsageError``.
        threads: Threads of onnxruntime; torch's are the process's own.
        engine: What runs an archive: ``"torchscript"``; ``"pt2"``, the package beside it; ``"kernel"``, the C sources
            that it carries or that lie beside it, built by this machine's compiler; on a GPU the sources for those that
            lie beside it, built by nvcc. Both have to pass the archive's cases here first; otherwise an
            ``EngineWarning`` says why, and TorchScript runs it. ``"auto"`` times all of them that pass, and takes the
            fastest; ``Model.choice`` has the times, and why others are left out. ``"interpreter"`` runs the archive's
            graphs in Python, operator by operator: it needs no ``torch.jit``, and stands in for it, with an
            ``EngineWarning``, where torch has none.
        trust: What of the file may run: ``"graphs"``, and native code that this user exported or converted here;
            ``"native"``, the native code of others too: a package, a kernel.
        public_key: The key, or the ``Identity``, that has to have signed the file; its native code is trusted then.
        batches: With ``engine="auto"``, the sizes of batches that are timed, all alike.

    Returns:
        A ``Model``, which takes tensors; or a ``Kernel``, which takes NumPy arrays, needs no torch, and has no
        other options than ``trust`` and ``public_key``.

    Raises:
        ArchiveError: The file is damaged.
        TrustError: The file is native code that was not made here, and ``trust`` is not ``"native"``.
        SignatureError: The file is not signed with ``public_key``.
        RunError: The code was compiled for another machine.
        UsageError: A kernel's folder is loaded with options.

    Example:
        ```python
        model = torchferry.load("spring.pt")
        (force,) = model(torch.rand(1000, dtype=torch.float64))
        ```
    """
    key = make_signer(public_key)
    if engine == "auto" and not is_kernel(Path(path)):
        from runtime_checks.bench.fastest import load_fastest

        return load_fastest(Path(path), str(device), batches, envelope=envelope, trust=trust, public_key=key)
    if not is_kernel(Path(path)):
        return _load(path, device, envelope=envelope, threads=threads, engine=engine, trust=trust, public_key=key)
    if (str(device), envelope, threads, engine) != ("cpu", "off", 1, "torchscript"):
        mend = 'leave them out; for device, envelope and engine load the .pt, with engine="kernel"'
        raise UsageError("a kernel is loaded on the CPU, without options", where=str(path), mend=mend)
    return Kernel(Path(path), trust, key)
