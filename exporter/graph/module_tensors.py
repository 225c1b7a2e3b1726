"""Tensors of a module that torch has loaded, as its graphs name them."""

from __future__ import annotations

import functools
from typing import Any

import torch

from exporter.saved_code.tensors import TensorTable


class ModuleTensors(TensorTable):
    """A module's tensors. ``named_paths``: tensors known by their path; ``mutated_paths``: attributes that its methods
    set."""

    def __init__(
        self, module: torch.jit.ScriptModule, named_paths: frozenset[str], mutated_paths: frozenset[str]
    ) -> None:
        super().__init__(self.get_attribute, named_paths)
        self.mutated_paths = mutated_paths
        self._module: Any = module._c

    def get_attribute(self, path: str) -> Any:
        """Return an attribute as torch holds it: Python's modules have attributes of their own, like ``graph``."""
        names = path.split(".") if path else ()
        return functools.reduce(lambda parent, name: parent.getattr(name), names, self._module)
