"""Each test file runs in a process of its own, forked from one that has collected all tests and run none.

A fork costs by what its process holds, an export forks twenty times, and torch never frees what a test has compiled: in
one process the last files would take several times as long as the first. A test that ends its process fails, and the
tests after it run in another. ``--pdb`` runs all tests in the first process."""

from __future__ import annotations

import itertools
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
        # Where reports come from, and in the process of a file where they go.
        self._incoming: Any = None
        self._outgoing: Any = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test in the process of its file, and report in the first process what that has sent."""
        if item.config.option.usepdb:
            return None
        if self._outgoing is not None:
            self._run(item, nextitem, self._outgoing)
            return True
        if self._file != item.path:
            self._end()
        if not self._pid:
            self._start(item)
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._receive(item):
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_sessionfinish(self) -> None:
        """End what still runs."""
        self._end()

    def _start(self, first: pytest.Item) -> None:
        """Fork the process that runs this test and those after it in its file."""
        self._before_fork()
        self._file = first.path
        self._incoming, outgoing = multiprocessing.connection.Pipe(duplex=False)
        with warnings.catch_warnings():
            # Python 3.12 warns where other threads run, here those of xdist: the process uses none of their locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                self._incoming.close()
                self._outgoing = outgoing
                self._after_fork()
                items = [item for item in first.session.items if item.path == first.path]
                items = items[items.index(first) :]
                for item, following in itertools.zip_longest(items, items[1:]):
                    item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
                code = 0
            except BrokenPipeError:
                # Nobody waits for the others.
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        outgoing.close()

    def _run(self, item: pytest.Item, following: pytest.Item | None, outgoing: Any) -> None:
        reports = runtestprotocol(item, nextitem=following, log=False)
        hook, config = item.config.hook, item.config
        outgoing.send([hook.pytest_report_to_serializable(config=config, report=report) for report in reports])

    def _receive(self, item: pytest.Item) -> list[pytest.TestReport]:
        hook, config = item.config.hook, item.config
        try:
            values = self._incoming.recv()
        except EOFError:
            pid, self._pid = self._pid, 0
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            end = f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
            text = f"the process of {item.path.name} ended in this test: {end}"
            return [pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")]
        return [hook.pytest_report_from_serializable(config=config, data=value) for value in values]

    def _end(self) -> None:
        pid, self._pid = self._pid, 0
        if pid:
            # Its tests have all ended, or nobody waits for the others: it ends at the next report.
            self._incoming.close()
            os.waitpid(pid, 0)
