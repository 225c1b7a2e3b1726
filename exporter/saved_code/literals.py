"""Constants of TorchScript's source: numbers, texts, devices and None."""

from __future__ import annotations

import ast
import itertools
import math
from typing import Any

import torch

from exporter.saved_code.ir import Literal
from exporter.saved_code.script_types import BOOL, COMPLEX, DEVICE, FLOAT, INT, NONE, STR, ScriptType
from exporter.saved_code.tensors import format_literal

# Numbers that Python writes otherwise.
_NAMED = {"inf": math.inf, "nan": math.nan, "infj": complex(0, math.inf), "nanj": complex(0, math.nan)}
# Of an attribute that is a list.
MAX_ELEMENTS = 100_000
# Types of constants by those of Python.
TYPES = {bool: BOOL, int: INT, float: FLOAT, complex: COMPLEX, str: STR, type(None): NONE}


def read_literal(node: ast.expr) -> tuple[Literal, ScriptType] | None:
    """Return a constant with its type, None for any other expression."""
    try:
        value = _evaluate(node)
    except (ValueError, TypeError):
        return None
    return Literal(format_literal(value), value), TYPES[type(value)]


def _evaluate(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in TYPES:
        return _decode(node.value) if isinstance(node.value, str) else node.value
    if isinstance(node, ast.Name) and node.id in _NAMED:
        return _NAMED[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        first, second = _evaluate(node.left), _evaluate(node.right)
        if isinstance(second, complex):
            return complex(first, second.imag if isinstance(node.op, ast.Add) else -second.imag)
    raise ValueError("no constant")


def _decode(text: str) -> str:
    """Return a text whose letters beyond ASCII stand in the source as the bytes of UTF-8."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


def read_device(node: ast.Call) -> tuple[Literal, ScriptType]:
    """Return the device of ``torch.device("cpu")``. Raises ``ValueError`` for one that torch does not know."""
    return make_device(_evaluate(node.args[0])), DEVICE


def make_device(name: object) -> Literal:
    """Return a device as a constant. Raises ``ValueError`` for one that torch does not know."""
    try:
        device = torch.device(str(name))
    except RuntimeError as error:
        raise ValueError(f"no device: {str(name)[:100]}") from error
    return Literal(str(device), device)


def get_integer(operand: object) -> int | None:
    """Return the integer that a constant is, or None."""
    value = operand.value if isinstance(operand, Literal) else None
    return value if isinstance(value, int) else None


def has_type(value: object, script_type: ScriptType) -> bool:
    """Return whether a number, a text, or lists and tuples of them, are of a type. Raises ``ValueError`` for many."""
    counter = itertools.count()

    def check(value: object, script_type: ScriptType) -> bool:
        # Lists that share their elements look like many more.
        if next(counter) > MAX_ELEMENTS:
            raise ValueError(f"a list of more than {MAX_ELEMENTS} elements")
        kinds = script_type.arguments
        if script_type.name == "Optional":
            return value is None or check(value, kinds[0])
        if script_type.name == "List":
            return isinstance(value, list) and all(check(v, kinds[0]) for v in value)
        if script_type.name == "Tuple":
            return isinstance(value, tuple) and len(value) == len(kinds) and all(map(check, value, kinds))
        return TYPES.get(type(value)) == script_type

    return check(value, script_type)
