"""``torchferry umat``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from torchferry.cli.output import out


def command(
    folder: Annotated[Path, Argument(help="A kernel's folder.", metavar="FOLDER")],
    output: Annotated[
        Path | None, Option("--output", "-o", help="Default: NAME_umat.f90 in the kernel's folder.")
    ] = None,
    stress: Annotated[str, Option(help="The output that is Abaqus' STRESS.")] = "stress",
    strain: Annotated[str, Option(help="The input that is STRAN + DSTRAN.")] = "strain",
) -> None:
    """Write Abaqus' user subroutine UMAT of a small-strain model, on its kernel.

    The kernel needs the block of its stress by its strain, in Mandel notation. Outputs that come back as inputs
    (ep and ep~1) are state variables; parameters are the material's properties.

    Examples:

      torchferry export examples/return_map.py:make_model --derivative stress:strain --format c -o model

      torchferry umat model
    """
    from exporter.backends.c_kernel import abaqus_umat

    out.print(f"wrote {abaqus_umat.write_umat(folder, output, stress=stress, strain=strain)}", soft_wrap=True)
