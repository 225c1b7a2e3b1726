"""What all tests of derivatives share."""

from __future__ import annotations

import pytest

from exporter.soundness import gate


@pytest.fixture(autouse=True)
def _without_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tested elsewhere, and takes a second for each of the many models here."""
    monkeypatch.setattr(gate, "_BEFORE", {})
    monkeypatch.setattr(gate, "_AFTER", {})
