"""Whether this system can fork a process. It imports no torch: commands ask before they do."""

from __future__ import annotations

import os
import sys

from exporter.common.errors import MissingRuntimeError


def require_fork() -> None:
    """Raise ``MissingRuntimeError`` on a system that has no ``os.fork``."""
    if not hasattr(os, "fork"):
        what, expected = "this system cannot fork a process, in which foreign code is run", "Linux or macOS"
        mend = "load and inspect files here; make, convert, compare, evaluate and verify them there"
        raise MissingRuntimeError(what, got=sys.platform, expected=expected, mend=mend)
