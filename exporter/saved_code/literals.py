"""Constants of TorchScript's source: numbers, texts, devices and None."""

from __future__ import annotations

import ast
import math
from typing import Any

import torch

from exporter.common.errors import ArchiveError
from exporter.saved_code.ir import Literal
from exporter.saved_code.script_types import BOOL, COMPLEX, DEVICE, FLOAT, INT, NONE, STR, ScriptType
from exporter.saved_code.tensors import format_literal

# Numbers that Python writes otherwise.
_NAMED = {"inf": math.inf, "nan": math.nan, "infj": complex(0, math.inf), "nanj": complex(0, math.nan)}
# Types of constants by those of Python.
TYPES = {bool: BOOL, int: INT, float: FLOAT, complex: COMPLEX, str: STR, type(None): NONE}


def read_literal(node: ast.expr) -> tuple[Literal, ScriptType] | None:
    """Return a constant with its type, None for any other expression."""
    try:
        value = _evaluate(node)
    except ValueError:
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
    """Return the device of ``torch.device("cpu")``. Raises ``ArchiveError`` for one that torch does not know."""
    try:
        device = torch.device(str(_evaluate(node.args[0])))
    except (IndexError, ValueError, RuntimeError) as error:
        raise ArchiveError("the code names no device", got=ast.unparse(node)[:100]) from error
    return Literal(str(device), device), DEVICE


def get_integer(operand: object) -> int | None:
    """Return the integer that a constant is, or None."""
    value = operand.value if isinstance(operand, Literal) else None
    return value if isinstance(value, int) else None
