"""Overloads of torch's operators, found by the types of their arguments, as the compiler of TorchScript does.

Source of the rules: torch/csrc/jit/frontend/schema_matching.cpp. Where several overloads take the arguments, the one
whose types are nearest is taken, where the compiler takes the first that was registered: the tests hold both side by
side."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from exporter.common.script_loading import OPERATORS
from exporter.saved_code.script_types import (
    COMPLEX,
    FLOAT,
    INT,
    NUMBER,
    TENSOR,
    Bindings,
    ScriptType,
    list_of,
    measure_fit,
    parse_type_text,
    resolve_type,
)

# Operators of the compiler's own, which torch does not list: result by name.
_UNLISTED = {"prim::shape": list_of(INT), "prim::data": TENSOR, "prim::unchecked_unwrap_optional": None}


class NoOverloadError(Exception):
    """No overload of an operator takes these arguments, or there is no such operator."""


@dataclass(frozen=True)
class Default:
    """An argument that a call leaves out."""

    value: Any


@dataclass(frozen=True)
class Repeat:
    """A number that stands for a list of ``count`` of it: the argument ``place`` of a call."""

    place: int | str
    count: int


@dataclass(frozen=True)
class Conversion:
    """A tensor that an ``operator`` reads a number from: the argument ``place`` of a call."""

    place: int | str
    operator: str
    result: ScriptType


# What an operator's argument takes: a place in the call, or a name in it, or neither.
Choice = int | str | Default | Repeat | Conversion
# What reads a number from a tensor, by the type of the number.
IMPLICIT_READS = {FLOAT: "aten::FloatImplicit", INT: "aten::IntImplicit", NUMBER: "aten::ScalarImplicit"}
IMPLICIT_READS |= {COMPLEX: "aten::ComplexImplicit"}
# What a repeated number, and one that is read from a tensor, count for: each more than all types of a call.
_REPEATED, _CONVERTED = 1_000, 1_000_000


@dataclass(frozen=True)
class Overload:
    """An overload for a call: ``operator`` with its overload's name, what each argument takes, and its results.

    Arguments beyond the schema's, as of ``format``, follow in their order."""

    operator: str
    choices: tuple[Choice, ...]
    results: tuple[ScriptType, ...]
    schema: str


@dataclass(frozen=True)
class _Argument:
    name: str
    type: ScriptType
    count: int | None
    default: Default | None
    is_keyword: bool


@dataclass(frozen=True)
class _Schema:
    operator: str
    arguments: tuple[_Argument, ...]
    results: tuple[ScriptType, ...]
    is_open: bool
    text: str


@functools.lru_cache(maxsize=100_000)
def find_overload(kind: str, places: tuple[ScriptType, ...], names: tuple[tuple[str, ScriptType], ...]) -> Overload:
    """Return the overload of an operator such as ``aten::add`` that takes these types, by place and by name.

    Raises ``NoOverloadError``, also for an operator that does not only compute."""
    if kind not in OPERATORS:
        raise NoOverloadError(f"{kind} is no operator that only computes")
    candidates = []
    for schema in _list_schemas(kind):
        match = _match(schema, places, dict(names))
        if match is not None:
            candidates.append(match)
    if not candidates:
        types = ", ".join([*map(str, places), *(f"{name}={t}" for name, t in names)])
        raise NoOverloadError(f"{kind} takes no ({types})")
    # The first of those that fit best.
    _, overload = min(candidates, key=lambda candidate: candidate[0])
    return overload


@functools.cache
def _list_schemas(kind: str) -> Sequence[_Schema]:
    space, _, name = kind.partition("::")
    if kind in _UNLISTED:
        variable = ScriptType("t")
        taken = _Argument("self", variable, None, None, is_keyword=False)
        return [_Schema(kind, (taken,), (_UNLISTED[kind] or variable,), is_open=False, text="")]
    packet: Any = getattr(getattr(torch.ops, space), name, None)
    # The namespaces of operators have attributes of their own, such as their name.
    if not hasattr(packet, "overloads"):
        raise NoOverloadError(f"this torch has no operator {kind}")
    schemas = []
    for overload in packet.overloads():
        schema = getattr(packet, overload)._schema
        arguments = tuple(
            _Argument(
                a.name, parse_type_text(a.type.annotation_str), a.N,
                Default(a.default_value) if a.has_default_value() else None, bool(a.kwarg_only),
            )
            for a in schema.arguments
        )  # fmt: skip
        results = tuple(parse_type_text(r.type.annotation_str) for r in schema.returns)
        operator = kind if overload == "default" else f"{kind}.{overload}"
        schemas.append(_Schema(operator, arguments, results, "...)" in str(schema), str(schema)))
    return schemas


def _match(
    schema: _Schema, places: tuple[ScriptType, ...], names: dict[str, ScriptType]
) -> tuple[int, Overload] | None:
    """Return how far a call is from a schema, and the overload; None if the schema does not take it."""
    bindings: Bindings = {}
    total, used, left = 0, 0, set(names)
    choices: list[Choice] = []
    for argument in schema.arguments:
        place: int | str
        if used < len(places) and not argument.is_keyword:
            place, actual = used, places[used]
            used += 1
        elif argument.name in names:
            place, actual = argument.name, names[argument.name]
            left.discard(argument.name)
        elif argument.default is not None:
            choices.append(argument.default)
            continue
        else:
            return None
        fit = measure_fit(argument.type, actual, bindings)
        choices.append(place)
        if fit is None:
            wanted = argument.type.arguments[0] if argument.type.name == "Optional" else argument.type
            if argument.count is not None and wanted == list_of(actual):
                fit, choices[-1] = _REPEATED, Repeat(place, argument.count)
            elif actual == TENSOR and wanted in IMPLICIT_READS:
                fit, choices[-1] = _CONVERTED, Conversion(place, IMPLICIT_READS[wanted], wanted)
            else:
                return None
        total += fit
    if left or (used < len(places) and not schema.is_open):
        return None
    choices += range(used, len(places))
    results = tuple(resolve_type(r, bindings) for r in schema.results)
    return total, Overload(schema.operator, tuple(choices), results, schema.text)
