"""``torchferry adopt``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from typer import Argument, Option

from torchferry.cli.export import print_exported, watch_export
from torchferry.cli.options import (
    AllowNativeOption,
    AllowOption,
    BatchOption,
    BudgetOption,
    DerivativeOption,
    DeviceOption,
    JobsOption,
    JsonOption,
    JvpOption,
    MemoryLimitOption,
    MetaOption,
    OpsetOption,
    ParameterOption,
    RenameOption,
    RuntimeOption,
    SeedOption,
    SizesOption,
    ThoroughOption,
    TimeLimitOption,
    TimingsOption,
    UnitOption,
    VjpOption,
)
from torchferry.cli.startup import pause_collection

if TYPE_CHECKING:
    from exporter.model.eager.batch_choice import BatchChoice, SizeChoice


def command(
    context: typer.Context,
    path: Annotated[Path, Argument(help="TorchScript or a program of torch.export, of any origin.", metavar="FILE")],
    inputs: Annotated[
        Path | None, Option(help="Inputs by name of the arguments of its forward: .pt, .npz or .json.")
    ] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="The archive. Default: NAME.pt here.")] = None,
    rename: RenameOption = None,
    unit: UnitOption = None,
    meta: MetaOption = None,
    batch: BatchOption = "auto",
    sizes: SizesOption = "auto",
    seed: SeedOption = 0,
    allow: AllowOption = None,
    derivative: DerivativeOption = None,
    jvp: JvpOption = False,
    vjp: VjpOption = False,
    parameter: ParameterOption = None,
    thorough: ThoroughOption = False,
    budget: BudgetOption = None,
    jobs: JobsOption = None,
    format: Annotated[
        list[str] | None, Option(help="Containers to write: pt, onnx, pt2, program, c, cuda, or pt,onnx. Default: pt.")
    ] = None,
    opset: OpsetOption = 18,
    runtime: RuntimeOption = "python",
    allow_native: AllowNativeOption = False,
    device: DeviceOption = "cpu",
    time_limit: TimeLimitOption = 600.0,
    memory_limit: MemoryLimitOption = 16.0,
    timings: TimingsOption = False,
    json: JsonOption = False,
) -> None:
    """Make an archive of a TorchScript file, or a program of torch.export, that something else wrote.

    The file gets a contract, cases and all checks that need no source: of its determinism, its state, its batch, its
    derivatives. The archive computes with the same graphs, and is verified against the file. Other commands then take
    it like any archive. The file runs in a confined process: it writes nothing but the archive, and has no network.

    A program may run code of its own while it is read, and needs --allow-native.

    Exit code 2: the file has a contract already, is a program without that option, or the inputs are not its own. 3: it
    is not sound, or fails on the inputs. 4: it is neither, or calls what does not only compute. 5: numbers differ.

    Examples:

      torchferry adopt colleague.pt --inputs examples.npz -o net.pt

      torchferry adopt potential.pt --inputs atoms.pt --derivative energy:positions --format pt,onnx -o potential.pt
    """
    start = time.perf_counter()
    with pause_collection():
        from runtime_checks.runners.confined_calls import Confinement
        from torchferry import api
        from torchferry.cli.confined_process import run_confined
        from torchferry.confined_files import DAY

    import_seconds = time.perf_counter() - start

    def work() -> None:
        with watch_export(context, is_silent=json) as watchers:
            adopted = api.adopt(
                path,
                inputs=inputs,
                allow_native=allow_native,
                output=output,
                renames=rename or [],
                units=unit or [],
                meta=meta,
                seed=seed,
                runtimes=runtime,
                devices=device,
                allow=allow or [],
                derivatives=derivative or [],
                jvp=jvp,
                vjp=vjp,
                parameters=parameter or [],
                batch=cast("BatchChoice", batch),
                sizes=cast("SizeChoice", sizes),
                thorough=thorough,
                budget=budget,
                jobs=jobs,
                formats=format or [],
                opset=opset,
                time_limit=time_limit,
                memory_limit=memory_limit,
                **watchers,
            )
        print_exported([adopted], import_seconds if timings else None, as_json=json)

    limits = {"time_limit": max(time_limit, DAY), "memory_limit": memory_limit, "has_devices": device != "cpu"}
    run_confined(work, Confinement(path, (output or Path(),), **limits, programs=None), as_json=json)
