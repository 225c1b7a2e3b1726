"""Overrides of an input file, as NEML2's own commands take them: checked against the file before it is read with them.

NEML2 itself appends them to the file, where a name that is not there is a new one, which nothing reads."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from exporter.archive.contract import Finding
from exporter.common.errors import SourceError, UsageError, suggest_names

# ``nbatch=8``, ``Models/elasticity/E:=210000``.
_OVERRIDE = re.compile(r"\s*([^\s=:\[\]'\"]+)\s*(:?=)\s*(\S.*?)\s*", re.DOTALL)
# What a file leaves open stands in braces, alone or in a formula.
_BRACES = re.compile(r"\$\{([^{}]*)\}")
_WORD = re.compile(r"[A-Za-z_][\w./-]*")


def parse_overrides(path: Path, overrides: Sequence[str]) -> list[str]:
    """Return overrides as lines of an input file, once each is known to change something of this one.

    Raises ``UsageError`` for what is no override, or is there twice, ``SourceError`` for a name that it has not."""
    if not overrides:
        return []
    fields, opens = _list_names(path)
    seen, lines = dict[str, str](), list[str]()
    for override in overrides:
        match = _OVERRIDE.fullmatch(override)
        if match is None:
            expected = "NAME=VALUE, or PATH:=VALUE for a value that the file has"
            raise UsageError("this is no override of an input file", where=str(path), got=override, expected=expected)
        name, sign, value = match.groups()
        if name in seen:
            got, mend = f"{seen[name]}, {override}", "leave out one of them"
            raise UsageError(f"{name!r} is overridden twice", where=str(path), got=got, mend=mend)
        seen[name] = override
        if name in fields and sign == "=":
            mend = f"override it: {name}:={value}"
            raise UsageError(f"the input file has a value of {name!r}", where=str(path), got=override, mend=mend)
        is_known = name in fields or name in opens or _is_new_option(name, sign, fields)
        if not is_known and not _is_of_other_files(name, sign, fields | opens):
            what, expected = f"there is no {name!r} in the input file", suggest_names(name, sorted(fields | opens))
            mend = f"an option that it leaves out: {name}={value}" if _is_new_option(name, "=", fields) else ""
            raise SourceError(what, where=str(path), got=override, expected=expected, mend=mend)
        # A shell has taken the quotes of a list away.
        lines.append(f"{name} {sign} '{value}'" if len(value.split()) > 1 and value[0] not in "'\"" else override)
    return lines


def iterate_fields(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value below a node of an input file, with its path."""
    import nmhit

    for child in node.children():
        name = f"{path}{child.path()}"
        if child.type() == nmhit.NodeType.Field:
            yield name, child
        elif child.type() == nmhit.NodeType.Section:
            yield from iterate_fields(child, f"{name}/")


def find_unread(path: Path, overrides: Sequence[str]) -> tuple[Finding, ...]:
    """Return a finding on each override that the file does not read: one list of them may serve several files."""
    if not overrides:
        return ()
    names = [match[1] for match in map(_OVERRIDE.fullmatch, overrides) if match is not None]
    known = set().union(*_list_names(path))
    unread = [name for name in names if "/" not in name and name not in known]
    reason = "another file may read it"
    return tuple(Finding("overrides", f"the input file does not read {n!r}", path.name, reason) for n in unread)


def _list_names(path: Path) -> tuple[set[str], set[str]]:
    """Return the paths of a file's values, and the words of what it leaves open; comments are read as well."""
    import nmhit

    root = nmhit.parse_file(path, [], [])
    fields = {name for name, _ in iterate_fields(root)}
    return fields, {word for text in _BRACES.findall(root.render()) for word in _WORD.findall(text)} - fields


def _is_of_other_files(name: str, sign: str, known: set[str]) -> bool:
    """Return whether a name that the file does not have may be meant for others: it is like none that it has."""
    return "/" not in name and sign == "=" and not difflib.get_close_matches(name, known, 1)


def _is_new_option(name: str, sign: str, fields: set[str]) -> bool:
    """Return whether this gives a section that is there an option that it has not: NEML2 checks whether it knows it."""
    section, slash, _ = name.rpartition("/")
    return bool(slash) and sign == "=" and any(field.startswith(f"{section}/") for field in fields)
