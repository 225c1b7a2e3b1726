"""Parameters of which each element of a batch has its own values, as it has of inputs.

Such a parameter becomes an input of its name. In the module it becomes a buffer, in whose place a call puts the values
of its elements, so that modules broadcast them as they do inputs. Whether they do is tried, against calls of one
element at a time, in each of which the parameter itself has that element's values."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from exporter.archive.contract import Finding
from exporter.archive.input_files import InputValues, to_tensor
from exporter.archive.tensor_spec import FLOATING, Sampling, TensorSpec, infer_spec, name_dtype
from exporter.common.errors import CaptureError, UsageError, WarmupError, suggest_names
from exporter.common.forking import ForkFailedError, run_in_fork
from exporter.common.tensors import all_close, is_finite
from exporter.common.torch_hooks import swap_parameters
from exporter.model.eager.evaluation import eager_context, evaluate_on_copies, find_forward_line
from exporter.model.eager.input_sampling import SPREAD, ZERO_SCALE, InputSampler
from exporter.model.eager.warmup import WARMUP_ROWS, run_first, stack_calls, subsample_rows
from exporter.model.implicit.coordinate_descent import find_descents
from exporter.model.implicit.newton_solver import find_solvers, list_own_parameters
from exporter.model.source import Inputs, Source

CHECK = "per element"
BROADCAST = "a parameter that is broadcast with the elements"
Specs = Sequence[TensorSpec]
Outputs = Mapping[str, torch.Tensor]
# Seconds of the trial.
LIMIT = 3600.0
# Elements of the trial: the first count that is no size of a variable.
COUNTS = (5, 7, 11, 13, 17, 19, 23)


class PerElementCall:
    """A function of inputs and, behind them, of the parameters ``specs`` by element.

    ``gaps`` are dimensions of size 1 by parameter, between the batch and the parameter's own: a number that is
    multiplied with vectors of three has one."""

    def __init__(self, function: Callable[..., Any], module: nn.Module, specs: Specs, gaps: Mapping[str, int]) -> None:
        self.function, self.module = function, module
        self.places = [(s.name, -1 - len(s.shape), gaps[s.name]) for s in specs]

    def __call__(self, *tensors: torch.Tensor) -> Any:
        count = len(tensors) - len(self.places)
        values = {}
        for (name, axis, gap), tensor in zip(self.places, tensors[count:], strict=True):
            values[name] = tensor
            for _ in range(gap):
                values[name] = values[name].unsqueeze(axis)
        with swap_parameters(self.module, values):
            return self.function(*tensors[:count])


def select_parameters(source: Source, patterns: Sequence[str]) -> list[str]:
    """Return the parameters that match, in the model's order. Raises ``UsageError`` where one cannot have a batch."""
    parameters = list_own_parameters(source.parameter_module)
    selected: set[str] = set()
    floating = [n for n, p in parameters.items() if name_dtype(p) in FLOATING]
    for pattern in patterns:
        matches = {pattern} & set(parameters) or {n for n in floating if fnmatch.fnmatchcase(n, pattern)}
        if not matches and not fnmatch.filter(source.per_element, pattern):
            what = f"no parameter matches {pattern!r}"
            raise UsageError(what, where=f"--per-element {pattern}", expected=suggest_names(pattern, parameters))
        selected |= matches
    names = [n for n in parameters if n in selected]
    inputs = {s.name for s in source.inputs}
    for name in names:
        where, dtype = f"--per-element {name}", name_dtype(parameters[name])
        if dtype not in FLOATING:
            what, expected = f"parameter {name!r} cannot have a batch", "a parameter of floating dtype"
            raise UsageError(what, where=where, got=dtype, expected=expected)
        if name in inputs:
            what, mend = f"there is an input {name!r}, too", "give one of them another name in the model"
            raise UsageError(what, where=where, expected="a name that no input has", mend=mend)
    if names and not source.batch_ndim:
        what, got = "a parameter by element needs elements", f"model {source.name!r}, whose shapes are whole"
        expected = "a model with a batch of independent elements"
        raise UsageError(what, where=f"--per-element {names[0]}", got=got, expected=expected)
    return names


def make_per_element(source: Source, names: Sequence[str], given: InputValues, reason: str, seed: int = 0) -> Source:
    """Return the source with these parameters as its last inputs, by element.

    Its module is changed, until ``take_back`` of the source is called. ``given`` are values by name, with the batch of
    the recorded calls; others are drawn near the parameter's own. Raises ``UsageError`` for values that do not fit,
    ``CaptureError`` for a parameter that cannot have a batch: it decides a shape or a branch, or is not broadcast with
    the elements."""
    if not names:
        return source
    parameters = list_own_parameters(source.parameter_module)
    specs = tuple(infer_spec(name, parameters[name].detach()) for name in names)
    tensors = {s.name: to_tensor(s.name, given[s.name], s.dtype) for s in specs if s.name in given}
    try:
        gaps, calls, specs = run_in_fork(_try_batch, source, specs, tensors, seed, seconds=LIMIT)
    except ForkFailedError as error:
        what, mend = "the model does not run with these parameters by element", "leave them out of --per-element"
        where, expected = f"--per-element {' '.join(names)}", "calls that end"
        raise CaptureError(what, check=CHECK, where=where, got=str(error), expected=expected, mend=mend) from None
    findings = tuple(_describe(name, parameters[name], reason) for name in names)
    take_back = BatchGrant(source.parameter_module, names).take_back
    batched = _extend_inputs(source, specs, gaps)
    return dataclasses.replace(batched, take_back=take_back, calls=calls, findings=(*source.findings, *findings))


def _extend_inputs(source: Source, specs: Specs, gaps: Mapping[str, int]) -> Source:
    """Return the source with these parameters as its last inputs, for which its module has been granted a batch."""
    module, blocks = source.parameter_module, source.compute_jacobian_blocks
    return dataclasses.replace(
        source,
        module=PerElementCall(source.module, module, specs, gaps),
        compute_jacobian_blocks=blocks and PerElementCall(blocks, module, specs, gaps),
        inputs=(*source.inputs, *specs),
        per_element=(*source.per_element, *(spec.name for spec in specs)),
    )


def _describe(name: str, parameter: torch.Tensor, reason: str) -> Finding:
    value = f"{parameter.item():g}" if parameter.numel() == 1 else f"of shape {list(parameter.shape)}"
    return Finding(CHECK, f"parameter {name!r}, {value}, is an input: each element has its own", reason=reason)


class BatchGrant:
    """Makes buffers of parameters, and arguments with a batch in the loops that read them, until it is taken back."""

    def __init__(self, module: nn.Module, names: Collection[str]) -> None:
        buffers = {id(p): p.detach() for name, p in module.named_parameters() if name in names}
        loops = (*find_solvers(module).values(), *find_descents(module).values())
        own_names = [(loop, [n for n, p in loop.owner.named_parameters() if id(p) in buffers]) for loop in loops]
        self.registries = [(m, {**m._parameters}, {**m._buffers}) for m in module.modules()]
        self.loops = [(loop, {n: vars(loop)[n] for n in ("names", "batched") if n in vars(loop)}) for loop in loops]
        for part, parameters, _ in self.registries:
            for name in [name for name, parameter in parameters.items() if id(parameter) in buffers]:
                del part._parameters[name]
                part._buffers[name] = buffers[id(parameters[name])]
        for loop, batched_names in own_names:
            loop.give_batch(batched_names)

    def take_back(self) -> None:
        """Make all as it was, in its order."""
        for part, parameters, buffers in self.registries:
            part._parameters.clear()
            part._buffers.clear()
            part._parameters.update(parameters)
            part._buffers.update(buffers)
        for loop, values in self.loops:
            vars(loop).update(values)


def _try_batch(
    source: Source, specs: Specs, given: Mapping[str, torch.Tensor], seed: int
) -> tuple[dict[str, int], tuple[Inputs, ...], Specs]:
    """Return the gaps with which a call of a batch gives what calls of each element give, calls with values, and specs
    with how more are drawn."""
    first = run_first(source, seed)
    generator = torch.Generator().manual_seed(seed)
    calls = source.calls or (first.sampler.draw(WARMUP_ROWS, generator),)
    # Elements of the trial: so many as no variable has as a size.
    sizes = {size for spec in (*source.inputs, *specs) for size in spec.static_shape}
    count = next((n for n in COUNTS if n not in sizes), COUNTS[-1])
    with eager_context(source):
        for spread in (SPREAD, SPREAD / 10, SPREAD / 1000, 0.0):
            drawn = _Values(list_own_parameters(source.parameter_module), given, spread, generator)
            full_calls = drawn.append_to(calls, specs)
            rows = drawn.pick_rows(calls, specs, count)
            with contextlib.suppress(WarmupError):
                expected = _run_alone(source, rows, specs)
                if all(map(is_finite, expected.values())):
                    gaps = _find_gaps(source, rows, specs, expected)
                    if run_in_fork(_is_finite, source, full_calls, specs, gaps):
                        return gaps, *_choose_sampling(source, full_calls, specs, drawn)
    what, mend = "the model gives no finite outputs with these parameters", "give values of them: --inputs FILE"
    raise WarmupError(what, check=CHECK, where=", ".join(s.name for s in specs), mend=mend)


@dataclass(frozen=True)
class _Values:
    """Where values by element come from: those ``given``, else draws around the ``parameters``' own."""

    parameters: Mapping[str, torch.Tensor]
    given: Mapping[str, torch.Tensor]
    spread: float
    generator: torch.Generator

    def append_to(self, calls: Sequence[Inputs], specs: Specs) -> tuple[Inputs, ...]:
        """Return calls with values of the parameters, each element with the same ones in every call."""
        count = max(call[0].shape[0] for call in calls)
        values = [self._make(spec, count) for spec in specs]
        return tuple((*call, *(value[: call[0].shape[0]] for value in values)) for call in calls)

    def pick_rows(self, calls: Sequence[Inputs], specs: Specs, count: int) -> Inputs:
        """Return this many rows, evenly spaced, each with values of its own."""
        rows = tuple(torch.cat(parts) for parts in zip(*calls, strict=True))
        index = torch.linspace(0, rows[0].shape[0] - 1, count, dtype=torch.float64).long()
        places = torch.cat([torch.arange(call[0].shape[0]) for call in calls])[index]
        most = max(call[0].shape[0] for call in calls)
        own = (self._make(s, most)[places] if s.name in self.given else self._draw(s, count) for s in specs)
        return (*(t[index] for t in rows), *own)

    def _make(self, spec: TensorSpec, count: int) -> torch.Tensor:
        """Return values for this many elements."""
        if (value := self.given.get(spec.name)) is None:
            return self._draw(spec, count)
        if value.shape not in (spec.static_shape, (count, *spec.static_shape)):
            what, expected = f"the values of parameter {spec.name!r} do not fit", str([count, *spec.static_shape])
            raise UsageError(what, got=str(list(value.shape)), expected=f"shape {expected}: one for each element")
        return value.expand(count, *spec.static_shape).contiguous()

    def _draw(self, spec: TensorSpec, count: int) -> torch.Tensor:
        hint = dataclasses.replace(spec, sampling=Sampling("recorded", spread=self.spread))
        return InputSampler((hint,), 1, (self.parameters[spec.name].detach().unsqueeze(0),)).draw(
            count, self.generator
        )[0]


def _choose_sampling(
    source: Source, calls: tuple[Inputs, ...], specs: Specs, drawn: _Values
) -> tuple[tuple[Inputs, ...], Specs]:
    """Return the calls, and specs of the parameters. Numbers of a model without recorded calls are drawn around their
    own: its other inputs are drawn as their author says."""
    if source.calls or drawn.given or any(spec.shape for spec in specs):
        return calls, specs
    ranges = []
    for spec in specs:
        value = float(drawn.parameters[spec.name])
        width = 2 * drawn.spread * (abs(value) or ZERO_SCALE)
        ranges.append(dataclasses.replace(spec, sampling=Sampling("uniform", value - width, value + width)))
    return (), tuple(ranges)


def _is_finite(source: Source, calls: Sequence[Inputs], specs: Specs, gaps: Mapping[str, int]) -> bool:
    """Return whether a batch of the calls' rows has finite outputs."""
    BatchGrant(source.parameter_module, gaps)
    batched = dataclasses.replace(_extend_inputs(source, specs, gaps), calls=tuple(calls))
    return all(map(is_finite, evaluate_on_copies(batched, subsample_rows(stack_calls(batched))).values()))


def _run_alone(source: Source, rows: Inputs, specs: Specs) -> Outputs:
    """Return outputs of each element by itself, in which the parameters have its values, wherever they are held."""
    count, results = len(source.inputs), list[Outputs]()
    parameters = dict(source.parameter_module.named_parameters())
    before = [parameters[spec.name].detach().clone() for spec in specs]
    try:
        for i in range(rows[0].shape[0]):
            for spec, values in zip(specs, rows[count:], strict=True):
                parameters[spec.name].data.copy_(values[i])
            results.append(evaluate_on_copies(source, tuple(t[i : i + 1] for t in rows[:count])))
    finally:
        for spec, value in zip(specs, before, strict=True):
            parameters[spec.name].data.copy_(value)
    return {
        name: torch.cat([r[name] for r in results])
        if value.shape[:1] == (1,)
        else torch.stack([r[name] for r in results])
        for name, value in results[0].items()
    }


def _find_gaps(source: Source, rows: Inputs, specs: Specs, expected: Outputs) -> dict[str, int]:
    """Return gaps by parameter. Raises ``CaptureError`` if there are none with which the batch gives the same."""
    gaps = dict.fromkeys((s.name for s in specs), 0)
    if run_in_fork(_find_problem, source, rows, specs, gaps, expected) is None:
        return gaps
    inputs = rows[: len(source.inputs)]
    for spec, values in zip(specs, rows[len(inputs) :], strict=True):
        gaps[spec.name] = run_in_fork(_find_gap, source, (*inputs, values), spec)
    if (problem := run_in_fork(_find_problem, source, rows, specs, gaps, expected)) is not None:
        raise problem
    return gaps


def _find_gap(source: Source, rows: Inputs, spec: TensorSpec) -> int:
    """Return the gap of one parameter; the others are numbers as before."""
    expected, problems = _run_alone(source, rows, (spec,)), list[CaptureError]()
    BatchGrant(source.parameter_module, (spec.name,))
    widest = max(len(s.shape) for s in (*source.inputs, spec))
    for gap in range(widest + 1):
        problem = _compare_batch(source, rows, (spec,), {spec.name: gap}, expected)
        if problem is None:
            return gap
        problems.append(problem)
    # Other numbers say more than shapes that do not fit, with one gap or another.
    raise next((p for p in problems if p.details["expected"] == BROADCAST), problems[0])


def _find_problem(
    source: Source, rows: Inputs, specs: Specs, gaps: Mapping[str, int], expected: Outputs
) -> CaptureError | None:
    """Return why a batch is not like its elements, None if it is."""
    BatchGrant(source.parameter_module, gaps)
    return _compare_batch(source, rows, specs, gaps, expected)


def _compare_batch(
    source: Source, rows: Inputs, specs: Specs, gaps: Mapping[str, int], expected: Outputs
) -> CaptureError | None:
    what = f"parameter {', '.join(map(repr, gaps))} cannot have a batch"
    mend = "compute with it as with an input, one value for each element, or leave it as it is"
    try:
        outputs = evaluate_on_copies(_extend_inputs(source, specs, gaps), rows)
    except WarmupError as error:
        where, got = error.details.get("where", ""), error.details.get("got", "")
        wanted = "a parameter that decides no shape and no branch"
        return CaptureError(what, check=CHECK, where=where, got=got, expected=wanted, mend=mend)
    for name, value in expected.items():
        if not _agree(outputs[name], value):
            got = f"another {name!r} in a batch than for each element alone"
            where = find_forward_line(source)
            return CaptureError(what, check=CHECK, where=where, got=got, expected=BROADCAST, mend=mend)
    return None


def _agree(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether both are equal up to rounding; one without a batch counts for each element."""
    try:
        return all_close(actual.expand_as(expected), expected)
    except RuntimeError:
        return False
