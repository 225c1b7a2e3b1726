"""What all tests of implicit models share."""

from __future__ import annotations

import pytest

from exporter.soundness import gate


@pytest.fixture
def without_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tested elsewhere, and takes seconds for each model."""
    monkeypatch.setattr(gate, "_BEFORE", {})
    monkeypatch.setattr(gate, "_AFTER", {})
