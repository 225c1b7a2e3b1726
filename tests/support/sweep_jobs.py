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


class FakeConverted(FakeExported):
    def __init__(self, path) -> None:
        self.path = path


def fake_export(source, *, models, output, seed) -> Any:
    name = models[0]
    if name == "rate_b":
        raise torchferry.CaptureError(f"model {name!r} cannot be captured", mend="rewrite it")
    if name == "rate_c":
        raise ZeroDivisionError("a bug of ours")
    return _write(output)


def _write(output) -> Any:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("archive")
    return [FakeExported()]


def fake_convert(path, output, *, to) -> Any:
    """What ``fake_export`` verifies, but one of its models, becomes a file of 9 bytes."""
    if path.stem == "eq" and to == "onnx":
        raise torchferry.MismatchError("numbers differ", where="y")
    output.write_text(f"{to:9}")
    return FakeConverted(output)


def dies_on_rate_b(source, *, models, output, seed) -> Any:
    if models == ["rate_b"]:
        os._exit(9)
    return _write(output)


def goes_on_at_rate_b(source, *, models, output, seed) -> Any:
    """It does not hear that it is to end, as in a long call of torch."""
    if models == ["rate_b"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(DEAF_SECONDS)
    return _write(output)
