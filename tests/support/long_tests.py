"""The tests that ``make test`` leaves to ``make test-all`` because they take long, by measurement.

``tools/choose_long_tests.py`` chooses them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest


def mark_long_tests(names: Collection[str], items: Sequence[pytest.Item], *, has_all: bool) -> None:
    """Mark the tests of these names as thorough. ``has_all``: the items are all tests that there are.

    Raises ``UsageError`` then for a name without a test: one that was renamed would come back unseen."""
    for item in items:
        if item.nodeid in names:
            item.add_marker("thorough")
    gone = sorted(set(names) - {item.nodeid for item in items})
    if gone and has_all:
        raise pytest.UsageError(f"long_tests.txt names no test: {', '.join(gone[:5])}")
