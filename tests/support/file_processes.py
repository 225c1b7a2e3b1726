"""Each test file runs in a process of its own, forked from one that has collected all tests and run none.

A fork costs by what its process holds, an export forks a dozen times, and torch never frees what a test has compiled:
in one process the last files would take longer than the first. A test that ends its process fails, and the tests after
it run in another. ``--pdb`` runs all tests in the first process."""

from __future__ import annotations

import multiprocessing.connection
import os
import signal
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol


class FileProcesses:
    """The plugin that forks. ``before_fork`` is called in the first process, and ``after_fork`` in each other one."""

    def __init__(self, before_fork: Callable[[], object], after_fork: Callable[[], object]) -> None:
        self._before_fork, self._after_fork = before_fork, after_fork
        self._pid, self._file = 0, Path()
        # The other side: of the first process the one that runs a file, and there the first one.
        self._pipe: Any = None
        self._is_first = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test in the process of its file, and report in the first process what that has sent."""
        if item.config.option.usepdb:
            return None
        if not self._is_first:
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            hook, config = item.config.hook, item.config
            self._pipe.send([hook.pytest_report_to_serializable(config=config, report=report) for report in reports])
            return True
        if self._file != item.path:
            self._end()
        if not self._pid:
            self._start(item)
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._run(item, nextitem):
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_sessionfinish(self) -> None:
        """End what still runs."""
        self._end()

    def _start(self, first: pytest.Item) -> None:
        """Fork the process that runs the tests of a file."""
        self._before_fork()
        self._file = first.path
        here, there = multiprocessing.connection.Pipe()
        with warnings.catch_warnings():
            # Python 3.12 warns where other threads run, here those of xdist: the process uses none of their locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        self._pipe = here if self._pid else there
        if self._pid:
            there.close()
            return
        try:
            here.close()
            self._is_first = False
            self._after_fork()
            self._serve(first.session.items)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _serve(self, items: list[pytest.Item]) -> None:
        """Run the tests that the first process names, one after the other, to its end or that of the file."""
        by_id = {item.nodeid: item for item in items}
        while True:
            try:
                item, following = (by_id.get(nodeid) for nodeid in self._pipe.recv())
            except EOFError:
                os._exit(0)
            assert item is not None
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> list[pytest.TestReport]:
        """Return the reports of a test, or one of how its process has ended."""
        hook, config = item.config.hook, item.config
        next_in_file = following.nodeid if following is not None and following.path == item.path else ""
        try:
            self._pipe.send((item.nodeid, next_in_file))
            values = self._pipe.recv()
        except (EOFError, BrokenPipeError):
            code = self._end()
            end = f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
            text = f"the process of {item.path.name} ended in this test: {end}"
            return [pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")]
        return [hook.pytest_report_from_serializable(config=config, data=value) for value in values]

    def _end(self) -> int:
        """Let the process end, which waits for the next test; return its exit code, negative for a signal."""
        pid, self._pid = self._pid, 0
        if not pid:
            return 0
        self._pipe.close()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
