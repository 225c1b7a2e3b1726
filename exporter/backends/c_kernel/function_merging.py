"""Merges functions that differ only in the registers of the frame: one function remains, which is passed its registers.

Repetitions in a model are unrolled in its graph (sweeps of a predictor, slip systems): written out each time, they take
a compiler minutes, and more memory for code than the caches of a processor have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

# A merge that saves fewer statements than this is not worth its table.
WORTH = 1_000
# Alone, or the first of a loop over k.
_REGISTER = re.compile(r"\b([fg]->(?:\w+\.)?\w)\[(\d+)(?=\]| \+ k\])")
_LOCAL = re.compile(r"\bv(\d+)\b")
_COMMENT = re.compile(r"/\*.*?\*/")
_CALL = re.compile(r"TF_\((\w+)\)\(f, g\);")
# A compiler does not see that registers passed by index do not overlap.
_SIMD_MACROS = ("TF_SIMD", "TF_SIMD_APART")


@dataclass(frozen=True)
class Part:
    """C function ``void function(f, g)``: ``f`` is the frame of ``method``, ``g`` its uniform values."""

    method: str
    function: str
    body: str
    operations: int = 0
    # What follows the two that every function has.
    parameters: str = ""
    # What stands before it.
    attributes: str = ""

    def render(self) -> str:
        """Return the C text."""
        return (
            f"{self.attributes}TF_PART void TF_({self.function})(struct {self.method}_frame *restrict f, "
            f"const struct {self.method}_uniform *restrict g{self.parameters}) {{\n"
            f"{self.body}  (void)f;\n  (void)g;\n}}\n"
        )


@dataclass(frozen=True)
class MergedFunctions:
    """Merged functions as C text: ``tables`` hold registers, ``operations`` counts those that are written out."""

    text: str
    tables: str
    operations: int


def merge_functions(functions: Sequence[Part]) -> MergedFunctions:
    """Return the functions in order; those equal but for their registers are written once, at the first's place."""
    groups: dict[tuple[str, str], list[Part]] = {}
    for function in functions:
        groups.setdefault((function.method, _normalize_body(function.body)), []).append(function)
    calls: dict[str, str] = {}
    tables: list[str] = []
    texts: dict[str, str] = {function.function: function.render() for function in functions}
    operations = 0
    for (_, shape), members in groups.items():
        first = members[0]
        if shape.count(";") * (len(members) - 1) < WORTH:
            operations += sum(function.operations for function in members)
            continue
        operations += first.operations
        name = f"{first.function}_rows"
        registers = [_find_registers(function.body) for function in members]
        lines = "".join(f"  {{ {', '.join(number for _, number in row)} }},\n" for row in registers)
        tables.append(f"TF_TABLE int {name}[][{max(len(registers[0]), 1)}] = {{\n{lines}}};\n")
        for k, function in enumerate(members):
            calls[function.function] = f"TF_({first.function})(f, g, {name}[{k}]);"
            texts[function.function] = ""
        texts[first.function] = _render_indexed(first)
    text = "\n".join(text for text in texts.values() if text)
    return MergedFunctions(_CALL.sub(lambda m: calls.get(m[1], m[0]), text), "".join(tables), operations)


def _find_registers(body: str) -> list[tuple[str, str]]:
    return list(dict.fromkeys(_REGISTER.findall(_COMMENT.sub("", body))))


def _number_distinct(items: Iterable[object]) -> dict[object, int]:
    return {item: k for k, item in enumerate(dict.fromkeys(items))}


def _normalize_body(body: str) -> str:
    """Return the body with registers and local names numbered by first occurrence, without comments."""
    plain = _COMMENT.sub("", body)
    local_numbers, registers = _number_distinct(_LOCAL.findall(plain)), _number_distinct(_REGISTER.findall(plain))
    plain = _LOCAL.sub(lambda m: f"v{local_numbers[m[1]]}", plain)
    return re.sub(r"\s+", " ", _REGISTER.sub(lambda m: f"{m[1]}[{registers[m[1], m[2]]}", plain))


def _render_indexed(function: Part) -> str:
    registers = _number_distinct(_find_registers(function.body))

    def index(match: re.Match[str]) -> str:
        number = registers.get((match[1], match[2]))
        return match[0] if number is None else f"{match[1]}[r[{number}]"

    body = _REGISTER.sub(index, function.body)
    return replace(function, body=body.replace(*_SIMD_MACROS), parameters=", const int *restrict r").render()
