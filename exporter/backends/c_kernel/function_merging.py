"""Functions that differ in nothing but the rows of the frame become one, which is told its rows.

What a model repeats is unrolled in its graph (sweeps of a predictor, slip systems): written down each time it takes a
compiler minutes, and more memory for code than a processor has near it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Fewer statements than this that would not be written again are not worth the table.
WORTH = 1_000
_ROW = re.compile(r"\b([fg]->\w)\[(\d+)\]")
_LOCAL = re.compile(r"\bv(\d+)\b")
_COMMENT = re.compile(r"/\*.*?\*/")
_CALL = re.compile(r"TF_\((\w+)\)\(f, g\);")
# A compiler does not see that rows it is told are apart.
_APART = ("TF_SIMD", "TF_SIMD_APART")


@dataclass(frozen=True)
class Part:
    """``void function(f, g)``; ``method``'s ``f`` is the frame, ``g`` what is uniform."""

    method: str
    function: str
    body: str
    operations: int = 0

    def text(self, more: str = "") -> str:
        """``more`` stands behind the arguments."""
        return (
            f"static void TF_({self.function})(struct {self.method}_frame *restrict f, "
            f"const struct {self.method}_uniform *restrict g{more}) {{\n{self.body}  (void)f;\n  (void)g;\n}}\n"
        )


@dataclass(frozen=True)
class Joined:
    """``tables`` are of rows; ``operations`` those that are written down."""

    text: str
    tables: str
    operations: int


def joined(parts: Sequence[Part]) -> Joined:
    """Parts in their order; what several are but for their rows is there once, where the first of them was."""
    alike: dict[tuple[str, str], list[Part]] = {}
    for part in parts:
        alike.setdefault((part.method, _shape(part.body)), []).append(part)
    calls: dict[str, str] = {}
    tables: list[str] = []
    texts: dict[str, str] = {part.function: part.text() for part in parts}
    operations = 0
    for (_, shape), same in alike.items():
        first = same[0]
        if shape.count(";") * (len(same) - 1) < WORTH:
            operations += sum(part.operations for part in same)
            continue
        operations += first.operations
        name = f"{first.function}_rows"
        rows = [_rows(part.body) for part in same]
        lines = "".join(f"  {{ {', '.join(number for _, number in one)} }},\n" for one in rows)
        tables.append(f"static const int {name}[][{max(len(rows[0]), 1)}] = {{\n{lines}}};\n")
        for k, part in enumerate(same):
            calls[part.function] = f"TF_({first.function})(f, g, {name}[{k}]);"
            texts[part.function] = ""
        texts[first.function] = _told(first)
    text = "\n".join(text for text in texts.values() if text)
    return Joined(_CALL.sub(lambda m: calls.get(m[1], m[0]), text), "".join(tables), operations)


def _rows(body: str) -> list[tuple[str, str]]:
    return list(dict.fromkeys(_ROW.findall(_COMMENT.sub("", body))))


def _numbered(found: Iterable[object]) -> dict[object, int]:
    return {one: k for k, one in enumerate(dict.fromkeys(found))}


def _shape(body: str) -> str:
    """Rows and local names by the order in which they occur, and no comments."""
    plain = _COMMENT.sub("", body)
    local, rows = _numbered(_LOCAL.findall(plain)), _numbered(_ROW.findall(plain))
    plain = _LOCAL.sub(lambda m: f"v{local[m[1]]}", plain)
    return re.sub(r"\s+", " ", _ROW.sub(lambda m: f"{m[1]}[{rows[m[1], m[2]]}]", plain))


def _told(part: Part) -> str:
    rows = _numbered(_rows(part.body))
    body = _ROW.sub(lambda m: f"{m[1]}[r[{rows[m[1], m[2]]}]]" if (m[1], m[2]) in rows else m[0], part.body)
    told = Part(part.method, part.function, body.replace(*_APART))
    return told.text(", const int *restrict r")
