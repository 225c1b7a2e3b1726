"""Structures of a call: which variables of the file stand where in the arguments and results of the user's own call.

A structure is a sequence of nodes: each node is followed by the nodes of its parts. So a contract holds it as a list,
and a stranger's file can say nothing but lists, tuples, dicts, named tuples, texts and numbers."""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from exporter.archive.contract_text import StrictlyRead, check_name, is_identifier, parse_strictly
from exporter.archive.format_limits import MAX_NAME
from exporter.common.errors import UsageError, suggest_names

# Parts in each other: a call of Python that is deeper nobody writes.
MAX_DEPTH = 50


StructureKind = Literal["variable", "fixed", "list", "tuple", "dict", "named tuple"]


@dataclass(frozen=True)
class StructureNode(StrictlyRead):
    """One node of a structure.

    Attributes:
        kind: ``variable``: a tensor; ``fixed``: a value that each call has; ``list``, ``tuple``, ``dict``; ``named
            tuple``, also for a dataclass, or another class whose parts have names.
        name: The variable's name.
        keys: The keys of the parts, which follow: of a list or tuple its places.
        value: The fixed value as JSON.
    """

    kind: StructureKind
    name: str = ""
    keys: tuple[str | int, ...] = ()
    value: str = ""


Structure = tuple[StructureNode, ...]


def check_structure(structure: Structure, known: Sequence[str]) -> None:
    """Raise ``UsageError`` for a sequence of nodes that is no structure, or names a variable that is not ``known``.

    Each variable stands in it once at most."""
    if not structure:
        return
    names = [node.name for node in structure if node.kind == "variable"]
    counts = collections.Counter(names)
    unfit = [name for name, count in counts.items() if count > 1] or sorted(counts.keys() - {*known})
    if unfit:
        what = "the structure of a call has other variables than the contract, or one of them twice"
        raise UsageError(what, got=repr(unfit[0]), expected=suggest_names(unfit[0], known))
    # How many parts are to come, of each node that is open.
    missing = [1]
    for node in structure:
        _check_node(node)
        while missing and not missing[-1]:
            missing.pop()
        if not missing or len(missing) > MAX_DEPTH:
            what, expected = "the structure of a call is broken", f"nodes with their parts, {MAX_DEPTH} in each other"
            raise UsageError(what, got="a part of nothing, or too deep", expected=expected)
        missing[-1] -= 1
        missing.append(len(node.keys))
    if any(missing):
        raise UsageError("the structure of a call is broken", got="parts are missing", expected="a node for each key")


def _check_node(node: StructureNode) -> None:
    """Raise ``UsageError`` for keys that a node cannot have, and for a value that is none."""
    texts = [key for key in node.keys if isinstance(key, str)]
    numbers = [key for key in node.keys if not isinstance(key, str)]
    if node.kind in ("list", "tuple"):
        fits = [*node.keys] == [*range(len(node.keys))]
    elif node.kind == "dict":
        fits = all(type(key) is int and is_small(key) for key in numbers)
    else:
        fits = all(map(is_field, texts)) and not numbers and (node.kind == "named tuple" or not texts)
    fits = fits and len({*node.keys}) == len(node.keys)
    if not fits or (node.kind == "fixed") != bool(node.value) or (node.kind == "variable") != bool(node.name):
        got, expected = repr(node)[:200], "keys, name and value that fit its kind"
        raise UsageError("a node of the structure of a call is broken", got=got, expected=expected)
    for key in texts:
        check_name(key, "a part of a call")
    if node.kind == "fixed":
        read_fixed(node)


def is_field(name: str) -> bool:
    """Return whether a part of a named tuple may have this name."""
    return is_identifier(name) and not name.startswith("_")


def is_small(number: int) -> bool:
    """Return whether every reader has this whole number."""
    return -(2**63) <= number < 2**63


def format_fixed(value: Any) -> str:
    """Return a fixed value as a node has it; empty for one that JSON has not: NaN, bytes, a complex number."""
    try:
        text = json.dumps(value, allow_nan=False)
        read_fixed(StructureNode("fixed", value=text))
    except (TypeError, ValueError, UsageError):
        return ""
    return text


def read_fixed(node: StructureNode) -> Any:
    """Return a fixed value. Raises ``UsageError`` for a text that is no number, text, truth value or null of JSON."""
    try:
        value = parse_strictly(node.value) if len(node.value) <= MAX_NAME else ()
        str(value).encode()
    except ValueError:
        value = ()
    is_broken = isinstance(value, (list, dict, tuple)) or (isinstance(value, int) and not is_small(value))
    if is_broken or (isinstance(value, float) and not math.isfinite(value)):
        what, expected = "a fixed value of a call is broken", "a number, a text, true, false or null of JSON"
        raise UsageError(what, got=node.value[:100], expected=f"{expected}, of at most {MAX_NAME} characters")
    return value


def build_value(structure: Structure, variables: Mapping[str, Any]) -> Any:
    """Return the value of a structure, of the values of its variables by name."""
    return _build(iter(structure), variables)


def _build(nodes: Iterator[StructureNode], variables: Mapping[str, Any]) -> Any:
    node = next(nodes)
    if node.kind == "variable":
        return variables[node.name]
    if node.kind == "fixed":
        return read_fixed(node)
    parts = [_build(nodes, variables) for _ in node.keys]
    if node.kind == "named tuple":
        # Names that are none in Python are replaced by places.
        return collections.namedtuple("NamedTuple", [str(key) for key in node.keys], rename=True)(*parts)
    return (
        dict(zip(node.keys, parts, strict=True)) if node.kind == "dict" else (list, tuple)[node.kind == "tuple"](parts)
    )


def is_plain_dict(structure: Structure) -> bool:
    """Return whether this is a dict of variables by their names."""
    root, *parts = structure
    return root.kind == "dict" and [*root.keys] == [part.name for part in parts]


def format_structure(structure: Structure) -> str:
    """Return a structure as Python would write it, with the names of variables: ``{'state': {'h': state.h}}``."""
    return _format(iter(structure)) if structure else ""


def _format(nodes: Iterator[StructureNode]) -> str:
    node = next(nodes)
    if node.kind == "variable":
        return node.name
    if node.kind == "fixed":
        return repr(read_fixed(node))
    parts = [(key, _format(nodes)) for key in node.keys]
    if node.kind == "dict":
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in parts) + "}"
    if node.kind == "named tuple":
        return f"NamedTuple({', '.join(f'{key}={part}' for key, part in parts)})"
    inner = ", ".join(part for _, part in parts)
    return f"[{inner}]" if node.kind == "list" else f"({inner}{',' if len(parts) == 1 else ''})"


def list_parts(structure: Structure) -> dict[str, Structure]:
    """Return the structure of each part of a dict, by key."""
    root, *nodes = structure
    parts, start = dict[str, Structure](), 0
    for key in root.keys:
        end, missing = start, 1
        while missing:
            missing += len(nodes[end].keys) - 1
            end += 1
        parts[str(key)], start = tuple(nodes[start:end]), end
    return parts


def take_apart(structure: Structure, value: Any, place: str) -> dict[str, Any]:
    """Return the variables of a value that has the structure, by name.

    A named tuple is any object with its attributes, or a mapping. Raises ``UsageError`` for another structure."""
    taken: dict[str, Any] = {}
    _take(iter(structure), value, place, taken)
    return taken


def _take(nodes: Iterator[StructureNode], value: Any, place: str, taken: dict[str, Any]) -> None:
    node = next(nodes)
    if node.kind == "variable":
        taken[node.name] = value
        return
    if node.kind == "fixed":
        fixed = read_fixed(node)
        if format_fixed(value) != format_fixed(fixed):
            what, mend = f"{place!r} is fixed in the file", "export the model again with this value"
            raise UsageError(what, got=repr(value)[:100], expected=repr(fixed), mend=mend)
        return
    kind = {"list": Sequence, "tuple": Sequence, "dict": Mapping}.get(node.kind, object)
    keys, parts = _list_own_parts(node, value)
    if (
        not isinstance(value, kind)
        or isinstance(value, str)
        or (keys != [*node.keys] and (node.kind in ("list", "tuple") or {*keys} != {*node.keys}))
    ):
        what, expected = (
            f"{place!r} has another structure than in the file",
            f"a {node.kind} with {_list_keys(node.keys)}",
        )
        got = f"{type(value).__name__} with {_list_keys(keys)}" if keys else type(value).__name__
        raise UsageError(what, got=got, expected=expected, mend="pass what the model itself takes")
    by_key = dict(zip(keys, parts, strict=True))
    for key in node.keys:
        _take(nodes, by_key[key], f"{place}.{key}", taken)


def _list_own_parts(node: StructureNode, value: Any) -> tuple[list[Any], list[Any]]:
    """Return the keys and the parts of a value, as a node of this kind has them; none where it has no such parts."""
    if isinstance(value, Mapping) and node.kind in ("dict", "named tuple"):
        return [*value.keys()], [*value.values()]
    if node.kind == "named tuple":
        keys = [key for key in node.keys if hasattr(value, str(key))]
        return keys, [getattr(value, str(key)) for key in keys]
    is_sequence = isinstance(value, Sequence) and node.kind in ("list", "tuple")
    return ([*range(len(value))], [*value]) if is_sequence else ([], [])


def _list_keys(keys: Sequence[Any]) -> str:
    return ", ".join(map(str, keys[:20])) or "no parts"
