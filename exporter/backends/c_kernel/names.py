"""Names of leaf nodes."""

from __future__ import annotations

PARAMETER = "parameter:"


def leaf_name(parameter: str) -> str:
    """Return the leaf name of a parameter; inputs go by their own names."""
    return PARAMETER + parameter
