"""Every public name says what it takes and gives, and shows it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from project import ROOT

from torchferry import api

NAMES = [name for name in api.__all__ if callable(getattr(api, name))]
FUNCTIONS = [name for name in NAMES if inspect.isfunction(getattr(api, name))]
CLASSES = [
    name
    for name in NAMES
    if inspect.isclass(getattr(api, name)) and not issubclass(getattr(api, name), (Exception, Warning))
]


def list_missing(function: Callable[..., Any]) -> list[str]:
    """Return what the docstring of a function lacks."""
    text = inspect.getdoc(function) or ""
    wanted = [f"    {name}: " for name in inspect.signature(function).parameters] + ["Args:", "Returns:", "Example:"]
    return [part for part in wanted if part not in text]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_document_each_argument(name):
    assert list_missing(getattr(api, name)) == []


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_sections(name):
    text = inspect.getdoc(getattr(api, name)) or ""
    assert any(section in text for section in ("Args:", "Attributes:", "Example:"))


def test_what_is_missing_is_seen():
    def function(a: int, b: int) -> int:
        """Return the sum.

        Args:
            a: A number.
        """
        return a + b

    assert list_missing(function) == ["    b: ", "Returns:", "Example:"]


def test_every_public_name_is_in_the_reference():
    pages = (ROOT / "docs" / "reference" / "python-api").glob("*.md")
    shown = {
        name for page in pages for name in re.findall(r"^::: torchferry\.api\.(\w+)$", page.read_text(), re.MULTILINE)
    }
    assert set(api.__all__) - shown == {"__version__"}
