"""Each test file in a process of its own: nothing that a test does there is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from project import ROOT

CONFTEST = """
import os
from file_processes import FileProcesses

def pytest_sessionstart(session):
    first = os.getpid()
    os.environ["FIRST_PROCESS"] = str(first)
    session.config.pluginmanager.register(FileProcesses(lambda: None, lambda: None))
"""
TESTS = """
import os
import pytest

@pytest.fixture(scope="module")
def there():
    yield open(__file__ + ".log", "a")
    with open(__file__ + ".log", "a") as log:
        log.write("torn down")

@pytest.fixture
def torn():
    yield
    assert False, "in the teardown"

def test_a_note(there):
    with open(__file__ + ".log", "a") as log:
        log.write(f"{os.getpid()} ")
    assert os.getpid() != int(os.environ["FIRST_PROCESS"])

def test_passes(there):
    with open(__file__ + ".log", "a") as log:
        log.write(f"{os.getpid()} ")

def test_fails():
    assert 1 == 2, "as planted"

def test_fails_in_its_teardown(torn):
    pass

def test_skips():
    pytest.skip("with a reason")
"""
ENDS = """
import os, signal

def test_before():
    pass

def test_ends_its_process():
    os.kill(os.getpid(), signal.SIGKILL)

def test_leaves():
    os._exit(0)

def test_after():
    pass
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests' / 'support'}:{ROOT}")
    pytester.makeconftest(CONFTEST)
    return lambda *arguments: pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments", [[], ["-n", "2", "--dist", "loadfile"], ["-n", "2"]], ids=["alone", "files", "load"]
)
def test_every_outcome_is_reported(run, pytester, arguments):
    pytester.makepyfile(test_one=TESTS, test_two=TESTS)
    result = run(*arguments)
    # A teardown that fails is an error beside the test that passed.
    result.assert_outcomes(passed=6, failed=2, errors=2, skipped=2)
    assert "as planted" in result.stdout.str()


def test_a_file_has_one_process_and_its_fixtures_end(run, pytester):
    paths = [Path(p) for p in (pytester.makepyfile(test_one=TESTS), pytester.makepyfile(test_two=TESTS))]
    run()
    logs = [path.with_name(f"{path.name}.log").read_text().split(" ", 2) for path in paths]
    assert [log[0] == log[1] for log in logs] == [True, True]
    assert logs[0][0] != logs[1][0]
    assert [log[2] for log in logs] == ["torn down", "torn down"]


def test_a_test_that_ends_its_process_fails_and_the_others_run(run, pytester):
    pytester.makepyfile(test_ends=ENDS)
    result = run()
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*ended in this test: signal 9*", "*ended in this test: exit code 0*"])
