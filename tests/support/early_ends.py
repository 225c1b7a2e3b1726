"""Ways in which the work of a confined process ends."""

from __future__ import annotations

from exporter.common.errors import UsageError


def wait_for_ever() -> None:
    while True:
        pass


def raise_usage_error() -> None:
    raise UsageError("this is not meant so", where="here")


def raise_bug() -> None:
    raise KeyError("a bug")
