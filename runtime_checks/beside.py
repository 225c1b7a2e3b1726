"""A ``.pt2`` that lies beside a ``.pt``, as its engine: once it has given the numbers of the ``.pt``'s own cases."""

from __future__ import annotations

import warnings

from exporter import archive
from exporter.archive import Archive
from exporter.contract import Contract, block_name
from exporter.kinds import named
from exporter.stored import admits
from runtime_checks.compare import compare
from runtime_checks.engines import Compiled, hold_machine

TORCHSCRIPT, PT2 = "torchscript", "pt2"
ENGINES = (TORCHSCRIPT, PT2)


class EngineWarning(UserWarning):
    """The engine that was asked for is not used; the model runs by TorchScript."""


def compiled_beside(opened: Archive, device: str) -> Compiled | None:
    """None, with an ``EngineWarning`` that says why, where there is no such file, where it was made of another archive
    or for another machine, or where a case does not pass."""
    path = named(opened.path, PT2)
    try:
        if not path.is_file():
            reason = f"there is no {path.name} beside it"
        else:
            found = archive.read(path)
            reason = _unfit(opened, found, device)
            if not reason:
                engine = Compiled(found)
                reason = _differs(opened, found.contract, engine)
                if not reason:
                    return engine
    except Exception as error:
        # Whatever it is that compiled code of another origin does: the archive itself is there.
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    warnings.warn(f"{opened.path.name} runs by TorchScript: {reason}", EngineWarning, stacklevel=3)
    return None


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
    if opened.contract.differentiable:
        return "torch's gradients do not go through compiled code"
    if any(solver.on_failure == "raise" for solver in opened.contract.solvers):
        return "compiled code gives NaN where Newton's method does not converge, and this model raises an error"
    hold_machine(found, device)
    return ""


def _differs(opened: Archive, contract: Contract, engine: Compiled) -> str:
    """What the first case says that does not pass, in the tolerances of the ``.pt``."""
    cases = [case for case in opened.cases() if admits(contract, case)]
    for case in cases:
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
