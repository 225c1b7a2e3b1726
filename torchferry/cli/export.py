"""``torchferry export``."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.text import Text
from typer import Option

from exporter.common.source_paths import strip_folders
from runtime_checks.runners.fork_server import start_runtime
from torchferry.cli.options import (
    AllowOption,
    BatchOption,
    BudgetOption,
    DerivativeOption,
    DeviceOption,
    DriverOption,
    DtypeOption,
    InputsOption,
    JobsOption,
    JsonOption,
    JvpOption,
    LoadOption,
    MemoryLimitOption,
    MetaOption,
    ModelOption,
    OpsetOption,
    OverridesArgument,
    ParameterOption,
    PerElementOption,
    ReduceOption,
    RenameOption,
    RuntimeOption,
    SeedOption,
    SizesOption,
    SourceArgument,
    ThoroughOption,
    TimeLimitOption,
    TimingsOption,
    UnitOption,
    VjpOption,
)
from torchferry.cli.output import err, out, print_json, print_listing, print_slowest, print_timings
from torchferry.cli.progress import show_steps
from torchferry.cli.startup import pause_collection

if TYPE_CHECKING:
    from exporter.model.eager.batch_choice import BatchChoice, SizeChoice
    from exporter.model.implicit.newton_solver import OnFailure
    from exporter.model.source import Listing
    from torchferry.pipeline import Exported


def command(
    context: typer.Context,
    source: SourceArgument,
    overrides: OverridesArgument = None,
    model: ModelOption = None,
    load: LoadOption = None,
    driver: DriverOption = None,
    dtype: DtypeOption = "",
    output: Annotated[
        Path | None, Option("--output", "-o", help="The archive, or a folder for several models. Default: NAME.pt")
    ] = None,
    rename: RenameOption = None,
    unit: UnitOption = None,
    meta: MetaOption = None,
    inputs: InputsOption = None,
    seed: SeedOption = 0,
    allow: AllowOption = None,
    derivative: DerivativeOption = None,
    jvp: JvpOption = False,
    vjp: VjpOption = False,
    differentiable: Annotated[
        bool, Option("--differentiable", help="Autograd through the file gives eager mode's gradients.")
    ] = False,
    symmetric: Annotated[
        list[str] | None, Option(help="OUT:IN block that is the second derivative of a potential.")
    ] = None,
    parameter: ParameterOption = None,
    per_element: PerElementOption = None,
    batch: BatchOption = "auto",
    sizes: SizesOption = "auto",
    thorough: ThoroughOption = False,
    budget: BudgetOption = None,
    jobs: JobsOption = None,
    against: Annotated[
        Path | None, Option(help="An earlier archive: say whether it serves this model as well, and why not.")
    ] = None,
    on_failure: Annotated[
        str | None, Option(help="Value of an element that does not converge: nan, last (its last iterate), or raise.")
    ] = None,
    format: Annotated[
        list[str] | None,
        Option(help="Containers: pt, onnx, pt2, program, c, cuda, or pt,onnx. Default: by --output's suffix, else pt."),
    ] = None,
    opset: OpsetOption = 18,
    reduce: ReduceOption = "all",
    runtime: RuntimeOption = "python",
    device: DeviceOption = "cpu",
    time_limit: TimeLimitOption = 600.0,
    memory_limit: MemoryLimitOption = 16.0,
    timings: TimingsOption = False,
    json: JsonOption = False,
) -> None:
    """Export models to verified archives.

    Each is warmed up in eager mode, listed, traced, compared with eager mode by the soundness gate, saved, and run in a
    process without its source library. The file appears only if every number agrees with eager mode.

    Examples:

      torchferry export model.i --model eq -o eq.pt

      torchferry export model.i --model a --model b -o archives/

      torchferry export model.i nbatch=8 Models/elasticity/E:=210000 --model eq

      torchferry export slash.i --model eq --rename 'state/*~1:old_state/*'

      torchferry export model.i --model eq --unit '*stress=MPa' --unit '*strain=1'

      torchferry export model.i --model eq --meta model.toml

      torchferry export net.py:make_model --inputs examples.npz -o net.pt

      torchferry export model.i --model eq --runtime python,libtorch

      torchferry export model.i --model eq --derivative a_rate:a --derivative '*:E'

      torchferry export solid.py:make_model --derivative 'energy:strain,strain'

      torchferry export model.i --model eq --format pt,onnx -o eq.pt

      torchferry export model.i --model eq --per-element elasticity.E

      torchferry export train_step.py:loss_and_grad -o new.pt --against old.pt
    """
    start = time.perf_counter()
    with start_runtime(runtime.split(",")):
        with pause_collection():
            from torchferry import api

        import_seconds = time.perf_counter() - start

        with watch_export(context, is_silent=json) as watchers:
            results = api.export(
                source,
                overrides=overrides or [],
                extensions=load or [],
                drivers=driver or [],
                dtype=dtype,
                models=model or [],
                output=str(output) if output is not None else None,
                renames=rename or [],
                units=unit or [],
                meta=meta,
                inputs=inputs,
                seed=seed,
                allow=allow or [],
                derivatives=derivative or [],
                jvp=jvp,
                vjp=vjp,
                parameters=parameter or [],
                per_element=per_element or [],
                batch=cast("BatchChoice", batch),
                sizes=cast("SizeChoice", sizes),
                differentiable=differentiable,
                symmetric=symmetric or [],
                thorough=thorough,
                budget=budget,
                jobs=jobs,
                against=against,
                on_failure=cast("OnFailure | None", on_failure),
                formats=format or [],
                opset=opset,
                reduce=reduce,
                runtimes=runtime,
                devices=device,
                time_limit=time_limit,
                memory_limit=memory_limit,
                **watchers,
            )
    print_exported(results, import_seconds if timings else None, against, as_json=json)


@contextlib.contextmanager
def watch_export(context: typer.Context, *, is_silent: bool) -> Iterator[dict[str, Any]]:
    """Show what an export does; the block gets the arguments of ``api.export`` that tell of it, and the command."""

    def announce(listing: Listing) -> None:
        with display.pause():
            print_listing(listing)

    command = shlex.join(["torchferry", *map(strip_folders, context.obj or [])])
    with show_steps(is_silent=is_silent) as display:
        yield {
            "command": command,
            "announce": None if is_silent else announce,
            "progress": err.print,
            "watch": display.show,
        }


def print_exported(
    results: Sequence[Exported], import_seconds: float | None, against: Path | None = None, *, as_json: bool = False
) -> None:
    """Print what was exported, with the seconds of each stage if those of imports are given."""
    if as_json:
        from torchferry.pipeline import result_to_dict

        print_json([result_to_dict(e) for e in results])
        return
    for result in results:
        _print_result(result, against)
        if import_seconds is not None:
            _print_timings(result, import_seconds)


def _print_result(result: Exported, against: Path | None) -> None:
    from exporter.archive.formats import count_bytes
    from exporter.archive.variable_units import CHECK as UNITS
    from exporter.model.argument_structures import CHECK as ARGUMENTS
    from exporter.model.eager.batch_choice import CHECK as BATCH
    from exporter.model.eager.dynamic_sizes import OPEN_SIZES
    from runtime_checks.report import render

    out.print(render(result.report))
    for container in result.containers:
        out.print(render(container.report))
    for finding in result.contract.findings:
        # What nobody has said.
        if finding.check in (BATCH, OPEN_SIZES, ARGUMENTS, UNITS):
            out.print(Text(f"{finding.check}: {finding.what}: {finding.reason}"), soft_wrap=True)
    for path in dict.fromkeys((result.path, *(c.path for c in result.containers))):
        out.print(f"wrote {path} ({count_bytes(path)} bytes)", soft_wrap=True)
    for reason in result.reasons or ():
        out.print(f"{against} does not serve this model: {reason.kind}: {reason.text}", soft_wrap=True)
    if result.reasons == ():
        out.print(f"{against} serves this model as well: the graphs are the same", soft_wrap=True)


def _print_timings(result: Exported, import_seconds: float) -> None:
    parts = {f"verify: {name}": value for name, value in result.report.seconds.items()}
    stages = {name: value for name, value in result.seconds.items() if name != "verify"}
    seconds = {"imports": import_seconds, **stages, **parts}
    print_timings(seconds)
    print_slowest(seconds, result.parts)
    for name, method in result.contract.methods.items():
        if method.how:
            out.print(f"{name}: {method.how}", soft_wrap=True)
