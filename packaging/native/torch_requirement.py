"""The requirement of the wheel: the torch that it is built for."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any


def dynamic_metadata(field: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the dependencies of the wheel, as scikit-build-core asks a provider for them.

    Args:
        field: ``dependencies``.
        settings: There are none.
    """
    # Without the part that tells a build for CPUs: an index has either.
    return [f"torch=={importlib.metadata.version('torch').partition('+')[0]}"]
