"""The tests that ``make test`` leaves out: the longest, as many as it takes, and none that is not there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from choose_long_tests import KEPT, LIST, choose, read_durations
from long_tests import GONE, mark_long_tests

LOG = """
12.50s call     tests/test_a.py::test_long[x y]
3.00s setup    tests/test_a.py::test_long[x y]
2.25s call     tests/test_a.py::test_middle
0.25s call     tests/test_a.py::test_short

0.50s teardown tests/test_b.py::test_alone
8.00s call     tests/test_b.py::test_alone
tests/test_b.py::test_alone 8.00s call
"""


def test_durations_are_read():
    own, fixtures = read_durations(LOG)
    tests = ("test_a.py::test_long[x y]", "test_a.py::test_middle", "test_a.py::test_short", "test_b.py::test_alone")
    assert own == dict(zip((f"tests/{name}" for name in tests), (12.5, 2.25, 0.25, 8.0), strict=True))
    assert fixtures == 3.5


@pytest.mark.parametrize(("seconds", "count"), [(26.5, 0), (26.0, 1), (14.0, 1), (13.9, 2), (11.7, 2), (0.0, 2)])
def test_as_many_as_it_takes_and_one_of_each_file_stays(seconds, count):
    chosen = choose(*read_durations(LOG), seconds)
    assert chosen == ["tests/test_a.py::test_long[x y]", "tests/test_a.py::test_middle"][:count]


def test_what_a_user_meets_first_stays():
    own = {**dict.fromkeys(KEPT, 100.0), "tests/docs/test_code_blocks.py::test_blocks_run_in_order[other]": 1.0}
    assert choose(own, 0.0, 0.0) == ["tests/docs/test_code_blocks.py::test_blocks_run_in_order[other]"]


def test_the_list_is_in_order_and_has_none_that_stays():
    names = LIST.read_text().splitlines()
    assert names == sorted(set(names))
    assert not set(names) & set(KEPT)


@dataclass
class Item:
    nodeid: str
    marks: list[str] = field(default_factory=list)

    def add_marker(self, name: str) -> None:
        self.marks.append(name)


def test_those_of_the_list_are_left_to_the_long_run():
    items: Any = [Item("a.py::test_short"), Item("a.py::test_long[x]"), Item("b.py::test_other")]
    # The control: a test that was renamed.
    assert mark_long_tests(["a.py::test_long[x]", "a.py::test_long[y]"], items) == ["a.py::test_long[y]"]
    assert [item.marks for item in items] == [[], ["thorough"], []]


def test_every_name_of_the_list_has_a_test(pytestconfig):
    """One that was renamed would come back to ``make test`` unseen. Only CI collects all tests that there are."""
    assert pytestconfig.stash[GONE] == [], "names of tests/long_tests.txt without a test"
