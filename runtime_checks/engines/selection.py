"""Compiled code in place of TorchScript: a ``.pt2`` beside a ``.pt``, or a kernel, also on a GPU, used once it has
reproduced the ``.pt``'s own cases."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping

import torch

from exporter.archive import kernel_container, pt_archive
from exporter.archive.cases import supports_case
from exporter.archive.contract import name_output
from exporter.archive.formats import path_for_format
from exporter.archive.kernel_container import KernelFiles
from exporter.archive.pt_archive import Archive
from exporter.archive.tensor_spec import name_dtype
from runtime_checks.comparison import compare_tensors
from runtime_checks.engines.cuda_kernel import CudaKernel
from runtime_checks.engines.engines import AotInductorEngine, Kernel, check_machine
from runtime_checks.kernels.embedded import build_embedded_kernel
from runtime_checks.native_code import Trust, check_code_trust, check_kernel_trust

TORCHSCRIPT, PT2 = "torchscript", "pt2"
KERNEL, INTERPRETER = "kernel", "interpreter"
ENGINES = (TORCHSCRIPT, PT2, KERNEL, INTERPRETER)
# The fastest of them.
AUTO = "auto"
# Returns the parameters of the archive itself by name.
ParameterSource = Callable[[], Mapping[str, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class EngineChoice:
    """What ``engine="auto"`` chose.

    Attributes:
        engine: The engine that runs the model.
        nanoseconds: Of a call, by engine and size of the batch; empty where one engine was left.
        left_out: Why an engine does not run here, by its name.
    """

    engine: str
    nanoseconds: Mapping[str, Mapping[int, float]]
    left_out: Mapping[str, str]


class EngineWarning(UserWarning):
    """The requested engine is not used; the graphs of the file run."""


def select_engine(
    opened: Archive, engine: str, device: str, get_parameters: ParameterSource, trust: Trust
) -> AotInductorEngine | Kernel | CudaKernel | None:
    """Return the requested engine; None, with an ``EngineWarning`` that says why, where ``try_engine`` has none."""
    candidate, reason = try_engine(opened, engine, device, get_parameters, trust)
    if candidate is None:
        warnings.warn(f"{opened.path.name} runs by its graphs: {reason}", EngineWarning, stacklevel=4)
    return candidate


def try_engine(
    opened: Archive, engine: str, device: str, get_parameters: ParameterSource, trust: Trust
) -> tuple[AotInductorEngine | Kernel | CudaKernel | None, str]:
    """Return an engine, or the reason why it does not run here: there is none, it was made from another archive or for
    another machine, ``trust`` does not let it run, or a case does not pass. ``get_parameters`` loads the archive.
    """
    candidate = None
    try:
        candidate, reason = (
            _load_compiled_engine(opened, device, trust.beside)
            if engine == PT2
            else _load_kernel_engine(opened, device, get_parameters, trust)
        )
        if candidate is not None:
            reason = self_test(opened, candidate, device)
    except Exception as error:
        # Code of another origin may raise anything; the archive itself still runs.
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return (None, reason) if reason else (candidate, "")


def _load_compiled_engine(opened: Archive, device: str, trust: str) -> tuple[AotInductorEngine | None, str]:
    path = path_for_format(opened.path, PT2)
    if not path.is_file():
        return None, f"there is no {path.name} beside it"
    package = pt_archive.read(path, pt_archive.freeze_archive(path))
    reason = _find_mismatch(opened, package, device)
    if reason:
        return None, reason
    check_code_trust(package, path, trust)
    return AotInductorEngine(package), ""


def _load_kernel_engine(
    opened: Archive, device: str, get_parameters: ParameterSource, trust: Trust
) -> tuple[Kernel | CudaKernel | None, str]:
    """Load the kernel that the archive carries, or the one in the folder beside it."""
    files, mode, on_gpu = opened.kernel(), trust.file, device != "cpu"
    folder, reason = (None, "") if files and not on_gpu else _open_folder_beside(opened)
    reason = reason or _find_unsupported(opened)
    if reason:
        return None, reason
    if on_gpu:
        return _load_cuda_kernel(opened, folder, device, get_parameters, trust)
    if folder is not None:
        files, mode = folder.build_files(), trust.beside
    if not files:
        return None, "it carries no kernel, and there is none beside it: export it with --format pt,c"
    check_kernel_trust(files, opened.path, mode)
    embedded = build_embedded_kernel(opened, files)
    return Kernel(opened.contract, embedded.sources(), embedded.manifest, get_parameters()), ""


def _open_folder_beside(opened: Archive) -> tuple[KernelFiles | None, str]:
    """Open the kernel's folder beside an archive, if there is one; with the reason if it is of another."""
    beside = path_for_format(opened.path, "c")
    if not kernel_container.is_kernel(beside):
        return None, ""
    folder = kernel_container.read(beside)
    if folder.contract.graph != opened.contract.graph:
        name = "cuda" if folder.has_cuda else "c"
        return None, f"{beside.name} was made of another graph: make it again with torchferry convert --to {name}"
    return folder, ""


def _load_cuda_kernel(
    opened: Archive, folder: KernelFiles | None, device: str, get_parameters: ParameterSource, trust: Trust
) -> tuple[CudaKernel | None, str]:
    """Load the kernel for GPUs, which lies in the folder beside the archive."""
    if folder is None or not folder.has_cuda:
        return None, "no kernel for GPUs lies beside it: export it with --format pt,cuda"
    check_kernel_trust(folder.build_files(), opened.path, trust.beside)
    kernel_container.check_description(folder.manifest, opened.contract, str(folder.path))
    place = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)
    return CudaKernel(opened.contract, folder, get_parameters(), place), ""


def _find_mismatch(opened: Archive, package: Archive, device: str) -> str:
    if package.holds != "code":
        return f"{package.path.name} holds no compiled code"
    again = "make it again with torchferry convert --to pt2"
    if package.contract.graph != opened.contract.graph:
        return f"{package.path.name} was made of another graph: {again}"
    # The hash of the graphs does not cover names.
    ours, theirs = ((c.inputs, c.outputs, c.methods) for c in (opened.contract, package.contract))
    if ours != theirs:
        return f"{package.path.name} has other variables or methods: {again}"
    reason = _find_unsupported(opened)
    if not reason:
        check_machine(package, device)
    return reason


def _find_unsupported(opened: Archive) -> str:
    """Return the part of the contract that compiled code does not support, or an empty text."""
    if opened.contract.differentiable:
        return "torch's gradients do not go through compiled code"
    if any(solver.on_failure == "raise" for solver in opened.contract.solvers):
        return "compiled code gives NaN where Newton's method does not converge, and this model raises an error"
    return ""


def self_test(opened: Archive, engine: AotInductorEngine | Kernel | CudaKernel, device: str = "cpu") -> str:
    """Return a message on the first case that does not pass on the device within the tolerances of the ``.pt``
    (of a kernel, those of kernels), or an empty text."""
    contract = dataclasses.replace(opened.contract, batch=dataclasses.replace(opened.contract.batch, ranks=(1,)))
    cases = [case for case in opened.cases() if supports_case(contract, case)]
    is_kernel = isinstance(engine, (Kernel, CudaKernel))
    left_out = engine.left_out if is_kernel else ()
    tolerance = (kernel_container.derive_kernel_contract(opened.contract) if is_kernel else contract).tolerance
    cases = [case for case in cases if not (case.name in left_out and case.is_extreme)]
    for case in cases:
        names = opened.contract.methods[case.method].outputs
        outputs = [value.cpu() for value in engine.run(case.method, [value.to(device) for value in case.inputs])]
        for name, got, expected in zip(names, outputs, case.outputs, strict=True):
            bounds = tolerance.bounds(name, name_dtype(expected))
            comparison = compare_tensors(got, expected, bounds)
            if not comparison.passed:
                where = f"{case.method}, {name_output(name)}{list(comparison.worst)}"
                numbers = f"got {comparison.got}, expected {comparison.expected} ({comparison.reason})"
                return f"case {case.name!r} does not pass: {where}: {numbers}"
    untested = sorted(contract.methods.keys() - {case.method for case in cases})
    return f"no case of method {untested[0]!r} is one that the compiled code takes" if untested else ""
