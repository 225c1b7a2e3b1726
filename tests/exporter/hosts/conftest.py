"""Kernels that hosts are written around, made once a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from project import ROOT, make_once, skip_checks

import torchferry

MODELS = ROOT / "tests" / "support" / "host_models.py"
POINTS = {"anisotropic": "Anisotropic", "rich": "Rich", "warm": "Warm", "limited": "Limited"}


@pytest.fixture(scope="session")
def point_kernels(shared: Path, solid: Path) -> dict[str, Path]:
    """Folders of kernels by name; ``solid`` is the return map."""

    def make(folder: Path) -> None:
        with skip_checks():
            for name, factory in POINTS.items():
                torchferry.export(
                    f"{MODELS}:{factory}",
                    output=folder / name,
                    formats="c",
                    derivatives="stress:strain",
                    per_element="modulus" if name in ("rich", "warm") else (),
                )

    folder = make_once(shared / "host kernels", make)
    return {name: folder / name for name in POINTS} | {"solid": solid.with_suffix("")}


@pytest.fixture(scope="session")
def matrix_kernel(shared: Path) -> Path:
    """The folder of a kernel whose variables are of all ranks up to three, with all derivatives."""

    def make(folder: Path) -> None:
        with skip_checks():
            torchferry.export(
                f"{MODELS}:Matrices", output=folder / "kernel", formats="c", derivatives=["all", "*:weight"]
            )

    return make_once(shared / "matrix kernel", make) / "kernel"
