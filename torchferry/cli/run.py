"""``torchferry run``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from exporter.common.errors import RunError, UsageError
from torchferry.cli.options import AllowNativeOption, ArchiveArgument, JsonOption, MemoryLimitOption, choose_trust
from torchferry.cli.output import err, out, print_json
from torchferry.cli.startup import pause_collection


@dataclass(frozen=True)
class _Request:
    """What is run: a ``history``, or a ``table`` of loads for ``points`` from an ``initial`` state; and where the path
    that was found is to go."""

    history: Path | None
    table: Path | None
    points: Path | None
    initial: Path | None
    save_history: Path | None

    def __post_init__(self) -> None:
        if (self.history is None) == (self.table is None):
            got = "neither" if self.history is None else "both"
            raise UsageError("a path is needed, and only one", got=got, expected="--history FILE or --table FILE")
        own = {"--points": self.points, "--initial": self.initial, "--save-history": self.save_history}
        unused = [f"{option} {path}" for option, path in own.items() if path is not None]
        if self.history is not None and unused:
            what, expected = "a history has states and points of its own", "--table in place of --history"
            raise UsageError(what, got=unused[0], expected=expected)


@dataclass(frozen=True)
class _Outcome:
    """Values ``(steps, *batch, *event)`` by name, and which of them were compared."""

    steps: int
    values: Mapping[str, Any]
    compared: tuple[str, ...] = ()


def command(
    path: ArchiveArgument,
    history: Annotated[
        Path | None, Option(help="Prescribed inputs, initial state, expected outputs: a .pt file.")
    ] = None,
    table: Annotated[
        Path | None, Option(help="A path of loads: a .csv file of inputs, and of outputs that are to follow it.")
    ] = None,
    points: Annotated[Path | None, Option(help="Material points: a .csv file of inputs, a row for each.")] = None,
    initial: Annotated[Path | None, Option(help="The state at the start by name: .pt, .npz or .json.")] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Outputs of every step: .pt; of a table also .csv, .npz, .parquet.")
    ] = None,
    save_history: Annotated[
        Path | None, Option(help="The path that was found, as a history of prescribed inputs: a .pt file.")
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
    """Run material points through an archive, their states fed back from step to step.

    A history prescribes all inputs. A table prescribes components of inputs, or of outputs in their place: with the
    blocks of the file's Jacobian the inputs are found that give them.

    Exit code 0: all steps ran, and agree with what a history expects. 4: a point did not reach its loads. 5: a step
    differs.

    Examples:

      torchferry run return_map.pt --history cycle.pt -o stresses.pt

      torchferry run return_map.pt --table uniaxial.csv -o stresses.csv --plot curve.svg --curve 'stress[0]:strain[0]'
    """
    request = _Request(history, table, points, initial, save_history)
    with pause_collection():
        from runtime_checks import history_plot as pictures
        from runtime_checks import load_history as histories
        from runtime_checks.model import load
        from runtime_checks.result_tables import check_result_path, write_results
        from torchferry.cli.confined_process import Confinement, import_early, run_confined

    if curve and plot is None:
        raise UsageError("curves need a picture to draw into", where="--curve", expected="--plot FILE")
    if output is not None:
        check_result_path(output)
    if plot is not None:
        import_early("matplotlib.figure")

    def work() -> None:
        model = load(path, device, trust=choose_trust(allow_native))
        outcome = _run_history(model, request, json) if history is not None else _run_table(model, request, json)
        names = [s.name for s in model.contract.outputs] if history is not None else list(outcome.values)
        specs = (*model.contract.outputs, *model.contract.inputs)
        shapes = {s.name: s.static_shape for s in specs if s.name in outcome.values}
        if output is not None:
            values = {name: outcome.values[name].cpu() for name in names}
            write_results(output, values, {name: shapes.get(name, ()) for name in names})
        if plot is not None:
            ranks = {name: len(shape) for name, shape in shapes.items()}
            pictures.draw(pictures.parse_curves(curve or [], outcome.values, ranks), plot)
        failures = histories.find_failure({s.name: outcome.values[s.name] for s in model.contract.outputs})
        _report(outcome, failures, as_json=json)
        if failures and table is not None:
            what, got = f"{failures[1]} points do not follow the path", f"from step {failures[0] + 1} on"
            mend = "take more steps, or loads that the material can bear; control_status says how each point ended"
            raise RunError(what, where=str(table), got=got, mend=mend)

    limits = {"time_limit": time_limit, "memory_limit": memory_limit, "has_devices": device != "cpu"}
    run_confined(work, Confinement(path, (output, plot, save_history), **limits, as_json=json))


def _run_history(model: Any, request: _Request, is_silent: bool) -> _Outcome:
    from runtime_checks import load_history as histories

    assert request.history is not None
    load_history = histories.read(request.history, model.contract)
    outputs = _show_steps(load_history.steps, is_silent, lambda advance: histories.run(model, load_history, advance))
    histories.check_history(model.contract, load_history, outputs)
    values = {**outputs, **{n: v for n, v in load_history.prescribed.items() if n not in outputs}}
    return _Outcome(load_history.steps, values, tuple(load_history.expected))


def _run_table(model: Any, request: _Request, is_silent: bool) -> _Outcome:
    import torch

    from exporter.archive.input_files import read_inputs
    from exporter.common.atomic_files import atomic_write_path
    from runtime_checks import mixed_control
    from runtime_checks.load_path import read_load_path, read_points

    assert request.table is not None
    load_path = read_load_path(request.table)
    own_values = read_points(request.points) if request.points is not None else {}
    state = read_inputs(request.initial) if request.initial is not None else {}
    state = {name: torch.as_tensor(value) for name, value in state.items()}
    material = mixed_control.MaterialPoints(model, load_path, own_values, state)
    values = _show_steps(load_path.steps, is_silent, material.run)
    mixed_control.check_control(material.plan, load_path, values)
    if request.save_history is not None:
        with atomic_write_path(request.save_history) as temporary_path:
            torch.save(mixed_control.to_history(material, values), temporary_path)
    return _Outcome(load_path.steps, values)


def _show_steps(count: int, is_silent: bool, run: Callable[[Callable[[int], object]], Any]) -> Any:
    """Run something that tells of each finished step, with a progress bar."""
    from rich.progress import Progress

    with Progress(console=err, transient=True, disable=is_silent) as progress:
        bar = progress.add_task("steps", total=count)
        return run(lambda _: progress.advance(bar))


def _report(outcome: _Outcome, failures: tuple[int, int] | None, *, as_json: bool) -> None:
    if as_json:
        compared, first_failure = list(outcome.compared), failures and failures[0]
        print_json({"steps": outcome.steps, "compared": compared, "not_finite_from_step": first_failure})
        return
    compared = f", equal to what is expected of {', '.join(outcome.compared)}" if outcome.compared else ""
    out.print(f"{outcome.steps} steps{compared}", soft_wrap=True)
    if failures:
        text = f"from step {failures[0]} on some elements have not converged: {failures[1]} values at the end"
        out.print(text, soft_wrap=True)
