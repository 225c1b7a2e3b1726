"""A function in a forked process: nothing that it does to this one is left behind, not even its end."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing.connection
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from exporter.common.errors import TorchferryError, first_line

SECONDS = 300.0


class NotRun(Exception):
    """A run that did not come to its end: too long, or ended by a signal."""


def isolated(function: Callable[..., Any], *args: Any, seconds: float = SECONDS) -> Any:
    """``function(*args)`` in a forked process; its result, or the ``TorchferryError`` that it raised.

    Raises ``NotRun`` where the process ends without an answer. What the model prints there is dropped.
    """
    ours, theirs = multiprocessing.connection.Pipe()
    pid = fork()
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


def fork() -> int:
    # What an interrupt raises while Python's own hooks run after a fork is lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns where other threads run; the child uses none of their locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            return os.fork()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def quiet() -> None:
    """In the child: nothing of the model's own output, no signal handler of the host's."""
    # A collection would write to every object's header, and so copy every page of the parent's.
    gc.disable()
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
        quiet()
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
