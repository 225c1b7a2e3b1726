"""Runs that leave nothing behind: each in a forked process, from the state of now or of before the first call.

A check may change clocks, globals or random states, and a model may remember its inputs: neither reaches the user's
process, nor the next check."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing.connection
import os
import pickle
import queue
import signal
import sys
from collections.abc import Callable
from typing import Any

from exporter.capture.custom_functions import find_bound_applies
from exporter.capture.scripting import find_marked_modules
from exporter.common.errors import TorchferryError
from exporter.common.forking import DEFAULT_SECONDS, ForkFailedError, fork, run_in_fork, silence_child
from exporter.model.eager.evaluation import eager_context
from exporter.model.source import Source

# Packages that torch imports when they are first needed.
_LAZY = ("torch", "sympy", "mpmath")


class CleanRooms:
    """Processes that were forked before the model first ran; every call starts from the state of then, in one that is
    free. ``count`` calls run at the same time, from as many threads; each may take ``limit`` seconds."""

    def __init__(self, source: Source, count: int = 1) -> None:
        self.source, self.count, self.limit = source, count, DEFAULT_SECONDS
        self._initial_modules = set(sys.modules)
        # Found once here, and not in every process that is forked.
        find_bound_applies()
        find_marked_modules(source.parameter_module)
        self._rooms = [_Room(source) for _ in range(count)]
        self._free_rooms: queue.SimpleQueue[_Room] = queue.SimpleQueue()
        for room in self._rooms:
            self._free_rooms.put(room)

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run ``function(source, *args)`` of a module under ``eager_context``, with arguments that can be pickled."""
        room = self._free_rooms.get()
        try:
            return room.run(function, args, self.limit)
        finally:
            self._free_rooms.put(room)

    def import_alike(self) -> None:
        """Import torch modules there that this process imported since: each first call would do it again."""
        names = [n for n in sys.modules if n not in self._initial_modules and n.partition(".")[0] in _LAZY]
        for room in self._rooms if names else ():
            room.import_modules(names)

    def close(self) -> None:
        """End the processes; calls that run raise ``ForkFailedError``."""
        for room in self._rooms:
            room.end()

    def __enter__(self) -> CleanRooms:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Room:
    """One process, which forks another for each call."""

    def __init__(self, source: Source) -> None:
        self._pipe, child_pipe = multiprocessing.connection.Pipe()
        self._pid = fork()
        if self._pid == 0:
            # A process group of its own, so that the processes that it forked end with it.
            os.setpgid(0, 0)
            self._pipe.close()
            _serve(child_pipe, source)
        child_pipe.close()

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], limit: float) -> Any:
        try:
            self._pipe.send_bytes(pickle.dumps((function, args, limit)))
            error, value = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise ForkFailedError("the process from before the first call was ended") from None
        if error is not None:
            raise error
        return value

    def import_modules(self, names: list[str]) -> None:
        self._pipe.send_bytes(pickle.dumps((None, names, 0.0)))

    def end(self) -> None:
        pid, self._pid = self._pid, 0
        if not pid:
            return
        # Its current work is not needed any more.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._pipe.close()


def _serve(pipe: Any, source: Source) -> None:
    try:
        silence_child()
        while True:
            function, args, limit = pickle.loads(pipe.recv_bytes())
            if function is None:
                for name in args:
                    with contextlib.suppress(ImportError):
                        importlib.import_module(name)
                continue
            try:
                with eager_context(source):
                    answer: tuple[Exception | None, Any] = (None, run_in_fork(function, source, *args, seconds=limit))
            except (ForkFailedError, TorchferryError) as error:
                answer = (error, None)
            pipe.send_bytes(pickle.dumps(answer))
    finally:
        os._exit(0)
