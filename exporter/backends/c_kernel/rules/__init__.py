"""Lowering rules: a function for each operator that computes. Importing this package registers all of them."""

from exporter.backends.c_kernel.rules import (
    elementwise,
    indexing,
    linear_systems,
    ordering,
    reductions,
    scattering,
    statistics,
    windows,
)

__all__ = [
    "elementwise", "indexing", "linear_systems", "ordering", "reductions", "scattering", "statistics", "windows",
]  # fmt: skip
