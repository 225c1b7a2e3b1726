"""Interrupts: a command ends within a second of Ctrl-C, also in the middle of one long operation of torch."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from exporter.common.errors import INTERRUPTED
from exporter.common.temporary_folders import remove_temporary_paths
from torchferry.cli.exit_codes import report_interrupt

# Python hears of a signal between two of its own operations; so long it may take to come to one, and then to end.
PATIENCE = 0.7
# The handlers from before the command that runs, by signal.
_PREVIOUS_HANDLERS: dict[signal.Signals, Any] = {}


@contextlib.contextmanager
def end_soon_when_interrupted() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` at SIGINT and SIGTERM; end the process if Python hears of none soon, or goes on.

    What calls Python back, a weak reference or a library in C, may drop the exception."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_heard, is_over = threading.Event(), threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        is_heard.set()
        raise KeyboardInterrupt

    # A process in a shell's background ignores interrupts.
    signals = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    previous_handlers = {number: signal.signal(number, interrupt) for number in signals}
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    previous_descriptor = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(receiver, is_heard, is_over), daemon=True)
    watcher.start()
    _PREVIOUS_HANDLERS.update(previous_handlers)
    try:
        yield
        if is_heard.is_set():
            raise KeyboardInterrupt
    finally:
        signal.set_wakeup_fd(previous_descriptor)
        _restore_handlers()
        is_heard.set()
        is_over.set()
        sender.close()
        watcher.join()
        receiver.close()


def _restore_handlers() -> None:
    for number, handler in _PREVIOUS_HANDLERS.items():
        signal.signal(number, handler)
    _PREVIOUS_HANDLERS.clear()


def leave_command() -> None:
    """Handle signals as before the command: in a process that was forked from it they are not the command's, and in one
    that waits for such a process they are for that."""
    if _PREVIOUS_HANDLERS:
        signal.set_wakeup_fd(-1)
        _restore_handlers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=leave_command)


def _watch(receiver: socket.socket, is_heard: threading.Event, is_over: threading.Event) -> None:
    """Wait for a signal, whose number Python writes to the socket at once."""
    while numbers := receiver.recv(1):
        if numbers[0] in (signal.SIGINT, signal.SIGTERM) and not (is_heard.wait(PATIENCE) and is_over.wait(PATIENCE)):
            remove_temporary_paths()
            if sys.stderr.isatty():
                # A line that shows progress is still there, and has hidden the cursor.
                sys.stderr.write("\r\x1b[2K\x1b[?25h")
            report_interrupt()
            os._exit(INTERRUPTED)
