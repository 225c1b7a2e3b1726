"""The fields of contracts and machines as text, one line for each class: what the native reader has as a table."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Literal

from exporter.archive.contract import Contract
from exporter.archive.target_machine import TargetMachine

_PLAIN = {str: "text", int: "int", float: "number", bool: "bool"}


def format_fields() -> str:
    """Return a line ``Class field:type ?optional:type`` for every class that a contract holds, and for a machine."""
    lines: dict[type, str] = {}
    todo: list[type] = [Contract]
    while todo or TargetMachine not in lines:
        owner = todo.pop(0) if todo else TargetMachine
        if owner in lines:
            continue
        hints = typing.get_type_hints(owner)
        parts = [owner.__name__]
        for field in dataclasses.fields(owner):
            is_optional = not (field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING)
            parts.append(f"{'?' * is_optional}{field.name}:{_format(hints[field.name], todo)}")
        lines[owner] = " ".join(parts)
    return "\n".join(lines.values())


def _format(hint: Any, todo: list[type]) -> str:
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if dataclasses.is_dataclass(hint):
        todo.append(typing.cast(type, hint))
        return typing.cast(type, hint).__name__
    if origin is Literal:
        return "|".join(f"'{value}'".replace(" ", "_") for value in arguments)
    if origin is dict:
        return "{" + _format(arguments[1], todo) + "}"
    if origin is tuple and arguments[1:] == (...,):
        return "[" + _format(arguments[0], todo) + "]"
    if origin is tuple:
        return "(" + ",".join(_format(a, todo) for a in arguments) + ")"
    if origin in (typing.Union, types.UnionType):
        return "|".join(_format(a, todo) for a in arguments)
    raise TypeError(hint)
