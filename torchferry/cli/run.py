"""``torchferry run``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from typer import Option

from exporter.common.errors import RunError, UsageError
from torchferry.cli.options import AllowNativeOption, ArchiveArgument, JsonOption, MemoryLimitOption, choose_trust
from torchferry.cli.output import err, out, print_json
from torchferry.cli.startup import pause_collection

# Columns of a table of iterations.
ELEMENTS_SHOWN = 6


@dataclass(frozen=True)
class _Request:
    """What is run: a ``history``, or a ``table`` of loads for ``points`` from an ``initial`` state, whose path that was
    found goes to ``save_history``; inputs of elements that fail there go to ``failures``. Or what is run again: the
    ``replay`` of such inputs."""

    history: Path | None
    table: Path | None
    replay: Path | None
    points: Path | None
    initial: Path | None
    save_history: Path | None
    failures: Path | None

    def __post_init__(self) -> None:
        paths = {"--history": self.history, "--table": self.table, "--replay": self.replay}
        asked = [option for option, path in paths.items() if path is not None]
        if len(asked) != 1:
            expected = "one of --history FILE, --table FILE, --replay FILE"
            raise UsageError("one path is needed", got=", ".join(asked) or "none", expected=expected)
        own = {"--points": self.points, "--initial": self.initial, "--save-history": self.save_history}
        own |= {"--failures": self.failures} if self.replay is not None else {}
        unused = [f"{option} {path}" for option, path in own.items() if path is not None]
        if self.table is None and unused:
            what, expected = f"{asked[0]} has no use for it", "--table, or to leave it out"
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
    replay: Annotated[
        Path | None, Option(help="Elements that failed, as --failures writes them: their iterations one by one.")
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Values of every step: .csv, .parquet, .npz, .pt.")
    ] = None,
    failures: Annotated[
        Path | None, Option(help="Where the inputs of the first elements that fail go, for --replay: a .pt file.")
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
    blocks of the file's Jacobian the inputs are found that give them. A replay shows the iterations of elements that
    failed.

    Exit code 0: all steps ran, and agree with what a history expects. 4: a point did not reach its loads. 5: a step
    differs.

    Examples:

      torchferry run return_map.pt --history cycle.pt -o stresses.pt

      torchferry run return_map.pt --table uniaxial.csv -o stresses.csv --plot curve.svg --curve 'stress[0]:strain[0]'

      torchferry run return_map.pt --history cycle.pt --failures failed.pt

      torchferry run return_map.pt --replay failed.pt --plot norms.svg --curve residual_norm
    """
    request = _Request(history, table, replay, points, initial, save_history, failures)
    with pause_collection():
        from runtime_checks import history_plot as pictures
        from runtime_checks import load_history as histories
        from runtime_checks.mixed_control import CONTROL_STATUS
        from runtime_checks.model import load
        from runtime_checks.result_tables import check_result_path, write_results
        from runtime_checks.runners.confined_calls import Confinement
        from torchferry.cli.confined_process import import_early, run_confined

    if curve and plot is None:
        raise UsageError("curves need a picture to draw into", where="--curve", expected="--plot FILE")
    if output is not None:
        check_result_path(output)
    if plot is not None:
        import_early("matplotlib.figure")

    def work() -> None:
        model = load(path, device, trust=choose_trust(allow_native))
        if replay is not None:
            outcome = _replay(model, replay)
        else:
            outcome = _run_history(model, request, json) if history is not None else _run_table(model, request, json)
        names = [s.name for s in model.contract.outputs] if history is not None else list(outcome.values)
        # Norms of residuals come first, where there are some: they are what a replay is about.
        specs = (*model.contract.info, *model.contract.outputs, *model.contract.inputs)
        shapes = {s.name: s.static_shape for s in specs if s.name in outcome.values}
        if output is not None:
            values = {name: outcome.values[name].cpu() for name in names}
            write_results(output, values, {name: shapes.get(name, ()) for name in names})
        if plot is not None:
            ranks = {name: len(shape) for name, shape in shapes.items()}
            pictures.draw(pictures.parse_curves(curve or [], outcome.values, ranks), plot)
        lost = histories.find_failure({s.name: outcome.values[s.name] for s in model.contract.outputs})
        if replay is not None:
            _report_iterations(outcome, as_json=json)
            return
        if not (lost and table is not None and json):
            _report(outcome, lost, as_json=json)
        if lost and table is not None:
            status = outcome.values[CONTROL_STATUS]
            what = f"{int((status[-1] != 0).sum())} of {status.shape[1]} points do not follow the path"
            got = f"from step {lost[0]} on"
            mend = "take more steps, or loads that the material can bear; control_status says how each point ended"
            raise RunError(what, where=str(table), got=got, mend=mend)

    limits = {"time_limit": time_limit, "memory_limit": memory_limit, "has_devices": device != "cpu"}
    run_confined(work, Confinement(path, (output, plot, save_history, failures), **limits), as_json=json)


def _run_history(model: Any, request: _Request, is_silent: bool) -> _Outcome:
    from runtime_checks import load_history as histories
    from runtime_checks.failure_replay import FailureRecorder

    assert request.history is not None
    load_history = histories.read(request.history, model.contract)
    recorder = FailureRecorder(request.failures, model.contract)
    steps = load_history.steps
    outputs = _show_steps(steps, is_silent, lambda done: histories.run(model, load_history, done, recorder.look))
    recorder.write()
    histories.check_history(model.contract, load_history, outputs)
    values = {**outputs, **{n: v for n, v in load_history.prescribed.items() if n not in outputs}}
    return _Outcome(load_history.steps, values, tuple(load_history.expected))


def _run_table(model: Any, request: _Request, is_silent: bool) -> _Outcome:
    import torch

    from exporter.archive.input_files import read_inputs
    from exporter.common.atomic_files import atomic_write_path
    from runtime_checks import mixed_control
    from runtime_checks.failure_replay import FailureRecorder
    from runtime_checks.load_path import read_load_path, read_points

    assert request.table is not None
    load_path = read_load_path(request.table)
    own_values = read_points(request.points) if request.points is not None else {}
    state = read_inputs(request.initial, "--initial") if request.initial is not None else {}
    material = mixed_control.MaterialPoints(model, load_path, own_values, state)
    recorder = FailureRecorder(request.failures, model.contract)
    values = _show_steps(load_path.steps, is_silent, lambda done: material.run(done, recorder.look))
    recorder.write()
    mixed_control.check_control(model.contract, load_path, own_values, values)
    if request.save_history is not None:
        with atomic_write_path(request.save_history) as temporary_path:
            torch.save(mixed_control.to_history(material, values), temporary_path)
    return _Outcome(load_path.steps, values)


def _replay(model: Any, path: Path) -> _Outcome:
    from runtime_checks.failure_replay import read_failures, replay_iterations

    values = replay_iterations(model, read_failures(path, model.contract))
    return _Outcome(len(next(iter(values.values()))), values)


def _show_steps(count: int, is_silent: bool, run: Callable[[Callable[[int], object]], Any]) -> Any:
    """Run something that tells of each finished step, with a progress bar."""
    from rich.progress import Progress

    with Progress(console=err, transient=True, disable=is_silent) as progress:
        bar = progress.add_task("steps", total=count)
        return run(lambda _: progress.advance(bar))


def _report_iterations(outcome: _Outcome, *, as_json: bool) -> None:
    """Print the norms of the residuals of each element, iteration by iteration; several solves beside each other."""
    from exporter.model.implicit.newton_solver import STATUS as MEANINGS
    from runtime_checks.failure_replay import NORM, STATUS

    norms, status = outcome.values[NORM], outcome.values[STATUS]
    if as_json:
        print_json({"iterations": outcome.steps, NORM: norms.tolist(), STATUS: status[-1].tolist()})
        return
    table = Table("iteration", *(f"element {i}" for i in range(min(norms.shape[1], ELEMENTS_SHOWN))), show_edge=False)
    for step, row in enumerate(norms.flatten(2).tolist() if norms.ndim > 2 else norms[..., None].tolist()):
        table.add_row(str(step), *("  ".join(f"{value:.3e}" for value in cell) for cell in row[:ELEMENTS_SHOWN]))
    out.print(table)
    if norms.shape[1] > ELEMENTS_SHOWN:
        out.print(f"and {norms.shape[1] - ELEMENTS_SHOWN} more: -o FILE writes all")
    ends = [MEANINGS[code] for code in sorted(set(status[-1].flatten().tolist()))]
    out.print(f"at the end: {'; '.join(ends)}", soft_wrap=True)


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
