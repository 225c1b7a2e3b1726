"""The tests that ``make test`` leaves to ``make test-all`` because they take long, by measurement.

``tools/choose_long_tests.py`` chooses them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest


def mark_long_tests(names: Collection[str], items: Sequence[pytest.Item], arguments: Sequence[str]) -> None:
    """Mark the tests of these names as thorough. ``arguments``: what pytest was asked for.

    Raises ``UsageError`` for a name without a test in its file: one that was renamed would come back unseen."""
    for item in items:
        if item.nodeid in names:
            item.add_marker("thorough")
    there, files = {item.nodeid for item in items}, {item.nodeid.partition("::")[0] for item in items}
    gone = sorted(name for name in set(names) - there if name.partition("::")[0] in files)
    # Where one test is asked for, the others of its file are not there.
    if gone and not any("::" in argument for argument in arguments):
        raise pytest.UsageError(f"long_tests.txt names no test: {', '.join(gone[:5])}")
