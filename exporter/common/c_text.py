"""Text for C: identifiers of names, and what can stand in a comment."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence


def to_c_identifier(text: str) -> str:
    """Convert a text to a C identifier."""
    name = re.sub(r"\W", "_", text.replace("~", "_old"), flags=re.ASCII)
    return f"_{name}" if not name or name[0].isdigit() else name


def to_c_identifiers(names: Sequence[str]) -> list[str]:
    """Convert names to unique C identifiers."""
    unique_names: list[str] = []
    for name in names:
        candidate = to_c_identifier(name)
        while candidate in unique_names:
            candidate += "_"
        unique_names.append(candidate)
    return unique_names


def escape_comment(text: str) -> str:
    """Return a text that can stand in a C comment: letters without their accents, other characters as ``?``."""
    letters = re.sub(r"[\u0300-\u036f]", "", unicodedata.normalize("NFKD", text))
    plain = re.sub(r"[^\x20-\x7e]", "?", letters)
    return re.sub(r"\?(?=\?)", "? ", plain.replace("*/", "* /").replace("/*", "/ *"))


def escape_string(text: str) -> str:
    """Return a text that can stand between the quotes of a C string; what is not printable ASCII is ``?``."""
    plain = re.sub(r"[^\x20-\x7e]", "?", text)
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")
