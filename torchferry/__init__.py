"""torchferry's public Python API: ``export``, ``load``, ``verify`` and the types that they speak of.

import torchferry
torchferry.export("model.i", models=["eq"], output="eq.pt")
model = torchferry.load("eq.pt")

Where torch is not installed there are ``load``, for kernels (``--format c``), and the errors.
"""

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING or importlib.util.find_spec("torch") is not None:
    from torchferry.with_torch import *  # noqa: F403
    from torchferry.with_torch import __all__
else:
    from torchferry.without_torch import *  # noqa: F403
    from torchferry.without_torch import __all__  # noqa: F401
