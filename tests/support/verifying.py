"""Verification of one file in given runners, as a test asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runtime_checks.report import Report
from runtime_checks.verification import collect_report


def verify(path: Path, **options: Any) -> Report:
    """Run ``collect_report`` and raise a failed check as ``MismatchError``."""
    report = collect_report(path, **options)
    report.raise_if_failed()
    return report
