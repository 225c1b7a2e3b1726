"""Names of leaves."""

from __future__ import annotations

PARAMETER = "parameter:"


def leaf_name(parameter: str) -> str:
    """Inputs have their own names."""
    return PARAMETER + parameter
