"""Runner of a kernel, built by this machine's C compiler, in a fresh process that has NumPy and no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from exporter.archive.contract import Contract
from exporter.archive.kernel_container import KernelFiles
from exporter.common.errors import RunError
from runtime_checks import containers
from runtime_checks.kernels import compilation, ctypes_library
from runtime_checks.kernels.embedded import EmbeddedKernel
from runtime_checks.runners.array_files import require_packages, run_child
from runtime_checks.runners.base import Call, Run, RunnerVerdict
from runtime_checks.runners.subprocesses import MEMORY, check_limits, find_package_folders

CHILD = Path(__file__).with_name("children") / "kernel_child.py"
# Libraries that a shared object of plain C may load.
SYSTEM = ("kernel.so", "libm.", "libm-", "libc.", "libgcc_s.", "ld-linux")
LIBRARIES = "libm alone"


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
        require_packages(("numpy",), "--runtime c", "pip install numpy")
        source = {contract.source.library, *contract.source.refused_imports, "torch", "exporter", "torchferry"} - {""}
        shared_object = build_library(opened)
        job = {
            "library": str(shared_object),
            "described": opened.manifest,
            "ctypes_library": ctypes_library.__file__,
            "packages": find_package_folders(("numpy",)),
            "memory": self.memory,
            "refused": sorted(source),
        }
        names = {m: s.inputs for m, s in contract.methods.items()}
        results, evidence = run_child(CHILD, path, self.seconds, job, names, calls)
        if evidence.get("load_error"):
            raise RunError("the kernel does not load", where=str(shared_object), got=evidence["load_error"])
        if evidence["libraries"] is None:
            verdict = RunnerVerdict(LIBRARIES, None, "this system does not list a process's libraries")
            return Run(results, evidence, (verdict,))
        foreign = [name for name in evidence["libraries"] if not name.startswith(SYSTEM)]
        detail = f"loaded: {', '.join(foreign)}" if foreign else "nothing but the C library is loaded with it"
        return Run(results, evidence, (RunnerVerdict(LIBRARIES, not foreign, detail),))
