"""What an ONNX model refers to: files of tensors, and operators; read from its bytes without the package onnx.

A model is a message of protocol buffers (protobuf.dev, Encoding); the numbers of fields are those of onnx.proto."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# By kind of message, its fields that may hold a tensor, or a message that does, and their kinds.
_INNER: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_KEY, _VALUE = 1, 2
# Of nodes, and of functions.
_OPERATOR, _DOMAIN, _FUNCTION_DOMAIN = 4, 7, 10
# The standard's own operators, which compute from their arguments; ``tools/list_operators.py`` makes the list.
OPERATORS = frozenset(Path(__file__).with_name("onnx_operators.txt").read_text().split())
_DEFAULT_DOMAINS = ("", "ai.onnx")
# Of functions that a model brings along; no runtime has operators there.
_OWN_DOMAINS = "pkg."
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


@dataclass(frozen=True)
class References:
    """The names of the ``files`` that hold tensors of a model, and what it has that is no operator of the list."""

    files: frozenset[str]
    strange: frozenset[str]


def find_references(model: bytes) -> References:
    """Return what a model refers to. Raises ``ValueError`` for bytes that are no model."""
    files, strange = set[str](), set[str]()
    todo = [("model", memoryview(model))]
    while todo:
        kind, message = todo.pop()
        if kind == "entry":
            fields = dict(_iterate_fields(message))
            if bytes(fields.get(_KEY, b"")) == b"location":
                files.add(bytes(fields.get(_VALUE, b"")).decode())
            continue
        fields = list(_iterate_fields(message))
        if kind == "node":
            strange.update(_find_strange_names(fields))
        elif kind == "function":
            domains = _list_texts(fields, _FUNCTION_DOMAIN) or [""]
            strange.update(f"a function of domain {d!r}" for d in domains if not d.startswith(_OWN_DOMAINS))
        todo += [(_INNER[kind][number], data) for number, data in fields if number in _INNER[kind]]
    return References(frozenset(files), frozenset(strange))


def _find_strange_names(fields: list[tuple[int, memoryview]]) -> Iterator[str]:
    """Yield what of a node is no operator of the list, and no call of a function that the model brings along.

    A field that is there twice counts twice: readers take one of them."""
    domains = _list_texts(fields, _DOMAIN) or [""]
    if any(domain in _DEFAULT_DOMAINS for domain in domains):
        yield from (f"operator {name!r}" for name in _list_texts(fields, _OPERATOR) if name not in OPERATORS)
    known = _DEFAULT_DOMAINS
    yield from (f"domain {d!r}" for d in domains if d not in known and not d.startswith(_OWN_DOMAINS))


def _list_texts(fields: list[tuple[int, memoryview]], wanted: int) -> list[str]:
    return [bytes(data).decode() for number, data in fields if number == wanted]


def _iterate_fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and the bytes of each field that has bytes."""
    place = 0
    while place < len(message):
        tag, place = _read_number(message, place)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 2**29:
            # Other readers take the lower bits.
            raise ValueError(f"a field of the number {number}")
        if wire == _VARINT:
            _, place = _read_number(message, place)
        elif wire in (_FIXED_32, _FIXED_64):
            place += 4 if wire == _FIXED_32 else 8
        elif wire == _BYTES:
            length, place = _read_number(message, place)
            if place + length > len(message):
                raise ValueError("a field that ends behind its message")
            yield number, message[place : place + length]
            place += length
        else:
            raise ValueError(f"a field of the unknown wire type {wire}")
    if place > len(message):
        raise ValueError("a field that ends behind its message")


def _read_number(message: memoryview, place: int) -> tuple[int, int]:
    """Return the number of variable length at a place, and the place behind it."""
    number = 0
    for i, byte in enumerate(message[place : place + 10]):
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return number, place + i + 1
    raise ValueError("a number without an end")
