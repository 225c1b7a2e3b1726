"""torch's own autograd through a loaded file, against the gradients of eager mode that the cases of ``vjp`` hold."""

from __future__ import annotations

from collections.abc import Sequence

from exporter.archive import Case
from exporter.contract import Contract
from runtime_checks.checks.expectation import Expectation
from runtime_checks.runners.base import Call

CHECK = "autograd through the file"


def through(contract: Contract, cases: Sequence[Case]) -> list[Expectation]:
    if not contract.differentiable:
        return []
    count = len(contract.inputs)
    return [
        Expectation(CHECK, c.name, Call("forward", c.inputs[:count], seeds=c.inputs[count:]), c.outputs, returns="vjp")
        for c in cases
        if c.method == "vjp"
    ]
