"""Devices, on a machine that has one only: the model runs on a make-believe GPU, which has shapes and no numbers.

A branch on the device takes its other way there, and a tensor that the code puts on the CPU by name meets one that is
not. Where the code names no device and asks for none, there is nothing to see.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from exporter.archive.contract import Finding
from exporter.common.forking import NotRun
from exporter.common.torch_hooks import called_instead
from exporter.common.user_code import user_line
from exporter.model.eager.evaluation import inference_conditions
from exporter.model.implicit.newton_solver import loops
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import Eager, eager
from exporter.soundness.execution_paths import parting
from exporter.soundness.footprint import is_users

CHECK = "device"
_ASKS = ("is_cuda", "device", "is_cpu", "get_device", "is_mps", "is_meta", "is_xpu")


def check(eager_mode: Eager) -> list[Finding]:
    room, inputs = eager_mode.room, eager_mode.inputs
    return room(_check, inputs) if room(_asks, inputs) else []


def _asks(source: Source, inputs: Inputs) -> bool:
    with inference_conditions(source), _Asks() as seen:
        eager(source, inputs)
    return bool(seen.order)


class _Asks(TorchFunctionMode):
    """Lines that ask a tensor for its device, and lines that name a device."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[tuple[str, str]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        # Asked by the user's own line: what torch's layers ask is torch's affair.
        asker = sys._getframe(1)
        if is_users(asker.f_code.co_filename):
            if name in _ASKS:
                self.order.append(("asks for the device", user_line()))
            given = [v for v in (*(kwargs or {}).values(), *args[1:]) if isinstance(v, torch.device)]
            given += [v for k, v in (kwargs or {}).items() if k == "device" and isinstance(v, str)]
            given += [v for v in args[1:2] if name == "to" and isinstance(v, str)]
            given += [name] if name in ("cpu", "cuda") else []
            for device in given:
                self.order.append((f"names {str(device).split(':')[0]}", user_line()))
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    """What was called, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[str] = []
        self.asks: list[tuple[str, str]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # Asking for a device is no computation, and constants of no dimension may stay where they are.
        if "prim.device" not in str(func):
            self.rows.append(f"{func} {_plain([args, kwargs or {}])}")
        return func(*args, **(kwargs or {}))


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    solves = called_instead({loop: loop.shapes for loop in loops(source.named).values()})
    with inference_conditions(source), solves:
        on_cpu, failed_cpu = _operations(source, inputs, "cpu")
        on_gpu, failed = _operations(source, inputs, "cuda")
        if failed_cpu:
            raise NotRun(f"the model does not run without numbers: {failed_cpu}")
        for kind, where in on_gpu.asks:
            # With every input on a GPU, a CPU that is named was not the device of an input.
            if kind == "names cpu":
                return [_finding("a device is fixed in the code", where, "the CPU is named, with inputs on a GPU")]
        if not failed:
            step = parting(lambda: _operations(source, inputs, "cpu"), lambda: _operations(source, inputs, "cuda"))
            if step and step.branches and on_cpu.rows != on_gpu.rows:
                pairs = zip(on_cpu.rows, on_gpu.rows, strict=False)
                first = next((f"{a}, and on a GPU {b}" for a, b in pairs if a != b), "more operations on one of them")
                return [_finding("what is computed depends on the device", step.where, first)]
    return []


def _finding(what: str, where: str, evidence: str) -> Finding:
    return Finding(
        CHECK,
        what,
        where,
        severity="unsound",
        evidence=evidence,
        mend="make tensors with device=x.device, or as buffers in __init__; no branch on the device",
    )


def _fake(source: Source, inputs: Inputs, device: str) -> tuple[Any, Inputs]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    with mode:
        made = tuple(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device) for t in inputs)
        _move(source, device)
    return mode, made


def _move(source: Source, device: str) -> None:
    """Parameters and buffers become tensors without numbers, in place: this process ends here."""
    known: dict[int, torch.Tensor] = {}
    for module in source.named.modules():
        for kept in (module._parameters, module._buffers):
            for name, value in list(kept.items()):
                if value is None:
                    continue
                if id(value) not in known:
                    empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
                    known[id(value)] = (
                        torch.nn.Parameter(empty, requires_grad=False)
                        if isinstance(value, torch.nn.Parameter)
                        else empty
                    )
                kept[name] = known[id(value)]  # pyright: ignore[reportArgumentType]


def _operations(source: Source, inputs: Inputs, device: str) -> tuple[_Operations, str]:
    saved = [(m, copy.copy(m._parameters), copy.copy(m._buffers)) for m in source.named.modules()]
    mode, made = _fake(source, inputs, device)
    rows = _Operations()
    try:
        with mode, rows, _Asks() as asks:
            rows.asks = asks.order
            source.module(*made)
    except Exception as error:
        return rows, str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    finally:
        for module, parameters, buffers in saved:
            module._parameters.update(parameters)
            module._buffers.update(buffers)
    return rows, ""


def _plain(value: Any) -> str:
    """Arguments as text: tensors by dtype and shape, devices not at all."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}: {_plain(v)}' for k, v in value.items())}}}"
    return "device" if isinstance(value, torch.device) else str(value)
