"""Calls in forked processes beside what this process goes on with."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from exporter.common.errors import UsageError
from exporter.common.forking import ForkedCall, run_beside


def identify(value: int) -> tuple[int, int]:
    return os.getpid(), value


def test_a_call_runs_beside_or_here():
    with run_beside(identify, 3) as wait:
        pid, value = wait()
    assert (pid != os.getpid(), value) == (True, 3)
    with run_beside(identify, 4, is_beside=False) as wait:
        assert wait() == (os.getpid(), 4)


def refuse() -> None:
    raise UsageError("as asked")


def test_its_error_is_raised_by_the_wait():
    with pytest.raises(UsageError, match="as asked"), run_beside(refuse) as wait:
        wait()


def die_elsewhere(parent: int) -> int:
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return 5


def test_what_was_killed_runs_here():
    with run_beside(die_elsewhere, os.getpid()) as wait:
        assert wait() == 5


def write_and_wait(descriptor: int) -> None:
    os.write(descriptor, str(os.getpid()).encode())
    signal.pause()


def test_a_call_that_nobody_waits_for_is_ended():
    reader, writer = os.pipe()
    with run_beside(write_and_wait, writer):
        pid = int(os.read(reader, 20))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


class SlowPipe:
    """A pipe that is being closed for a while: a second close meanwhile would be of a number that is another file's."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self.is_closing = threading.Lock()

    def close(self) -> None:
        assert self.is_closing.acquire(blocking=False)
        time.sleep(0.2)
        self.pipe.close()
        self.is_closing.release()


def test_two_threads_end_a_call(monkeypatch):
    call = ForkedCall(signal.pause)
    monkeypatch.setattr(call, "_pipe", SlowPipe(call._pipe))
    with ThreadPoolExecutor(2) as threads:
        for future in [threads.submit(call.end) for _ in range(2)]:
            future.result()
