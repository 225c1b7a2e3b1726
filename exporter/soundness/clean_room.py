"""Runs that leave nothing behind: each in a forked process, from the state of now or of before the first call.

A check may change clocks, globals or random states, and a model may remember what it was given: neither reaches the
user's process, nor the next check.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing.connection
import os
import pickle
import signal
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from exporter.capture.custom_functions import bound_before
from exporter.capture.scripting import marked
from exporter.common.errors import MissingRuntimeError, TorchferryError
from exporter.common.forking import NotRun, fork, isolated, quiet
from exporter.model.source import Source

# What torch imports when it is first needed.
_LAZY = ("torch", "sympy", "mpmath")


class CleanRoom:
    """A process that was forked before the model first ran; every call starts from the state of then."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._known = set(sys.modules)
        # Found out once, and not in every process that is forked from here.
        bound_before()
        marked(source.named)
        self._ours, theirs = multiprocessing.connection.Pipe()
        if not hasattr(os, "fork"):
            raise MissingRuntimeError(
                "the soundness gate runs the model in forked processes, which this system does not have",
                got=sys.platform,
                expected="Linux or macOS",
            )
        self._pid = fork()
        if self._pid == 0:
            # A group of its own, so that what it forked ends with it.
            os.setpgid(0, 0)
            self._ours.close()
            _serve(theirs, source)
        theirs.close()

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """``function(source, *args)``, a function of a module, with arguments that can be pickled."""
        try:
            self._ours.send_bytes(pickle.dumps((function, args)))
            kind, value = pickle.loads(self._ours.recv_bytes())
        except (EOFError, BrokenPipeError):
            raise NotRun("the process from before the first call was ended") from None
        if kind == "raised":
            raise value
        if kind == "failed":
            raise NotRun(value)
        return value

    def import_alike(self) -> None:
        """Import there what this process has imported of torch's own since: each first call would do it again."""
        names = [n for n in sys.modules if n not in self._known and n.partition(".")[0] in _LAZY]
        if names:
            self._ours.send_bytes(pickle.dumps((None, names)))

    def __enter__(self) -> CleanRoom:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ours.close()
        # What it is in the middle of is of no use any more.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _serve(pipe: Any, source: Source) -> None:
    try:
        quiet()
        while True:
            function, args = pickle.loads(pipe.recv_bytes())
            if function is None:
                for name in args:
                    with contextlib.suppress(ImportError):
                        importlib.import_module(name)
                continue
            try:
                answer: tuple[str, Any] = ("value", isolated(function, source, *args))
            except NotRun as error:
                answer = ("failed", str(error))
            except TorchferryError as error:
                answer = ("raised", error)
            pipe.send_bytes(pickle.dumps(answer))
    finally:
        os._exit(0)
