"""Function calls in a forked process: no side effect on this process remains, not even a crash."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import glob
import itertools
import multiprocessing.connection
import operator
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from exporter.common.errors import TorchferryError, summarize_error
from exporter.common.fork_support import require_fork
from exporter.common.garbage_collection import pause_gc

DEFAULT_SECONDS = 300.0
WEEK = 604_800.0
# Opened once, and not in every child.
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
# How torch names the threads of autograd.
_AUTOGRAD_THREAD = b"pt_autograd"
_SECONDS_TO_BEGIN = 0.05
_have_autograd_threads_been_seen = False
# Of the call that this process was forked for.
_pipe_to_parent: Any = None


class ForkFailedError(Exception):
    """A call that did not finish: it took too long, or a signal ended its process."""


class ForkKilledError(ForkFailedError):
    """A call whose process ended without an answer."""


class ForkedCall:
    """A function call in a forked process, beside what this process goes on with."""

    # Of an answer.
    _most_bytes: int | None = None

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._pipe, child_end = multiprocessing.connection.Pipe()
        # One thread may wait for it while another one ends it.
        self._lock = threading.Lock()
        # The exit code of the process once it has ended, negative for a signal.
        self.code = 0
        self._pid = fork()
        if self._pid == 0:
            self._pipe.close()
            _send_answer(child_end, function, args)
        child_end.close()

    def wait(self, seconds: float = DEFAULT_SECONDS, hear: Callable[[Any], Any] = lambda value: None) -> Any:
        """Return the function's result, or raise the ``TorchferryError`` that it raised.

        ``hear`` is called with what the function tells by ``tell_parent``. Raises ``ForkFailedError`` if the process
        ends without an answer, or says nothing within ``seconds``."""
        try:
            status, value = self._receive(seconds)
            while status == "told":
                hear(value)
                status, value = self._receive(seconds)
        finally:
            self.end()
        if status == "raised":
            raise value
        if status == "failed":
            raise ForkFailedError(value)
        return value

    def _receive(self, seconds: float) -> tuple[str, Any]:
        try:
            if not self._pipe.poll(seconds):
                raise ForkFailedError(f"no end within {seconds:g} s")
            return self._load(self._pipe.recv_bytes(self._most_bytes))
        except (EOFError, OSError):
            raise ForkKilledError("its process was killed") from None

    def _load(self, answer: bytes) -> Any:
        return pickle.loads(answer)

    def _ask_to_end(self, pid: int) -> None:
        """Let the process end by itself; here none has anything to put away."""

    def end(self) -> None:
        """End the process, whether or not it has answered."""
        with self._lock:
            pid, self._pid = self._pid, 0
        if pid:
            self._ask_to_end(pid)
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                self.code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        # Last: another thread that waits sees the end of the process first. It may come here at the same time.
        with self._lock:
            self._pipe.close()


def run_in_fork(function: Callable[..., Any], *args: Any, seconds: float = DEFAULT_SECONDS) -> Any:
    """Return the result of ``function(*args)`` in a forked process, or raise the ``TorchferryError`` that it raised.

    Raises ``ForkFailedError`` if the process ends without an answer. Output that the model prints there is dropped."""
    return ForkedCall(function, *args).wait(seconds)


@contextlib.contextmanager
def run_beside(function: Callable[..., Any], *args: Any, is_beside: bool = True) -> Iterator[Callable[[], Any]]:
    """Run ``function(*args)`` in a forked process beside the block, which is given what waits for the result.

    Without ``is_beside``, and where that process was ended, the function runs here, once the block waits."""
    call = ForkedCall(function, *args) if is_beside else None

    def wait() -> Any:
        if call is not None:
            with contextlib.suppress(ForkFailedError):
                return call.wait(WEEK)
        return function(*args)

    try:
        yield wait
    finally:
        if call is not None:
            call.end()


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise ``TimeoutError`` in the block after ``seconds``, if not 0. For our own processes: it uses the alarm."""

    def raise_timeout(number: int, frame: Any) -> None:
        raise TimeoutError(f"no end within {seconds:.1f} s")

    old_handler = signal.signal(signal.SIGALRM, raise_timeout) if seconds else None
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if seconds:
            signal.signal(signal.SIGALRM, old_handler)


def fork() -> int:
    """Fork this process, and only then handle SIGINT and SIGTERM; return what ``os.fork`` does.

    Raises ``MissingRuntimeError`` where there is none."""
    require_fork()
    with _postpone_interrupts(), warnings.catch_warnings():
        # Python 3.12 warns where other threads run; the child uses none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        return _fork_without_handlers() if _has_autograd_threads() else os.fork()


def _has_autograd_threads() -> bool:
    """Return whether autograd has started a thread for each GPU, here or in a process that this one was forked from.

    It does so in the first backward pass on a machine with a GPU, also of a model on the CPU."""
    global _have_autograd_threads_been_seen  # noqa: PLW0603
    if not _have_autograd_threads_been_seen:
        for path in glob.glob("/proc/self/task/*/comm"):
            # Threads come and go.
            with contextlib.suppress(OSError), open(path, "rb") as file:
                _have_autograd_threads_been_seen |= file.read().startswith(_AUTOGRAD_THREAD)
        if _have_autograd_threads_been_seen:
            # They have just begun. Each enters Python's list of threads, whose lock a child would inherit: CPython
            # takes it there before it makes it anew (PyOS_AfterFork_Child in Modules/posixmodule.c of Python 3.11).
            time.sleep(_SECONDS_TO_BEGIN)
    return _have_autograd_threads_been_seen


def _fork_without_handlers() -> int:
    """Fork this process without the handlers of C libraries: torch's forbids autograd in the child.

    The child does not need the threads: it uses no GPU. Python's own handlers run. The threads of autograd wait, and
    hold no lock of the C library; a thread of Python that is inside an operator may hold that of its memory, which
    ``os.fork`` would wait for. Sources: _Fork(3p) of POSIX.1-2024; track_bad_autograd_forks in
    torch/csrc/autograd/engine.cpp; os_fork_impl in CPython's Modules/posixmodule.c."""
    # These calls keep Python's lock.
    fork_process: Any = getattr(ctypes.PyDLL(None, use_errno=True), "_Fork", None)
    if fork_process is None:
        return os.fork()
    after_fork_child = ctypes.pythonapi.PyOS_AfterFork_Child
    after_fork_child.restype = None
    # No step of Python may lie between the two calls in the child: it would hand Python's lock to a thread that had
    # asked for it and is not there, and wait for ever. ``any`` makes them from C, the second one in the child alone,
    # where the first gives 0; ``tee`` keeps what it gave.
    calls, results = itertools.tee(map(operator.methodcaller("__call__"), (fork_process, after_fork_child)))
    with pause_gc():
        ctypes.pythonapi.PyOS_BeforeFork()
        any(calls)
        pid = next(results)
        if pid == 0:
            return 0
        number = ctypes.get_errno()
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, os.strerror(number))
    return pid


@contextlib.contextmanager
def _postpone_interrupts() -> Iterator[None]:
    """Handle interrupts after the context: an exception that one raises while Python's own hooks run in a fork is lost.

    They are blocked here, and recorded where another thread receives them."""
    parent, received = os.getpid(), list[int]()
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    is_main_thread = threading.current_thread() is threading.main_thread()
    present = {n: signal.getsignal(n) for n in INTERRUPTS} if is_main_thread else {}
    # One that was not installed from Python cannot be put back.
    handlers = {number: handler for number, handler in present.items() if handler is not None}
    for number in handlers:
        signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        # The child handles none before ``silence_child``: an exception would run this process's code there.
        if os.getpid() == parent:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
            if received:
                signal.raise_signal(received[0])


def silence_child() -> None:
    """Silence the child process: no output of the model, no signal handlers of the host."""
    # A garbage collection writes to every object's header, and so copies every page of the parent.
    gc.disable()
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
    end_with_parent()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    warnings.simplefilter("ignore")
    # OpenMP's threads do not survive a fork. Each page that a child touches is a fault: what is so already is not set.
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def end_with_parent() -> None:
    """Let the system kill this process when the thread that forked it ends, where it can (prctl(2))."""
    if _PRCTL is not None:
        # PR_SET_PDEATHSIG.
        _PRCTL(1, signal.SIGKILL)


def tell_parent(value: Any) -> None:
    """Tell the process that forked this one for a call something, while the call runs."""
    _pipe_to_parent.send_bytes(pickle.dumps(("told", value)))


def _send_answer(pipe: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    global _pipe_to_parent  # noqa: PLW0603
    _pipe_to_parent = pipe
    try:
        silence_child()
        try:
            answer = pickle.dumps(("value", function(*args)))
        except ForkFailedError as error:
            answer = pickle.dumps(("failed", str(error)))
        except TorchferryError as error:
            answer = pickle.dumps(("raised", error))
        except BaseException as error:
            answer = pickle.dumps(("failed", summarize_error(error)))
        pipe.send_bytes(answer)
    finally:
        os._exit(0)
