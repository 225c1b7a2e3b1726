"""Check of devices on a machine that has one only: the model runs on a fake GPU, with shapes and without numbers.

A branch on the device takes its other way there, and a tensor that the code puts on the CPU by name meets one that is
not. Where the code neither names a device nor queries one, the check has nothing to do."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import torch

from exporter.archive.contract import Finding
from exporter.common import torch_internals
from exporter.common.forking import ForkFailedError
from exporter.common.torch_hooks import DispatchHook, FunctionHook, patch_forward, postpone_compiler
from exporter.common.torch_internals import FAKE_TENSORS
from exporter.common.user_code import user_source_location
from exporter.model.implicit.coordinate_descent import find_descents
from exporter.model.implicit.newton_solver import find_solvers
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import EagerContext, make_refusal
from exporter.soundness.execution_paths import find_divergence
from exporter.soundness.footprint import is_user_file

CHECK = "device"
_MEND = "make tensors with device=x.device, or as buffers in __init__; no branch on the device"
_DEVICES = ("cpu", "cuda")
_QUERY_NAMES = ("is_cuda", "device", "is_cpu", "get_device", "is_mps", "is_meta", "is_xpu")


def check(context: EagerContext) -> list[Finding]:
    """Check that the model computes the same on every device."""
    return context.room(_check, context.inputs)


class DeviceQueries(FunctionHook):
    """Lines that query a tensor's device, and lines that name a device: the check has nothing to do without them.

    It is the innermost of several hooks: it looks at the frame that calls."""

    def __init__(self) -> None:
        super().__init__()
        self.queries: list[tuple[str, str]] = []

    def intercept(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        # Only queries by the user's own lines count, not those of torch's layers.
        caller = sys._getframe(2)
        if is_user_file(caller.f_code.co_filename):
            if name in _QUERY_NAMES:
                self.queries.append(("asks for the device", user_source_location()))
            devices = [v for v in (*kwargs.values(), *args[1:]) if isinstance(v, torch.device)]
            devices += [v for k, v in kwargs.items() if k == "device" and isinstance(v, str)]
            devices += [v for v in args[1:2] if name == "to" and isinstance(v, str)]
            devices += [name] if name in ("cpu", "cuda") else []
            for device in devices:
                self.queries.append((f"names {str(device).split(':')[0]}", user_source_location()))
        return func(*args, **kwargs)


class _Operations(DispatchHook):
    """The operations that were called, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.queries: list[tuple[str, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        # A query for a device is no computation, and constants without dimensions may stay where they are.
        if "prim.device" not in str(func):
            self.calls.append(f"{func} {_format_arguments([args, kwargs or {}])}")
        return func(*args, **(kwargs or {}))


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    record = functools.partial(_record_operations, source, inputs)
    loops = (*find_solvers(source.parameter_module).values(), *find_descents(source.parameter_module).values())
    with patch_forward({loop: loop.infer_shapes for loop in loops}):
        with postpone_compiler():
            runs = [record(device) for device in _DEVICES]
            if not any(failure for _, failure in runs):
                return _judge_runs(source, inputs, *runs)
        # It may have failed for want of the compiler.
        runs = [record(device) for device in _DEVICES]
        return _judge_runs(source, inputs, *runs)


def _judge_runs(
    source: Source, inputs: Inputs, cpu: tuple[_Operations, str], gpu: tuple[_Operations, str]
) -> list[Finding]:
    """Return the findings about runs on a CPU and on a GPU, each with its failure."""
    (on_cpu, failed_cpu), (on_gpu, failed) = cpu, gpu
    if failed_cpu:
        raise ForkFailedError(f"the model does not run without numbers: {failed_cpu}")
    for query, where in on_gpu.queries:
        # With every input on a GPU, a CPU in the code was not the device of an input.
        if query == "names cpu":
            evidence = "the code names the CPU; inputs are on a GPU"
            return [make_refusal(CHECK, "a device is fixed in the code", where, evidence, _MEND)]
    if not failed:
        runs = [functools.partial(_record_operations, source, inputs, device) for device in _DEVICES]
        step = find_divergence(*runs)
        if step and step.is_branch and on_cpu.calls != on_gpu.calls:
            pairs = zip(on_cpu.calls, on_gpu.calls, strict=False)
            first = next((f"{a}, and on a GPU {b}" for a, b in pairs if a != b), "more operations on one of them")
            return [make_refusal(CHECK, "what is computed depends on the device", step.where, first, _MEND)]
    return []


def _move_parameters(source: Source, device: str) -> None:
    """Replace parameters and buffers by tensors without numbers, in place: this process ends afterwards."""
    replacements: dict[int, torch.Tensor] = {}
    for module in source.parameter_module.modules():
        for tensors in (module._parameters, module._buffers):
            for name, value in list(tensors.items()):
                if value is None:
                    continue
                if id(value) not in replacements:
                    empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
                    is_parameter = isinstance(value, torch.nn.Parameter)
                    replacements[id(value)] = torch.nn.Parameter(empty, False) if is_parameter else empty
                tensors[name] = replacements[id(value)]  # pyright: ignore[reportArgumentType]


# A make-believe GPU needs no real one, which a process cannot use that was forked from one that does.
@mock.patch(f"{FAKE_TENSORS}.init_gpu_context", mock.Mock(), create=True)
def _record_operations(source: Source, inputs: Inputs, device: str) -> tuple[_Operations, str]:
    saved = [(m, copy.copy(m._parameters), copy.copy(m._buffers)) for m in source.parameter_module.modules()]
    with torch_internals.FakeTensorMode() as mode:
        fake_inputs = tuple(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device) for t in inputs)
        _move_parameters(source, device)
    operations = _Operations()
    try:
        with mode, operations, DeviceQueries() as device_queries:
            operations.queries = device_queries.queries
            source.module(*fake_inputs)
    except Exception as error:
        return operations, str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    finally:
        for module, parameters, buffers in saved:
            module._parameters.update(parameters)
            module._buffers.update(buffers)
    return operations, ""


def _format_arguments(value: Any) -> str:
    """Return arguments as text: tensors by dtype and shape, devices not at all."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_format_arguments, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}: {_format_arguments(v)}' for k, v in value.items())}}}"
    return "device" if isinstance(value, torch.device) else str(value)
