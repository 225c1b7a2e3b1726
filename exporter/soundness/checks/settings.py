"""Settings that others make: context variables, what ``sys`` says, and state that a function of the user's sets.

A global, an option in a dict or an attribute of a class or of an object is a setting where a function that forward does
not call stores there (``def use(unit): OPTIONS["unit"] = unit``). Each is set to other values; where an output
changes, a trace would have frozen the setting.
"""

from __future__ import annotations

import ast
import contextvars
import functools
import importlib.util
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.archive.contract import Finding
from exporter.model.eager.evaluation import inference_conditions
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import Eager, eager, same_outputs
from exporter.soundness.footprint import Footprint, is_users, other_values

CHECK = "settings"
# Names of ``sys`` with another value.
_OF_SYS = {"platform": "elsewhere", "argv": ["elsewhere"], "byteorder": "other"}


@dataclass(frozen=True)
class Setting:
    """``named`` is the word in the code by which its line is found; ``by`` who sets it."""

    what: str
    named: str
    by: str
    value: Any
    others: tuple[Any, ...]
    put: Callable[[Any], Any]


def check(eager_mode: Eager) -> list[Finding]:
    return eager_mode.room(_check, eager_mode.inputs)


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    found = []
    with inference_conditions(source):
        with Footprint() as footprint:
            first = eager(source, inputs)
        # What an installed library keeps to itself is no setting: neml2 counts how deep it is in a call.
        footprint.codes = {c: space for c, space in footprint.codes.items() if "site-packages" not in c.co_filename}
        if isinstance(first, str):
            return []
        for setting in (*_of_contexts(footprint), *_of_sys(footprint), *_of_users(footprint, source)):
            for other in setting.others:
                setting.put(other)
                changed = not same_outputs(eager(source, inputs), first)
                setting.put(setting.value)
                if changed:
                    evidence = f"{setting.by}; with {str(other)[:40]!r} in it outputs change"
                    found.append(_unsound(setting.what, _line_of(footprint, setting.named), evidence))
                    break
    return found


def _of_contexts(footprint: Footprint) -> Iterator[Setting]:
    for code, namespace in footprint.codes.items():
        for name in code.co_names:
            variable = namespace.get(name)
            if not isinstance(variable, contextvars.ContextVar):
                continue
            try:
                value = variable.get()
            except LookupError:
                continue
            others = tuple(other_values(value))
            yield Setting(f"a context variable, {name}", name, "whoever calls sets it", value, others, variable.set)


def _of_sys(footprint: Footprint) -> Iterator[Setting]:
    for code, namespace in footprint.codes.items():
        for name in set(_OF_SYS) & set(code.co_names):
            if any(namespace.get(n) is sys for n in code.co_names) or namespace.get(name) is getattr(sys, name):
                put = functools.partial(_put_everywhere, namespace, name, getattr(sys, name))
                yield Setting(f"sys.{name}", name, "the host sets it", getattr(sys, name), (_OF_SYS[name],), put)


def _put_everywhere(namespace: dict[str, Any], name: str, original: Any, value: Any) -> None:
    setattr(sys, name, value)
    # ``from sys import platform``
    if name in namespace:
        namespace[name] = value


def _of_users(footprint: Footprint, source: Source) -> Iterator[Setting]:
    ran = {(code.co_filename, code.co_name, code.co_firstlineno) for code in footprint.codes}
    setters: dict[str, str] = {}
    for file in _files(footprint):
        setters.update({stored: by for stored, by, line in _setters(file) if (file, by, line) not in ran})
    if not setters:
        return
    for label, leaf in footprint.state(source.named).items():
        # "global 'OPTIONS'['unit']", "class attribute Law.mode", "global 'SETTINGS'.unit", "options.UNIT"
        root = re.match(r"global '(\w+)'|class attribute (\w+\.\w+)|\w+\.(\w+)", label)
        name = next(filter(None, root.groups()), "") if root else ""
        if name in setters and leaf.put is not None and isinstance(leaf.value, (bool, int, float, str)):
            named = re.findall(r"\w+", label)[-1]
            by = f"{setters[name]}() sets it"
            yield Setting(label, named, by, leaf.value, tuple(other_values(leaf.value)), leaf.put)


def _files(footprint: Footprint) -> set[str]:
    """Files of the code that ran, and of the user's modules that they import from."""
    found = {code.co_filename for code in footprint.codes}
    for code, namespace in footprint.codes.items():
        held = [namespace.get(name) for name in code.co_names]
        names = {getattr(v, "__module__", None) or getattr(v, "__name__", "") for v in held}
        names |= _imported(code.co_filename, str(namespace.get("__package__") or ""))
        files = (getattr(sys.modules.get(str(name)), "__file__", None) for name in names)
        found |= {file for file in files if file and is_users(file)}
    return found


@functools.cache
def _imported(file: str, package: str) -> frozenset[str]:
    nodes = [n for n in ast.walk(_tree(file)) if isinstance(n, ast.ImportFrom)]
    names = ("." * n.level + (n.module or "") for n in nodes)
    return frozenset(importlib.util.resolve_name(n, package) for n in names if package or not n.startswith("."))


@functools.cache
def _tree(file: str) -> ast.Module:
    try:
        return ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


@functools.cache
def _setters(file: str) -> tuple[tuple[str, str, int], ...]:
    """``(what is set, function, its first line)`` for the functions of a file that set something of the file's."""
    tree = _tree(file)
    at_import = {
        node.value.func.id
        for node in tree.body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
    }
    found: list[tuple[str, str, int]] = []
    for owner, function in _functions(tree, ""):
        # What another forward stores is hidden state, and no setting.
        if function.name in at_import or function.name == "forward":
            continue
        first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
        declared = {n for node in ast.walk(function) if isinstance(node, ast.Global) for n in node.names}
        local = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        local |= {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
        for target in _stores(function):
            root, attribute = _root(target)
            if root == "cls" and owner:
                found.append((f"{owner}.{attribute}", function.name, first))
            elif root and root not in local - declared:
                found.append((root, function.name, first))
                if attribute:
                    found.append((f"{root}.{attribute}", function.name, first))
    return tuple(found)


def _functions(node: ast.AST, owner: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield owner, child
        yield from _functions(child, child.name if isinstance(child, ast.ClassDef) else owner)


def _stores(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """What is assigned to, or changed by ``OPTIONS.update(...)`` and its kin."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            yield from node.targets
        elif isinstance(node, ast.AugAssign):
            yield node.target
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("update", "append", "extend", "setdefault", "__setitem__")
        ):
            yield ast.Subscript(node.func.value, ast.Constant(0))


def _root(target: ast.expr) -> tuple[str, str]:
    """``("SETTINGS", "unit")`` of ``SETTINGS.unit``; the attribute is the first one after the name."""
    attribute = ""
    while isinstance(target, (ast.Attribute, ast.Subscript)):
        if isinstance(target, ast.Attribute):
            attribute = target.attr
        target = target.value
    return (target.id, attribute) if isinstance(target, ast.Name) else ("", "")


def _line_of(footprint: Footprint, name: str) -> str:
    """Where the code that ran names it first."""
    for code in footprint.codes:
        if name in (*code.co_names, *code.co_consts):
            for line in sorted({n for _, _, n in code.co_lines() if n}):
                if re.search(rf"\b{re.escape(name)}\b", linecache.getline(code.co_filename, line).split("#")[0]):
                    return f"{code.co_filename}:{line}"
    return ""


def _unsound(what: str, where: str, evidence: str) -> Finding:
    return Finding(
        CHECK,
        f"the model asks for a setting: {what}",
        where,
        severity="unsound",
        evidence=evidence,
        mend="take the setting in __init__, or make it an input of the model",
    )
