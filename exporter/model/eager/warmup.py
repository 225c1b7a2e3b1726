"""Eager runs before capture: outputs, repeatability, side effects, and the batch sizes that the model accepts."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from exporter.archive.contract import LARGEST_RUN, Batch, Finding
from exporter.archive.tensor_spec import FLOATING, Sampling, TensorSpec, name_dtype
from exporter.common.errors import CaptureError, WarmupError
from exporter.common.forking import ForkFailedError, run_in_fork
from exporter.common.tensors import all_close, bitwise_equal, copy_transposed, copy_with_gaps, is_finite
from exporter.model.eager.call_cost import DEFAULT_BUDGET, CallCost, count_call, measure_call_cost
from exporter.model.eager.dynamic_sizes import (
    MAX_NUMBERS,
    choose_trace_sizes,
    count_numbers,
    infer_dynamic_shape,
    probe_batch_sizes,
    probe_trace_sizes,
)
from exporter.model.eager.evaluation import eager_context, evaluate, evaluate_on_copies, find_forward_line
from exporter.model.eager.input_sampling import SPREAD, InputSampler, hint_at_rows
from exporter.model.eager.preconditions import check_capturable, check_eval_mode
from exporter.model.eager.second_step import append_second_step
from exporter.model.implicit.implicit_update import collect_newton_info
from exporter.model.implicit.newton_solver import CONVERGED, STATUS, find_solvers
from exporter.model.source import Inputs, Source

# Rows of the warmup case: enough to represent a history, few enough to store.
WARMUP_ROWS = 32
# The factor between the sizes at which the cost of a call with open sizes is counted.
SIZE_STEP = 4
# Seconds of a call from which on the gate runs few draws. All other costs are counted, as a loaded machine must not
# change what is run; a call of this length is long on any machine.
SLOW_CALL = 5.0
# What counting two calls may take, which no check has seen yet.
SECONDS_OF_COUNT = 60.0


@dataclass(frozen=True)
class Warmup:
    """The results of the eager runs. ``inputs`` are the warmup case; ``constant`` marks outputs without a batch;
    ``cost`` bounds the sizes that checks run."""

    source: Source
    inputs: Inputs
    output_specs: tuple[TensorSpec, ...]
    constant: tuple[bool, ...]
    sampler: InputSampler
    traced_sizes: tuple[int, int]
    batch: Batch
    contiguous: bool
    cost: CallCost
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class FirstRun:
    """The warmup inputs, the sampler for more, and copies of the outputs of the first run.

    ``sizes``: two sizes of the batch, or of the first open size: the one to trace at, and another one. ``seconds``:
    what a call takes; ``cost``: what it computes, if that has been measured."""

    source: Source
    sizes: tuple[int, int]
    sampler: InputSampler
    inputs: Inputs
    outputs: dict[str, torch.Tensor]
    seconds: float = 0.0
    cost: CallCost = field(default_factory=CallCost)

    @property
    def is_slow(self) -> bool:
        """Return whether a call takes so long that every check has its smallest form."""
        return self.seconds > SLOW_CALL


def run_first(source: Source, seed: int) -> FirstRun:
    """Run the model once on inputs that give finite outputs.

    Raises ``WarmupError`` where the model is not ready, fails, or gives no finite outputs."""
    check_capturable(source)
    check_eval_mode(source)
    generator = torch.Generator().manual_seed(seed)
    with eager_context(source):
        source = append_second_step(source)
        sizes = choose_trace_sizes(source) if source.batch_ndim else (0, 0)
        if source.sizes:
            sizes = probe_trace_sizes(source, make_sampler(source))
        start = time.perf_counter()
        sampler, inputs, outputs = find_inputs(source, generator, sizes[0] if source.sizes else 3)
        seconds = time.perf_counter() - start
        _check_copy(source, inputs, outputs)
        if seconds > SLOW_CALL:
            # A first call may load or compile what later ones have.
            start = time.perf_counter()
            evaluate_on_copies(source, inputs)
            seconds = time.perf_counter() - start
        return FirstRun(source, sizes, sampler, inputs, outputs, seconds)


def _check_copy(source: Source, inputs: Inputs, outputs: Mapping[str, torch.Tensor]) -> None:
    """Raise ``CaptureError`` where a copy of the user's model is not what the model is."""
    if source.own_module is None:
        return
    own = evaluate_on_copies(dataclasses.replace(source, module=source.own_module), inputs)
    differing = [name for name, value in outputs.items() if name not in own or not all_close(own[name], value)]
    if differing:
        what = f"a copy of model {source.name!r}, for its parts in TorchScript, gives other outputs than the model"
        where, got = find_forward_line(source), f"output {differing[0]!r} differs"
        expected = "a model that computes with its tensors and its submodules' outputs alone"
        mend = "read no numbers from a part in TorchScript, and refer to the model by self, in no function of its own"
        raise CaptureError(what, check="copy", where=where, got=got, expected=expected, mend=mend)


def make_sampler(source: Source, low: float = -1.0, high: float = 1.0) -> InputSampler:
    """Build a sampler around the recorded calls; without calls, from the signature's hints, else for [low, high)."""
    if not source.calls:
        specs = tuple(_set_sampling_range(spec, low, high) for spec in source.inputs)
        return InputSampler(specs, source.batch_ndim, None)
    # A perturbed step of a history is no longer a step of any history.
    is_history = bool(find_solvers(source.parameter_module)) and bool(source.batch_ndim)
    hint = Sampling("blended") if is_history else Sampling("recorded", spread=SPREAD)
    return InputSampler(hint_at_rows(source.inputs, hint), source.batch_ndim, stack_calls(source))


def measure_cost(first: FirstRun, seed: int, budget: float | None = None) -> FirstRun:
    """Return the first run with the cost of a call; a costly model is checked with smaller batches.

    ``budget``: seconds for the large batches of all checks. Raises ``UsageError`` if it is too small for any check."""
    source, sizes, cost = first.source, first.sizes, CallCost()
    # In a process of its own: no check has seen the model yet, and at other data it may not end. Nothing is known then.
    with contextlib.suppress(ForkFailedError), eager_context(source):
        seconds = max(SECONDS_OF_COUNT, 10 * first.seconds)
        cost = run_in_fork(_measure_cost, first, seed, DEFAULT_BUDGET if budget is None else budget, seconds=seconds)
    if budget is not None:
        cost.require_budget()
    if cost.is_costly and source.batch_ndim:
        sizes = choose_trace_sizes(source, is_costly=True)
    return dataclasses.replace(first, sizes=sizes, cost=cost)


def warm_up(first: FirstRun, seed: int) -> Warmup:
    """Run the model in eager mode to learn what to capture.

    Raises ``WarmupError`` where eager mode fails or is not finite; ``CaptureError`` where outputs do not carry the
    batch."""
    source, sizes, sampler, cost = first.source, first.sizes, first.sampler, first.cost
    generator = torch.Generator().manual_seed(seed)
    with eager_context(source):
        specs, constant = infer_output_specs(first, generator)
        batch = probe_batch_sizes(source, sampler, specs, sizes[0], generator, cost)
        sampler, finding = shrink_sampling_range(source, sampler, sizes[1], generator)
        contiguous, layout = probe_memory_layouts(source, sampler, sizes[1], generator)
    refined_source = dataclasses.replace(source, inputs=sampler.specs, outputs=specs)
    findings = (*source.findings, *finding, *layout)
    return Warmup(refined_source, first.inputs, specs, constant, sampler, sizes, batch, contiguous, cost, findings)


def _measure_cost(first: FirstRun, seed: int, budget: float) -> CallCost:
    """Measure what a call costs at two sizes: of a batch the second has the rows twice, so that solves take as long.

    Of open sizes these are as large as a cheap call has them: what grows fastest may be little at small ones. A call of
    fixed shapes costs the same at any size."""
    source, sampler, (size, other_size) = first.source, first.sampler, first.sizes
    generator = torch.Generator().manual_seed(seed)
    sample = sampler.draw(size, generator)
    if not source.has_dynamic_size:
        counter = count_call(lambda: evaluate(source, sample))
        return CallCost(numbers=(counter.numbers, counter.numbers)) if counter is not None else CallCost()
    if source.batch_ndim:
        samples = {size: sample, 2 * size: tuple(torch.cat([t, t]) for t in sample)}
        return measure_call_cost(lambda n: evaluate(source, samples[n]), (size, 2 * size), budget)
    cost = measure_call_cost(lambda n: evaluate(source, sampler.draw(n, generator)), (size, other_size), budget)
    while (size := SIZE_STEP * cost.sizes[1]) <= LARGEST_RUN and cost.is_cheap(size):
        if count_numbers(source, source.inputs, sampler, size) > MAX_NUMBERS:
            break
        larger_sample = sampler.draw(size, generator)
        counter = count_call(lambda sample=larger_sample: evaluate(source, sample))
        if counter is None:
            break
        cost = cost.move_to(size, counter)
    return cost


def find_inputs(
    source: Source, generator: torch.Generator, size: int
) -> tuple[InputSampler, Inputs, dict[str, torch.Tensor]]:
    """Return the given or recorded inputs, else the first seeded sample of this size with finite outputs.

    Returns the sampler, the warmup inputs, and copies of the outputs of the first run on them."""
    if source.calls:
        rows = stack_calls(source)
        inputs = subsample_rows(rows) if source.batch_ndim else rows
        outputs = evaluate_on_copies(source, inputs)
        check_finite(source, outputs, inputs)
        return make_sampler(source), inputs, outputs
    failure, solver_text = "", ""
    for low, high in ((-1.0, 1.0), (0.1, 1.0), (1e-3, 0.1)):
        sampler = make_sampler(source, low, high)
        inputs = sampler.draw(size, generator)
        outputs = evaluate_on_copies(source, inputs)
        if all(map(is_finite, outputs.values())):
            return sampler, inputs, outputs
        failure = ", ".join(repr(n) for n, v in outputs.items() if not is_finite(v))
        row = _find_first_nonfinite_row(outputs, size) if source.batch_ndim else None
        solver_text = _describe_failed_solves(source, inputs, row)
    what, got = f"model {source.name!r} gives NaN or infinity in warmup", "a value that is not finite"
    where = f"output {failure}, on inputs sampled from [-1, 1), [0.1, 1) and [0.001, 0.1)"
    mend = "pass inputs in the range the model is made for: --inputs FILE" + solver_text
    raise WarmupError(what, check="finite outputs", where=where, got=got, expected="finite outputs", mend=mend)


def _find_first_nonfinite_row(outputs: Mapping[str, torch.Tensor], size: int) -> int | None:
    """Return the first element of the batch that is not finite in some output."""
    is_finite_row = find_finite_rows({name: v for name, v in outputs.items() if v.shape[:1] == (size,)})
    return None if is_finite_row is None or bool(is_finite_row.all()) else int((~is_finite_row).nonzero()[0])


def _set_sampling_range(spec: TensorSpec, low: float, high: float) -> TensorSpec:
    """Return the spec with this range unless its author gave one; integers get 0 and 1, which index most things."""
    if spec.sampling != Sampling():
        return spec
    hint = Sampling("uniform", low, high) if spec.dtype in FLOATING else Sampling("uniform", 0, 2)
    return dataclasses.replace(spec, sampling=hint)


def check_finite(source: Source, outputs: dict[str, torch.Tensor], inputs: Inputs) -> None:
    """Raise ``WarmupError`` if an output has a NaN or an infinity."""
    for name, value in outputs.items():
        if is_finite(value):
            continue
        index = (~torch.isfinite(value)).nonzero()[0].tolist()
        row = index[0] if source.batch_ndim and index else None
        input_text = "; ".join(
            f"{spec.name} = {(t[row] if row is not None and t.shape[0] > row else t).tolist()}"
            for spec, t in zip(source.inputs, inputs, strict=True)
        )
        raise WarmupError(
            f"model {source.name!r} gives NaN or infinity in warmup",
            check="finite outputs",
            where=f"output {name!r}, element {index}",
            got=f"{value[tuple(index)].item()} for {input_text[:400]}",
            expected="finite outputs for the warmup inputs",
            mend="pass inputs in the range the model is made for: --inputs FILE"
            + _describe_failed_solves(source, inputs, row),
        )


def _describe_failed_solves(source: Source, inputs: Inputs, row: int | None) -> str:
    """Describe the solves of that element that failed; return an empty text if none did."""
    if row is None or not find_solvers(source.parameter_module):
        return ""
    iterations, norm, status = (tensor[row].reshape(-1).tolist() for tensor in collect_newton_info(source, *inputs))
    messages = [
        f"{path}: {STATUS[status[i]]} (iterations {iterations[i]}, norm of the residual {norm[i]:.3g}, settings "
        + ", ".join(f"{name} = {value:g}" for name, value in loop.read_settings().items())
        + ")"
        for i, (path, loop) in enumerate(find_solvers(source.parameter_module).items())
        if status[i] != CONVERGED
    ]
    return "; or fix the solver, ".join(["", *messages])


def infer_output_specs(first: FirstRun, generator: torch.Generator) -> tuple[tuple[TensorSpec, ...], tuple[bool, ...]]:
    """Infer the spec of each output, and whether it is constant, from runs at several sizes."""
    source, sizes, sampler = first.source, first.sizes, first.sampler
    declared = {spec.name: spec for spec in source.outputs}
    runs = [first.outputs]
    if source.has_dynamic_size:
        runs = [evaluate(source, sampler.draw(size, generator)) for size in sizes]
    specs, constant = [], []
    for name, value in first.outputs.items():
        shapes = [tuple(run[name].shape) for run in runs]
        has_batch = all(shape[:1] == (size,) for shape, size in zip(shapes, sizes, strict=False))
        has_batch = has_batch and len({shape[1:] for shape in shapes}) == 1
        is_constant = len(set(shapes)) == 1 and all(bitwise_equal(r[name], runs[0][name]) for r in runs)
        if source.batch_ndim and not has_batch and not is_constant:
            raise CaptureError(
                f"output {name!r} of model {source.name!r} does not carry the batch",
                check="batch",
                where=find_forward_line(source),
                got="; ".join(f"shape {list(s)} at batch {n}" for s, n in zip(shapes, sizes, strict=False)),
                expected=f"shape [batch, ...], here [{sizes[0]}, ...] and [{sizes[1]}, ...]",
                mend="if the batch elements depend on each other, declare full shapes and give that size a name in the "
                "signature: Signature.of({'x': ('n', 3)}, {'loss': ()})",
            )
        event_shape = shapes[0][1:] if source.batch_ndim and has_batch else shapes[0]
        spec = declared.get(name, TensorSpec(name))
        if source.sizes:
            resolved_sizes = [sampler.resolve_sizes(n) for n in sizes]
            event_shape = infer_dynamic_shape(source, name, shapes, resolved_sizes, spec.shape)
        dtype = name_dtype(value)
        if source.declares_outputs and (spec.shape, spec.dtype) != (event_shape, dtype):
            what = f"output {name!r} of model {source.name!r} does not match its signature"
            got = f"{list(event_shape)} {dtype}"
            mend = "fix the signature or the module"
            raise CaptureError(what, check="outputs", got=got, expected=f"{list(spec.shape)} {spec.dtype}", mend=mend)
        specs.append(dataclasses.replace(spec, shape=event_shape, dtype=dtype))
        constant.append(bool(source.batch_ndim) and not has_batch)
    return tuple(specs), tuple(constant)


def shrink_sampling_range(
    source: Source, sampler: InputSampler, size: int, generator: torch.Generator
) -> tuple[InputSampler, tuple[Finding, ...]]:
    """Find the widest spread around the recorded inputs at which eager mode stays finite."""
    if sampler.rows is None or not any(s.dtype in FLOATING for s in sampler.specs):
        return sampler, ()
    # Elements may fail to converge, but most of them must not.
    has_solvers = bool(find_solvers(source.parameter_module)) and bool(sampler.batch_ndim)
    if has_solvers and _is_mostly_finite(evaluate(source, sampler.draw(4 * size, generator))):
        return sampler, ()
    for spread in (SPREAD, SPREAD / 10, SPREAD / 1000, 0.0):
        specs = hint_at_rows(sampler.specs, Sampling("recorded", spread=spread))
        candidate = InputSampler(specs, sampler.batch_ndim, sampler.rows)
        try:
            runs = [evaluate(source, candidate.draw(size, generator)) for _ in range(4)]
        except WarmupError:
            continue
        if all((has_solvers and _is_mostly_finite(run)) or all(map(is_finite, run.values())) for run in runs):
            break
    else:
        raise WarmupError(f"model {source.name!r} returns NaN or infinity on its own warmup inputs")
    if spread == SPREAD:
        return candidate, ()
    what = f"inputs are drawn with a spread of {spread:g} around the recorded ones"
    return candidate, (Finding("sampling", what, reason="farther out eager mode itself gives NaN or infinity"),)


def _is_mostly_finite(outputs: Mapping[str, torch.Tensor]) -> bool:
    """Return whether at least half of the batch is finite in all outputs."""
    is_finite_row = find_finite_rows({name: v for name, v in outputs.items() if v.ndim})
    return is_finite_row is None or float(is_finite_row.double().mean()) >= 0.5


def find_finite_rows(outputs: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Return a mask of the elements that are finite in all outputs; None if no output has floating values."""
    real = [v.detach() for v in outputs.values() if v.is_floating_point()]
    masks = [torch.isfinite(v).reshape(v.shape[0], math.prod(v.shape[1:])).all(1) for v in real]
    return torch.stack(masks).all(0) if masks else None


def probe_memory_layouts(
    source: Source, sampler: InputSampler, size: int, generator: torch.Generator
) -> tuple[bool, tuple[Finding, ...]]:
    """Return whether eager mode needs contiguous inputs (it calls ``view``); the archive then copies others first."""
    sample = sampler.draw(size, generator)
    expected = evaluate(source, sample)
    for copy in (copy_with_gaps, copy_transposed):
        try:
            got = evaluate(source, tuple(map(copy, sample)))
            if all(all_close(got[name], value) for name, value in expected.items()):
                continue
            reason = "it gives other outputs for them"
        except WarmupError as error:
            reason = error.details.get("got", error.what)
        break
    else:
        return False, ()
    what = "the source does not admit non-contiguous inputs; the archive copies them first"
    return True, (Finding("memory layout", what, reason=reason),)


def stack_calls(source: Source) -> Inputs:
    """Return all recorded calls as one set of rows."""
    if not source.batch_ndim:
        return source.calls[-1]
    return tuple(torch.cat(parts) for parts in zip(*source.calls, strict=True))


def subsample_rows(rows: Inputs) -> Inputs:
    """Return at most ``WARMUP_ROWS`` rows, evenly spaced."""
    if not rows or rows[0].shape[0] <= WARMUP_ROWS:
        return rows
    row_index = torch.linspace(0, rows[0].shape[0] - 1, WARMUP_ROWS, dtype=torch.float64).long()
    return tuple(t[row_index] for t in rows)
