"""Compilers of a kernel's sources for GPUs: nvcc makes shared objects, NVRTC says whether the sources compile."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from exporter.common.errors import MissingRuntimeError
from exporter.common.temporary_folders import temporary_folder
from runtime_checks.kernels import nvrtc_program
from runtime_checks.kernels.compilation import CXX_COMPILER, Toolchain, extract_errors, run_within_limit
from runtime_checks.kernels.nvrtc_program import MISSING

# What PTX is made for: the oldest GPUs that current compilers of CUDA keep for double precision, and Hopper.
ARCHITECTURES = ("compute_80", "compute_90")
INSTALL = "pip install 'torchferry[cuda]'"
# Where CUDA is installed if nothing says otherwise.
_USUAL = Path("/usr/local/cuda/bin/nvcc")


def find_nvcc() -> list[str]:
    """Return ``$CUDACXX``, else nvcc on the PATH or where CUDA is installed. Raise ``MissingRuntimeError`` without."""
    setting = os.environ.get("CUDACXX")
    command = shlex.split(setting) if setting else ["nvcc"] if shutil.which("nvcc") else [str(_USUAL)]
    if not command or shutil.which(command[0]) is None:
        mend = "install CUDA's toolkit, or name its nvcc with the variable CUDACXX"
        got = f"CUDACXX={setting}" if setting else ""
        raise MissingRuntimeError("there is no compiler for the GPU", got=got, expected="nvcc on the PATH", mend=mend)
    return command


def make_nvcc(architecture: str) -> Toolchain:
    """Return the compiler for a GPU, such as ``sm_90``. No product is contracted into a sum, as on the CPU."""
    flags = ("-std=c++14", "-O3", "-fmad=false", f"-arch={architecture}", "-Xcompiler", "-fPIC", "-shared")
    return Toolchain("CUDA compiler", find_nvcc, flags, None, f"set CUDACXX to an nvcc that knows {architecture}", -1)


def choose_toolchain(device: torch.device) -> Toolchain:
    """Return the compiler for a device: nvcc for a GPU; for the CPU that of C++."""
    if device.type == "cpu":
        return CXX_COMPILER
    return make_nvcc("sm_{}{}".format(*torch.cuda.get_device_capability(device)))


def compile_to_ptx(files: Mapping[str, bytes], architectures: Sequence[str] = ARCHITECTURES) -> str | None:
    """Compile the first of these files with NVRTC for each architecture; the same files once.

    Returns what compiled it; None if NVRTC is not installed. Raises ``MissingRuntimeError`` if it does not compile."""
    return _compile_to_ptx(tuple(files.items()), tuple(architectures))


@functools.lru_cache(maxsize=4)
def _compile_to_ptx(files: tuple[tuple[str, bytes], ...], architectures: tuple[str, ...]) -> str | None:
    with temporary_folder() as folder, ThreadPoolExecutor(len(architectures)) as pool:
        for name, data in files:
            (folder / name).write_bytes(data)
        paths = [str(folder / name) for name, _ in files]
        results = list(pool.map(lambda architecture: _run_nvrtc(architecture, paths), architectures))
    for architecture, done in zip(architectures, results, strict=True):
        if done.returncode == MISSING:
            return None
        if done.returncode != 0:
            what, got = f"the kernel does not compile for a GPU ({architecture})", extract_errors(done.stderr)
            raise MissingRuntimeError(what, where=files[0][0], got=got, mend="update NVRTC, or use the .pt")
    return f"NVRTC {results[0].stdout.strip()}, for {', '.join(architectures)}"


def _run_nvrtc(architecture: str, paths: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run NVRTC in a process of its own. Raises ``MissingRuntimeError`` if it takes too long."""
    return run_within_limit([sys.executable, "-I", nvrtc_program.__file__, architecture, *paths], "NVRTC")
