"""What a command does while it imports its libraries, which takes longer than many a model."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

from runtime_checks.runners.fork_server import shared_fork_server


@contextlib.contextmanager
def pause_collection() -> Iterator[None]:
    """Collect no garbage while torch is imported: nearly all objects of an import stay, and to look at them again and
    again takes a fifth of its time. They are never looked at afterwards, in forks neither."""
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def start_runtime(runtimes: str) -> Iterator[None]:
    """Start the process that runs archives inside, if it is among these runtimes: it imports torch at the same time."""
    with shared_fork_server() as server:
        if "python" in runtimes.split(","):
            server.start()
        yield
