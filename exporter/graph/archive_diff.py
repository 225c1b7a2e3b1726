"""Comparison of two saved files: contracts, graphs, tensors, and computed numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exporter.archive.cases import Cases
from exporter.archive.contract import Contract
from exporter.archive.value_structure import format_structure
from exporter.common.errors import ArchiveError, UsageError
from exporter.graph.canonical_text import format_canonical_text, hash_graph_text
from exporter.graph.graph_diff import GraphDiff, diff_graphs
from exporter.graph.loading import File, open_file
from exporter.graph.reader import list_settable_tensors, read
from exporter.saved_code.ir import SavedGraphs

# Contract fields that say how the file is called and what it promises. The other fields say how it was made.
_COMPARED_FIELDS = (
    "inputs",
    "outputs",
    "methods",
    "parameters",
    "tolerance",
    "differentiable",
    "solvers",
    "info",
    "metadata",
    "positional",
)
# How test inputs are drawn and how a derivative is computed is no promise.
_IGNORED_FIELDS = ("sampling", "how", "name")
# Bounds are computed from the model's numbers, whose last digits depend on the processor.
_BOUND_RTOL = 1e-6

# Further entries of a section are counted, not shown.
_MAX_SHOWN = 40


@dataclass(frozen=True)
class DiffSide:
    """A file, its graphs, and their hash."""

    file: File
    saved: SavedGraphs
    graph: str

    @property
    def contract(self) -> Contract | None:
        """Return the file's contract, or None."""
        return self.file.contract


@dataclass(frozen=True)
class ContractChange:
    """A change of one contract field; ``before`` or ``now`` is None if the field is absent there."""

    field: str
    before: Any
    now: Any

    def text(self) -> str:
        """Return the change as one line."""
        if self.now is None:
            return f"{self.field} is gone"
        if self.before is None:
            return f"{self.field} is new"
        return f"{self.field}: {self.now!r}; it was {self.before!r}"


@dataclass(frozen=True)
class Difference:
    """The differences of file ``other`` from file ``one``.

    Attributes:
        one: The first file.
        other: The second file.
        same_bytes: Whether the files are equal byte for byte.
        contract: The changes of the contract.
        notes: What could not be compared.
        graphs: The hashes of both graphs.
        changes: The changes of the graphs.
        numbers: The compared outputs; None if the files were not run.
    """

    one: Path
    other: Path
    same_bytes: bool
    contract: tuple[ContractChange, ...]
    notes: tuple[str, ...]
    graphs: tuple[str, str]
    changes: GraphDiff
    numbers: tuple[Any, ...] | None = None

    @property
    def differing(self) -> tuple[Any, ...]:
        """Return the compared outputs that do not agree."""
        return tuple(a for a in self.numbers or () if not a.comparison.passed)

    @property
    def same(self) -> bool:
        """Return whether the verdict is no difference."""
        return not self.verdict.startswith("differs")

    @property
    def verdict(self) -> str:
        """Return same file, same graph (with another history), same numbers (by another graph), or what differs."""
        if self.same_bytes and not self.differing:
            return "same file"
        if not self.contract and self.graphs[0] == self.graphs[1] and not self.differing:
            return "same graph"
        if not self.contract and self.numbers and not self.differing:
            return "same numbers"
        parts = {"contract": self.contract, "graph": self.changes.nodes, "constants": self.changes.tensors}
        parts["numbers"] = self.differing
        return f"differs in {', '.join(name for name, differences in parts.items() if differences)}"

    def lines(self) -> list[str]:
        """Return contract, graph, constant and number differences as lines, in this order; none for two equal files."""
        lines = [f"contract: {c.text()}" for c in self.contract]
        modules: dict[tuple[str, str], list[str]] = {}
        for change in self.changes.nodes:
            where = f"  ({change.where})" if change.where else ""
            modules.setdefault((change.method, change.module), []).append(f"  {change.kind}: {change.what}{where}")
        for (method, module), texts in modules.items():
            lines.append(f"graph: {method}" + (f", {module}" if module else ""))
            lines += texts[:_MAX_SHOWN] + ([f"  and {len(texts) - _MAX_SHOWN} more"] if len(texts) > _MAX_SHOWN else [])
        for tensor in self.changes.tensors:
            where = f"  ({tensor.where})" if tensor.where else ""
            differ = f"{tensor.differ} of its numbers differ, by at most {tensor.largest:g}"
            lines.append(f"constant: {tensor.name} {tensor.kind}: {differ}{where}")
        if self.numbers is not None:
            lines.append(f"numbers: {len(self.numbers) - len(self.differing)} of {len(self.numbers)} outputs agree")
        for answer in self.differing[:_MAX_SHOWN]:
            c = answer.comparison
            worst = f": {c.got} at {list(c.worst)}; the first file: {c.expected}" if c.got else ""
            lines.append(f"  {answer.case}, {answer.method} {answer.output}: {c.reason}{worst}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values: numbers that JSON cannot hold become text."""
        return to_json_value(dataclasses.asdict(self) | {"verdict": self.verdict, "same": self.same})


def to_json_value(value: Any) -> Any:
    """Convert a value to JSON-ready values."""
    if isinstance(value, Mapping):
        return {str(k): to_json_value(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


# Runs both files on cases of either file, given by the file that they belong to.
Run = Callable[[DiffSide, DiffSide, Mapping[str, Cases]], tuple[Any, ...]]


def diff_archives(first: Path, second: Path, run: Run | None = None) -> Difference:
    """Compare two files. Raises ``ArchiveError`` for a file that is damaged or not TorchScript, ``UsageError`` if both
    are to be run and no case is known for that."""
    return diff_sides(load_side(first), load_side(second), run)


def diff_sides(a: DiffSide, b: DiffSide, run: Run | None = None) -> Difference:
    """Compare two loaded files, and run both if ``run`` is set."""
    contract = _diff_contracts(a.contract, b.contract) if a.contract and b.contract else _diff_methods(a, b)
    paths = (a.file.path, b.file.path)
    same_bytes = paths[0].read_bytes() == paths[1].read_bytes()
    changes = diff_graphs(a.saved, b.saved) if a.graph != b.graph else GraphDiff((), ())
    numbers = run(a, b, _select_cases(a, b)) if run is not None else None
    return Difference(*paths, same_bytes, contract, tuple(_collect_notes(a, b)), (a.graph, b.graph), changes, numbers)


def load_side(path: Path) -> DiffSide:
    """Load a file for comparison. Raises ``ArchiveError`` if it is damaged or not TorchScript."""
    file = open_file(path)
    try:
        module = file.load()
    except ArchiveError as error:
        torch_version = file.contract.created_with.torch if file.contract else ""
        if torch_version and torch_version != torch.__version__:
            error.details["expected"] = f"a file of torch {torch.__version__}; it was made with {torch_version}"
        raise
    saved = read(module, list_settable_tensors(file.contract))
    return DiffSide(file, saved, hash_graph_text(format_canonical_text(saved)))


Leaves = dict[tuple[str, ...], Any]


def _diff_contracts(first: Contract, second: Contract) -> tuple[ContractChange, ...]:

    def list_fields(contract: Contract) -> dict[tuple[str, ...], Any]:
        fields = _flatten({name: getattr(contract, name) for name in _COMPARED_FIELDS})
        calls = {(name,): format_structure(getattr(contract, name)) for name in ("arguments", "results")}
        return {**fields, ("batch", "ndim"): contract.batch.ndim, **calls}

    before, now = list_fields(first), list_fields(second)
    contract_changes: dict[str, ContractChange] = {}
    for path in dict.fromkeys([*before, *now]):
        was, is_ = before.get(path), now.get(path)
        if was == is_ or (path[0] == "tolerance" and _is_same_bound(was, is_)):
            continue
        # A variable or method that one of them lacks is one line.
        entry = path[:2]
        absent = [not any(p[:2] == entry for p in side) for side in (before, now)]
        if len(path) > 2 and any(absent):
            name = ".".join(entry)
            contract_changes[name] = ContractChange(name, *(None if a else "there" for a in absent))
        else:
            contract_changes[".".join(path)] = ContractChange(".".join(path), was, is_)
    return tuple(contract_changes.values())


def _is_same_bound(was: Any, is_: Any) -> bool:
    return isinstance(was, float) and isinstance(is_, float) and math.isclose(was, is_, rel_tol=_BOUND_RTOL)


def _diff_methods(a: DiffSide, b: DiffSide) -> tuple[ContractChange, ...]:
    """Return the methods of the one contract that the file without a contract lacks."""
    removed = [ContractChange(f"methods.{m}", "there", None) for m in _list_missing_methods(a.contract, b)]
    return (*removed, *(ContractChange(f"methods.{m}", None, "there") for m in _list_missing_methods(b.contract, a)))


def _list_missing_methods(contract: Contract | None, counterpart: DiffSide) -> list[str]:
    return [m for m in contract.methods if m not in counterpart.saved.graphs] if contract else []


def _flatten(value: Any, path: tuple[str, ...] = ()) -> Leaves:
    """Return leaves by path; list elements with a name or a path are listed by it, together with their order."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name not in _IGNORED_FIELDS}
    if isinstance(value, dict):
        return {k: v for key, element in value.items() for k, v in _flatten(element, (*path, str(key))).items()}
    if not isinstance(value, tuple):
        return {path: value}
    names = [getattr(element, "name", getattr(element, "path", None)) for element in value]
    if all(names):
        leaves: Leaves = {path: ", ".join(map(str, names))}
        for name, element in zip(names, value, strict=True):
            leaves |= _flatten(element, (*path, str(name)))
        return leaves
    return {path: list(value)}


def _collect_notes(a: DiffSide, b: DiffSide) -> list[str]:
    """Return remarks that are no differences, but may explain one."""
    notes = []
    for which, file in (("first", a), ("second", b)):
        if file.contract is None:
            notes.append(f"the {which} file has no contract: it is not a torchferry archive")
    if a.contract and b.contract:
        origins = [c.created_with for c in (a.contract, b.contract)]
        for field in dataclasses.fields(origins[0]):
            before, now = (getattr(m, field.name) for m in origins)
            if before != now:
                notes.append(f"made with {field.name} {now}; the first with {before}")
    for which, file in (("first", a), ("second", b)):
        if file.contract and file.contract.graph and file.contract.graph != file.graph:
            writer = file.contract.created_with.torch
            reads = f"torch {torch.__version__} reads the graph of the {which} file differently"
            notes.append(f"{reads} from torch {writer}, which wrote it")
    return notes


def _select_cases(a: DiffSide, b: DiffSide) -> dict[str, Cases]:
    """Select the stored cases of either file whose method both files have with the same inputs."""
    cases: dict[str, Cases] = {}
    for which, file, counterpart in (("first", a, b), ("second", b, a)):
        if file.file.archive is None:
            continue
        cases[which] = [case for case in file.file.archive.cases() if _has_same_inputs(file, counterpart, case.method)]
    if not any(cases.values()):
        got = "no stored case in either file" if not cases else "no method that both have with the same inputs"
        expected, mend = "a case of a method that both files have", "compare without --run"
        what = "there is nothing to run both files on"
        raise UsageError(what, where="--run", got=got, expected=expected, mend=mend)
    return cases


def _has_same_inputs(file: DiffSide, counterpart: DiffSide, method: str) -> bool:
    assert file.contract is not None
    if counterpart.contract is None:
        graph = counterpart.saved.graphs.get(method)
        return graph is not None and len(graph.types) == len(file.contract.methods[method].inputs)
    method_spec = counterpart.contract.methods.get(method)
    return method_spec is not None and method_spec.inputs == file.contract.methods[method].inputs
