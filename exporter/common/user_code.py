"""Whose code a line is: the user's, or torch's and ours, which no user can mend."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
import warnings
from pathlib import Path

from exporter.common.errors import IN_SCRIPT


def _folder(name: str) -> str:
    """Return the folder of a package that is installed, without importing it."""
    spec = importlib.util.find_spec(name)
    return f"{Path(spec.origin).parent}/" if spec is not None and spec.origin else ""


_EXPORTER = Path(__file__).parents[1]
# Where our own sources stand.
OWN_SOURCES = (f"{_EXPORTER}/", f"{_EXPORTER.parent}/torchferry/")
# Paths of code that no user can mend: torch's and what it calls, ours, the one that shows warnings, and the wrappers
# that neml2 has around torch's functions, which say where these must not be used.
INTERNAL_PATH_PREFIXES = (
    *filter(None, map(_folder, ("torch", "sympy", "mpmath", "opt_einsum"))),
    *OWN_SOURCES,
    str(warnings.__file__),
    # Code that has no file: Python's own and torch's, but not a notebook's or the interpreter's.
    "<frozen",
    "<eval_with_key",
    "<__array_function__",
    *(f"{folder}models/_guard.py" for folder in (_folder("neml2"),) if folder),
)
# How stacks of TorchScript name a line: of code that was compiled, and of code that was traced.
COMPILED_LINE = re.compile(r'File "([^"]+)", line (\d+)')
TRACED_LINE = re.compile(r"^(\S.*)\((\d+)\): ", re.MULTILINE)


def _locate_in_script(text: str) -> str:
    """Return ``file:line`` from a stack of TorchScript: in the original code, else in that of the file."""
    serialized, is_from_file, original = text.partition("original code (most recent call last)")
    original = original if is_from_file else serialized
    traced, compiled, in_file = (
        [place for place in line.findall(stack) if not place[0].startswith(("<string>", *INTERNAL_PATH_PREFIXES))]
        for line, stack in ((TRACED_LINE, original), (COMPILED_LINE, original), (COMPILED_LINE, serialized))
    )
    # The innermost line stands first where code was traced, and last where it was compiled.
    places = [*traced[:1], *compiled[-1:], *in_file[-1:]]
    return ":".join(places[0]) if places else ""


def user_source_location() -> str:
    """Return ``file:line`` of the innermost frame outside torch and torchferry; empty if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(INTERNAL_PATH_PREFIXES):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def user_traceback_location(error: BaseException) -> str:
    """Return ``file:line`` of the innermost frame of an exception that is neither torch's nor torchferry's.

    An error of TorchScript's interpreter names lines of its source, and has no frames there."""
    text = str(error)
    if text.startswith(IN_SCRIPT) and (place := _locate_in_script(text)):
        return place
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    user_places = [f"{name}:{line}" for name, line in places if not name.startswith(INTERNAL_PATH_PREFIXES)]
    return user_places[-1] if user_places else ""
