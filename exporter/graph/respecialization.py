"""Reasons why a model needs another graph than an earlier export of it: what compiled autograd calls a recompilation.

One graph serves as long as the variables, their fixed sizes, the structure of the backward pass and everything else
that is computed stay the same. Open sizes and settable parameters never require another graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exporter.archive.contract import Contract
from exporter.archive.method_names import METHOD
from exporter.archive.tensor_spec import TensorSpec
from exporter.common.tensors import bitwise_equal
from exporter.graph.canonical_text import format_method
from exporter.graph.provenance import OpenedArchive, Step, list_model_steps

VARIABLES, DTYPE, SIZE = "variables", "dtype", "static size"
STRUCTURE, OPERATIONS, CONSTANTS = "autograd structure", "operations", "constants"


@dataclass(frozen=True)
class Reason:
    """One reason for another graph: ``kind`` is one of the constants above, ``text`` the difference in words."""

    kind: str
    text: str


def respecialization_reasons(old: OpenedArchive, new: OpenedArchive) -> tuple[Reason, ...]:
    """Return why the file ``old`` does not serve the model of ``new``; empty if it serves as well."""
    variable_reasons = [*_compare_variables(old.archive.contract, new.archive.contract)]
    before, now = list_model_steps(old), list_model_steps(new)
    structure = _find_first_difference(_select_backward_steps(before), _select_backward_steps(now), _get_autograd_node)
    if structure:
        return (*variable_reasons, Reason(STRUCTURE, f"of the backward pass, {structure}"))
    # Other sizes or dtypes bring other operations with them.
    operations = "" if variable_reasons else _find_first_difference(before, now, lambda s: s.operator)
    if operations:
        return (Reason(OPERATIONS, operations),)
    return tuple(variable_reasons) or _compare_constants(old, new)


def _select_backward_steps(steps_in_order: Sequence[Step]) -> list[Step]:
    """Return one step for each autograd node and each hook, in order: their number of operations depends on sizes."""
    backward_steps = (step for step in steps_in_order if step.is_backward)
    return [next(run) for _, run in itertools.groupby(backward_steps, _get_autograd_node)]


def _compare_variables(old: Contract, new: Contract) -> list[Reason]:
    differences = []
    for role, before, now in (("input", old.inputs, new.inputs), ("output", old.outputs, new.outputs)):
        old_specs, names = {s.name: s for s in before}, [s.name for s in now]
        if list(old_specs) != names:
            differences.append(Reason(VARIABLES, f"{role}s are {', '.join(names)}; they were {', '.join(old_specs)}"))
        for spec in now:
            differences += _compare_variable(role, old_specs[spec.name], spec) if spec.name in old_specs else []
    return differences


def _compare_variable(role: str, old_spec: TensorSpec, spec: TensorSpec) -> list[Reason]:
    differences = []
    if old_spec.shape != spec.shape:
        text = f"{role} {spec.name!r} has shape {_format_shape(spec)}; it had {_format_shape(old_spec)}"
        differences.append(Reason(SIZE, text))
    if old_spec.dtype != spec.dtype:
        differences.append(Reason(DTYPE, f"{role} {spec.name!r} is {spec.dtype}; it was {old_spec.dtype}"))
    return differences


def _format_shape(spec: TensorSpec) -> str:
    return f"[{', '.join(map(str, spec.shape))}]"


def _get_autograd_node(step: Step) -> str:
    return f"{step.origin.part} {step.origin.of}"


def _find_first_difference(before: Sequence[Step], now: Sequence[Step], key: Callable[[Step], str]) -> str:
    for index, (a, b) in enumerate(itertools.zip_longest(before, now)):
        if a is None or b is None or key(a) != key(b):
            return f"step {index} is {_describe_step(b, key)}; it was {_describe_step(a, key)}"
    return ""


def _describe_step(step: Step | None, key: Callable[[Step], str]) -> str:
    if step is None:
        return "missing"
    details = [p for p in (step.operator, step.origin.where) if p and p != key(step)]
    return key(step) + (f" ({', '.join(details)})" if details else "")


def _compare_constants(old: OpenedArchive, new: OpenedArchive) -> tuple[Reason, ...]:
    """Compare numbers in the graph, and tensors not settable in both files: they are part of what a file computes."""
    if format_method(old.saved.graphs[METHOD]) != format_method(new.saved.graphs[METHOD]):
        return (Reason(CONSTANTS, "numbers in the graph differ"),)
    settable = [{p.name for p in file.archive.contract.parameters} for file in (old, new)]
    before, now = ({**dict(m.named_parameters()), **dict(m.named_buffers())} for m in (old.module, new.module))
    names = dict.fromkeys(n for n in (*before, *now) if n not in settable[0] & settable[1])
    changed = [n for n in names if n not in before or n not in now or not bitwise_equal(before[n], now[n])]
    return (Reason(CONSTANTS, f"tensors of the file differ: {', '.join(changed[:5])}"),) if changed else ()
