"""The files that an ONNX model takes its tensors from, read from its bytes without the package onnx.

A model is a message of protocol buffers (protobuf.dev, Encoding); the numbers of fields are those of onnx.proto."""

from __future__ import annotations

from collections.abc import Iterator

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
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


def list_data_files(model: bytes) -> set[str]:
    """Return the names of the files that hold tensors of a model. Raises ``ValueError`` for bytes that are no model."""
    names = set()
    todo = [("model", memoryview(model))]
    while todo:
        kind, message = todo.pop()
        if kind == "entry":
            fields = dict(_iterate_fields(message))
            if bytes(fields.get(_KEY, b"")) == b"location":
                names.add(bytes(fields.get(_VALUE, b"")).decode())
            continue
        todo += [(_INNER[kind][number], data) for number, data in _iterate_fields(message) if number in _INNER[kind]]
    return names


def _iterate_fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and the bytes of each field that has bytes."""
    place = 0
    while place < len(message):
        tag, place = _read_number(message, place)
        number, wire = tag >> 3, tag & 7
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
