"""``torchferry convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from torchferry.cli.options import (
    ArchiveArgument,
    DeviceOption,
    JsonOption,
    MemoryLimitOption,
    OpsetOption,
    ReduceOption,
    TimeLimitOption,
)
from torchferry.cli.output import out, print_json
from torchferry.cli.startup import pause_collection


def command(
    path: ArchiveArgument,
    to: Annotated[str, Option(help="The container to write: onnx, pt2, program, c or cuda.")],
    output: Annotated[
        Path | None, Option("--output", "-o", help="Default: the archive's name with the container's suffix.")
    ] = None,
    opset: OpsetOption = 18,
    reduce: ReduceOption = "all",
    finite_math: Annotated[bool, Option("--finite-math", help="For a kernel: 0 * x is 0, whatever x is.")] = False,
    device: DeviceOption = "cpu",
    time_limit: TimeLimitOption = 600.0,
    memory_limit: MemoryLimitOption = 16.0,
    json: JsonOption = False,
) -> None:
    """Write an archive as another container, from the file alone, and verify that.

    A .pt2 is compiled for this machine, and needs no compiler to run. A program (NAME.program.pt2) is
    torch.export's own, for Python on any machine. An ONNX container is a model for each method
    (NAME.onnx, NAME.jacobian.onnx) with the contract, the cases and the digests beside them (NAME.onnx.json,
    NAME.onnx.npz). What it cannot express is named with model and line: exit code 3. 5: numbers differ; 6: a
    package, or the compiler, is missing. A kernel (c) is a folder of C sources that need libm alone.

    Examples:

      torchferry convert eq.pt --to onnx

      torchferry convert eq.pt --to onnx -o deploy/eq.onnx --opset 20

      torchferry convert eq.pt --to pt2

      torchferry convert eq.pt --to c -o kernel
    """
    with pause_collection():
        from exporter.archive.formats import count_bytes
        from runtime_checks.report import render
        from runtime_checks.runners.confined_calls import Confinement
        from torchferry import api
        from torchferry.cli.confined_process import run_confined

    def work() -> None:
        result = api.convert(
            path,
            output,
            to=to,
            opset=opset,
            reduce=reduce,
            finite_math=finite_math,
            devices=device,
            time_limit=time_limit,
            memory_limit=memory_limit,
        )
        if json:
            print_json({"path": str(result.path), "report": result.report.as_dict()})
            return
        out.print(render(result.report))
        out.print(f"wrote {result.path} ({count_bytes(result.path)} bytes)", soft_wrap=True)

    # By default it is written beside the archive.
    limits = {"time_limit": time_limit, "memory_limit": memory_limit, "has_devices": device != "cpu"}
    run_confined(work, Confinement(path, (output or path.parent,), **limits, programs=None), as_json=json)
