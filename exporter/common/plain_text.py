"""Text that shows as it is: no control characters, and none that change the direction of what follows.

A terminal obeys escape sequences (ECMA-48), and Unicode's bidirectional controls (UAX #9) reorder what is shown: a
name that holds them can show as a verdict. The same characters are in ``runtime_checks/native/src/plain_text.cpp``."""

from __future__ import annotations

import re

# C0 and C1 controls and DEL, marks and overrides of direction, separators of lines, invisible ones, surrogates.
_UNSAFE = (
    "\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f-\u1160\u17b4-\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\ufffe-\uffff\ud800-\udfff\U000e0000-\U000e0fff"
)
_UNSAFE_IN_NAME = re.compile(f"[{_UNSAFE}]")
# A text may have several lines.
_UNSAFE_IN_TEXT = re.compile("[{}]".format(_UNSAFE.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f")))


def find_unsafe(text: str, *, is_name: bool) -> str:
    """Return the first character that does not show as it is, as ``U+001B``; the empty text if there is none.

    Tabs and new lines are such characters in names only."""
    match = (_UNSAFE_IN_NAME if is_name else _UNSAFE_IN_TEXT).search(text)
    return f"U+{ord(match[0]):04X}" if match else ""


def escape_unsafe(text: str) -> str:
    r"""Return the text with such characters as ``\u001b``; tabs and new lines stay."""
    return _UNSAFE_IN_TEXT.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def escape_formula(text: str) -> str:
    """Return a text for a label of matplotlib, which takes what stands between two dollars for a formula."""
    return text.replace("$", r"\$")


def escape_markdown(text: str) -> str:
    """Return a text for a cell of a table in Markdown: on one line, none of it a tag, a link, a heading or a column."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~$&])", r"\\\1", " ".join(text.split()))


def escape_markdown_line(text: str) -> str:
    """Return a text for a line of Markdown of its own: it makes no heading, list or rule either."""
    return re.sub(r"^(?=[=-])|^(\d+)(?=\.)", r"\1\\", escape_markdown(text))


def quote_markdown(text: str) -> str:
    """Return a text as code for a cell of a table in Markdown."""
    return "`" + " ".join(text.replace("`", "'").split()).replace("|", r"\|") + "`"
