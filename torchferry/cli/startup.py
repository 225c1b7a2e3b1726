"""What a command does while it imports its libraries, which takes longer than many a model."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator


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
