"""Warmup, capture and soundness gate of a model: everything that a file is made from."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from exporter.archive import derivative_request
from exporter.archive.contract import Finding
from exporter.archive.derivative_request import DerivativeRequest, ResolvedDerivatives
from exporter.archive.tensor_spec import TensorSpec, infer_spec, name_dtype
from exporter.capture import newton_capture
from exporter.capture.autograd_detection import detect_inner_autograd
from exporter.capture.newton_capture import CapturedLoop
from exporter.capture.passes import CaptureResult, capture
from exporter.capture.scripting import forget_explanations
from exporter.common.errors import CaptureError, TorchferryError, UnsupportedError, UsageError
from exporter.common.forking import DEFAULT_SECONDS, WEEK, ForkedCall, ForkFailedError, run_in_fork, tell_parent
from exporter.common.stopwatch import Stopwatch
from exporter.common.torch_hooks import ignore_deprecations, patch_forward
from exporter.model.eager.derivatives import find_nonzero_blocks
from exporter.model.eager.evaluation import eager_context
from exporter.model.eager.gradient_hooks import GradientHook, find_gradient_hooks, may_have_hooks
from exporter.model.eager.warmup import FirstRun, Warmup, measure_cost, run_first, stack_calls, subsample_rows, warm_up
from exporter.model.implicit.coordinate_descent import CoordinateDescent, DescentCall, find_descents
from exporter.model.implicit.newton_solver import NewtonSolver, find_solvers, list_own_parameters
from exporter.model.implicit.solve_recording import record_solver_calls
from exporter.model.jit_marks import mark
from exporter.model.source import Inputs, Listing, Source
from exporter.soundness import gate
from exporter.soundness.checks import hooks
from exporter.soundness.clean_room import CleanRooms
from exporter.soundness.gate import Allowance, GateOptions

_Result = TypeVar("_Result")

# Calls of a slow model one after the other, from its warmup to its report, two checks side by side.
CALLS = 100
# A sample of solves, and the findings about a residual.
CheckedResidual = tuple[Inputs, tuple[Finding, ...]]


@dataclass(frozen=True)
class CaptureOptions:
    """How a model is captured: the ``seed`` of all random draws, the ``allowances`` of findings, the requested
    derivatives, whether ``torch.export`` is asked too (``second_opinion``), who is told of the model's inputs and
    outputs before it is captured (``announce``), whether large batches and all draws are run whatever they cost
    (``thorough``) or how many seconds large batches may take (``budget``), and how many checks run at the same time
    (``jobs``).
    """

    seed: int = 0
    allowances: tuple[Allowance, ...] = ()
    derivative_request: DerivativeRequest | None = None
    second_opinion: bool = False
    announce: Callable[[Listing], Any] = lambda listing: None
    thorough: bool = False
    budget: float | None = None
    jobs: int = 1

    def __post_init__(self) -> None:
        if self.budget is not None and not 0 < self.budget < math.inf:
            what, expected = "the budget is not a number of seconds", "a finite number above 0"
            raise UsageError(what, where="--budget", got=f"{self.budget:g}", expected=expected)
        if self.budget is not None and self.thorough:
            what, mend = "all large batches are to run, and only those of a budget", "leave one of the two out"
            raise UsageError(what, where="--thorough, --budget", expected="one of them", mend=mend)


def checked_capture(
    source: Source, options: CaptureOptions, clock: Stopwatch
) -> tuple[Warmup, CaptureResult, tuple[Finding, ...]]:
    """Warm up, check and capture a model. Raises ``UnsoundError`` and related errors."""
    with capture_beside_checks(source, options, clock) as (warm, captured, wait):
        return warm, captured, wait()


@contextlib.contextmanager
def capture_beside_checks(
    source: Source, options: CaptureOptions, clock: Stopwatch
) -> Iterator[tuple[Warmup, CaptureResult, Callable[[], tuple[Finding, ...]]]]:
    """Warm up and capture a model; the block gets both, and what waits for the findings about them.

    Checks of eager mode run beside the capture, and checks of the capture beside the block, unless ``options.jobs`` is
    1. Raises ``UnsoundError`` and related errors, in place of those of the block: they explain more.

    The residual of an implicit update is checked first, as a model of its own; afterwards a solve is one operation."""
    forget_explanations()
    if source.outputs:
        # The capture of loops comes first, and takes seconds.
        _validate_request(source, [spec.name for spec in source.outputs], options)
    captured_loops, solver_findings = _capture_loops(source, options, clock)
    report, seed = functools.partial(clock.report, "soundness"), options.seed
    with newton_capture.replace_loops(captured_loops):
        with CleanRooms(source, options.jobs) as room:
            first = _run_first(source, options, clock)
            with clock("soundness"):
                room.import_alike()
                room.limit = max(DEFAULT_SECONDS, CALLS * first.seconds)
                gate_options = GateOptions(
                    options.allowances, options.thorough, options.second_opinion, options.jobs, room.limit, report
                )
                checks = gate.make_eager_checks(first, room, derive_seed(seed, "gate"), gate_options)
            with _check_beside(checks.run, room.close, clock, is_beside=options.jobs > 1) as wait_for_eager:
                warm, captured, derivative_findings = _capture_model(
                    first, checks.context.inputs, captured_loops, options, clock
                )
                eager, findings = wait_for_eager()

        def check_capture(clock: Stopwatch) -> tuple[Finding, ...]:
            own_options = dataclasses.replace(gate_options, report=functools.partial(clock.report, "soundness"))
            return gate.check_after_capture(warm, captured, eager, findings, own_options)

        with _check_in_fork(source.name, check_capture, clock, is_forked=options.jobs > 1) as wait_for_capture:
            yield warm, captured, lambda: (*solver_findings, *wait_for_capture(), *derivative_findings)


def _run_first(source: Source, options: CaptureOptions, clock: Stopwatch) -> FirstRun:
    """Run a model first, and measure what a call costs; say so where it is slow."""
    with clock("warmup"):
        first = run_first(source, derive_seed(options.seed, "warmup"))
        if not options.thorough:
            first = measure_cost(first, derive_seed(options.seed, "more warmup"), options.budget)
        if first.is_slow:
            minutes = first.seconds * CALLS / 60
            clock.tell(f"a call takes {first.seconds:.0f} s, an export about {CALLS} of them: {minutes:.0f} minutes")
    # A misspelt name is reported before the gate, which takes seconds.
    _validate_request(source, list(first.outputs), options)
    return first


def _validate_request(source: Source, outputs: Sequence[str], options: CaptureOptions) -> None:
    """Raise ``UsageError`` if derivatives are requested of names that the model does not have."""
    if options.derivative_request is not None:
        inputs = [spec.name for spec in source.inputs]
        parameters = list(list_own_parameters(source.parameter_module))
        derivative_request.validate_names(options.derivative_request, inputs, outputs, parameters)


def _capture_model(
    first: FirstRun,
    traced_inputs: Inputs,
    captured_loops: Mapping[str, CapturedLoop],
    options: CaptureOptions,
    clock: Stopwatch,
) -> tuple[Warmup, CaptureResult, tuple[Finding, ...]]:
    """Warm up a model further and capture it; return the findings about its derivatives, too."""
    seed = options.seed
    with clock("warmup"):
        warm = warm_up(first, derive_seed(seed, "more warmup"))
    options.announce(summarize_model(warm))
    derivatives, findings = resolve_model_derivatives(warm, options.derivative_request)
    with clock("capture"):
        captured = capture(warm, traced_inputs, derive_seed(seed, "capture"), derivatives, captured_loops)
    return warm, captured, findings


def _capture_loops(
    source: Source, options: CaptureOptions, clock: Stopwatch
) -> tuple[Mapping[str, CapturedLoop], tuple[Finding, ...]]:
    """Return the captured loops of an implicit model by path, and the findings about the residuals of its solvers."""
    if not (solvers := find_solvers(source.parameter_module)):
        return {}, ()
    _check_solvers(source, solvers)
    with clock("capture"), eager_context(source), ignore_deprecations():
        captured_loops, descent_findings = _capture_descents(source, derive_seed(options.seed, "warmup"))
    with newton_capture.replace_loops(captured_loops):
        captured_solvers, findings = _capture_solvers(source, solvers, options, clock)
    return {**captured_loops, **captured_solvers}, (*descent_findings, *findings)


def _capture_descents(source: Source, seed: int) -> tuple[dict[str, CapturedLoop], list[Finding]]:
    """Return the captured coordinate descents of predictors, by path, and a finding for each that stays unrolled.

    One that the first run does not call is left out."""
    captured_loops, findings = dict[str, CapturedLoop](), list[Finding]()
    descents = find_descents(source.parameter_module)
    for path, call in (run_in_fork(_record_descents, source, seed) if descents else {}).items():
        try:
            captured = newton_capture.capture_descent(path, descents[path], call)
            newton_capture.check_own_parameters(path, captured, source.parameter_module)
        except TorchferryError as error:
            what = f"the loops of the predictor {path!r} are unrolled"
            findings.append(Finding("implicit", what, reason=f"{error.what}: {error.details.get('got', '')}"))
        else:
            captured_loops[path] = captured
            mark(descents[path], jit="script")
    return captured_loops, findings


def _record_descents(source: Source, seed: int) -> dict[str, DescentCall]:
    """Return the arguments and the result of the last call of each coordinate descent in a first run, by path."""
    calls: dict[str, DescentCall] = {}

    def wrap_forward(path: str, loop: CoordinateDescent) -> Callable[..., torch.Tensor]:
        forward = loop.forward

        def run(*arguments: Any) -> torch.Tensor:
            result = forward(*arguments)
            calls[path] = (arguments, result)
            return result

        return run

    descents = find_descents(source.parameter_module)
    with patch_forward({loop: wrap_forward(path, loop) for path, loop in descents.items()}):
        run_first(source, seed)
    return calls


def _check_solvers(source: Source, solvers: Mapping[str, NewtonSolver]) -> None:
    """Check that the file can hold these solvers. Raises ``UnsupportedError``."""
    if source.uses_autograd:
        what = "a model that takes gradients itself holds an implicit update"
        expected = "gradients inside the residual, or --derivative for those of the update"
        raise UnsupportedError(what, where=", ".join(solvers), expected=expected)
    if not source.batch_ndim:
        what = "an implicit update needs a batch, and the model has whole shapes"
        expected = "a batch of independent elements: a signature of one element's shapes, batch_ndim=1"
        raise UnsupportedError(what, where=", ".join(solvers), expected=expected)
    for path, loop in solvers.items():
        if find_solvers(loop.owner):
            what = "an implicit update is part of the residual of another"
            mend = "make the inner unknowns unknowns of the outer system"
            raise UnsupportedError(what, where=path, expected="updates one after the other", mend=mend)


def _capture_solvers(
    source: Source, solvers: Mapping[str, NewtonSolver], options: CaptureOptions, clock: Stopwatch
) -> tuple[dict[str, CapturedLoop], tuple[Finding, ...]]:
    """Return the captured solvers by path, and the findings about their residuals."""
    seed = options.seed
    captured_solvers: dict[str, CapturedLoop] = {}
    solver_findings: list[Finding] = []
    with clock("warmup"):
        inputs, calls = run_in_fork(_record_first_calls, source, derive_seed(seed, "warmup"))
    for path, loop in solvers.items():
        if path not in calls:
            raise UnsupportedError("an implicit update is not called", where=path, mend="leave it out of the model")
        if len(calls[path]) > 2:
            what, got = "an implicit update is called more than once in a run", f"{len(calls[path]) // 2} calls"
            raise UnsupportedError(what, where=path, got=got, expected="an update of its own for each")
        residual = _build_residual_source(source, path, loop, calls[path])
        # The checks get all processes: the capture beside them takes a fraction of their time.
        check_residual = functools.partial(_check_residual, residual, options)
        with _check_in_fork(residual.name, check_residual, clock, is_forked=options.jobs > 1) as wait:
            captured = _capture_solver(path, loop, subsample_rows(stack_calls(residual)), source, clock)
            sample, findings = wait()
        captured_solvers[path] = captured
        with clock("capture"), eager_context(source), ignore_deprecations():
            newton_capture.check_own_parameters(path, captured, source.parameter_module)
            newton_capture.check_solver(path, captured, [*calls[path], sample])
        run_in_fork(_check_not_hidden, path, loop, source, inputs)
        solver_findings += [dataclasses.replace(f, what=f"{path}: {f.what}") for f in findings]
    return captured_solvers, tuple(solver_findings)


def _capture_solver(path: str, loop: NewtonSolver, inputs: Inputs, source: Source, clock: Stopwatch) -> CapturedLoop:
    """Return the captured solver."""
    with clock("capture"), eager_context(source), ignore_deprecations():
        guess, args = inputs[0].clone(), loop.collect_args([t.clone() for t in inputs[1:]])
        # What a model keeps from its first call is kept from one with numbers.
        loop.residual(guess, args)
        loop.jacobian(guess, args)
        return newton_capture.capture_solver(path, loop, inputs)


def _check_residual(residual: Source, options: CaptureOptions, clock: Stopwatch) -> CheckedResidual:
    """Check a residual as a model of its own; return a sample of solves, and the findings."""
    part = detect_inner_autograd(residual, derive_seed(options.seed, "warmup"))
    part_options = dataclasses.replace(
        options, derivative_request=None, second_opinion=False, announce=lambda listing: None
    )
    warm, _, findings = checked_capture(part, part_options, clock)
    generator = torch.Generator().manual_seed(derive_seed(options.seed, "solves"))
    return warm.sampler.draw(warm.traced_sizes[1], generator), (*warm.findings, *findings)


@contextlib.contextmanager
def _check_beside(
    check: Callable[[], _Result], stop: Callable[[], Any], clock: Stopwatch, *, is_beside: bool
) -> Iterator[Callable[[], _Result]]:
    """Run checks in a thread beside the block, or before it; the block is given what waits for their result.

    What they refuse explains more than an error of the block, and is raised in its place. ``stop`` has the checks end
    where nobody needs them any more."""
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(check)

        def wait() -> _Result:
            with clock("soundness"):
                return future.result()

        try:
            if not is_beside:
                wait()
            with _put_first(wait):
                yield wait
        finally:
            if not future.done():
                stop()


@contextlib.contextmanager
def _put_first(wait: Callable[[], Any]) -> Iterator[None]:
    """Raise the error that is waited for in place of one of the block."""
    try:
        yield
    except Exception:
        wait()
        raise


@contextlib.contextmanager
def _check_in_fork(
    name: str, check: Callable[[Stopwatch], _Result], clock: Stopwatch, *, is_forked: bool
) -> Iterator[Callable[[], _Result]]:
    """Run checks beside the block in a forked process, where the block has done nothing, or here before the block; the
    block is given what waits for their result.

    What they refuse explains more than an error of the block, and is raised in its place."""
    if not is_forked:
        result = check(clock)
        yield lambda: result
        return
    call = ForkedCall(_check_with_own_clock, check)
    try:
        with _check_beside(lambda: _wait_for_checks(name, call, clock), call.end, clock, is_beside=True) as wait:
            yield wait
    finally:
        call.end()


def _check_with_own_clock(check: Callable[[Stopwatch], _Result]) -> tuple[_Result, Mapping[tuple[str, str], float]]:
    clock = Stopwatch(tell_parent)
    return check(clock), clock.parts


def _wait_for_checks(name: str, call: ForkedCall, clock: Stopwatch) -> Any:
    """Return what the checks in a forked process found, and pass their steps on while they run.

    Raises their error, and ``CaptureError`` if their process ended."""
    try:
        result, parts = call.wait(WEEK, clock.pass_on)
    except ForkFailedError as error:
        what, expected = f"the checks of {name!r} ended early", "checks that end"
        mend = "free memory, or --jobs 1: one check after the other"
        raise CaptureError(what, check="soundness", got=str(error), expected=expected, mend=mend) from error
    clock.add_parts(parts)
    return result


def _check_not_hidden(path: str, loop: NewtonSolver, source: Source, inputs: Inputs) -> None:
    with eager_context(source):
        newton_capture.check_failure_visible(path, loop, source, inputs)


def _record_first_calls(source: Source, seed: int) -> tuple[Inputs, dict[str, list[Inputs]]]:
    """Return the warmup inputs, and for each solver by path its first guess and its solution: ``(u, *batch_args)``."""
    paths = {loop: path for path, loop in find_solvers(source.parameter_module).items()}
    inputs = run_first(source, seed).inputs
    calls_by_path: dict[str, list[Inputs]] = {}
    with eager_context(source):
        for loop, (guess, args), (u, *_) in record_solver_calls(source, inputs):
            batch_args = args[: loop.batched]
            if guess.shape[0] != inputs[0].shape[0]:
                what, expected = "an implicit update has another batch than the model", "one system for each element"
                got = f"{guess.shape[0]} systems for {inputs[0].shape[0]} elements"
                mend = "solve one system for each element, or export the update alone"
                raise UnsupportedError(what, where=paths[loop], got=got, expected=expected, mend=mend)
            calls_by_path.setdefault(paths[loop], []).extend([(guess, *batch_args), (u, *batch_args)])
    return inputs, calls_by_path


def _compute_residual(loop: NewtonSolver, u: torch.Tensor, *batch_args: torch.Tensor) -> torch.Tensor:
    """Return the residual with the current parameters."""
    return loop.residual(u, loop.collect_args(batch_args))


def _build_residual_source(source: Source, path: str, loop: NewtonSolver, calls: Sequence[Inputs]) -> Source:
    named_calls = zip(["unknowns", *(f"given_{i}" for i in range(loop.batched))], calls[0], strict=True)
    return Source(
        name=f"{path}.residual",
        module=functools.partial(_compute_residual, loop),
        parameter_module=loop.owner,
        inputs=tuple(infer_spec(name, tensor, 1) for name, tensor in named_calls),
        outputs=(TensorSpec("residual"),),
        origin=source.origin,
        calls=tuple(calls),
        default_dtype=source.default_dtype,
    )


def resolve_model_derivatives(
    warm: Warmup, request: DerivativeRequest | None
) -> tuple[ResolvedDerivatives | None, tuple[Finding, ...]]:
    """Resolve the requested derivatives of a warmed-up model; return them and the findings about them."""
    if request is None or not request.has_derivatives:
        return None, ()
    # First: in this process hooks are called for good.
    changing_hooks = _find_hooks(warm) if may_have_hooks(warm.source) else ()
    with eager_context(warm.source):
        try:
            pairs = find_nonzero_blocks(warm.source, warm.inputs)
        except CaptureError:
            hooks.require_plain_gradients(warm.source, changing_hooks)
            raise
    parameters = {n: name_dtype(p) for n, p in list_own_parameters(warm.source.parameter_module).items()}
    if warm.source.sizes:
        what, got = "derivatives of a model with open sizes have no shape", f"open sizes {', '.join(warm.source.sizes)}"
        expected = "fixed shapes, or a batch of independent elements"
        mend = "take the derivatives in the function itself: torch.autograd.grad, and return them"
        raise UsageError(what, got=got, expected=expected, mend=mend)
    solvers = find_solvers(warm.source.parameter_module)
    last_iterate_paths = [path for path, loop in solvers.items() if loop.get_failure_policy() == "last"]
    if last_iterate_paths:
        what = "an element that has not converged would get a tangent like any other"
        where, got = ", ".join(last_iterate_paths), "--on-failure last, and derivatives"
        raise UsageError(what, where=where, got=got, expected="--on-failure nan or raise")
    if solvers and request.differentiable:
        what = "torch's autograd does not go through a Newton loop in a file"
        mend = "ask for derivatives that the file has as methods: --derivative, --jvp, --vjp"
        raise UsageError(
            what, where=", ".join(solvers), got="--differentiable", expected="no implicit update", mend=mend
        )
    model = (warm.source.inputs, warm.output_specs, parameters, pairs)
    derivatives, findings = derivative_request.resolve_derivatives(
        request, *model, uses_autograd=warm.source.uses_autograd
    )
    if changing_hooks:
        wrt_names = {wrt for _, wrt in (*derivatives.pairs, *derivatives.parameter_pairs)}
        if derivatives.jvp or derivatives.vjp:
            wrt_names |= {spec.name for spec in warm.source.inputs}
        hooks.require_plain_gradients(warm.source, _find_hooks(warm, wrt_names))
    return derivatives, findings


def _find_hooks(warm: Warmup, wrt_names: Collection[str] | None = None) -> tuple[GradientHook, ...]:
    def find() -> tuple[GradientHook, ...]:
        with eager_context(warm.source):
            return find_gradient_hooks(warm.source, warm.inputs, wrt_names)

    # However long a call takes.
    return run_in_fork(find, seconds=WEEK)


def summarize_model(warm: Warmup) -> Listing:
    """Return name, type, inputs, outputs and parameters of a warmed-up model."""
    source, kind = warm.source, type(warm.source.parameter_module).__name__
    parameters = {name: tuple(p.shape) for name, p in source.parameter_module.named_parameters()}
    return Listing(source.name, kind, source.inputs, warm.output_specs, parameters, source.batch_ndim)


def derive_seed(seed: int, stage: str) -> int:
    """Return the seed of one stage, derived from the seed of the export."""
    return int.from_bytes(hashlib.sha256(f"{seed} {stage}".encode()).digest()[:7], "big")
