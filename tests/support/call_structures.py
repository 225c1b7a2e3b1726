"""Structures of calls as a contract may hold them: forged ones, which no reader takes, and honest ones.

Their only variable is ``v``."""

from __future__ import annotations

from typing import Any

from exporter.archive.value_structure import MAX_DEPTH

V = {"kind": "variable", "name": "v"}
FORGED: dict[str, Any] = {
    "no such kind": [{"kind": "set", "keys": []}],
    "unknown variable": [{"kind": "variable", "name": "w"}],
    "variable twice": [{"kind": "list", "keys": [0, 1]}, V, V],
    "no name": [{"kind": "variable"}],
    "name of a list": [{"kind": "list", "name": "v"}],
    "keys of a variable": [{**V, "keys": [0]}, {"kind": "fixed", "value": "1"}],
    "keys of a list": [{"kind": "list", "keys": [1]}, V],
    "texts as keys of a tuple": [{"kind": "tuple", "keys": ["0"]}, V],
    "a key twice": [{"kind": "dict", "keys": ["a", "a"]}, V, {"kind": "fixed", "value": "1"}],
    "a number in a named tuple": [{"kind": "named tuple", "keys": [0]}, V],
    "parts missing": [{"kind": "list", "keys": [0, 1]}, V],
    "a part too many": [{"kind": "list", "keys": [0]}, V, {"kind": "fixed", "value": "1"}],
    "nothing fixed": [{"kind": "fixed"}],
    "value of a variable": [{**V, "value": "1"}],
    "a fixed list": [{"kind": "fixed", "value": "[1]"}],
    "a fixed NaN": [{"kind": "fixed", "value": "NaN"}],
    "no JSON": [{"kind": "fixed", "value": "1 2"}],
    "half a character": [{"kind": "fixed", "value": '"\\ud800"'}],
    "a large whole number": [{"kind": "fixed", "value": "9223372036854775808"}],
    "a whole number beyond floats": [{"kind": "fixed", "value": "1" * 400}],
    "a negative one": [{"kind": "fixed", "value": "-9223372036854775809"}],
    "a large key": [{"kind": "dict", "keys": [2**63]}, V],
    "a small key": [{"kind": "dict", "keys": [-(2**63) - 1]}, V],
    "a key that is larger": [{"kind": "dict", "keys": [2**70]}, V],
    "true as a key": [{"kind": "dict", "keys": [True]}, V],
    "a key of two lines": [{"kind": "dict", "keys": ["a\nb"]}, V],
    "an empty key": [{"kind": "dict", "keys": [""]}, V],
    "a long key": [{"kind": "dict", "keys": ["n" * 501]}, V],
    "no identifier": [{"kind": "named tuple", "keys": ["a=1, b"]}, V],
    "a letter of two": [{"kind": "named tuple", "keys": ["\ufb01"]}, V],
    "a hidden field": [{"kind": "named tuple", "keys": ["_a"]}, V],
    "beyond all numbers": [{"kind": "fixed", "value": "1e400"}],
    "a long value": [{"kind": "fixed", "value": "1" * 501}],
    "too deep": [{"kind": "list", "keys": [0]}] * MAX_DEPTH + [V],
}
HONEST: dict[str, Any] = {
    "nothing": [],
    "a variable": [V],
    "no variable": [{"kind": "dict"}],
    "deep": [{"kind": "list", "keys": [0]}] * (MAX_DEPTH - 2) + [V],
    "a dict": [{"kind": "dict", "keys": ["a", 0, "0"]}, V, {"kind": "fixed", "value": " 1e300 "}, {"kind": "tuple"}],
    "the largest numbers": [
        {"kind": "dict", "keys": [2**63 - 1, -(2**63), "\u00fc b"]},
        {"kind": "fixed", "value": "9223372036854775807"},
        {"kind": "fixed", "value": "-9223372036854775808"},
        {"kind": "fixed", "value": "18446744073709551616.0"},
    ],
    "a named tuple of any names": [
        {"kind": "named tuple", "keys": ["class", "x_", "B2"]},
        V,
        *[{"kind": "fixed", "value": "null"}] * 2,
    ],
}
