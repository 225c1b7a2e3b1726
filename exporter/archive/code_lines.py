"""Lines of the code that TorchScript files hold, and their words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Texts, names, numbers, marks, and the space between them.
_WORD = re.compile(
    r'"(?:[^"\\\n]|\\.)*("?)|[A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*'
    r"|[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?j?|->|[()\[\]{},.:=+-]|( +)"
)
# Of torch's lexer: other words are names, those that are none in Python too.
_KEYWORDS = frozenset({
    "and", "as", "assert", "break", "class", "continue", "def", "del", "elif", "else", "for", "global", "if", "import",
    "in", "is", "not", "or", "pass", "raise", "return", "while", "with",
})  # fmt: skip
_BRACKETS = re.compile(r'"(?:[^"\\\n]|\\.)*"?|([(\[{])|([)\]}])')


@dataclass(frozen=True)
class CodeLine:
    """A line, those included that it goes on in while a bracket is open: where it stands, and how far to the right."""

    record: str
    number: int
    indent: int
    text: str

    def split(self) -> list[str]:
        """Return the words of the line: names, numbers, texts and marks. Raises ``ValueError`` for anything else."""
        words, end = list[str](), 0
        for match in _WORD.finditer(self.text):
            # A text that is not closed is no word.
            if match.start() != end or match[1] == "":
                break
            end = match.end()
            if not match[2]:
                words.append(match[0])
        if end != len(self.text):
            raise self.fail(f"{self.text[end : end + 20]!r}, which torch does not write there")
        return words

    def fail(self, got: str) -> ValueError:
        """Make the error of this line."""
        return ValueError(f"{got}, in line {self.number} of the record {self.record}")


def split_lines(record: str, data: bytes) -> Iterator[CodeLine]:
    """Yield the lines of a record that are not empty. Bytes beyond ASCII may stand in names and texts."""
    parts, start, depth = list[str](), 0, 0
    for number, text in enumerate(data.decode("latin-1").split("\n"), 1):
        if not parts:
            if not text.strip(" \t\r\f\v"):
                continue
            start = number
        parts.append(text)
        depth += _count_open(text)
        if depth <= 0:
            yield _make_line(record, start, parts)
            parts, depth = [], 0
    if parts:
        yield _make_line(record, start, parts)


def _count_open(text: str) -> int:
    if '"' not in text:
        return sum(map(text.count, "([{")) - sum(map(text.count, ")]}"))
    brackets = list(_BRACKETS.finditer(text))
    return sum(1 for b in brackets if b[1]) - sum(1 for b in brackets if b[2])


def _make_line(record: str, number: int, parts: list[str]) -> CodeLine:
    text = " ".join(parts)
    stripped = text.lstrip(" ")
    return CodeLine(record, number, len(text) - len(stripped), stripped.rstrip(" "))


def is_name(word: str) -> bool:
    """Return whether a word is a name and no keyword."""
    return word not in _KEYWORDS and (word[:1].isalpha() or word[:1] == "_" or word[:1] > "\x7f")


def is_number(word: str) -> bool:
    """Return whether a word is a number."""
    return "0" <= word[:1] <= "9"
