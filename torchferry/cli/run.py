"""``torchferry run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from exporter.common.errors import UsageError
from torchferry.cli.options import AllowNativeOption, ArchiveArgument, JsonOption, MemoryLimitOption, choose_trust
from torchferry.cli.output import err, out, print_json
from torchferry.cli.startup import pause_collection


def command(
    path: ArchiveArgument,
    history: Annotated[Path, Option(help="Prescribed inputs, initial state, expected outputs: a .pt file.")],
    output: Annotated[
        Path | None, Option("--output", "-o", help="Where the outputs of every step go: a .pt file.")
    ] = None,
    plot: Annotated[Path | None, Option(help="A picture: .svg, .png, .pdf (matplotlib).")] = None,
    curve: Annotated[
        list[str] | None,
        Option(help="What is drawn over what: 'stress[0]:strain[0]', or 'stress[0]' over the steps; may be repeated."),
    ] = None,
    device: Annotated[str, Option(help="Device: cpu, cuda, cuda:1.")] = "cpu",
    allow_native: AllowNativeOption = False,
    time_limit: Annotated[float, Option(help="Seconds for the process that runs it.")] = 86_400.0,
    memory_limit: MemoryLimitOption = 16.0,
    json: JsonOption = False,
) -> None:
    """Run a load history through an archive, its states fed back from step to step.

    Exit code 0: all steps ran, and agree with what the file expects. 5: a step differs.

    Examples:

      torchferry run return_map.pt --history cycle.pt -o stresses.pt

      torchferry run return_map.pt --history cycle.pt --plot cycle.svg --curve 'stress[0]:strain[0]'
    """
    with pause_collection():
        import torch
        from rich.progress import Progress

        from exporter.common.atomic_files import atomic_write_path
        from runtime_checks import history_plot as pictures
        from runtime_checks import load_history as histories
        from runtime_checks.model import load
        from torchferry.cli.confined_process import Confinement, import_early, run_confined

    if curve and plot is None:
        raise UsageError("curves need a picture to draw into", where="--curve", expected="--plot FILE")
    if plot is not None:
        import_early("matplotlib.figure")

    def work() -> None:
        model = load(path, device, trust=choose_trust(allow_native))
        load_history = histories.read(history, model.contract)
        with Progress(console=err, transient=True, disable=json) as progress:
            bar = progress.add_task("steps", total=load_history.steps)
            outputs = histories.run(model, load_history, lambda _: progress.advance(bar))
        if output is not None:
            with atomic_write_path(output) as temporary_path:
                torch.save({name: value.cpu() for name, value in outputs.items()}, temporary_path)
        if plot is not None:
            specs = (*model.contract.outputs, *model.contract.inputs)
            plotted = {**outputs, **load_history.prescribed}
            ranks = {s.name: len(s.shape) for s in specs if s.name in plotted}
            pictures.draw(pictures.parse_curves(curve or [], plotted, ranks), plot)
        failures = histories.find_failure(outputs)
        histories.check_history(model.contract, load_history, outputs)
        if json:
            compared, first_failure = list(load_history.expected), failures and failures[0]
            print_json({"steps": load_history.steps, "compared": compared, "not_finite_from_step": first_failure})
            return
        compared = f", equal to what is expected of {', '.join(load_history.expected)}" if load_history.expected else ""
        out.print(f"{load_history.steps} steps{compared}", soft_wrap=True)
        if failures:
            text = f"from step {failures[0]} on some elements have not converged: {failures[1]} values at the end"
            out.print(text, soft_wrap=True)

    limits = {"time_limit": time_limit, "memory_limit": memory_limit, "has_devices": device != "cpu"}
    run_confined(work, Confinement(path, (output, plot), **limits, as_json=json))
