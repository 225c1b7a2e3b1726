"""torchferry's public Python API: ``export``, ``load``, ``verify`` and the types that they use.

import torchferry
torchferry.export("model.i", models=["eq"], output="eq.pt")
model = torchferry.load("eq.pt")

Without torch installed there are only ``load``, for kernels (``--format c``), and the errors."""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchferry.api import *  # noqa: F403
    from torchferry.api import __all__ as __all__


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name not in ("__all__", "__version__"):
        raise AttributeError(name)
    has_torch = importlib.util.find_spec("torch") is not None
    api = importlib.import_module("torchferry.api" if has_torch else "torchferry.api_without_torch")
    if name != "__all__" and name not in api.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
