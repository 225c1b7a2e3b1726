"""What all tests of derivatives share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _without_the_gate(without_the_gate: None) -> None:
    pass
