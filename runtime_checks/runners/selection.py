"""Runtimes and devices by name, as a user requests them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from exporter.archive.formats import FORMATS, KERNELS
from exporter.common.errors import MissingRuntimeError, UsageError, suggest_names
from exporter.common.torch_internals import HAS_TORCH_SCRIPT, require_torch_script
from runtime_checks import native_build
from runtime_checks.options import VerifyOptions
from runtime_checks.runners import onnxruntime_runner
from runtime_checks.runners.base import Runner
from runtime_checks.runners.kernel_runner import CudaRunner, KernelRunner
from runtime_checks.runners.libtorch_runner import LibtorchRunner
from runtime_checks.runners.onnxruntime_runner import OnnxRuntimeRunner
from runtime_checks.runners.package_runner import PackageRunner
from runtime_checks.runners.python_runner import PROGRAMS, RECORDS, PythonRunner


@dataclass(frozen=True)
class Limits:
    """What a runner's processes may use: seconds and bytes each, and how many may run at the same time."""

    seconds: float
    memory: float
    jobs: int


# Runs where there is no TorchScript.
INTERPRETER = "interpreter"
# What makes the runner of a runtime from the limits, and a device.
RUNTIMES: dict[str, Callable[[Limits, str], Runner]] = {
    "python": lambda limits, device: PythonRunner(limits.seconds, limits.memory, device, jobs=limits.jobs),
    INTERPRETER: lambda limits, device: PythonRunner(limits.seconds, limits.memory, device, INTERPRETER, RECORDS),
    "libtorch": lambda limits, device: LibtorchRunner(limits.seconds, device, memory=limits.memory),
    "onnxruntime": lambda limits, device: OnnxRuntimeRunner(limits.seconds, device, memory=limits.memory),
    "aoti": lambda limits, device: PackageRunner(PythonRunner(limits.seconds, limits.memory, device)),
    "program": lambda limits, device: PythonRunner(limits.seconds, limits.memory, device, "program", holds=PROGRAMS),
    "c": lambda limits, device: KernelRunner(limits.seconds, device, memory=limits.memory),
    "cuda": lambda limits, device: CudaRunner(limits.seconds, device, memory=limits.memory),
}
ON_CPU = ("program", "c")


def select_runners(options: VerifyOptions, format_name: str = "pt") -> tuple[Runner, ...]:
    """Return a runner for each runtime on each device; without a name it is the usual one for the format.

    The harness is built here if it is needed, which ``options.progress`` is told. Raise ``UsageError`` for an unknown
    name, ``MissingRuntimeError`` for a runtime that is not here."""
    takes, usual = FORMATS[format_name].runtimes, FORMATS[format_name].usual
    names = options.runtime_names if options.runtimes else takes[:usual]
    if not options.runtimes and names == ("python",) and not HAS_TORCH_SCRIPT:
        names = (INTERPRETER,)
    for name in names:
        if name not in RUNTIMES:
            raise UsageError(f"there is no runtime {name!r}", where="--runtime", expected=suggest_names(name, RUNTIMES))
        if name not in takes:
            kind = f"{FORMATS[format_name].suffix} files" if FORMATS[format_name].suffix else "kernels' folders"
            what, mend = f"runtime {name!r} does not run {kind}", ""
            if name in KERNELS:
                mend = f"name a folder that torchferry convert --to {name} has made"
            raise UsageError(what, where="--runtime", expected=", ".join(takes), mend=mend)
    pairs = [(name, device) for device in options.device_names for name in names]
    if not options.runtimes:
        # Of those that nobody named, the ones that run on the device.
        pairs = [(name, device) for name, device in pairs if device == "cpu" or name not in ON_CPU] or pairs
    for device in options.device_names:
        _check_device(device, [name for name, named_device in pairs if named_device == device])
    if "python" in names:
        require_torch_script()
    if "libtorch" in names:
        native_build.build(announce=options.progress)
    limits = Limits(options.time_limit, options.memory_limit * 2**30, options.jobs)
    runners = tuple(RUNTIMES[name](limits, device) for name, device in pairs)
    if not runners:
        raise UsageError("no runtime is named", where="--runtime, --device", expected="python, libtorch; cpu, cuda")
    return runners


def list_unchecked_devices(devices: Sequence[str]) -> tuple[str, ...]:
    """Return the report's note on a GPU that was not requested."""
    if any(device.startswith("cuda") for device in devices):
        return ()
    why = "there is a GPU: request it with --device cpu,cuda" if torch.cuda.is_available() else "there is no GPU"
    return (f"cuda: not checked on this machine ({why})",)


def _check_device(name: str, runtimes: Sequence[str]) -> None:
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda") or (device.type == "cpu" and name != "cpu"):
        raise UsageError(f"there is no device {name!r}", where="--device", expected="cpu, cuda or cuda:N")
    cpu_only = [r for r in runtimes if r in ON_CPU]
    if cpu_only and device.type != "cpu":
        raise UsageError(f"runtime {cpu_only[0]!r} runs on the CPU", where="--device", got=name, expected="cpu")
    if "onnxruntime" in runtimes:
        onnxruntime_runner.check_device(name)
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        built = "a torch without CUDA" if torch.version.cuda is None else f"{count} devices"
        what = f"device {name!r} is not on this machine"
        mend = "run it on a machine with a GPU and a torch built for CUDA, or omit --device cuda"
        raise MissingRuntimeError(what, where="--device", got=built, mend=mend)
