"""Packages that not every installation has."""

from __future__ import annotations

import importlib
from typing import Any

from exporter.common.errors import MissingRuntimeError


def import_package(name: str, where: str, extra: str) -> Any:
    """Import a package, or a module of one.

    Args:
        name: The name of the module.
        where: The option or the file that needs it.
        extra: The extra of torchferry that brings it.

    Raises:
        MissingRuntimeError: It is not installed, or something of the system is missing that it needs.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError, OSError) as error:
        # A binding without its library: mpi4py without MPI.
        what, mend = f"{name} is not installed, or does not load", f'pip install "torchferry[{extra}]"'
        raise MissingRuntimeError(what, where=where, got=str(error), mend=mend) from None
