"""``torchferry bench``."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from torchferry.cli.options import AllowNativeOption, JsonOption, MemoryLimitOption, choose_trust
from torchferry.cli.output import err, out, print_json

if TYPE_CHECKING:
    from runtime_checks.bench.benchmark import BenchmarkOptions


def command(
    paths: Annotated[list[Path] | None, Argument(help="Archives, .pt2 and ONNX containers.", metavar="FILE...")] = None,
    against: Annotated[
        str | None, Option(help="Also the model itself in eager mode: SOURCE, or SOURCE:MODEL of an input file.")
    ] = None,
    inputs: Annotated[Path | None, Option(help="Warmup inputs of the model, as in export.")] = None,
    method: Annotated[str, Option(help="The method that is called.")] = "forward",
    batch: Annotated[str, Option(help="Batch sizes, separated by commas.")] = "1,10,100,1000,10000,100000,1000000",
    threads: Annotated[int, Option(help="Threads per call.")] = 1,
    device: Annotated[str, Option(help="cpu or cuda.")] = "cpu",
    plot: Annotated[Path | None, Option(help="Draw throughput against the batch: .svg or .html.")] = None,
    time_limit: Annotated[
        float,
        Option(help="Seconds for the fresh process of each candidate; of computing, for its calls at each batch."),
    ] = 300.0,
    memory_limit: MemoryLimitOption = 16.0,
    allow_native: AllowNativeOption = False,
    json: JsonOption = False,
) -> None:
    """Time files of one contract side by side, in rounds in which each has its turn.

    Loading and the first calls are those of a fresh process; then come medians and quartiles at each batch, the ratio
    to the first file, nanoseconds an element, and how far that is from only reading inputs and writing outputs. A file
    that does not reproduce the numbers of the stored cases is not compared: exit code 5.

    Examples:

      torchferry bench eq.pt

      torchferry bench eq.pt eq.onnx eq.pt2 --against model.i:eq --plot eq.svg

      torchferry bench eq.pt --method jacobian --batch 1,1000 --json"""
    from exporter.common.errors import UsageError
    from runtime_checks.bench import report
    from runtime_checks.bench.benchmark import BenchmarkOptions
    from runtime_checks.runners.confined_calls import Confinement
    from runtime_checks.runners.subprocesses import MOST_SECONDS
    from torchferry.cli.confined_process import import_early, run_confined

    files = paths or []
    if plot is not None:
        report.check_picture_path(plot)
        import_early("matplotlib.figure")
    try:
        batches = [int(n.replace("_", "")) for n in batch.split(",") if n.strip()]
    except ValueError:
        raise UsageError("a batch size is not a number", where="--batch", got=batch, expected="1,1000,100000") from None
    on_cpu = device == "cpu"
    # A GPU's driver maps more than it takes: no limit is in force there.
    limit = memory_limit if on_cpu else None
    options = BenchmarkOptions(method, batches, threads, device, time_limit, choose_trust(allow_native), limit)
    # Of a processor: each thread counts, and each candidate at each batch.
    seconds = min(time_limit * threads * max(1, len(batches)) * (len(files) + 1), MOST_SECONDS)
    work = functools.partial(_time, files, options, against, inputs, plot, json)
    # Fresh processes are Python's; a model may compile what it runs.
    programs = None if against is not None else (sys.executable,)
    confinement = Confinement(
        next(iter(files), Path()), (plot,), seconds, memory_limit, programs, has_devices=not on_cpu
    )
    run_confined(work, confinement, as_json=json)


def _time(
    files: list[Path],
    options: BenchmarkOptions,
    against: str | None,
    inputs: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Time files and the model ``against`` them, and print what that gave."""
    import torch

    from runtime_checks import containers
    from runtime_checks.bench import report
    from runtime_checks.bench.benchmark import run_benchmark
    from runtime_checks.bench.candidates import Candidate
    from runtime_checks.options import VerifyOptions
    from runtime_checks.runners import selection
    from torchferry.eager_reference import make_eager_call

    if options.device != "cpu":
        selection.select_runners(VerifyOptions(devices=options.device))
    candidates = []
    if against is not None and files:
        source, _, model = against.rpartition(":") if ".i:" in against else (against, "", "")
        spec = containers.open_container(files[0]).contract.methods.get(options.method)
        outputs = spec.outputs if spec else ()
        candidates.append(Candidate("eager", functools.partial(make_eager_call, source, model, inputs, outputs)))
    torch.manual_seed(0)
    progress = (lambda text: None) if as_json else (lambda text: err.print(text, soft_wrap=True))
    result = run_benchmark(files, options, others=candidates, progress=progress)
    if plot is not None:
        report.plot(result, plot)
    if as_json:
        print_json(result.as_dict())
        return
    out.print(report.render(result))
    if plot is not None:
        out.print(f"wrote {plot}", soft_wrap=True)
