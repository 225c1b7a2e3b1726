"""Two saved files held against each other: contract, graphs, tensors, and what they compute."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exporter.archive.cases import Case
from exporter.archive.contract import Contract
from exporter.common.errors import ArchiveError, UsageError
from exporter.graph.canonical_text import canonical_text, graph_hash
from exporter.graph.graph_diff import Changes, changes
from exporter.graph.loading import File, opened_file
from exporter.graph.reader import Saved, read, settable_names

# What of a contract says how the file is called and what it promises. The rest is how it came to be.
_PROMISES = ("inputs", "outputs", "methods", "parameters", "tolerance", "differentiable", "solvers", "info")
# How inputs are drawn for tests, and by what a derivative is computed: no promise.
_NO_PROMISE = ("sampling", "how", "name")


# More than this of one kind are counted, not shown.
_SHOWN = 40


@dataclass(frozen=True)
class Side:
    """A file, its graphs, and their hash."""

    file: File
    saved: Saved
    graph: str

    @property
    def contract(self) -> Contract | None:
        return self.file.contract


@dataclass(frozen=True)
class ContractChange:
    """``before`` and ``now`` are None where the field is not there."""

    field: str
    before: Any
    now: Any

    def text(self) -> str:
        if self.now is None:
            return f"{self.field} is gone"
        if self.before is None:
            return f"{self.field} is new"
        return f"{self.field}: {self.now!r}; it was {self.before!r}"


@dataclass(frozen=True)
class Difference:
    """What ``other`` has other than ``one``. ``numbers``: what running both gave, None where they were not run."""

    one: Path
    other: Path
    same_bytes: bool
    contract: tuple[ContractChange, ...]
    notes: tuple[str, ...]
    graphs: tuple[str, str]
    changes: Changes
    numbers: tuple[Any, ...] | None = None

    @property
    def differing(self) -> tuple[Any, ...]:
        return tuple(a for a in self.numbers or () if not a.comparison.passed)

    @property
    def same(self) -> bool:
        return not self.verdict.startswith("differs")

    @property
    def verdict(self) -> str:
        """Same file, same graph (with another history), same numbers (by another graph), or where it differs."""
        if self.same_bytes and not self.differing:
            return "same file"
        if not self.contract and self.graphs[0] == self.graphs[1] and not self.differing:
            return "same graph"
        if not self.contract and self.numbers and not self.differing:
            return "same numbers"
        parts = (
            ("contract", self.contract),
            ("graph", self.changes.nodes),
            ("constants", self.changes.tensors),
            ("numbers", self.differing),
        )
        return f"differs in {', '.join(name for name, found in parts if found)}"

    def lines(self) -> list[str]:
        """Contract, graphs, constants, numbers, in this order; nothing for two equal files."""
        lines = [f"contract: {c.text()}" for c in self.contract]
        modules: dict[tuple[str, str], list[str]] = {}
        for change in self.changes.nodes:
            where = f"  ({change.where})" if change.where else ""
            modules.setdefault((change.method, change.module), []).append(f"  {change.kind}: {change.what}{where}")
        for (method, module), texts in modules.items():
            lines.append(f"graph: {method}" + (f", {module}" if module else ""))
            lines += texts[:_SHOWN] + ([f"  and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else [])
        for tensor in self.changes.tensors:
            where = f"  ({tensor.where})" if tensor.where else ""
            differ = f"{tensor.differ} of its numbers differ, by at most {tensor.largest:g}"
            lines.append(f"constant: {tensor.name} {tensor.kind}: {differ}{where}")
        if self.numbers is not None:
            lines.append(f"numbers: {len(self.numbers) - len(self.differing)} of {len(self.numbers)} outputs agree")
        for answer in self.differing[:_SHOWN]:
            c = answer.comparison
            worst = f": {c.got} at {list(c.worst)}; the first file: {c.expected}" if c.got else ""
            lines.append(f"  {answer.case}, {answer.method} {answer.output}: {c.reason}{worst}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: numbers that JSON cannot hold are given as text."""
        return plain(dataclasses.asdict(self) | {"verdict": self.verdict, "same": self.same})


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


# Runs both files on cases of either: by whose they are.
Run = Callable[[Side, Side, Mapping[str, Sequence[Case]]], tuple[Any, ...]]


def difference(one: Path, other: Path, run: Run | None = None) -> Difference:
    """Raises ``ArchiveError`` for a file that is damaged or no TorchScript, ``UsageError`` where both are to be run and
    no case is known for it."""
    return compared(side(one), side(other), run)


def compared(a: Side, b: Side, run: Run | None = None) -> Difference:
    contract = _promises(a.contract, b.contract) if a.contract and b.contract else _methods(a, b)
    return Difference(
        a.file.path,
        b.file.path,
        a.file.path.read_bytes() == b.file.path.read_bytes(),
        contract,
        tuple(_notes(a, b)),
        (a.graph, b.graph),
        changes(a.saved, b.saved) if a.graph != b.graph else Changes((), ()),
        run(a, b, _cases(a, b)) if run is not None else None,
    )


def side(path: Path) -> Side:
    """Raises ``ArchiveError`` for a file that is damaged or no TorchScript."""
    file = opened_file(path)
    try:
        module = file.module()
    except ArchiveError as error:
        made = file.contract.created_with.torch if file.contract else ""
        if made and made != torch.__version__:
            error.details["expected"] = f"a file of torch {torch.__version__}; it was made with {made}"
        raise
    saved = read(module, settable_names(file.contract))
    return Side(file, saved, graph_hash(canonical_text(saved)))


Leaves = dict[tuple[str, ...], Any]


def _promises(one: Contract, other: Contract) -> tuple[ContractChange, ...]:
    before, now = (
        {**_flat({n: getattr(c, n) for n in _PROMISES}), ("batch", "ndim"): c.batch.ndim} for c in (one, other)
    )
    found: dict[str, ContractChange] = {}
    for path in dict.fromkeys([*before, *now]):
        was, is_ = before.get(path), now.get(path)
        if was == is_:
            continue
        # A whole variable or method that one of them does not have is one line.
        whole = path[:2]
        absent = [not any(p[:2] == whole for p in side) for side in (before, now)]
        if len(path) > 2 and any(absent):
            found[".".join(whole)] = ContractChange(".".join(whole), *(None if a else "there" for a in absent))
        else:
            found[".".join(path)] = ContractChange(".".join(path), was, is_)
    return tuple(found.values())


def _methods(a: Side, b: Side) -> tuple[ContractChange, ...]:
    """Methods of the one contract that the file without a contract does not have."""
    found = [ContractChange(f"methods.{m}", "there", None) for m in _lacks(a.contract, b)]
    return (*found, *(ContractChange(f"methods.{m}", None, "there") for m in _lacks(b.contract, a)))


def _lacks(contract: Contract | None, other: Side) -> list[str]:
    return [m for m in contract.methods if m not in other.saved.graphs] if contract else []


def _flat(value: Any, path: tuple[str, ...] = ()) -> Leaves:
    """Leaves by path; elements of lists that have a name or a path by it, with their order."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name not in _NO_PROMISE}
    if isinstance(value, dict):
        return {k: v for key, one in value.items() for k, v in _flat(one, (*path, str(key))).items()}
    if not isinstance(value, tuple):
        return {path: value}
    named = [getattr(one, "name", getattr(one, "path", None)) for one in value]
    if all(named):
        found: Leaves = {path: ", ".join(map(str, named))}
        for name, one in zip(named, value, strict=True):
            found |= _flat(one, (*path, str(name)))
        return found
    return {path: list(value)}


def _notes(a: Side, b: Side) -> list[str]:
    """What is no difference, and may explain one."""
    found = []
    for which, file in (("first", a), ("second", b)):
        if file.contract is None:
            found.append(f"the {which} file has no contract: it is no archive of torchferry's")
    if a.contract and b.contract:
        made = [c.created_with for c in (a.contract, b.contract)]
        for field in dataclasses.fields(made[0]):
            before, now = (getattr(m, field.name) for m in made)
            if before != now:
                found.append(f"made with {field.name} {now}; the first with {before}")
    for which, file in (("first", a), ("second", b)):
        if file.contract and file.contract.graph and file.contract.graph != file.graph:
            found.append(
                f"torch {torch.__version__} reads the graph of the {which} file otherwise than torch "
                f"{file.contract.created_with.torch}, which wrote it"
            )
    return found


def _cases(a: Side, b: Side) -> dict[str, Sequence[Case]]:
    """Stored cases of either file whose method both have with the same inputs."""
    found: dict[str, Sequence[Case]] = {}
    for which, file, others in (("first", a, b), ("second", b, a)):
        if file.file.archive is None:
            continue
        found[which] = [case for case in file.file.archive.cases() if _takes(file, others, case.method)]
    if not any(found.values()):
        raise UsageError(
            "there is nothing to run both files on",
            where="--run",
            got="no stored case in either file" if not found else "no method that both have with the same inputs",
            expected="a case of a method that both files have",
            mend="compare without --run",
        )
    return found


def _takes(file: Side, other: Side, method: str) -> bool:
    assert file.contract is not None
    if other.contract is None:
        return method in other.saved.graphs and len(other.saved.graphs[method].types) == len(
            file.contract.methods[method].inputs
        )
    theirs = other.contract.methods.get(method)
    return theirs is not None and theirs.inputs == file.contract.methods[method].inputs
