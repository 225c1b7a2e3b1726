"""TorchScript files that are byte for byte the same wherever and whenever the same module is saved.

What ``torch.jit.save`` writes depends on what the process did before (a class that TorchScript has met already gets a
number, ``___torch_mangle_7``) and on where it runs (the debug records hold the stacks of the trace, with absolute
paths, and frames of torch's). Here classes are numbered as they are met from the top module on, each in a record of its
own; of stacks the user's lines are kept, under the name by which their file is imported; and the zip has fixed names
and dates.

Formats: torch/csrc/jit/serialization/python_print.cpp (code), source_range_serialization.cpp (debug records),
caffe2/serialize/inline_container.cc (the zip: one top folder, tensors on 64-byte boundaries).
"""

from __future__ import annotations

import bisect
import io
import itertools
import pickle
import pickletools
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.jit import _pickle

from exporter.archive.zip_records import _SERIAL
from exporter.capture import module_tree
from exporter.common.source_paths import importable, without_stand_in
from exporter.common.user_code import NOT_THE_USERS

_CODE, _DEBUG = ".py", ".py.debug_pkl"
# A text, which is left as it is; a qualified name; a temporary of torch's printer, which it numbers within a record.
_NAME = re.compile(r"""(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|__torch__(?:\.\w+)+|(?<![\w.])_\d+\b""")
_QUALIFIED = re.compile(r"__torch__(?:\.\w+)+")
# Names that are the user's, whatever they look like: attributes, and arguments.
_KEPT = re.compile(r"^  (_\d+) (?::|=) |[(,]\s*(_\d+)(?:: |=)|\.(_\d+)\b|^ *(?:def|class) (_\d+)\b", re.MULTILINE)
_MANGLED = re.compile(r"\.___torch_mangle_\d+")
_TOP = re.compile(r"^(?:class|def) (\w+)", re.MULTILINE)
_FRAME = re.compile(r"(.+)\((\d+)\): (.*)")


def packed(module: Any) -> dict[str, bytes]:
    """The records of a ``ScriptModule``'s file, by name without the top folder."""
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    with zipfile.ZipFile(buffer) as saved:
        folder = saved.namelist()[0].partition("/")[0]
        records = {name.removeprefix(f"{folder}/"): saved.read(name) for name in saved.namelist()}
    records.pop(_SERIAL, None)
    definitions = {d.name: d for d in _definitions(records)}
    names = _new_names(definitions, records["data.pkl"])
    made = {name: data for name, data in records.items() if not name.endswith((_CODE, _DEBUG))}
    for record in ("data.pkl", "constants.pkl"):
        made[record] = _renamed_pickle(made[record], names)
    for old, new in names.items():
        code, moved = _renamed(definitions[old].text, names)
        place = f"code/{new.rpartition('.')[0].replace('.', '/')}"
        made[place + _CODE] = code.encode()
        made[place + _DEBUG] = _debug(definitions[old], moved)
    return made


@dataclass(frozen=True)
class _Definition:
    """A class or function in a code record: its source, and the debug rows that speak of it, from its start."""

    name: str
    text: str
    strings: tuple[str, ...]
    rows: tuple[tuple[int, Any, int], ...]


def _definitions(records: Mapping[str, bytes]) -> Iterator[_Definition]:
    for name, data in records.items():
        if not name.startswith("code/") or not name.endswith(_CODE):
            continue
        text = data.decode()
        space = name.removeprefix("code/").removesuffix(_CODE).replace("/", ".")
        debug = _unpickled(records[name.removesuffix(_CODE) + _DEBUG])
        _, strings, rows = debug
        starts = [m.start() for m in _TOP.finditer(text)]
        # Offsets are of bytes, the text may have names that are not ASCII.
        at = [len(text[:s].encode()) for s in starts] + [len(data)]
        for i, match in enumerate(_TOP.finditer(text)):
            own = data[at[i] : at[i + 1]].decode()
            first = bisect.bisect_left(rows, at[i], key=lambda row: row[0])
            last = bisect.bisect_left(rows, at[i + 1], key=lambda row: row[0])
            kept = tuple((offset - at[i], source, tag) for offset, source, tag in rows[first:last])
            yield _Definition(f"{space}.{match[1]}", own, strings, kept)


def _new_names(definitions: Mapping[str, _Definition], pickled: bytes) -> dict[str, str]:
    """Old names to new, in the order in which they are met from the classes of the top module's pickle on."""
    met = [str(argument).replace(" ", ".") for op, argument, _ in pickletools.genops(pickled) if op.name == "GLOBAL"]
    todo = [n for n in met if n in definitions]
    new: dict[str, str] = {}
    while todo:
        name = todo.pop(0)
        if name in new:
            continue
        space, _, own = without_stand_in(_MANGLED.sub("", name)).rpartition(".")
        new[name] = f"{space}.___torch_mangle_{len(new)}.{own}"
        found = (_known(m[0], definitions) for m in _NAME.finditer(definitions[name].text) if m["text"] is None)
        todo += [n for n in found if n]
    return new


def _known(text: str, names: Mapping[str, Any]) -> str:
    """The name that a dotted text begins with: what follows are its attributes."""
    parts = text.split(".")
    prefixes = (".".join(parts[:i]) for i in range(len(parts), 0, -1))
    return next((p for p in prefixes if p in names), "")


def _renamed(text: str, names: Mapping[str, str]) -> tuple[str, list[tuple[int, int]]]:
    """The text under new names; pairs of old and new byte offsets from where on they differ by as much."""
    pieces: list[str] = []
    kept = {name for match in _KEPT.finditer(text) for name in match.groups() if name}
    free = (name for i in itertools.count() if (name := f"_{i}") not in kept)
    numbers: dict[str, str] = {}
    moved = [(0, 0)]
    last = old = new = 0
    for match in _NAME.finditer(text):
        if match["text"] is not None or match[0] in kept:
            continue
        if match[0].startswith("__torch__"):
            known = _known(match[0], names)
            other = names.get(known, "")
        else:
            known = match[0]
            other = numbers[known] if known in numbers else numbers.setdefault(known, next(free))
        if not other or other == known:
            continue
        between = text[last : match.start()]
        pieces += [between, other]
        last = match.start() + len(known)
        old += len(between.encode()) + len(known)
        new += len(between.encode()) + len(other)
        moved.append((old, new))
    return "".join([*pieces, text[last:]]), moved


def _renamed_types(text: str, names: Mapping[str, str]) -> str:
    """A type as a pickle names it; any other text stays."""
    return _QUALIFIED.sub(lambda m: names[k] + m[0][len(k) :] if (k := _known(m[0], names)) else m[0], text)


def _renamed_pickle(data: bytes, names: Mapping[str, str]) -> bytes:
    """Class names are in the pickle as globals, and in the texts of types. torch numbers whatever somebody else holds,
    too, for a use that never comes: only what is used again keeps its number."""
    ops = list(pickletools.genops(data))
    used = {argument for op, argument, _ in ops if op.name in ("BINGET", "LONG_BINGET")}
    numbers: dict[Any, int] = {}
    pieces = []
    for i, (op, argument, at) in enumerate(ops):
        raw = data[at : ops[i + 1][2] if i + 1 < len(ops) else len(data)]
        if op.name == "GLOBAL" and (new := names.get(str(argument).replace(" ", "."))):
            space, _, own = new.rpartition(".")
            raw = f"c{space}\n{own}\n".encode()
        elif op.name == "BINUNICODE":
            text = _renamed_types(str(argument), names).encode()
            raw = b"X" + struct.pack("<I", len(text)) + text
        elif op.name in ("BINPUT", "LONG_BINPUT"):
            raw = _numbered(b"qr", numbers.setdefault(argument, len(numbers))) if argument in used else b""
        elif op.name in ("BINGET", "LONG_BINGET"):
            raw = _numbered(b"hj", numbers[argument])
        pieces.append(raw)
    return b"".join(pieces)


def _numbered(codes: bytes, number: int) -> bytes:
    """A short operation for a small number, a long one for a large."""
    return codes[:1] + bytes([number]) if number < 256 else codes[1:] + struct.pack("<I", number)


class _Integers(list):  # type: ignore[type-arg]
    """What TorchScript pickles a list of integers as."""

    def __reduce__(self) -> Any:
        return _pickle.build_intlist, (list(self),)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != ("torch.jit._pickle", "build_intlist"):
            raise pickle.UnpicklingError(f"{module}.{name} in a debug record")
        return _Integers


def _unpickled(data: bytes) -> Any:
    return _Unpickler(io.BytesIO(data)).load()


def _debug(definition: _Definition, moved: list[tuple[int, int]]) -> bytes:
    """A debug record: rows of where in the code, what source, and a number for each source."""
    strings: dict[str, int] = {"": 0}
    sources: dict[Any, Any] = {}
    tags: dict[Any, int] = {}

    def number(text: str) -> int:
        return strings.setdefault(text, len(strings))

    before: Any = ("", "", 0, 0, 0)
    sources[before[:3]] = (_Integers(), 0, 0)
    rows = [(0, (sources[before[:3]], 0, 0), tags.setdefault(before, 0))]
    for offset, ((texts, file, line), first, last), _ in definition.rows:
        whole = "".join(definition.strings[i] for i in texts)
        lines = _users(whole)
        kept = whole if lines is None else "".join(lines)
        name, at = (importable(definition.strings[file]), line) if lines is None else ("", 0)
        if (kept, name, at) not in sources:
            numbers = _Integers(number(t) for t in kept.splitlines(keepends=True))
            sources[kept, name, at] = (numbers, number(name), at)
        start, end = (first, last) if lines is None else (0, len(kept.encode()))
        old, new = moved[bisect.bisect_right(moved, (offset, 1 << 62)) - 1]
        key = (kept, name, at, start, end)
        # A row speaks of all code up to the next one.
        if key != before:
            rows.append((offset - old + new, (sources[kept, name, at], start, end), tags.setdefault(key, len(tags))))
        before = key
    return pickle.dumps(("FORMAT_WITH_STRING_TABLE", tuple(strings), tuple(rows)), protocol=2)


def _users(text: str) -> list[str] | None:
    """Of a stack the lines of the user's; None for a text that is no stack."""
    frames = [_FRAME.fullmatch(line) for line in text.splitlines()]
    if not frames or not all(frames):
        return None
    # What called the capture is no part of the model.
    inside = next((i for i, f in enumerate(frames) if f and f[1] == module_tree.__file__), len(frames))
    own = [f for f in frames[:inside] if f and not f[1].startswith(NOT_THE_USERS)]
    return [f"{importable(f[1])}({f[2]}): {f[3]}\n" for f in own]
