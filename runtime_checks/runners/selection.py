"""Runtimes and devices by name, as a user asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from exporter.common.errors import MissingRuntimeError, UsageError, near
from runtime_checks import native_build
from runtime_checks.runners import onnxruntime_runner
from runtime_checks.runners.base import Runner
from runtime_checks.runners.kernel_runner import KernelRunner
from runtime_checks.runners.libtorch_runner import Libtorch
from runtime_checks.runners.onnxruntime_runner import OnnxRuntime
from runtime_checks.runners.package_runner import Aoti
from runtime_checks.runners.python_runner import PROGRAMS, IsolatedPython

RUNTIMES = ("python", "libtorch", "onnxruntime", "aoti", "program", "c")
# What runs a kind of file, the usual one first.
CONTAINERS = {
    "pt": ("python", "libtorch", "c"),
    "onnx": ("onnxruntime",),
    "pt2": ("aoti", "libtorch"),
    "program": ("program",),
    "c": ("c",),
}
ON_CPU = ("program", "c")
TIME_LIMIT, MEMORY_LIMIT = 600.0, 16.0


def runners(
    runtimes: str | Sequence[str] = (),
    devices: str | Sequence[str] = "cpu",
    *,
    time_limit: float = TIME_LIMIT,
    memory_limit: float = MEMORY_LIMIT,
    container: str = "pt",
    announce: Callable[[str], None] = lambda text: None,
) -> tuple[Runner, ...]:
    """A runner for each runtime on each device; ``"python,libtorch"`` and ``["python", "libtorch"]`` are the same.

    Where none is named it is the usual one for ``container``, a kind of file.

    ``time_limit`` in seconds, ``memory_limit`` in GiB. The harness is built here where it is needed, which ``announce``
    is told. Raises ``UsageError`` for a name that is none, ``MissingRuntimeError`` for what is not on this machine.
    """
    takes = CONTAINERS[container]
    names, places = split(runtimes or takes[:1]), split(devices)
    for name in names:
        if name not in RUNTIMES:
            raise UsageError(f"there is no runtime {name!r}", where="--runtime", expected=near(name, RUNTIMES))
        if name not in takes:
            raise UsageError(
                f"runtime {name!r} does not run .{container} files", where="--runtime", expected=", ".join(takes)
            )
    for place in places:
        _check_device(place, names)
    if "libtorch" in names:
        native_build.build(announce=announce)
    made: list[Runner] = []
    for place in places:
        for name in names:
            if name == "python":
                made.append(IsolatedPython(time_limit, memory_limit * 2**30, place))
            elif name == "program":
                made.append(IsolatedPython(time_limit, memory_limit * 2**30, place, name, holds=PROGRAMS))
            elif name == "aoti":
                made.append(Aoti(IsolatedPython(time_limit, memory_limit * 2**30, place)))
            elif name == "c":
                made.append(KernelRunner(time_limit, place))
            elif name == "onnxruntime":
                made.append(OnnxRuntime(time_limit, place))
            else:
                made.append(Libtorch(time_limit, place))
    if not made:
        raise UsageError("no runtime is named", where="--runtime, --device", expected="python, libtorch; cpu, cuda")
    return tuple(made)


def not_checked(devices: Sequence[str]) -> tuple[str, ...]:
    """What the report says of a GPU that was not asked for."""
    if any(device.startswith("cuda") for device in devices):
        return ()
    why = "there is a GPU: ask with --device cpu,cuda" if torch.cuda.is_available() else "there is no GPU"
    return (f"cuda: not checked on this machine ({why})",)


def split(names: str | Sequence[str]) -> list[str]:
    """Names that commas part, each once."""
    parts = names.split(",") if isinstance(names, str) else names
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _check_device(name: str, runtimes: Sequence[str]) -> None:
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda") or (device.type == "cpu" and name != "cpu"):
        raise UsageError(f"there is no device {name!r}", where="--device", expected="cpu, cuda or cuda:N")
    bound = [r for r in runtimes if r in ON_CPU]
    if bound and device.type != "cpu":
        raise UsageError(f"runtime {bound[0]!r} runs on the CPU", where="--device", got=name, expected="cpu")
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
            mend="run it on a machine with a GPU and a torch built for CUDA, or leave --device cuda away",
        )
