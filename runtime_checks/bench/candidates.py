"""Candidates of a benchmark: files, and anything else that runs the same contract."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from exporter.archive.cases import Cases
from exporter.archive.contract import Contract, name_output
from exporter.archive.tensor_spec import name_dtype
from exporter.common.errors import MismatchError, UsageError, suggest_names
from runtime_checks import containers
from runtime_checks.comparison import compare_tensors
from runtime_checks.model import load

Tensors = tuple[torch.Tensor, ...]
Call = Callable[[str, Sequence[torch.Tensor]], Sequence[torch.Tensor]]
# Loads the candidate in the current process, for so many threads.
Opener = Callable[[int], Call]


@dataclass(frozen=True)
class Candidate:
    """A candidate of a benchmark. ``open(threads)`` loads it; a candidate in another process is opened there."""

    label: str
    open: Opener


def make_file_candidate(path: Path, label: str, device: str, trust: str) -> Candidate:
    """Make the candidate of a file, of which native code runs as ``trust`` says."""
    return Candidate(label, functools.partial(_open_call, path, device, trust))


def make_labels(paths: Sequence[Path]) -> list[str]:
    """Make a label of format and name; the full path if two share a name. Raise ``UsageError`` for one file twice."""
    kinds = {"pt": "torchferry .pt", "pt2": "torchferry .pt2", "program": "torch.export", "onnx": "onnxruntime"}
    names = [path.name for path in paths]
    if len({path.resolve() for path in paths}) < len(paths):
        mend = "name each file once: all are timed in every round"
        raise UsageError("a file is named twice", where="FILE", got=", ".join(map(str, paths)), mend=mend)
    if folder := next((path for path in paths if path.is_dir()), None):
        mend = 'name the .pt that carries it, and call it with load(..., engine="kernel")'
        raise UsageError("a kernel's folder is not timed", where=str(folder), expected="files", mend=mend)
    return [f"{kinds[containers.infer_file_format(p)]} ({p.name if names.count(p.name) == 1 else p})" for p in paths]


def _open_call(path: Path, device: str, trust: str, threads: int) -> Call:
    model = load(path, device, threads=threads, trust=trust)
    return model.engine.run


def check_same_contract(contracts: Mapping[Path, Contract], method: str) -> None:
    """Raise ``UsageError`` if a method of a file takes or returns other variables than that of the first."""
    first_path, first = next(iter(contracts.items()))
    if method not in first.methods:
        what, expected = f"there is no method {method!r}", suggest_names(method, first.methods)
        raise UsageError(what, where=str(first_path), expected=expected)
    for path, contract in contracts.items():
        here, there = (_describe_signature(c, method) for c in (contract, first))
        if here != there:
            what = f"the files do not have one contract for {method!r}"
            raise UsageError(what, where=str(path), got=here, expected=there)


def _describe_signature(contract: Contract, method: str) -> str:
    spec = contract.methods.get(method)
    if spec is None:
        return f"no method {method!r}"
    inputs = [contract.input_spec(n).describe() for n in spec.inputs]
    shapes = [list(contract.output_spec(o).shape) for o in spec.outputs]
    outputs = [f"{name}: {shape}" for name, shape in zip(spec.output_names, shapes, strict=True)]
    return f"{', '.join(inputs)} -> {', '.join(outputs)}"


@dataclass(frozen=True)
class Rows:
    """Ordinary stored cases as rows, from which batches of any size are made."""

    inputs: Tensors
    outputs: Tensors
    batched: bool

    def take(self, batch: int) -> tuple[Tensors, Tensors]:
        """Return the inputs and outputs of a batch of this size."""
        if not self.batched:
            return self.inputs, self.outputs
        rows = torch.arange(batch) % self.inputs[0].shape[0]
        return tuple(t[rows] for t in self.inputs), tuple(t[rows] for t in self.outputs)

    def count_bytes(self, batch: int) -> int:
        """Return the bytes of the inputs and outputs of a batch."""
        every = (*self.inputs, *self.outputs)
        if not self.batched:
            return sum(t.nbytes for t in every)
        return sum(t.element_size() * batch * math.prod(t.shape[1:]) for t in every)


def collect_rows(cases: Cases, contract: Contract, method: str) -> Rows:
    """Collect the rows of a method's ordinary cases."""
    ordinary = [c for c in cases if c.method == method and not c.is_extreme]
    if contract.batch.ndim == 0:
        return Rows(ordinary[0].inputs, ordinary[0].outputs, False)
    columns = zip(*((*c.inputs, *c.outputs) for c in ordinary), strict=True)
    tensors = tuple(map(torch.cat, columns))
    count = len(ordinary[0].inputs)
    return Rows(tensors[:count], tensors[count:], True)


def check_numbers(label: str, contract: Contract, method: str, got: Sequence[torch.Tensor], expected: Tensors) -> None:
    """Raise ``MismatchError`` if a candidate computes other numbers: it is not compared."""
    if len(got) != len(expected):
        what = f"{label} is not the model of these files"
        raise UsageError(what, got=f"{len(got)} outputs", expected=str(len(expected)))
    for name, actual, reference in zip(contract.methods[method].outputs, got, expected, strict=True):
        bounds = contract.tolerance.bounds(name, name_dtype(reference))
        comparison = compare_tensors(actual.cpu(), reference, bounds)
        if not comparison.passed:
            what = f"{label} does not compute the numbers of the stored cases, and is not compared"
            where, mend = f"method {method!r}, output {name_output(name)!r}", "verify it first: torchferry verify"
            raise MismatchError(what, where=where, got=comparison.reason, mend=mend)
