"""Classes and functions of a TorchScript file, parsed from its records ``code/*.py``; nothing of them is run.

Source of the format: torch/csrc/jit/serialization/python_print.cpp, which writes a subset of Python."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exporter.archive.pt_archive import Archive, is_code
from exporter.common.errors import ArchiveError
from exporter.saved_code.script_types import ScriptType, parse_type


@dataclass(frozen=True)
class CodeFunction:
    """A function or a method: where it stands, its arguments with their types and defaults, and its statements."""

    where: str
    line: int
    arguments: tuple[tuple[str, ScriptType], ...]
    defaults: Mapping[str, ast.expr]
    result: ScriptType
    body: Sequence[ast.stmt]


@dataclass(frozen=True)
class CodeClass:
    """A class: types of its attributes, names of its parameters and buffers, whether it is a tuple with names for its
    elements, and its methods."""

    attributes: Mapping[str, ScriptType]
    parameters: Sequence[str]
    buffers: Sequence[str]
    is_tuple: bool
    methods: Mapping[str, CodeFunction]


@dataclass(frozen=True)
class Code:
    """All classes and functions of a file by the path that its code and its objects name them by."""

    classes: Mapping[str, CodeClass]
    functions: Mapping[str, CodeFunction]


def read_code(archive: Archive) -> Code:
    """Parse all code of an archive. Raises ``ArchiveError``, with record and line, for what is not of this form."""
    classes: dict[str, CodeClass] = {}
    functions: dict[str, CodeFunction] = {}
    names = sorted(name for name in archive.records if is_code(name) and name.endswith(".py"))
    for name, data in archive.read_records(names).items():
        module = name.removeprefix("code/").removesuffix(".py").replace("/", ".")
        try:
            statements = ast.parse(data.decode()).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            where = f"{archive.path}, record {name}"
            raise ArchiveError("a record of code cannot be parsed", where=where, got=str(error)) from None
        for statement in statements:
            if isinstance(statement, ast.ClassDef):
                classes[f"{module}.{statement.name}"] = _read_class(statement, name)
            elif isinstance(statement, ast.FunctionDef):
                functions[f"{module}.{statement.name}"] = _read_function(statement, name)
    return Code(classes, functions)


def _read_class(statement: ast.ClassDef, record: str) -> CodeClass:
    attributes: dict[str, ScriptType] = {}
    tensors: dict[str, list[str]] = {}
    methods: dict[str, CodeFunction] = {}
    for part in statement.body:
        if isinstance(part, ast.FunctionDef):
            methods[part.name] = _read_function(part, record)
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            attributes[part.target.id] = parse_type(part.annotation)
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Subscript):
            # Names that are none in Python stand in a dict: ``__annotations__["0"] = ...``.
            attributes[str(_read_constant(part.target.slice))] = parse_type(part.annotation)
        elif isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Subscript):
            attributes[str(_read_constant(part.targets[0].slice))] = parse_type(part.value)
        elif isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
            names = part.value.elts if isinstance(part.value, ast.List) else []
            tensors[part.targets[0].id] = [str(_read_constant(n)) for n in names]
    is_tuple = any(isinstance(base, ast.Name) and base.id == "NamedTuple" for base in statement.bases)
    parameters, buffers = (tensors.get(name, []) for name in ("__parameters__", "__buffers__"))
    return CodeClass(attributes, parameters, buffers, is_tuple, methods)


def _read_function(statement: ast.FunctionDef, record: str) -> CodeFunction:
    arguments = statement.args.args
    types = tuple((a.arg, parse_type(a.annotation) if a.annotation else ScriptType("Tensor")) for a in arguments)
    values = statement.args.defaults
    defaults = {a.arg: value for a, value in zip(arguments[len(arguments) - len(values) :], values, strict=True)}
    result = parse_type(statement.returns) if statement.returns else ScriptType("Any")
    return CodeFunction(record, statement.lineno, types, defaults, result, statement.body)


def _read_constant(node: ast.expr) -> Any:
    return node.value if isinstance(node, ast.Constant) else ""
