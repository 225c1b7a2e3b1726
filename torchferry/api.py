"""All of torchferry's public Python API."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from exporter import __version__
from exporter.archive import formats as _kinds
from exporter.archive.contract import Contract, Finding
from exporter.archive.derivative_request import DerivativeRequest
from exporter.archive.formats import KERNEL
from exporter.archive.kernel_container import is_kernel
from exporter.archive.tensor_spec import Sampling, Signature, TensorSpec
from exporter.backends import convert as _convert
from exporter.backends.convert import Converted
from exporter.backends.onnx.export import OPSET
from exporter.common.errors import (
    ArchiveError,
    CaptureError,
    MismatchError,
    MissingRuntimeError,
    TorchferryError,
    UnsoundError,
    UsageError,
)
from exporter.graph.archive_diff import Difference
from exporter.graph.archive_diff import diff_archives as _difference
from exporter.model.composition import ComposedModel, Part
from exporter.model.function_model import declare
from exporter.model.implicit.implicit_update import ImplicitUpdate
from exporter.model.implicit.newton_solver import LineSearch, OnFailure, Settings
from exporter.model.jit_marks import mark
from exporter.model.source import Listing
from runtime_checks import containers as _container
from runtime_checks.engines.selection import EngineWarning
from runtime_checks.envelope import OutsideEnvelopeWarning, check_envelope_mode
from runtime_checks.kernels.numpy_kernel import Kernel
from runtime_checks.model import Model
from runtime_checks.model import load as _load
from runtime_checks.output_agreement import compare_outputs as _numbers
from runtime_checks.report import Report
from runtime_checks.runners import fork_server as _forkserver
from runtime_checks.runners import selection as _choose
from runtime_checks.runners.selection import MEMORY_LIMIT, TIME_LIMIT
from runtime_checks.verification import verify as _verify
from torchferry import pipeline as _pipeline
from torchferry.pipeline import Checked, Exported

__all__ = [
    "ArchiveError",
    "CaptureError",
    "Checked",
    "ComposedModel",
    "Contract",
    "Converted",
    "Difference",
    "EngineWarning",
    "Exported",
    "Finding",
    "ImplicitUpdate",
    "Kernel",
    "LineSearch",
    "Listing",
    "MismatchError",
    "MissingRuntimeError",
    "Model",
    "OutsideEnvelopeWarning",
    "Part",
    "Report",
    "Sampling",
    "Settings",
    "Signature",
    "TensorSpec",
    "TorchferryError",
    "UnsoundError",
    "UsageError",
    "__version__",
    "check",
    "convert",
    "declare",
    "diff",
    "export",
    "load",
    "mark",
    "verify",
]


def export(
    source: str | nn.Module | Callable[..., Any],
    *,
    models: Sequence[str] = (),
    output: str | Path | None = None,
    renames: Sequence[str] = (),
    inputs: str | Path | Mapping[str, Any] | None = None,
    seed: int = 0,
    runtimes: str | Sequence[str] = (),
    devices: str | Sequence[str] = "cpu",
    allow: Sequence[str] = (),
    derivatives: str | Sequence[str] = (),
    jvp: bool = False,
    vjp: bool = False,
    parameters: Sequence[str] = (),
    differentiable: bool = False,
    symmetric: Sequence[str] = (),
    against: str | Path | None = None,
    on_failure: OnFailure | None = None,
    formats: str | Sequence[str] = (),
    opset: int = OPSET,
    time_limit: float = TIME_LIMIT,
    memory_limit: float = MEMORY_LIMIT,
    announce: Callable[[Listing], Any] | None = None,
    progress: Callable[[str], Any] = lambda text: None,
) -> list[Exported]:
    """Export models of an input file, of a Python factory, or a module; verify each file before it appears.

    The same as ``torchferry export``; a module is put into eval mode, and ``inputs`` may be a dict of example tensors
    by name. ``runtimes`` and ``devices`` say where it is verified; ``time_limit`` (seconds) and ``memory_limit`` (GiB)
    bound the process that verifies; ``announce`` is called with name, inputs and outputs of each model before it is
    captured, ``progress`` with the progress of a build of the native library; ``allow`` lets findings of the soundness
    gate pass, each as ``CHECK:REASON``.

    ``derivatives`` are blocks of the Jacobian, each ``"OUT:BY"`` with globs, or ``"all"``: the file then has a method
    ``jacobian``, which returns the outputs and then blocks of shape ``(*batch, *out, *by)``. ``jvp`` and ``vjp``
    add the methods of that name. ``parameters`` (globs) are those that stay settable, by default all that can.
    ``differentiable``: torch's autograd through the loaded file is compared with eager mode's, too (and ``vjp`` is
    added); ``symmetric`` blocks, each ``"OUT:IN"``, are second derivatives of a potential, and checked as such.

    ``on_failure`` is for implicit models: an element that does not converge becomes ``"nan"``, ``"last"`` (its last
    iterate) or ``"raise"`` (an error for the whole batch); by default the model's own setting, else ``"nan"``.

    ``formats`` are containers, ``"pt"``, ``"onnx"``, ``"pt2"``, ``"program"`` and ``"c"`` (a folder of C sources), by
    default what the output's suffix says; each is verified where it runs (``opset`` is ONNX's version of operators),
    and ``runtimes`` are those of the archive.

    ``against`` is an earlier archive of the model: each result's ``reasons`` say why the new one is another
    specialisation (a static size, the structure of the backward pass, ...), and are empty if the earlier one serves
    as well.

    Settings of torch are changed during the export and restored: one export at a time in a process. Raises the errors
    of ``exporter.common.errors``."""
    blocks = (derivatives,) if isinstance(derivatives, str) else tuple(derivatives)
    derivative_request = DerivativeRequest(blocks, jvp, vjp, tuple(parameters), differentiable, tuple(symmetric))
    output_path = Path(output) if output is not None else None
    format_names = _convert.resolve_formats([formats] if isinstance(formats, str) else formats, output_path)
    _convert.require(format_names)
    limits: Any = {"time_limit": time_limit, "memory_limit": memory_limit, "announce": progress}
    runners = _choose.select_runners(_select_archive_runtimes(runtimes, format_names), devices, **limits)
    container_runners = {
        f: _choose.select_runners((), devices, **limits, container=f) for f in format_names if f != "pt"
    }
    names = list(dict.fromkeys(runner.device for runner in runners))
    notes = _choose.list_unchecked_devices(names)
    with _forkserver.shared_fork_server():
        return _pipeline.export(
            source,
            models=models,
            output=output_path,
            renames=renames,
            inputs=Path(inputs) if isinstance(inputs, str) else inputs,
            seed=seed,
            devices=names,
            allow=allow,
            derivative_request=derivative_request,
            against=Path(against) if against is not None else None,
            on_failure=on_failure,
            containers=_pipeline.OutputFormats(
                format_names, opset, functools.partial(_verify_container, container_runners, notes)
            ),
            verify=lambda path, final, fresh: _verify(path, fresh=fresh, runners=runners, shown_as=final, notes=notes),
            announce=announce or (lambda listing: None),
        )


def _select_archive_runtimes(runtimes: str | Sequence[str], formats: Sequence[str]) -> list[str]:
    """Return the runtimes that run the archive itself: a kernel runs in its own, whether that is named or not."""
    names = _choose.split_names(runtimes)
    if "c" in names and "c" not in formats:
        mend = "add --format pt,c, or leave out c"
        raise UsageError("runtime 'c' runs kernels, and none is written", where="--runtime", got="c", mend=mend)
    return [name for name in names if name != "c"]


def _verify_container(
    runners: Mapping[str, Sequence[Any]], notes: Sequence[str], path: Path, final: Path, fresh: Sequence[Any]
) -> Report:
    format_name = KERNEL if is_kernel(path) else _container.infer_file_format(final)
    return _verify(path, fresh=fresh, runners=runners[format_name], shown_as=final, notes=notes)


def convert(
    path: str | Path,
    output: str | Path | None = None,
    *,
    to: str = "onnx",
    opset: int = OPSET,
    finite_math: bool = False,
    devices: str | Sequence[str] = "cpu",
    time_limit: float = TIME_LIMIT,
    memory_limit: float = MEMORY_LIMIT,
) -> Converted:
    """Write an archive as another container, from the file alone, verified first; as ``torchferry convert``.

    ``output`` is by default the archive's name with the container's suffix; ``opset`` is ONNX's version of operators;
    ``finite_math`` lets a kernel take ``0 * x`` for 0, which is wrong if ``x`` is infinite or NaN. Raises
    ``UnsupportedError`` (a ``CaptureError``) if the container cannot represent the model, ``MismatchError``, and
    ``MissingRuntimeError`` if a package is missing."""
    source = Path(path)
    (format_name,) = _convert.resolve_formats([to], None)
    if format_name == "pt":
        expected = "onnx, pt2, program, c"
        raise UsageError("an archive is converted to another container", where="--to", got=to, expected=expected)
    _convert.require([format_name])
    runners = _choose.select_runners(
        (), devices, time_limit=time_limit, memory_limit=memory_limit, container=format_name
    )
    notes = _choose.list_unchecked_devices([runner.device for runner in runners])
    output_path = Path(output) if output is not None else _kinds.path_for_format(source, format_name)
    verify_output = functools.partial(_verify_container, {format_name: runners}, notes)
    return _convert.convert(
        source, output_path, format_name, opset=opset, finite_math=finite_math, verify=verify_output
    )


def check(
    source: str | nn.Module | Callable[..., Any],
    *,
    models: Sequence[str] = (),
    inputs: str | Path | Mapping[str, Any] | None = None,
    seed: int = 0,
    allow: Sequence[str] = (),
    second_opinion: bool = False,
) -> list[Checked]:
    """Run the soundness gate alone, as ``torchferry check`` does; nothing is written.

    ``second_opinion`` also asks ``torch.export``. Raises ``UnsoundError``, whose ``findings`` say what a capture would
    lose, and the other errors of ``export``."""
    path = Path(inputs) if isinstance(inputs, str) else inputs
    return _pipeline.check(source, models=models, inputs=path, seed=seed, allow=allow, second_opinion=second_opinion)


def verify(
    path: str | Path,
    *,
    runtimes: str | Sequence[str] = (),
    devices: str | Sequence[str] = "cpu",
    time_limit: float = TIME_LIMIT,
    memory_limit: float = MEMORY_LIMIT,
    envelope: str = "off",
    progress: Callable[[str], Any] = lambda text: None,
) -> Report:
    """Check an archive, or an ONNX container, in fresh processes without its source library, as ``torchferry verify``.

    ``envelope`` (``error``, ``warn`` or ``off``) applies to stored inputs outside the range of values that was checked.
    Raises ``MismatchError``, ``ArchiveError``, and ``MissingRuntimeError`` for a missing runtime or device."""
    runners = _choose.select_runners(
        runtimes,
        devices,
        time_limit=time_limit,
        memory_limit=memory_limit,
        container=_container.infer_file_format(Path(path)),
        announce=progress,
    )
    notes = _choose.list_unchecked_devices([runner.device for runner in runners])
    return _verify(Path(path), runners=runners, notes=notes, envelope=check_envelope_mode(envelope))


def diff(one: str | Path, other: str | Path, *, run: bool = False) -> Difference:
    """Compare two archives, or any TorchScript files, as ``torchferry diff`` does; ``verdict`` sums it up in a line.

    ``run`` runs both on the stored cases of either, in fresh processes, and compares the outputs. Raises
    ``ArchiveError`` for a file that is damaged or not TorchScript, ``UsageError`` if no case is known to run."""

    def run_both(a: Any, b: Any, cases: Any) -> Any:
        return _numbers((a.file.path, a.contract), (b.file.path, b.contract), cases)

    return _difference(Path(one), Path(other), run_both if run else None)


def load(
    path: str | Path,
    device: str | torch.device = "cpu",
    *,
    envelope: str = "off",
    threads: int = 1,
    engine: str = "torchscript",
) -> Any:
    """Load an archive as a ``Model``, as ``runtime_checks.model.load`` does, or a kernel's folder as a ``Kernel``: it
    takes NumPy arrays, needs no torch, and has no options."""
    if not is_kernel(Path(path)):
        return _load(path, device, envelope=envelope, threads=threads, engine=engine)
    if (str(device), envelope, threads, engine) != ("cpu", "off", 1, "torchscript"):
        raise UsageError("a kernel is loaded on the CPU, without options", where=str(path))
    return Kernel(Path(path))
