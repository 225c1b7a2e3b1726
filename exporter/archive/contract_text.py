"""The text of a contract or a manifest before it means anything: strict JSON, within limits, showing as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from pydantic import ConfigDict, ValidationError

from exporter.archive.format_limits import MAX_ITEMS, MAX_NAME, MAX_NESTING, MAX_RANK, MAX_SIZE, MAX_TEXT, MAX_UNIT
from exporter.common.errors import ArchiveError, UsageError
from exporter.common.plain_text import find_unsafe

# Bytes that file systems allow.
MAX_FILE_NAME = 255


class StrictlyRead:
    """Holds fields that are read from JSON without conversions, and without fields that it does not know."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def parse_strictly(text: str | bytes) -> Any:
    """Parse JSON that every reader reads in the same way: UTF-8 without a mark, each key once.

    Raises ``ValueError``."""
    decoded = text.decode("utf-8") if isinstance(text, bytes) else text
    try:
        return json.loads(decoded, object_pairs_hook=_make_object, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("lists or objects nested too deeply") from None


def _make_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key stands in an object twice")
    return values


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def describe_invalid(error: ValidationError) -> str:
    """Describe the first field that does not have its type: ``field opset: Input should be a valid integer (None)``."""
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"]) or "the whole text"
    return f"field {path}: {first['msg']} ({str(first.get('input'))[:80]})"


def check_limits(raw: Any, what: str, where: str) -> None:
    """Raise ``ArchiveError`` for JSON beyond the format's limits, or with a text that does not show as it is."""
    for path, value in _iterate(raw):
        problem = _find_problem(path, value)
        if problem:
            reason, got, expected = problem
            place = f"{where}, field {'.'.join(map(str, path)) or 'the whole'}"
            raise ArchiveError(f"{what}: {reason}", where=place, got=got, expected=expected)


def check_name(name: str, of: str) -> None:
    """Raise ``UsageError`` for a name that is empty, too long, or does not show as it is."""
    unsafe = find_unsafe(name, is_name=True)
    if not name or len(name) > MAX_NAME or unsafe:
        got = f"the character {unsafe}" if unsafe else f"{len(name)} characters"
        expected = f"1 to {MAX_NAME} characters, none of them a control character"
        raise UsageError(f"the name of {of} is not a name", got=got, expected=expected, mend="rename it")


def check_unit(unit: str, of: str) -> None:
    """Raise ``UsageError`` for the unit of a variable that is too long, or does not show as it is; empty is none."""
    check_label(unit, f"the unit of {of!r}", MAX_UNIT)


def check_label(text: str, of: str, limit: int = MAX_NAME, *, is_needed: bool = False) -> None:
    """Raise ``UsageError`` for one line of text that is too long, or does not show as it is; empty is none."""
    unsafe = find_unsafe(text, is_name=True)
    if len(text) > limit or unsafe or text != text.strip(" ") or (is_needed and not text):
        got = f"the character {unsafe}" if unsafe else f"{len(text)} characters, {text[:20]!r}"
        expected = f"one line of at most {limit} characters, none of them a control character, no space around them"
        raise UsageError(f"what is said is not one line: {of}", got=got, expected=expected, mend="correct it")


def is_identifier(name: str) -> bool:
    """Return whether every language that a file reaches takes the name as an identifier."""
    return name.isascii() and name.isidentifier()


def is_file_name(name: str) -> bool:
    """Return whether this is the name of a file in a folder, and no path to another."""
    is_plain = name == PurePosixPath(name).name == PureWindowsPath(name).name and not find_unsafe(name, is_name=True)
    return is_plain and name not in ("", ".", "..") and len(name.encode()) <= MAX_FILE_NAME


def _find_problem(path: Sequence[str | int], value: Any) -> tuple[str, str, str] | None:
    if len(path) > MAX_NESTING:
        return "lists or objects are nested too deeply", f"{len(path)} in each other", f"at most {MAX_NESTING}"
    if isinstance(value, (list, dict)) and len(value) > MAX_ITEMS:
        return "there are too many", str(len(value)), f"at most {MAX_ITEMS}"
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            return "a text is too long", f"{len(value)} characters", f"at most {MAX_TEXT}"
        if unsafe := find_unsafe(value, is_name=False):
            return "a text does not show as it is", f"the character {unsafe}", "no control characters"
    in_shape = len(path) > 1 and path[-2] == "shape"
    if path and path[-1] == "shape" and isinstance(value, list) and len(value) > MAX_RANK:
        return "a shape has too many sizes", str(len(value)), f"at most {MAX_RANK}"
    in_sizes = len(path) > 1 and path[-2] in ("sizes", "ranks")
    if (in_shape or in_sizes) and isinstance(value, int) and not 0 <= value <= MAX_SIZE:
        return "a size is out of range", str(value), f"a number from 0 to {MAX_SIZE}"
    return None


def _iterate(raw: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield every value with its path, and every key as a value, without recursion."""
    stack: list[tuple[tuple[str | int, ...], Any]] = [((), raw)]
    while stack:
        path, value = stack.pop()
        yield path, value
        if isinstance(value, dict):
            stack += [((*path, "key"), key) for key in value]
            stack += [((*path, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            stack += [((*path, i), item) for i, item in enumerate(value)]
