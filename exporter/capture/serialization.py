"""Byte-for-byte reproducible TorchScript files of a module, wherever and whenever it is saved.

The output of ``torch.jit.save`` depends on what the process did before (a class that TorchScript has already met gets a
number, ``___torch_mangle_7``) and on where it runs (the debug records hold the stacks of the trace, with absolute
paths, and frames of torch). Here classes are numbered in the order in which they are reached from the top module, each
in its own record; stacks keep the user's lines only, under the import name of their file; and the zip has fixed names
and dates.

Formats: torch/csrc/jit/serialization/python_print.cpp (code), source_range_serialization.cpp (debug records),
caffe2/serialize/inline_container.cc (the zip: one top folder, tensors on 64-byte boundaries)."""

from __future__ import annotations

import bisect
import functools
import io
import itertools
import pickle
import pickletools
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from exporter.archive import pt_archive
from exporter.archive.zip_records import _SERIAL
from exporter.capture import module_tree
from exporter.common.errors import ArchiveError, UnsupportedError
from exporter.common.source_paths import importable_path, strip_stand_in
from exporter.common.torch_internals import make_integer_list
from exporter.common.user_code import INTERNAL_PATH_PREFIXES, OWN_SOURCES

_CODE, _DEBUG = ".py", ".py.debug_pkl"
# A text, which stays; a qualified name; a temporary of torch's printer, which numbers them within a record.
_NAME = re.compile(r"""(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|__torch__(?:\.\w+)+|(?<![\w.])_\d+\b""")
_QUALIFIED = re.compile(r"__torch__(?:\.\w+)+")
# Names that are the user's, whatever they look like: attributes, and arguments.
_USER_NAMES = re.compile(r"^  (_\d+) (?::|=) |[(,]\s*(_\d+)(?:: |=)|\.(_\d+)\b|^ *(?:def|class) (_\d+)\b", re.MULTILINE)
_MANGLED = re.compile(r"\.___torch_mangle_\d+")
_TOP = re.compile(r"^(?:class|def) (\w+)", re.MULTILINE)
_FRAME = re.compile(r"(.+)\((\d+)\): (.*)")


def serialize_module(module: Any) -> dict[str, bytes]:
    """Return the records of a ``ScriptModule``'s file, by name without the top folder."""
    # The import name of a file depends on the search path of now.
    _read_frame.cache_clear()
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    with zipfile.ZipFile(buffer) as zip_file:
        folder = zip_file.namelist()[0].partition("/")[0]
        records = {name.removeprefix(f"{folder}/"): zip_file.read(name) for name in zip_file.namelist()}
    records.pop(_SERIAL, None)
    definitions = {d.name: d for d in _iterate_definitions(records)}
    names = _assign_names(definitions, records["data.pkl"])
    new_records = {name: data for name, data in records.items() if not name.endswith((_CODE, _DEBUG))}
    for record in ("data.pkl", "constants.pkl"):
        new_records[record] = _rename_pickle(new_records[record], names)
    for old, new in names.items():
        code, offsets = _rename_code(definitions[old].text, names)
        place = f"code/{new.rpartition('.')[0].replace('.', '/')}"
        new_records[place + _CODE] = code.encode()
        new_records[place + _DEBUG] = _build_debug_record(definitions[old], offsets)
    _check_nothing_runs_at_load(new_records)
    return new_records


def _check_nothing_runs_at_load(records: Mapping[str, bytes]) -> None:
    """Raise ``UnsupportedError`` for a module whose file every reader would refuse."""
    try:
        pt_archive.check_no_code_at_load([(n, data) for n, data in records.items() if pt_archive.is_code(n)], "")
    except ArchiveError as error:
        what = f"no reader would take the model's file: {error.what}"
        mend = "leave __setstate__ to Python, and write tuples and loops in a simpler way"
        raise UnsupportedError(what, got=error.details["got"], expected=error.details["expected"], mend=mend) from None


@dataclass(frozen=True)
class _Definition:
    """A class or function in a code record: its source, and its debug rows with offsets from its start."""

    name: str
    text: str
    strings: tuple[str, ...]
    rows: tuple[tuple[int, Any, int], ...]


def _iterate_definitions(records: Mapping[str, bytes]) -> Iterator[_Definition]:
    for name, data in records.items():
        if not name.startswith("code/") or not name.endswith(_CODE):
            continue
        text = data.decode()
        space = name.removeprefix("code/").removesuffix(_CODE).replace("/", ".")
        debug = _Unpickler(io.BytesIO(records[name.removesuffix(_CODE) + _DEBUG])).load()
        _, strings, rows = debug
        starts = [m.start() for m in _TOP.finditer(text)]
        # Offsets count bytes; the text may have names that are not ASCII.
        offsets = [len(text[:s].encode()) for s in starts] + [len(data)]
        for i, match in enumerate(_TOP.finditer(text)):
            body = data[offsets[i] : offsets[i + 1]].decode()
            first = bisect.bisect_left(rows, offsets[i], key=lambda row: row[0])
            last = bisect.bisect_left(rows, offsets[i + 1], key=lambda row: row[0])
            debug_rows = tuple((offset - offsets[i], source, tag) for offset, source, tag in rows[first:last])
            yield _Definition(f"{space}.{match[1]}", body, strings, debug_rows)


def _assign_names(definitions: Mapping[str, _Definition], pickled: bytes) -> dict[str, str]:
    """Map old names to new ones, in the order in which they are reached from the classes of the top module's pickle."""
    names = [str(argument).replace(" ", ".") for op, argument, _ in pickletools.genops(pickled) if op.name == "GLOBAL"]
    todo = [n for n in names if n in definitions]
    new: dict[str, str] = {}
    while todo:
        name = todo.pop(0)
        if name in new:
            continue
        space, _, class_name = strip_stand_in(_MANGLED.sub("", name)).rpartition(".")
        new[name] = f"{space}.___torch_mangle_{len(new)}.{class_name}"
        parts = (m[0] for m in _NAME.finditer(definitions[name].text) if m["text"] is None)
        todo += [n for part in parts if (n := _match_name(part, definitions))]
    return new


def _match_name(text: str, names: Mapping[str, Any]) -> str:
    """Return the known name that a dotted text begins with; its attributes follow."""
    parts = text.split(".")
    prefixes = (".".join(parts[:i]) for i in range(len(parts), 0, -1))
    return next((p for p in prefixes if p in names), "")


def _rename_code(text: str, names: Mapping[str, str]) -> tuple[str, list[tuple[int, int]]]:
    """Rename the text; return it with pairs of old and new byte offsets, at which the shift between them changes."""
    pieces: list[str] = []
    user_names = {name for match in _USER_NAMES.finditer(text) for name in match.groups() if name}
    free = (name for i in itertools.count() if (name := f"_{i}") not in user_names)
    numbers: dict[str, str] = {}
    offsets = [(0, 0)]
    last = old = new = 0
    for match in _NAME.finditer(text):
        if match["text"] is not None or match[0] in user_names:
            continue
        if match[0].startswith("__torch__"):
            old_name = _match_name(match[0], names)
            new_name = names.get(old_name, "")
        else:
            old_name = match[0]
            new_name = numbers[old_name] if old_name in numbers else numbers.setdefault(old_name, next(free))
        if not new_name or new_name == old_name:
            continue
        between = text[last : match.start()]
        pieces += [between, new_name]
        last = match.start() + len(old_name)
        old += len(between.encode()) + len(old_name)
        new += len(between.encode()) + len(new_name)
        offsets.append((old, new))
    return "".join([*pieces, text[last:]]), offsets


def _rename_types(text: str, names: Mapping[str, str]) -> str:
    """Rename a type as a pickle spells it; return any other text as it is."""
    return _QUALIFIED.sub(lambda m: names[k] + m[0][len(k) :] if (k := _match_name(m[0], names)) else m[0], text)


def _rename_pickle(data: bytes, names: Mapping[str, str]) -> bytes:
    """Rename classes in a pickle, where they are globals and parts of type names. torch also memoizes objects that
    other code refers to, for a use that never comes: only objects that are used again keep their number."""
    ops = list(pickletools.genops(data))
    used = {argument for op, argument, _ in ops if op.name in ("BINGET", "LONG_BINGET")}
    numbers: dict[Any, int] = {}
    pieces = []
    for i, (op, argument, position) in enumerate(ops):
        raw = data[position : ops[i + 1][2] if i + 1 < len(ops) else len(data)]
        if op.name == "GLOBAL" and (new := names.get(str(argument).replace(" ", "."))):
            space, _, class_name = new.rpartition(".")
            raw = f"c{space}\n{class_name}\n".encode()
        elif op.name == "BINUNICODE":
            text = _rename_types(str(argument), names).encode()
            raw = b"X" + struct.pack("<I", len(text)) + text
        elif op.name in ("BINPUT", "LONG_BINPUT"):
            raw = _encode_memo(b"qr", numbers.setdefault(argument, len(numbers))) if argument in used else b""
        elif op.name in ("BINGET", "LONG_BINGET"):
            raw = _encode_memo(b"hj", numbers[argument])
        pieces.append(raw)
    return b"".join(pieces)


def _encode_memo(codes: bytes, number: int) -> bytes:
    """Return the short operation for a small number, the long one for a large number."""
    return codes[:1] + bytes([number]) if number < 256 else codes[1:] + struct.pack("<I", number)


class _Integers(list):  # type: ignore[type-arg]
    """The class that TorchScript pickles a list of integers as."""

    def __reduce__(self) -> Any:
        return make_integer_list, (list(self),)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != ("torch.jit._pickle", "build_intlist"):
            raise pickle.UnpicklingError(f"{module}.{name} in a debug record")
        return _Integers


def _build_debug_record(definition: _Definition, offsets: list[tuple[int, int]]) -> bytes:
    """Build a debug record: rows of code offset and source, with a number for each source."""
    strings: dict[str, int] = {"": 0}
    sources: dict[Any, Any] = {}
    tags: dict[Any, int] = {}

    def intern(text: str) -> int:
        return strings.setdefault(text, len(strings))

    before: Any = ("", "", 0, 0, 0)
    sources[before[:3]] = (_Integers(), 0, 0)
    rows = [(0, (sources[before[:3]], 0, 0), tags.setdefault(before, 0))]
    kept: dict[int, tuple[tuple[str, str, int], int | None]] = {}
    for offset, (source, first, last), _ in definition.rows:
        # Rows share their sources, of which one may be a whole graph.
        if id(source) not in kept:
            kept[id(source)] = _keep_source(definition.strings, *source)
        (user_text, name, line_number), size = kept[id(source)]
        if (user_text, name, line_number) not in sources:
            numbers = _Integers(intern(t) for t in user_text.splitlines(keepends=True))
            sources[user_text, name, line_number] = (numbers, intern(name), line_number)
        start, end = (first, last) if size is None else (0, size)
        old, new = offsets[bisect.bisect_right(offsets, (offset, 1 << 62)) - 1]
        key = (user_text, name, line_number, start, end)
        # A row covers all code up to the next row.
        if key != before:
            kept_source = (sources[user_text, name, line_number], start, end)
            rows.append((offset - old + new, kept_source, tags.setdefault(key, len(tags))))
        before = key
    return pickle.dumps(("FORMAT_WITH_STRING_TABLE", tuple(strings), tuple(rows)), protocol=2)


def _keep_source(
    strings: Sequence[str], texts: Sequence[int], file: int, line: int
) -> tuple[tuple[str, str, int], int | None]:
    """Return a source as files have it: text, name and first line; and its size in bytes if it is a stack."""
    stack = "".join(strings[i] for i in texts)
    lines = _keep_user_frames(stack)
    if lines is None:
        return (stack, _name_source(strings[file]), line), None
    return ("".join(lines), "", 0), len("".join(lines).encode())


def _name_source(path: str) -> str:
    """Return a source's name in files: that of one of ours does not depend on where it stands."""
    return f"torchferry/{Path(path).name}" if path.startswith(OWN_SOURCES) else importable_path(path)


def _keep_user_frames(text: str) -> list[str] | None:
    """Return the user's lines of a stack; None for a text that is not a stack."""
    frames = [_read_frame(line) for line in text.splitlines()]
    known_frames = list(filter(None, frames))
    if not frames or len(known_frames) < len(frames):
        return None
    # The callers of the capture are no part of the model.
    inside = itertools.takewhile(lambda frame: not frame.calls_capture, known_frames)
    return [frame.text for frame in inside if frame.text]


class _Frame(NamedTuple):
    """A line of a stack: its text in files, empty if it is not the user's."""

    text: str
    calls_capture: bool


# The stacks of a model share most of their lines.
@functools.lru_cache(maxsize=100_000)
def _read_frame(line: str) -> _Frame | None:
    match = _FRAME.fullmatch(line)
    if match is None:
        return None
    is_internal = match[1].startswith(INTERNAL_PATH_PREFIXES)
    text = "" if is_internal else f"{importable_path(match[1])}({match[2]}): {match[3]}\n"
    return _Frame(text, match[1] == module_tree.__file__)
