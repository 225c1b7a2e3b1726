"""Exports that a sweep runs in processes of its own, which import this file by its name."""

import os
import signal
import time
from typing import Any

import torchferry
from exporter.archive.contract import Bounds
from runtime_checks.comparison import Comparison
from runtime_checks.report import OutputResult

DEAF_SECONDS = 20.0


class FakeReport:
    outputs = (
        OutputResult(
            "y", Comparison(True, max_abs=1e-13, max_rel=2e-13, max_ulp=3), "somewhere", Bounds(0.0, 0.0), False
        ),
    )


class FakeExported:
    report = FakeReport()


def fake_export(source, *, models, output, seed) -> Any:
    name = models[0]
    if name == "rate_b":
        raise torchferry.CaptureError(f"model {name!r} cannot be captured", mend="rewrite it")
    if name == "rate_c":
        raise ZeroDivisionError("a bug of ours")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("archive")
    return [FakeExported()]


def dies_on_rate_b(source, *, models, output, seed) -> Any:
    if models == ["rate_b"]:
        os._exit(9)
    return [FakeExported()]


def goes_on_at_rate_b(source, *, models, output, seed) -> Any:
    """It does not hear that it is to end, as in a long call of torch."""
    if models == ["rate_b"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(DEAF_SECONDS)
    return [FakeExported()]
