"""The tests that ``make test`` leaves to ``make test-all`` because they take long, by measurement.

``tools/choose_long_tests.py`` chooses them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

# Names of the list without a test, where all tests were collected: ``test_long_tests.py`` fails for them.
GONE = pytest.StashKey[list[str]]()


def mark_long_tests(names: Collection[str], items: Sequence[pytest.Item]) -> list[str]:
    """Mark the tests of these names as thorough; return the names that have no test."""
    for item in items:
        if item.nodeid in names:
            item.add_marker("thorough")
    return sorted(set(names) - {item.nodeid for item in items})
