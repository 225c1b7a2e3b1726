"""The tree of exceptions.

    TorchferryError              exit code
      UsageError                 2  wrong arguments, names or files
        SourceError              2  the model cannot be loaded from the given source
        OutputError              2  the archive cannot be written to the requested place
        TrustError               2  native code that this user did not make here, nor allow
      CaptureError               3  the model cannot be captured soundly
        WarmupError              3  eager mode itself is not finite, pure or repeatable
        OperatorError            3  an operator that exists only with the source library
        UnsupportedError         3  the model needs a feature that does not exist yet
      UnsoundError               3  the soundness gate found that a capture would lose meaning
      ArchiveError               4  the file is damaged or its contract is invalid
        ForeignError             4  a TorchScript file that torchferry did not write
        SchemaError              4  the file has a schema that this version does not read
        SignatureError           4  the file is not signed as it has to be
        RunError                 4  the archive does not load or ends its process
      MismatchError              5  numbers differ
      MissingRuntimeError        6  a requested runtime is not available

Every message says what, where, got, expected, and how to mend it. Any other exception that reaches the
command line is a bug of ours: exit code 1, traceback kept."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from exporter.common.plain_text import escape_unsafe

INTERRUPTED = 130


class TorchferryError(Exception):
    """An error that keeps its parts separate, so that a terminal and ``--json`` can both show them."""

    exit_code = 1

    def __init__(
        self, what: str, *, check: str = "", where: str = "", got: str = "", expected: str = "", mend: str = ""
    ) -> None:
        # Parts quote files, which may hold what a terminal obeys.
        self.what = escape_unsafe(what)
        parts = {"check": check, "where": where, "got": got, "expected": expected, "mend": mend}
        self.details = {key: escape_unsafe(value) for key, value in parts.items() if value}
        lines = [self.what, *(f"  {key}: {value}" for key, value in self.details.items())]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        # By default pickle rebuilds an exception without keyword arguments. Findings and reports are set afterwards.
        return _rebuild, (type(self), self.what, self.details), vars(self)

    def as_dict(self) -> dict[str, Any]:
        """Return the parts for ``--json``."""
        return {"error": type(self).__name__, "exit_code": self.exit_code, "what": self.what, **self.details}


def _rebuild(error_type: type[TorchferryError], what: str, details: dict[str, str]) -> TorchferryError:
    return error_type(what, **details)


class UsageError(TorchferryError):
    """Wrong arguments, names or files."""

    exit_code = 2


class SourceError(UsageError):
    """The model cannot be loaded from the given source."""


class OutputError(UsageError):
    """The archive cannot be written to the requested place."""


class TrustError(UsageError):
    """Native code that this user did not make here, and did not allow."""


class CaptureError(TorchferryError):
    """The model cannot be captured soundly."""

    exit_code = 3


class WarmupError(CaptureError):
    """Eager mode itself is not finite, pure or repeatable."""


class OperatorError(CaptureError):
    """The model uses an operator that exists only with the source library."""


class UnsupportedError(CaptureError):
    """The model needs a feature that does not exist yet."""


class UnsoundError(CaptureError):
    """The soundness gate failed. ``findings`` are all findings of the gate, the unsound ones first."""

    findings: tuple[Any, ...] = ()


class ArchiveError(TorchferryError):
    """The file is damaged or its contract is invalid."""

    exit_code = 4


class ForeignError(ArchiveError):
    """A TorchScript file without torchferry's records."""


class SchemaError(ArchiveError):
    """The file has a schema that this version does not read."""


class SignatureError(ArchiveError):
    """The file is not signed, or not by that key, not any more, or not as it is now."""


class RunError(ArchiveError):
    """The archive does not load or ends its process."""


class MismatchError(TorchferryError):
    """Numbers differ. ``report`` is the whole report where a verification found it, and None elsewhere."""

    exit_code = 5
    report: Any = None


class MissingRuntimeError(TorchferryError):
    """A requested runtime is not available."""

    exit_code = 6


def suggest_names(name: str, candidates: Iterable[str]) -> str:
    """Compare ``name`` with the valid names, nearest first, for the ``expected`` of a message."""
    names = list(candidates)
    matches = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    others = [n for n in names if n not in matches]
    shown = matches + others[: max(0, 12 - len(matches))]
    hidden_count = len(names) - len(shown)
    listing = ", ".join(repr(n) for n in shown) + (f" and {hidden_count} more" if hidden_count > 0 else "")
    if not names:
        return "nothing: there are none"
    return f"did you mean {matches[0]!r}? There are: {listing}" if matches else f"one of {listing}"


# How an error of TorchScript's interpreter begins, and the line of it that says what happened.
IN_SCRIPT = "The following operation failed in the TorchScript interpreter"
_IS_ERROR = re.compile(r"[\w.]*(Error|Exception): ")


def summarize_error(error: BaseException) -> str:
    """Return the exception's type and the first line of its text, for messages that quote another library.

    TorchScript puts what happened behind the stack of its own code."""
    lines = str(error).strip().splitlines()
    if lines and lines[0].startswith(IN_SCRIPT):
        return next(filter(_IS_ERROR.match, lines), lines[-1])
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
