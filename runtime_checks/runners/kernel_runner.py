"""Runners of a kernel, built by one of this machine's compilers, in a fresh process that has NumPy and no torch."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exporter.archive.contract import Contract
from exporter.archive.kernel_container import KernelFiles
from exporter.common.errors import RunError, UsageError
from runtime_checks import containers
from runtime_checks.kernels import compilation, ctypes_library, gpu_compilation
from runtime_checks.kernels.embedded import EmbeddedKernel
from runtime_checks.runners.array_files import require_packages, run_child
from runtime_checks.runners.base import Call, CallResult, Run, RunnerVerdict
from runtime_checks.runners.subprocesses import MEMORY, check_limits, find_package_folders

CHILD = Path(__file__).with_name("children") / "kernel_child.py"
# Libraries that a shared object of plain C may load.
SYSTEM = ("kernel.so", "libm.", "libm-", "libc.", "libgcc_s.", "ld-linux")
LIBRARIES = "libm alone"
# What a kernel for GPUs is held to besides.
COMPILES, ON_GPU = "compiles for GPUs", "on a GPU"


def build_library(opened: KernelFiles | EmbeddedKernel) -> Path:
    """Return the kernel as a shared object. Raise ``MissingRuntimeError`` if it cannot be compiled."""
    return compilation.compile_kernel(opened.sources())


@dataclass(frozen=True)
class KernelRunner:
    """A runner with a fresh process for each run, within limits on wall time and address space."""

    seconds: float = 600.0
    device: str = "cpu"
    name: str = "c"
    memory: float = MEMORY

    def __post_init__(self) -> None:
        check_limits(self.seconds, self.memory)

    def run(self, path: Path, contract: Contract, calls: Sequence[Call]) -> Run:
        opened = containers.select_for_runtime(containers.open_container(path), self.name)
        assert isinstance(opened, (KernelFiles, EmbeddedKernel))
        results, evidence = _run_library(self, path, build_library(opened), opened.manifest, contract, calls)
        return Run(results, evidence, (_judge_libraries(evidence),))


@dataclass(frozen=True)
class CudaRunner(KernelRunner):
    """A runner of a kernel's sources for GPUs: on a GPU; on the CPU as C++, one thread after the other."""

    name: str = "cuda"

    def run(self, path: Path, contract: Contract, calls: Sequence[Call]) -> Run:
        opened = containers.open_container(path)
        if not isinstance(opened, KernelFiles) or not opened.has_cuda:
            what, expected = "the kernel has no sources for GPUs", "a folder that --format cuda wrote"
            raise UsageError(what, where=str(path), expected=expected, mend="leave out --runtime cuda")
        toolchain = gpu_compilation.choose_toolchain(torch.device(self.device))

        def run() -> tuple[tuple[CallResult, ...], dict[str, Any]]:
            library = compilation.compile_kernel(opened.cuda_host_sources(), toolchain)
            return _run_library(self, path, library, opened.manifest, contract, calls)

        if self.device != "cpu":
            return Run(*run(), (RunnerVerdict(ON_GPU, True, torch.cuda.get_device_name(self.device)),))
        with ThreadPoolExecutor(1) as beside:
            compilation_for_gpus = beside.submit(gpu_compilation.compile_to_ptx, opened.cuda_sources())
            results, evidence = run()
            compiler = compilation_for_gpus.result()
        detail = compiler or f"NVRTC is not here: {gpu_compilation.INSTALL}"
        compiles = RunnerVerdict(COMPILES, None if compiler is None else True, detail)
        ran = RunnerVerdict(ON_GPU, None, "its threads ran on the CPU, one after the other: --device cuda runs it")
        return Run(results, evidence, (compiles, ran))


def _run_library(
    runner: KernelRunner,
    path: Path,
    library: Path,
    manifest: Any,
    contract: Contract,
    calls: Sequence[Call],
) -> tuple[tuple[CallResult, ...], dict[str, Any]]:
    """Run the calls in a process that loads the library; return their results, and its evidence."""
    require_packages(("numpy",), f"--runtime {runner.name}", "pip install numpy")
    source = {contract.source.library, *contract.source.refused_imports, "torch", "exporter", "torchferry"} - {""}
    job = {
        "library": str(library),
        "described": manifest,
        "ctypes_library": ctypes_library.__file__,
        "packages": find_package_folders(("numpy",)),
        "memory": runner.memory,
        "device": runner.device,
        "refused": sorted(source),
    }
    names = {m: s.inputs for m, s in contract.methods.items()}
    results, evidence = run_child(CHILD, path, runner.seconds, job, names, calls)
    if evidence.get("load_error"):
        raise RunError("the kernel does not load", where=str(library), got=evidence["load_error"])
    return results, evidence


def _judge_libraries(evidence: dict[str, Any]) -> RunnerVerdict:
    if evidence["libraries"] is None:
        return RunnerVerdict(LIBRARIES, None, "this system does not list a process's libraries")
    foreign = [name for name in evidence["libraries"] if not name.startswith(SYSTEM)]
    detail = f"loaded: {', '.join(foreign)}" if foreign else "nothing but the C library is loaded with it"
    return RunnerVerdict(LIBRARIES, not foreign, detail)
