"""Compiled code in the place of TorchScript: a ``.pt2`` beside a ``.pt``, or a kernel, once it has given the numbers of
the ``.pt``'s own cases."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

from exporter.archive import kernel_container, pt_archive
from exporter.archive.cases import admits
from exporter.archive.contract import block_name
from exporter.archive.formats import named
from exporter.archive.pt_archive import Archive
from runtime_checks.comparison import compare
from runtime_checks.engines.engines import Compiled, Kernel, hold_machine
from runtime_checks.kernels.embedded import kernel_of

TORCHSCRIPT, PT2 = "torchscript", "pt2"
KERNEL = "kernel"
ENGINES = (TORCHSCRIPT, PT2, KERNEL)


class EngineWarning(UserWarning):
    """The engine that was asked for is not used; the model runs by TorchScript."""


def engine_of(opened: Archive, engine: str, device: str, script: Callable[[], Any]) -> Compiled | Kernel | None:
    """None, with an ``EngineWarning`` that says why, where there is no such engine, where it was made of another
    archive or for another machine, or where a case does not pass. ``script`` loads the archive itself."""
    try:
        made, reason = _compiled(opened, device) if engine == PT2 else _kernel(opened, device, script)
        if made is not None:
            reason = _differs(opened, made)
            if not reason:
                return made
    except Exception as error:
        # Whatever it is that code of another origin does: the archive itself is there.
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    warnings.warn(f"{opened.path.name} runs by TorchScript: {reason}", EngineWarning, stacklevel=4)
    return None


def _compiled(opened: Archive, device: str) -> tuple[Compiled | None, str]:
    path = named(opened.path, PT2)
    if not path.is_file():
        return None, f"there is no {path.name} beside it"
    found = pt_archive.read(path)
    reason = _unfit(opened, found, device)
    return (None, reason) if reason else (Compiled(found), "")


def _kernel(opened: Archive, device: str, script: Callable[[], Any]) -> tuple[Kernel | None, str]:
    """That which the archive carries, or that in the folder beside it."""
    beside = named(opened.path, "c")
    files = opened.kernel()
    if not files and kernel_container.is_kernel(beside):
        whole = kernel_container.read(beside)
        if whole.contract.graph != opened.contract.graph:
            return None, f"{beside.name} was made of another graph: make it again with torchferry convert --to c"
        files = {**whole.sources(), kernel_container.MANIFEST: (beside / kernel_container.MANIFEST).read_bytes()}
    if not files:
        return None, "it carries no kernel, and there is none beside it: export it with --format pt,c"
    if device != "cpu":
        return None, f"a kernel runs on the CPU, and not on {device}"
    reason = _unheld(opened)
    if reason:
        return None, reason
    made = kernel_of(opened, files)
    return Kernel(opened.contract, made.sources(), made.described, dict(script().named_parameters())), ""


def _unfit(opened: Archive, found: Archive, device: str) -> str:
    if found.holds != "code":
        return f"{found.path.name} holds no compiled code"
    again = "make it again with torchferry convert --to pt2"
    if found.contract.graph != opened.contract.graph:
        return f"{found.path.name} was made of another graph: {again}"
    # The hash of the graphs has no names.
    if any(
        getattr(found.contract, what) != getattr(opened.contract, what) for what in ("inputs", "outputs", "methods")
    ):
        return f"{found.path.name} has other variables or methods: {again}"
    reason = _unheld(opened)
    if not reason:
        hold_machine(found, device)
    return reason


def _unheld(opened: Archive) -> str:
    """What of the contract compiled code does not do."""
    if opened.contract.differentiable:
        return "torch's gradients do not go through compiled code"
    if any(solver.on_failure == "raise" for solver in opened.contract.solvers):
        return "compiled code gives NaN where Newton's method does not converge, and this model raises an error"
    return ""


def _differs(opened: Archive, engine: Compiled | Kernel) -> str:
    """What the first case says that does not pass, in the tolerances of the ``.pt``."""
    contract = dataclasses.replace(opened.contract, batch=dataclasses.replace(opened.contract.batch, ranks=(1,)))
    cases = [case for case in opened.cases() if admits(contract, case)]
    left_out = engine.left_out if isinstance(engine, Kernel) else ()
    for case in cases:
        if case.name in left_out:
            continue
        names = opened.contract.methods[case.method].outputs
        for name, got, wanted in zip(names, engine.run(case.method, case.inputs), case.outputs, strict=True):
            bounds = opened.contract.tolerance.bounds(name, str(wanted.dtype).removeprefix("torch."))
            comparison = compare(got, wanted, bounds)
            if not comparison.passed:
                said = name if isinstance(name, str) else block_name(*name)
                return (
                    f"case {case.name!r} does not pass: {case.method}, {said}{list(comparison.worst)}: "
                    f"got {comparison.got}, expected {comparison.expected} ({comparison.reason})"
                )
    return "" if cases else "none of its cases is one that the compiled code takes"
