"""Runs that leave nothing behind: each in a forked process, from the state of now or of before the first call.

A check may change clocks, globals or random states, and a model may remember what it was given: neither reaches the
user's process, nor the next check.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing.connection
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch

from exporter.capture.functions import bound_before
from exporter.capture.scripted import marked
from exporter.errors import MissingRuntimeError, TorchferryError, first_line
from exporter.sources.source import Source

SECONDS = 300.0
# What torch imports when it is first needed.
_LAZY = ("torch", "sympy", "mpmath")


class NotRun(Exception):
    """A run that did not come to its end: too long, or ended by a signal."""


def isolated(function: Callable[..., Any], *args: Any, seconds: float = SECONDS) -> Any:
    """``function(*args)`` in a forked process; its result, or the ``TorchferryError`` that it raised.

    Raises ``NotRun`` where the process ends without an answer. What the model prints there is dropped.
    """
    ours, theirs = multiprocessing.connection.Pipe()
    pid = _fork()
    if pid == 0:
        ours.close()
        _answer(theirs, function, args)
    theirs.close()
    try:
        if not ours.poll(seconds):
            raise NotRun(f"no end within {seconds:g} s")
        try:
            kind, value = pickle.loads(ours.recv_bytes())
        except EOFError:
            raise NotRun("its process was ended") from None
    finally:
        ours.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    if kind == "raised":
        raise value
    if kind == "failed":
        raise NotRun(value)
    return value


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
        self._pid = _fork()
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


@contextlib.contextmanager
def no_longer_than(seconds: float) -> Iterator[None]:
    """Raises ``TimeoutError`` inside; no limit where ``seconds`` is 0. For processes of our own: it takes the alarm."""

    def over(number: int, frame: Any) -> None:
        raise TimeoutError(f"no end within {seconds:.1f} s")

    before = signal.signal(signal.SIGALRM, over) if seconds else None
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if seconds:
            signal.signal(signal.SIGALRM, before)


def _fork() -> int:
    # What an interrupt raises while Python's own hooks run after a fork is lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns where other threads run; the child uses none of their locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            return os.fork()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _quiet() -> None:
    """In the child: nothing of the model's own output, no signal handler of the host's."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        # PR_SET_PDEATHSIG: a process whose parent is gone works for nobody.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    warnings.simplefilter("ignore")
    # OpenMP's threads do not survive a fork.
    torch.set_num_threads(1)


def _answer(pipe: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        _quiet()
        try:
            answer = pickle.dumps(("value", function(*args)))
        except NotRun as error:
            answer = pickle.dumps(("failed", str(error)))
        except TorchferryError as error:
            answer = pickle.dumps(("raised", error))
        except BaseException as error:
            answer = pickle.dumps(("failed", first_line(error)))
        pipe.send_bytes(answer)
    finally:
        os._exit(0)


def _serve(pipe: Any, source: Source) -> None:
    try:
        _quiet()
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
