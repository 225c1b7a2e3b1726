"""Texts of ``torchferry evaluate``: values to vary, names of variables."""

from __future__ import annotations

import pytest

from exporter.common.errors import UsageError
from torchferry.cli.study_values import parse_pairs, parse_study


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("E=1:3:3", (1.0, 2.0, 3.0)),
        ("E=1e5:3e5:2", (1e5, 3e5)),
        ("n=2,5", (2.0, 5.0)),
        ("n=7", (7.0,)),
        ("E=1:100:3:log", (1.0, pytest.approx(10.0), 100.0)),
        ("a.b=0:1:1", (0.0,)),
    ],
)
def test_values_to_vary(text, values):
    assert parse_study(text) == (text.partition("=")[0], values)


@pytest.mark.parametrize(
    "text", ["E", "E=", "=1", "E=1:2", "E=1:2:0", "E=1:2:3:lin", "E=1:2:3:log:4", "E=a", "E=nan", "E=0:1:3:log", "E=1,"]
)
def test_values_that_are_not_understood(text):
    with pytest.raises(UsageError, match="not understood"):
        parse_study(text)


def test_pairs_of_names():
    assert parse_pairs(["strain=eps", "a=b=c"], "--name") == (("strain", "eps"), ("a", "b=c"))
    for text in ("strain", "=eps", "strain="):
        with pytest.raises(UsageError, match="a name is not understood"):
            parse_pairs(["a=b", text], "--name")
