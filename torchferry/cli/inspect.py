"""``torchferry inspect``."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Annotated

from typer import Option

from exporter.archive.formats import FORMATS, infer_format
from torchferry.cli.options import ArchiveArgument, JsonOption
from torchferry.cli.output import print_autograd, print_contract, print_json


def command(
    path: ArchiveArgument,
    autograd: Annotated[
        bool, Option("--autograd", help="Print the backward passes in it, each operation with its origin.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Print an archive's contract, methods, records and sizes, without running torch; or those of another format.

    With --autograd instead the operations of its backward passes: which part, which node of autograd or hook, which
    submodule and line of the forward pass they come from. Torch reads the graphs, in a confined process.

    Examples:

      torchferry inspect eq.pt

      torchferry inspect eq.pt --json

      torchferry inspect eq_kernel

      torchferry inspect loss_and_grad.pt --autograd
    """
    if autograd:
        from runtime_checks.runners.confined_calls import Confinement
        from torchferry.cli.confined_process import run_confined

        run_confined(functools.partial(_print_backward_passes, path, as_json=json), Confinement(path), as_json=json)
        return
    opened = FORMATS[infer_format(path) or "pt"].read(path)
    sizes = opened.list_sizes()
    if json:
        print_json({"contract": dataclasses.asdict(opened.contract), "records": sizes})
    else:
        print_contract(opened.contract, sizes)


def _print_backward_passes(path: Path, *, as_json: bool) -> None:
    from exporter.graph.provenance import list_captured_methods, open_archive

    captured = list_captured_methods(open_archive(path).saved)
    methods = {name: steps for name, steps in captured.items() if any(step.is_backward for step in steps)}
    if as_json:
        print_json({name: [dataclasses.asdict(step) for step in method] for name, method in methods.items()})
    else:
        print_autograd(methods)
