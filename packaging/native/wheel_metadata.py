"""What scikit-build-core asks for: the version of the wheel, and the torch that it is built for."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_VERSION = Path(__file__).parents[2] / "exporter" / "__init__.py"


def dynamic_metadata(field: str, settings: Mapping[str, Any]) -> str | list[str]:
    """Return the value of a field of the wheel's metadata.

    Args:
        field: ``version`` or ``dependencies``.
        settings: There are none.
    """
    if field == "version":
        (version,) = re.findall(r'^__version__ = "(.+)"$', _VERSION.read_text(encoding="utf-8"), re.MULTILINE)
        return version
    # Without the part that tells a build for CPUs: an index has either.
    return [f"torch=={importlib.metadata.version('torch').partition('+')[0]}"]
