"""Why a model needs another graph than an earlier export of it has: what compiled autograd calls a recompilation.

One graph serves as long as the variables, their fixed sizes, the structure of the backward pass and all else that is
computed are the same. Open sizes and settable parameters never ask for another.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exporter.archive.contract import Contract
from exporter.archive.method_names import METHOD
from exporter.archive.tensor_spec import TensorSpec
from exporter.common.tensors import same_bits
from exporter.graph.canonical_text import method_text
from exporter.graph.provenance import Opened, Step, captured_steps

VARIABLES, DTYPE, SIZE = "variables", "dtype", "static size"
STRUCTURE, OPERATIONS, CONSTANTS = "autograd structure", "operations", "constants"


@dataclass(frozen=True)
class Reason:
    kind: str
    text: str


def reasons(old: Opened, new: Opened) -> tuple[Reason, ...]:
    """Why ``new`` is another specialisation than ``old``; empty where the earlier file serves as well."""
    found = [*_of_variables(old.archive.contract, new.archive.contract)]
    before, now = captured_steps(old), captured_steps(new)
    structure = _first_difference(_backward(before), _backward(now), _node)
    if structure:
        return (*found, Reason(STRUCTURE, f"of the backward pass, {structure}"))
    # Other sizes or dtypes bring other operations with them.
    operations = "" if found else _first_difference(before, now, lambda s: s.operator)
    if operations:
        return (Reason(OPERATIONS, operations),)
    return tuple(found) or _of_constants(old, new)


def _backward(found: Sequence[Step]) -> list[Step]:
    """One step of each node of autograd and each hook, in order: how many operations it has depends on sizes."""
    return [next(run) for _, run in itertools.groupby((s for s in found if s.of_backward), _node)]


def _of_variables(old: Contract, new: Contract) -> list[Reason]:
    found = []
    for kind, before, now in (("input", old.inputs, new.inputs), ("output", old.outputs, new.outputs)):
        was, names = {s.name: s for s in before}, [s.name for s in now]
        if list(was) != names:
            found.append(Reason(VARIABLES, f"{kind}s are {', '.join(names)}; they were {', '.join(was)}"))
        for spec in now:
            found += _of_variable(kind, was[spec.name], spec) if spec.name in was else []
    return found


def _of_variable(kind: str, was: TensorSpec, spec: TensorSpec) -> list[Reason]:
    found = []
    if was.shape != spec.shape:
        text = f"{kind} {spec.name!r} has shape {_text(spec)}; it had {_text(was)}"
        found.append(Reason(SIZE, text))
    if was.dtype != spec.dtype:
        found.append(Reason(DTYPE, f"{kind} {spec.name!r} is {spec.dtype}; it was {was.dtype}"))
    return found


def _text(spec: TensorSpec) -> str:
    return f"[{', '.join(map(str, spec.shape))}]"


def _node(step: Step) -> str:
    return f"{step.origin.part} {step.origin.of}"


def _first_difference(before: Sequence[Step], now: Sequence[Step], key: Callable[[Step], str]) -> str:
    for at, (a, b) in enumerate(itertools.zip_longest(before, now)):
        if a is None or b is None or key(a) != key(b):
            return f"step {at} is {_said(b, key)}; it was {_said(a, key)}"
    return ""


def _said(step: Step | None, key: Callable[[Step], str]) -> str:
    if step is None:
        return "missing"
    more = [p for p in (step.operator, step.origin.where) if p and p != key(step)]
    return key(step) + (f" ({', '.join(more)})" if more else "")


def _of_constants(old: Opened, new: Opened) -> tuple[Reason, ...]:
    """Numbers in the graph, and tensors that cannot be set in both files: they are part of what a file computes."""
    if method_text(old.saved.graphs[METHOD]) != method_text(new.saved.graphs[METHOD]):
        return (Reason(CONSTANTS, "numbers in the graph are others"),)
    settable = [{p.name for p in one.archive.contract.parameters} for one in (old, new)]
    before, now = ({**dict(m.named_parameters()), **dict(m.named_buffers())} for m in (old.module, new.module))
    names = dict.fromkeys(n for n in (*before, *now) if n not in settable[0] & settable[1])
    other = [n for n in names if n not in before or n not in now or not same_bits(before[n], now[n])]
    return (Reason(CONSTANTS, f"tensors of the file are others: {', '.join(other[:5])}"),) if other else ()
