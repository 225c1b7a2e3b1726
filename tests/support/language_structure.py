"""The structure of a source: its tokens without what comments and texts say, and without how things are named.

Two files of one template have the same structure, unless a name that one of them quotes ends a comment or a text."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from markdown_it import MarkdownIt

# Comments, texts and characters of C, at their start; the rest is names, numbers and signs.
_C = r"""(?P<comment>/\*.*?\*/|//[^\n]*)|(?P<text>"(?:\\.|[^"\\\n])*")|(?P<character>'(?:\\.|[^'\\\n])*')"""
_R = r"""(?P<comment>\#[^\n]*)|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)"""
# A quote behind a name, a bracket or another quote transposes.
_OCTAVE = (
    r"""(?P<comment>[%\#][^\n]*|\.\.\.[^\n]*)|(?P<transposition>(?<=[\w\])}'])')"""
    r"""|(?P<text>"(?:\\.|""|[^"\\\n])*"|'(?:''|[^'\n])*')"""
)
_MAKE = r"""(?P<comment>\#[^\n]*)"""
_WORDS = r"|(?P<number>\.?\d[\w.]*)|(?P<name>[^\W\d]\w*)|(?P<sign>[^\s\w])|(?P<end>\n)"


def list_tokens(pattern: str, text: str) -> list[str]:
    """List the signs of a text as they are, and the kinds of all else but comments."""
    matches = re.finditer(pattern + _WORDS, text, re.DOTALL)
    tokens = [m[0] if m.lastgroup == "sign" else str(m.lastgroup) for m in matches]
    return [token for token in tokens if token not in ("comment", "end")]


def join_lines_of_c(text: str) -> str:
    """Do what a compiler does first: trigraphs, then lines that a backslash joins."""
    return re.sub(r"\\[ \t]*\n", "", text.replace("??/", "\\"))


def read_c(text: str) -> object:
    tokens = list_tokens(_C, join_lines_of_c(text))
    # Long texts are in pieces.
    return re.sub(r"text( text| , text)*", "text", " ".join(tokens))


def read_markdown(text: str) -> object:
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    words = ("text", "text_special", "softbreak")
    return [(token.type, [t.type for t in token.children or () if t.type not in words]) for token in tokens]


def read_xml(text: str) -> object:
    return [(element.tag, sorted(element.attrib)) for element in ElementTree.fromstring(text).iter()]


_READERS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys((".c", ".h", ".cc", ".cu"), read_c),
    ".py": lambda text: [type(node).__name__ for node in ast.walk(ast.parse(text))],
    ".md": read_markdown,
    ".xml": read_xml,
    ".json": lambda text: type(json.loads(text)).__name__,
    ".r": lambda text: list_tokens(_R, text),
    ".m": lambda text: list_tokens(_OCTAVE, text),
    "": lambda text: list_tokens(_MAKE, text),
    ".txt": lambda text: list_tokens(_MAKE, text),
    ".in": lambda text: text.count("\n"),
}


def read_structure(path: Path) -> object:
    """Return the structure of a source of a known suffix."""
    return _READERS[path.suffix.lower()](path.read_text())
