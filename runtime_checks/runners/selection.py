"""Runtimes and devices by name, as a user requests them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from exporter.common.errors import MissingRuntimeError, UsageError, suggest_names
from runtime_checks import native_build
from runtime_checks.runners import onnxruntime_runner
from runtime_checks.runners.base import Runner
from runtime_checks.runners.kernel_runner import KernelRunner
from runtime_checks.runners.libtorch_runner import LibtorchRunner
from runtime_checks.runners.onnxruntime_runner import OnnxRuntimeRunner
from runtime_checks.runners.package_runner import PackageRunner
from runtime_checks.runners.python_runner import PROGRAMS, PythonRunner

RUNTIMES = ("python", "libtorch", "onnxruntime", "aoti", "program", "c")
# The runtimes of each format, the usual one first.
CONTAINERS = {
    "pt": ("python", "libtorch", "c"),
    "onnx": ("onnxruntime",),
    "pt2": ("aoti", "libtorch"),
    "program": ("program",),
    "c": ("c",),
}
ON_CPU = ("program", "c")
TIME_LIMIT, MEMORY_LIMIT = 600.0, 16.0


def select_runners(
    runtimes: str | Sequence[str] = (),
    devices: str | Sequence[str] = "cpu",
    *,
    time_limit: float = TIME_LIMIT,
    memory_limit: float = MEMORY_LIMIT,
    container: str = "pt",
    announce: Callable[[str], None] = lambda text: None,
) -> tuple[Runner, ...]:
    """Return a runner for each runtime on each device; ``"python,libtorch"`` is the same as ``["python", "libtorch"]``.

    Without a name it is the usual one for the format ``container``.

    ``time_limit`` in seconds, ``memory_limit`` in GiB. The harness is built here if it is needed, which ``announce``
    is told. Raise ``UsageError`` for an unknown name, ``MissingRuntimeError`` for a runtime that is not here."""
    takes = CONTAINERS[container]
    names, places = split_names(runtimes or takes[:1]), split_names(devices)
    for name in names:
        if name not in RUNTIMES:
            raise UsageError(f"there is no runtime {name!r}", where="--runtime", expected=suggest_names(name, RUNTIMES))
        if name not in takes:
            raise UsageError(
                f"runtime {name!r} does not run .{container} files", where="--runtime", expected=", ".join(takes)
            )
    for place in places:
        _check_device(place, names)
    if "libtorch" in names:
        native_build.build(announce=announce)
    selected: list[Runner] = []
    for place in places:
        for name in names:
            if name == "python":
                selected.append(PythonRunner(time_limit, memory_limit * 2**30, place))
            elif name == "program":
                selected.append(PythonRunner(time_limit, memory_limit * 2**30, place, name, holds=PROGRAMS))
            elif name == "aoti":
                selected.append(PackageRunner(PythonRunner(time_limit, memory_limit * 2**30, place)))
            elif name == "c":
                selected.append(KernelRunner(time_limit, place))
            elif name == "onnxruntime":
                selected.append(OnnxRuntimeRunner(time_limit, place))
            else:
                selected.append(LibtorchRunner(time_limit, place))
    if not selected:
        raise UsageError("no runtime is named", where="--runtime, --device", expected="python, libtorch; cpu, cuda")
    return tuple(selected)


def list_unchecked_devices(devices: Sequence[str]) -> tuple[str, ...]:
    """Return the report's note on a GPU that was not requested."""
    if any(device.startswith("cuda") for device in devices):
        return ()
    why = "there is a GPU: request it with --device cpu,cuda" if torch.cuda.is_available() else "there is no GPU"
    return (f"cuda: not checked on this machine ({why})",)


def split_names(names: str | Sequence[str]) -> list[str]:
    """Split names at commas, each name once."""
    parts = names.split(",") if isinstance(names, str) else names
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


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
        raise MissingRuntimeError(
            f"device {name!r} is not on this machine",
            where="--device",
            got=built,
            mend="run it on a machine with a GPU and a torch built for CUDA, or omit --device cuda",
        )
