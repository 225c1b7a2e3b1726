"""Classes and functions of a TorchScript file, parsed from its records ``code/*.py``; nothing of them is run.

Source of the format: torch/csrc/jit/serialization/python_print.cpp, which writes a subset of Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exporter.archive.pt_archive import Archive, is_code
from exporter.common.errors import ArchiveError, UnsupportedError
from exporter.saved_code.script_types import ScriptType, parse_type

# Names, numbers and the like in all code of a file: each takes some hundred bytes once it is parsed, and text that
# repeats itself is deflated a thousandfold. A graph of a hundred thousand operations has a million.
MAX_WORDS = 2**21
_WORD = re.compile(rb"\w+")


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
    words = 0
    for name, data in archive.read_records(names).items():
        try:
            words += sum(1 for _ in _WORD.finditer(data))
            if words > MAX_WORDS:
                raise ValueError(f"more than {MAX_WORDS} words of code")
            _read_record(name, data.decode(), classes, functions)
        except (SyntaxError, ValueError, TypeError, IndexError, RecursionError, MemoryError) as error:
            where, got = f"{archive.path}, record {name}", str(error)
            # Python's parser takes blocks a hundred deep.
            if isinstance(error, IndentationError):
                what, mend = "the code has something that is read by torch.jit alone", "open the file with torch.jit"
                raise UnsupportedError(what, check="code", where=where, got=got, mend=mend) from None
            raise ArchiveError("a record of code cannot be parsed", where=where, got=got) from None
    return Code(classes, functions)


def _read_record(name: str, text: str, classes: dict[str, CodeClass], functions: dict[str, CodeFunction]) -> None:
    module = name.removeprefix("code/").removesuffix(".py").replace("/", ".")
    for statement in ast.parse(text).body:
        if not isinstance(statement, (ast.ClassDef, ast.FunctionDef)):
            continue
        path = f"{module}.{statement.name}"
        if path in classes or path in functions:
            raise ValueError(f"{path} is defined twice")
        if isinstance(statement, ast.ClassDef):
            classes[path] = _read_class(statement, name)
        else:
            functions[path] = _read_function(statement, name)


def _read_class(statement: ast.ClassDef, record: str) -> CodeClass:
    attributes: dict[str, ScriptType] = {}
    tensors: dict[str, list[str]] = {}
    methods: dict[str, CodeFunction] = {}
    for part in statement.body:
        if isinstance(part, ast.FunctionDef):
            if part.name in methods:
                raise ValueError(f"the method {part.name} is defined twice")
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
    if len({a.arg for a in arguments}) != len(arguments) or statement.args.vararg or statement.args.kwarg:
        raise ValueError(f"the arguments of {statement.name}")
    types = tuple((a.arg, parse_type(a.annotation) if a.annotation else ScriptType("Tensor")) for a in arguments)
    values = statement.args.defaults
    defaults = {a.arg: value for a, value in zip(arguments[len(arguments) - len(values) :], values, strict=True)}
    result = parse_type(statement.returns) if statement.returns else ScriptType("Any")
    return CodeFunction(record, statement.lineno, types, defaults, result, statement.body)


def _read_constant(node: ast.expr) -> Any:
    return node.value if isinstance(node, ast.Constant) else ""
