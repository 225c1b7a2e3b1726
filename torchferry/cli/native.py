"""``torchferry native`` and ``torchferry cmake-dir``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from torchferry.cli.output import err, out

app = typer.Typer(help="The native library for C++, C and Fortran.", no_args_is_help=True)


@app.command("build")
def build(force: Annotated[bool, Option("--force", help="Build again even if the library exists.")] = False) -> None:
    """Build the native library and the harness for the torch that is installed; print where they are.

    They are kept in $TORCHFERRY_CACHE (else ~/.cache/torchferry) by torch version, compiler and sources, so that a
    second call only prints. Where the package torchferry-native is installed for this torch, nothing is built without
    --force. Exit code 6: CMake or a compiler is missing, or the build fails.

    Examples:

      torchferry native build

      TORCHFERRY_CACHE=/opt/torchferry torchferry native build --force
    """
    _print_folder(force)


@app.command("path")
def path() -> None:
    """Print the folder of bin/, lib/ and include/; build it where it is not there yet.

    Examples:

      gcc -I$(torchferry native path)/include client.c $(PKG_CONFIG_PATH=$(torchferry native path)/lib/pkgconfig
      pkg-config --libs torchferry)
    """
    _print_folder(force=False)


def cmake_dir() -> None:
    """Print the folder of torchferryConfig.cmake, for find_package; build the library where it is not there yet.

    Examples:

      cmake -S . -B build -Dtorchferry_DIR=$(torchferry cmake-dir)
    """
    out.print(str(_build_library(force=False) / "lib" / "cmake" / "torchferry"), soft_wrap=True)


def _print_folder(force: bool) -> None:
    out.print(str(_build_library(force)), soft_wrap=True)


def _build_library(force: bool) -> Path:
    from runtime_checks import native_build

    return native_build.build(force=force, announce=err.print)
