"""Compilers of a kernel's sources for GPUs: nvcc makes shared objects, NVRTC says whether the sources compile."""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from exporter.common.errors import MissingRuntimeError
from runtime_checks.kernels.compilation import CXX_COMPILER, Toolchain

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
    """Compile the first of these files with NVRTC for each architecture.

    Returns what compiled it; None if NVRTC is not installed. Raises ``MissingRuntimeError`` if it does not compile."""
    try:
        nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
        status, *version = nvrtc.nvrtcVersion()
    # The package loads NVIDIA's library when it is first called.
    except (ImportError, RuntimeError):
        return None
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return None
    with ThreadPoolExecutor(len(architectures)) as pool:
        logs = list(pool.map(lambda architecture: _run_nvrtc(nvrtc, files, architecture), architectures))
    for architecture, log in zip(architectures, logs, strict=True):
        if log is not None:
            what = f"the kernel does not compile for a GPU ({architecture})"
            raise MissingRuntimeError(what, where=next(iter(files)), got=log, mend="update NVRTC, or use the .pt")
    return f"NVRTC {'.'.join(map(str, version))}, for {', '.join(architectures)}"


def _run_nvrtc(nvrtc: Any, files: Mapping[str, bytes], architecture: str) -> str | None:
    """Return the log of a compilation that failed, None for one that did not."""
    main, *others = files.items()
    texts, names = [data for _, data in others], [name.encode() for name, _ in others]
    _, program = nvrtc.nvrtcCreateProgram(main[1], main[0].encode(), len(names), texts, names)
    options = [f"--gpu-architecture={architecture}".encode(), b"--fmad=false"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = None
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        buffer = bytes(size)
        nvrtc.nvrtcGetProgramLog(program, buffer)
        lines = buffer.decode(errors="replace").rstrip("\0").splitlines()
        log = "\n".join([line for line in lines if "error" in line][:5]) or str(status)
    nvrtc.nvrtcDestroyProgram(program)
    return log
