"""What is compared: files, and whatever else runs the same contract."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from exporter.archive.cases import EXTREMES, Case
from exporter.archive.contract import Contract, block_name
from exporter.common.errors import MismatchError, UsageError, near
from runtime_checks import containers
from runtime_checks.comparison import compare
from runtime_checks.model import load

Tensors = tuple[torch.Tensor, ...]
Call = Callable[[str, Sequence[torch.Tensor]], Sequence[torch.Tensor]]
# Makes the call, in whatever process it is called in.
Opener = Callable[[int], Call]


@dataclass(frozen=True)
class Candidate:
    """``open(threads)`` loads it; a candidate in another process is opened there."""

    label: str
    open: Opener


def of_file(path: Path, label: str, device: str = "cpu") -> Candidate:
    return Candidate(label, functools.partial(_opened, path, device))


def labels_of(paths: Sequence[Path]) -> list[str]:
    """Kind and name; the whole path where two files have one name. Raises ``UsageError`` for one file twice."""
    kinds = {"pt": "torchferry .pt", "pt2": "torchferry .pt2", "program": "torch.export", "onnx": "onnxruntime"}
    names = [path.name for path in paths]
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError("a file is named twice", where="FILE", got=", ".join(map(str, paths)))
    return [f"{kinds[containers.kind(p)]} ({p.name if names.count(p.name) == 1 else p})" for p in paths]


def _opened(path: Path, device: str, threads: int) -> Call:
    model = load(path, device, threads=threads)
    return model.engine.run


def hold_contracts(paths: Sequence[Path], method: str) -> Contract:
    """The first one's. Raises ``UsageError`` where a method of another takes or gives other variables."""
    if not paths:
        raise UsageError("there is nothing to time", where="FILE", expected="archives, .pt2 or ONNX containers")
    contracts = [containers.read(path).contract for path in paths]
    first = contracts[0]
    if method not in first.methods:
        raise UsageError(f"there is no method {method!r}", where=str(paths[0]), expected=near(method, first.methods))
    for path, other in zip(paths[1:], contracts[1:], strict=True):
        here, there = (_signature(c, method) for c in (other, first))
        if here != there:
            raise UsageError(
                f"the files do not have one contract for {method!r}", where=str(path), got=here, expected=there
            )
    return first


def _signature(contract: Contract, method: str) -> str:
    spec = contract.methods.get(method)
    if spec is None:
        return f"no method {method!r}"
    taken = [contract.taken(n).describe() for n in spec.inputs]
    given = [
        f"{block_name(*o) if not isinstance(o, str) else o}: {list(contract.returned(o).shape)}" for o in spec.outputs
    ]
    return f"{', '.join(taken)} -> {', '.join(given)}"


@dataclass(frozen=True)
class Rows:
    """Ordinary stored cases as rows, of which batches of any size are made."""

    inputs: Tensors
    outputs: Tensors
    batched: bool

    def at(self, batch: int) -> tuple[Tensors, Tensors]:
        if not self.batched:
            return self.inputs, self.outputs
        rows = torch.arange(batch) % self.inputs[0].shape[0]
        return tuple(t[rows] for t in self.inputs), tuple(t[rows] for t in self.outputs)

    def bytes_of(self, batch: int) -> int:
        """Of inputs and outputs."""
        every = (*self.inputs, *self.outputs)
        if not self.batched:
            return sum(t.nbytes for t in every)
        return sum(t.element_size() * batch * math.prod(t.shape[1:]) for t in every)


def rows_of(cases: Sequence[Case], contract: Contract, method: str) -> Rows:
    ordinary = [c for c in cases if c.method == method and not c.name.startswith(EXTREMES)]
    if contract.batch.ndim == 0:
        return Rows(ordinary[0].inputs, ordinary[0].outputs, False)
    together = zip(*((*c.inputs, *c.outputs) for c in ordinary), strict=True)
    whole = tuple(map(torch.cat, together))
    count = len(ordinary[0].inputs)
    return Rows(whole[:count], whole[count:], True)


def hold_numbers(label: str, contract: Contract, method: str, got: Sequence[torch.Tensor], wanted: Tensors) -> None:
    """Raises ``MismatchError``: what computes other numbers is not compared."""
    if len(got) != len(wanted):
        raise UsageError(
            f"{label} is not the model of these files", got=f"{len(got)} outputs", expected=str(len(wanted))
        )
    for name, one, other in zip(contract.methods[method].outputs, got, wanted, strict=True):
        dtype = str(other.dtype).removeprefix("torch.")
        found = compare(one.cpu(), other, contract.tolerance.bounds(name, dtype))
        if not found.passed:
            raise MismatchError(
                f"{label} does not compute the numbers of the stored cases, and is not compared",
                where=f"method {method!r}, output {name if isinstance(name, str) else block_name(*name)!r}",
                got=found.reason,
                mend="verify it first: torchferry verify",
            )
