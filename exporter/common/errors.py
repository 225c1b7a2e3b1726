"""What can go wrong, drawn once.

    TorchferryError              exit code
      UsageError                 2  wrong arguments, names or files
        SourceError              2  the model cannot be loaded from what was named
        OutputError              2  the archive cannot be written where it was asked for
      CaptureError               3  the model cannot be captured soundly
        WarmupError              3  eager mode itself is not finite, pure or repeatable
        OperatorError            3  an operator that exists only where the source library is
        UnsupportedError         3  the model needs something that is not built yet
      UnsoundError             3  the soundness gate found that a capture would lose meaning
      ArchiveError               4  the file is damaged or its contract is broken
        ForeignError             4  a TorchScript file that torchferry did not write
        SchemaError              4  the file is of a schema that this version does not read
        RunError                 4  the archive does not load or ends its process
      MismatchError              5  numbers differ
      MissingRuntimeError        6  a runtime that was asked for is not there

Every message says what, where, got, expected, and how to mend it. Any other exception that reaches the
command line is a bug of ours: exit code 1, traceback kept.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

INTERRUPTED = 130


class TorchferryError(Exception):
    """An error with its parts kept apart, so that a terminal and ``--json`` can both show them."""

    exit_code = 1

    def __init__(
        self, what: str, *, check: str = "", where: str = "", got: str = "", expected: str = "", mend: str = ""
    ) -> None:
        self.what = what
        self.details = {
            key: value
            for key, value in (
                ("check", check),
                ("where", where),
                ("got", got),
                ("expected", expected),
                ("mend", mend),
            )
            if value
        }
        lines = [what, *(f"  {key}: {value}" for key, value in self.details.items())]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword arguments are not what pickle expects of an exception.
        return _rebuilt, (type(self), self.what, self.details)

    def as_dict(self) -> dict[str, Any]:
        return {"error": type(self).__name__, "exit_code": self.exit_code, "what": self.what, **self.details}


def _rebuilt(kind: type[TorchferryError], what: str, details: dict[str, str]) -> TorchferryError:
    return kind(what, **details)


class UsageError(TorchferryError):
    exit_code = 2


class SourceError(UsageError):
    pass


class OutputError(UsageError):
    pass


class CaptureError(TorchferryError):
    exit_code = 3


class WarmupError(CaptureError):
    pass


class OperatorError(CaptureError):
    pass


class UnsupportedError(CaptureError):
    pass


class UnsoundError(CaptureError):
    """``findings`` are all that the gate found, the unsound ones first."""

    findings: tuple[Any, ...] = ()


class ArchiveError(TorchferryError):
    exit_code = 4


class ForeignError(ArchiveError):
    """A TorchScript file without torchferry's records."""


class SchemaError(ArchiveError):
    pass


class RunError(ArchiveError):
    pass


class MismatchError(TorchferryError):
    """``report`` is the whole of what verification found."""

    exit_code = 5
    report: Any = None


class MissingRuntimeError(TorchferryError):
    exit_code = 6


def near(name: str, known: Iterable[str]) -> str:
    """``name`` against the names there are, nearest first, for the ``expected`` of a message."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    rest = [n for n in names if n not in close]
    shown = close + rest[: max(0, 12 - len(close))]
    more = len(names) - len(shown)
    listing = ", ".join(repr(n) for n in shown) + (f" and {more} more" if more > 0 else "")
    if not names:
        return "nothing: there are none"
    return f"did you mean {close[0]!r}? There are: {listing}" if close else f"one of {listing}"


def first_line(error: BaseException) -> str:
    """The exception's type and the first line of its text, for messages that quote another library."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
