"""Check of settings that others make: context variables, ``sys``, and state that one of the user's functions sets.

A global, an option in a dict, a variable of a closure or an attribute of a class or of an object is a setting where a
function that forward does not call stores there (``def use(unit): OPTIONS["unit"] = unit``). Each is set to other
values; where an output changes, a trace would have frozen the setting."""

from __future__ import annotations

import ast
import contextvars
import functools
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from exporter.archive.contract import Finding
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import EagerContext, make_refusal, outputs_equal, run_eager
from exporter.soundness.footprint import Footprint, find_matching_line, is_user_file, make_other_values, parse_file

CHECK = "settings"
_MEND = "take the setting in __init__, or make it an input of the model"
# Names in ``sys``, each with another value.
_SYS_VALUES = {"platform": "elsewhere", "argv": ["elsewhere"], "byteorder": "other"}


@dataclass(frozen=True)
class Setting:
    """A setting: ``word`` is the word in the code by which its line is found; ``setter`` says who sets it."""

    what: str
    word: str
    setter: str
    value: Any
    others: tuple[Any, ...]
    put: Callable[[Any], Any]


def check(context: EagerContext) -> list[Finding]:
    """Check that outputs do not depend on settings that others make."""
    return context.room(_check, context.inputs)


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    findings = []
    with Footprint() as footprint:
        first = run_eager(source, inputs)
    if isinstance(first, str):
        return []
    for setting in list_settings(source, footprint):
        for other_value in setting.others:
            setting.put(other_value)
            changed = not outputs_equal(run_eager(source, inputs), first)
            setting.put(setting.value)
            if changed:
                evidence = f"{setting.setter}; with {str(other_value)[:40]!r} in it outputs change"
                what, word = f"the model reads a setting: {setting.what}", setting.word
                codes = [c for c in footprint.codes if word in (*c.co_names, *c.co_consts, *c.co_freevars)]
                where = find_matching_line(codes, rf"\b{re.escape(word)}\b")
                findings.append(make_refusal(CHECK, what, where, evidence, _MEND))
                break
    return findings


def list_settings(source: Source, footprint: Footprint) -> list[Setting]:
    """List the settings that this code may read; the check has nothing to do without any."""
    # Internal state of an installed library is no setting: neml2 counts how deep it is in a call.
    footprint = footprint.without_libraries()
    ours = [*_iter_context_settings(footprint), *_iter_sys_settings(footprint)]
    return [*ours, *_iter_user_settings(footprint, source)]


def _iter_context_settings(footprint: Footprint) -> Iterator[Setting]:
    for code, namespace in footprint.codes.items():
        for name in code.co_names:
            variable = namespace.get(name)
            if not isinstance(variable, contextvars.ContextVar):
                continue
            try:
                value = variable.get()
            except LookupError:
                continue
            others = tuple(make_other_values(value))
            yield Setting(f"a context variable, {name}", name, "whoever calls sets it", value, others, variable.set)


def _iter_sys_settings(footprint: Footprint) -> Iterator[Setting]:
    for code, namespace in footprint.codes.items():
        for name in set(_SYS_VALUES) & set(code.co_names):
            if any(namespace.get(n) is sys for n in code.co_names) or namespace.get(name) is getattr(sys, name):
                put = functools.partial(_put_everywhere, namespace, name, getattr(sys, name))
                yield Setting(f"sys.{name}", name, "the host sets it", getattr(sys, name), (_SYS_VALUES[name],), put)


def _put_everywhere(namespace: dict[str, Any], name: str, original: Any, value: Any) -> None:
    setattr(sys, name, value)
    # ``from sys import platform``
    if name in namespace:
        namespace[name] = value


def _iter_user_settings(footprint: Footprint, source: Source) -> Iterator[Setting]:
    ran = {(code.co_filename, code.co_name, code.co_firstlineno) for code in footprint.codes}
    setters: dict[str, str] = {}
    closures: set[str] = set()
    for file in _find_files(footprint):
        variables, closure_setters = _find_closures(file)
        closures |= variables
        rows = (*_find_setters(file), *closure_setters)
        setters.update((stored, setter) for stored, setter, first in rows if (file, setter, first) not in ran)
    if not setters:
        return
    for label, leaf in footprint.read_state(source.parameter_module).items():
        # "global 'OPTIONS'['unit']", "class attribute Law.mode", "global 'SETTINGS'.unit", "options.UNIT"
        root = re.match(r"global '(\w+)'|class attribute (\w+\.\w+)|\w+\.(\w+)", label)
        name = next(filter(None, root.groups()), "") if root else ""
        # "closure 'options' of make_law.<locals>.Law.forward['unit']"
        if closure := re.match(r"closure '(\w+)' of (.+)\.<locals>\.", label):
            owners = closure[2].split(".<locals>.")
            names = [f"{closure[1]} of {'.<locals>.'.join(owners[:i])}" for i in range(len(owners), 0, -1)]
            # The innermost function around it that has such a variable.
            name = next((n for n in names if n in closures), "")
        if name in setters and leaf.put is not None and isinstance(leaf.value, (bool, int, float, str)):
            word = closure[1] if closure else re.findall(r"\w+", label)[-1]
            setter = f"{setters[name]}() sets it"
            yield Setting(label, word, setter, leaf.value, tuple(make_other_values(leaf.value)), leaf.put)


def _find_files(footprint: Footprint) -> set[str]:
    """Return the files of the code that ran, and of the user's modules that they import from."""
    paths = {code.co_filename for code in footprint.codes}
    for code, namespace in footprint.codes.items():
        globals_used = [namespace.get(name) for name in code.co_names]
        names = {getattr(v, "__module__", None) or getattr(v, "__name__", "") for v in globals_used}
        names |= _find_imported_modules(code.co_filename, str(namespace.get("__package__") or ""))
        files = (getattr(sys.modules.get(str(name)), "__file__", None) for name in names)
        paths |= {file for file in files if file and is_user_file(file)}
    return paths


@functools.cache
def _find_imported_modules(file: str, package: str) -> frozenset[str]:
    nodes = [n for n in ast.walk(parse_file(file)) if isinstance(n, ast.ImportFrom)]
    names = ("." * n.level + (n.module or "") for n in nodes)
    return frozenset(importlib.util.resolve_name(n, package) for n in names if package or not n.startswith("."))


@functools.cache
def _find_setters(file: str) -> tuple[tuple[str, str, int], ...]:
    """Return ``(target, function, its first line)`` for the functions of a file that set something of the file's."""
    tree = parse_file(file)
    calls = [node.value for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    at_import = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    setters: list[tuple[str, str, int]] = []
    for owner, function in _iter_functions(tree, ""):
        # A value that another forward stores is hidden state, and no setting.
        if function.name in at_import or function.name == "forward":
            continue
        first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
        declared = {n for node in ast.walk(function) if isinstance(node, ast.Global) for n in node.names}
        local = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        local |= {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
        for target in _iter_stores(ast.walk(function)):
            root, attribute = _split_target(target)
            if root == "cls" and owner:
                setters.append((f"{owner}.{attribute}", function.name, first))
            elif root and root not in local - declared:
                setters.append((root, function.name, first))
                if attribute:
                    setters.append((f"{root}.{attribute}", function.name, first))
    return tuple(setters)


_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@functools.cache
def _find_closures(file: str) -> tuple[frozenset[str], tuple[tuple[str, str, int], ...]]:
    """Return the variables of functions, ``"options of make_law"``, and for those that functions inside set
    ``("options of make_law", function, its first line)``."""
    rows = list(_iter_closures(parse_file(file), "", {}, parse_file(file)))
    return frozenset(row[0] for row in rows if not row[1]), tuple(row for row in rows if row[1])


def _iter_closures(node: ast.AST, path: str, around: dict[str, str], owner: ast.AST) -> Iterator[tuple[str, str, int]]:
    """``path`` is the qualified name of what ``node`` is in, ``around`` the function that has each variable, ``owner``
    the function around ``node``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _iter_closures(child, f"{path}{child.name}.", around, owner)
        elif isinstance(child, _FUNCTIONS):
            label = "<lambda>" if isinstance(child, ast.Lambda) else child.name
            parts = list(_iter_own_parts(child))
            stored = {n.id for n in parts if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            outer = {n for part in parts if isinstance(part, ast.Nonlocal) for n in part.names}
            own = {a.arg for a in ast.walk(child.args) if isinstance(a, ast.arg)} | (stored - outer)
            yield from ((f"{name} of {path}{label}", "", 0) for name in own)
            roots = (stored & outer) | {_split_target(target)[0] for target in _iter_stores(parts)}
            owners = {root: around[root] for root in sorted(roots) if root in around and root not in own}
            if owners and label != "forward" and not _is_called_alone(owner, label):
                yield from ((f"{root} of {name}", label, _get_first_line(child)) for root, name in owners.items())
            inner = around | dict.fromkeys(own, path + label)
            yield from _iter_closures(child, f"{path}{label}.<locals>.", inner, child)
        else:
            yield from _iter_closures(child, path, around, owner)


def _get_first_line(function: _Function) -> int:
    return min([function.lineno, *(d.lineno for d in getattr(function, "decorator_list", ()))])


def _is_called_alone(owner: ast.AST, name: str) -> bool:
    """Return whether a function is only called in the body of the one around it: nobody calls it later."""
    uses = [n for n in ast.walk(owner) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    parts = list(_iter_own_parts(owner)) if isinstance(owner, _FUNCTIONS) else []
    called = {id(part.func) for part in parts if isinstance(part, ast.Call)}
    return bool(uses) and all(id(use) in called for use in uses)


def _iter_own_parts(function: _Function) -> Iterator[ast.AST]:
    """Yield the parts of a function without those of the functions and classes in it."""
    waiting: list[ast.AST] = [function.body] if isinstance(function, ast.Lambda) else list(function.body)
    while waiting:
        part = waiting.pop()
        yield part
        if not isinstance(part, (*_FUNCTIONS, ast.ClassDef)):
            waiting += ast.iter_child_nodes(part)


def _iter_functions(node: ast.AST, owner: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield owner, child
        yield from _iter_functions(child, child.name if isinstance(child, ast.ClassDef) else owner)


# Methods of containers that write.
_WRITERS = ("update", "append", "extend", "setdefault", "__setitem__")


def _iter_stores(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """Yield the targets of assignments, and the objects that ``OPTIONS.update(...)`` and the like change."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield from node.targets
        elif isinstance(node, ast.AugAssign):
            yield node.target
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _WRITERS:
            yield ast.Subscript(node.func.value, ast.Constant(0))


def _split_target(target: ast.expr) -> tuple[str, str]:
    """Return ``("SETTINGS", "unit")`` for ``SETTINGS.unit``; the attribute is the first one after the name."""
    attribute = ""
    while isinstance(target, (ast.Attribute, ast.Subscript)):
        if isinstance(target, ast.Attribute):
            attribute = target.attr
        target = target.value
    return (target.id, attribute) if isinstance(target, ast.Name) else ("", "")
