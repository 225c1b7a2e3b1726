"""Open sizes of a model whose shapes nobody has declared: those at which eager mode and a trace of it run alike.

A size stays as it is in the examples where the model fails at others, where an output follows it in another way than by
having it, where a trace keeps it, and where the entries that are added change nothing: ``x[:, 2]`` takes any number of
columns, and has three."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from exporter.archive.contract import Finding
from exporter.archive.contract_text import is_identifier
from exporter.archive.tensor_spec import TensorSpec, list_dynamic_sizes
from exporter.capture.tracing import catch_tracer_warnings
from exporter.common.errors import (
    CaptureError,
    MismatchError,
    OperatorError,
    TorchferryError,
    UnsoundError,
    UsageError,
)
from exporter.common.forking import ForkFailedError, run_in_fork
from exporter.common.tensors import all_close, bitwise_equal
from exporter.common.torch_hooks import ignore_deprecations
from exporter.model.eager.batch_choice import LIMIT, ShapeChoice, has_undeclared_shapes
from exporter.model.eager.call_cost import count_call
from exporter.model.eager.dynamic_sizes import OPEN_SIZES
from exporter.model.eager.evaluation import call_model, eager_context, evaluate, normalize_outputs
from exporter.model.eager.input_sampling import InputSampler
from exporter.model.eager.warmup import FirstRun, run_first
from exporter.model.source import Inputs, Source

# The position of an input, and the dimension of it.
Axis = tuple[int, int]
Group = tuple[Axis, ...]
# More dimensions than these are tried in groups of one size alone.
MAX_SINGLE = 32
# Of more dimensions than these of one size no pairs are tried.
MAX_PAIRED = 6
# Sizes that are tried in all, each with a call or two of eager mode and one of its trace.
MAX_TRIALS = 200
# Numbers that these may compute, about ten seconds of eager mode, and the trials without which nothing is found.
MAX_NUMBERS, LEAST_TRIALS = 1e10, 8
# Lines that a reason names.
MAX_LINES = 3
# Refusals of the gate that other sizes may be the cause of; of all other errors they may be.
_OF_SIZES = ("batch size", "values")


@dataclass(frozen=True)
class OpenSizes:
    """Sets of dimensions that change together, and why each other dimension does not."""

    groups: tuple[Group, ...] = ()
    reasons: Mapping[Axis, str] = field(default_factory=dict)


def choose_sizes(source: Source, choice: ShapeChoice, seed: int) -> Source:
    """Return the source with the open sizes that were found, as was asked for.

    Raises ``UsageError`` where open sizes are asked for, and there are none, or a signature says which."""
    if not has_undeclared_shapes(source):
        _check_declared(source, choice)
        return source
    if not choice.has_trials:
        return source
    try:
        sizes = run_in_fork(_try_sizes, source, seed, seconds=LIMIT)
    except ForkFailedError as error:
        what = "sizes were not tried"
        if choice.sizes == "open":
            expected, mend = "runs at other sizes", "--sizes fixed, or a signature that names the open sizes"
            raise CaptureError(what, check=OPEN_SIZES, got=str(error), expected=expected, mend=mend) from None
        return dataclasses.replace(source, findings=(*source.findings, Finding(OPEN_SIZES, what, reason=str(error))))
    except TorchferryError:
        # A failure here occurs again in a stage that reports it.
        return source
    if choice.sizes == "open" and not sizes.groups:
        what, expected = f"no size of model {source.name!r} is open", "a size that may differ in every call"
        got = "; ".join(f"{_format_axis(source, axis)}: {reason}" for axis, reason in sizes.reasons.items())
        raise UsageError(what, where="--sizes open", got=got, expected=expected, mend="--sizes fixed")
    return _set_open(source, sizes, is_required=choice.sizes == "open")


def _check_declared(source: Source, choice: ShapeChoice) -> None:
    is_as_asked = choice.sizes == "auto" or bool(source.sizes) == (choice.sizes == "open")
    if is_as_asked:
        return
    what = f"model {source.name!r} says itself what its sizes are"
    expected = "--sizes auto"
    mend = "leave it out: models of input files have a batch of fixed shapes"
    if source.origin.kind != "neml2":
        mend = "change its signature: a size with a name is open, Signature.of({'x': ('n', 3)}, ...)"
    raise UsageError(what, where=f"--sizes {choice.sizes}", expected=expected, mend=mend)


def fix_sizes(source: Source, error: TorchferryError) -> Source | None:
    """Return the source with the sizes of its examples, where those that were found open may be why it is refused."""
    is_of_sizes = isinstance(error, (CaptureError, MismatchError)) and not isinstance(error, OperatorError)
    if isinstance(error, UnsoundError):
        is_of_sizes = error.details.get("check") in _OF_SIZES
    if not source.may_fix_sizes or not is_of_sizes:
        return None
    shapes = zip(source.inputs, source.calls[-1], strict=True)
    inputs = tuple(dataclasses.replace(spec, shape=tuple(value.shape)) for spec, value in shapes)
    names = ", ".join(list_dynamic_sizes(source.inputs))
    reason = "; ".join(filter(None, (error.what, error.details.get("where"), error.details.get("got"))))
    kept = tuple(finding for finding in source.findings if finding.check != OPEN_SIZES)
    finding = Finding(OPEN_SIZES, "all sizes are those of the examples", reason=f"with {names} open: {reason}")
    return dataclasses.replace(source, inputs=inputs, findings=(*kept, finding), may_fix_sizes=False)


def _set_open(source: Source, sizes: OpenSizes, *, is_required: bool) -> Source:
    names: dict[str, Group] = {}
    for group in sizes.groups:
        name = _name_size(source, group[0])
        while name in names:
            name += "_"
        names[name] = group
    inputs = _name_axes(source.inputs, names)
    findings = [
        Finding(OPEN_SIZES, f"{name!r} is open", reason=", ".join(_format_axis(source, axis) for axis in group))
        for name, group in names.items()
    ]
    findings += [
        Finding(OPEN_SIZES, f"{_format_axis(source, axis)} is fixed", reason=reason)
        for axis, reason in sizes.reasons.items()
    ]
    return dataclasses.replace(
        source, inputs=inputs, findings=(*source.findings, *findings), may_fix_sizes=bool(names) and not is_required
    )


def _name_axes(specs: Sequence[TensorSpec], names: Mapping[str, Group]) -> tuple[TensorSpec, ...]:
    """Return the specs with these names for sizes."""
    shapes = [list[int | str](spec.shape) for spec in specs]
    for name, group in names.items():
        for position, axis in group:
            shapes[position][axis] = name
    return tuple(dataclasses.replace(spec, shape=tuple(shape)) for spec, shape in zip(specs, shapes, strict=True))


def _name_size(source: Source, axis: Axis) -> str:
    """Return the name of an open size, by the first variable that has it: ``x_0``."""
    position, dimension = axis
    name = re.sub(r"[^A-Za-z0-9_]", "_", source.inputs[position].name)
    return f"{name if is_identifier(name) else f'input_{position}'}_{dimension}"


def _format_axis(source: Source, axis: Axis) -> str:
    return f"size {axis[1]} of {source.inputs[axis[0]].name!r}"


def _try_sizes(source: Source, seed: int) -> OpenSizes:
    """Find the open sizes of a model by calls."""
    first = run_first(source, seed)
    axes = [(i, k) for i, spec in enumerate(source.inputs) for k, size in enumerate(spec.static_shape) if size > 1]
    with eager_context(source), ignore_deprecations():
        counter = count_call(lambda: evaluate(source, tuple(value.clone() for value in first.inputs)))
        limit = min(MAX_TRIALS, int(MAX_NUMBERS / counter.numbers)) if counter is not None else MAX_TRIALS
        if limit < LEAST_TRIALS:
            return OpenSizes((), dict.fromkeys(axes, "a call is too costly to try sizes"))
        traced, lines = _trace(first)
        trials = _Trials(first, traced, lines, torch.Generator().manual_seed(seed), limit)
        return _Grouping(source, trials).split(axes)


def _trace(first: FirstRun) -> tuple[Callable[..., Inputs] | None, tuple[str, ...]]:
    """Return a plain trace of the model at the sizes of its examples, and the user's lines that read numbers in it.

    There is no trace where it fails, which says nothing."""
    source = first.source

    def run(*inputs: torch.Tensor) -> Inputs:
        return tuple(normalize_outputs(call_model(source, inputs), source).values())

    if source.uses_autograd:
        return None, ()
    copies = tuple(value.clone() for value in first.inputs)
    with catch_tracer_warnings() as caught:
        try:
            traced: Any = torch.jit.trace(run, copies, check_trace=False, _store_inputs=False)
        except Exception:
            return None, ()
    return traced, tuple(dict.fromkeys(line for line, _ in caught))


@dataclass
class _Trials:
    """Calls of a model at other sizes than those of its examples."""

    first: FirstRun
    traced: Callable[..., Inputs] | None
    lines: tuple[str, ...]
    generator: torch.Generator
    left: int

    def explain_fixed(self, group: Group) -> str:
        """Explain why these sizes, all equal, stay as they are; an empty text if they may change together.

        They may if they did so twice."""
        position, dimension = group[0]
        size = int(self.first.inputs[position].shape[dimension])
        failure, agreed = "", 0
        # No multiple of it, for a model that takes only these.
        for new_size in dict.fromkeys((size + 1, size // 2 + 1, 2 * size + 1, size - 1)):
            if new_size < 2 or new_size == size:
                continue
            if not self.left:
                return "too many sizes to try"
            self.left -= 1
            inputs = self._draw(group, new_size)
            try:
                outputs = evaluate(self.first.source, inputs)
            except TorchferryError as error:
                failure = failure or f"eager mode fails at {new_size}: {error.details.get('got', error.what)}"
                continue
            if reason := self._explain_difference(group, size, inputs, outputs):
                return reason
            agreed += 1
            if agreed == 2:
                return ""
        return failure or "there is no other size to try"

    def _draw(self, group: Group, new_size: int) -> Inputs:
        specs = _name_axes(self.first.sampler.specs, {"n": group})
        return InputSampler(specs, 0, self.first.sampler.rows).draw({"n": new_size}, self.generator)

    def _explain_difference(self, group: Group, size: int, inputs: Inputs, outputs: Mapping[str, torch.Tensor]) -> str:
        """Explain what is wrong with outputs of other sizes; an empty text if nothing is."""
        position, dimension = group[0]
        new_size, is_carried = inputs[position].shape[dimension], False
        if [*outputs] != [*self.first.outputs]:
            return f"there are other outputs at {new_size}"
        for name, value in outputs.items():
            old, new = tuple(self.first.outputs[name].shape), tuple(value.shape)
            followed = tuple(new_size if a != b and a == size else a for a, b in zip(old, new, strict=False))
            if len(old) != len(new) or new != followed:
                return f"output {name!r} has shape {list(old)} at {size}, and {list(new)} at {new_size}"
            is_carried = is_carried or old != new
        if self.traced is not None:
            try:
                traced_outputs = self.traced(*(value.clone() for value in inputs))
            except Exception:
                return f"a trace of the model fails at {new_size}"
            pairs = zip(outputs.items(), traced_outputs, strict=True)
            differing = [name for (name, value), traced in pairs if not all_close(traced, value)]
            if differing:
                lines = f" (Python reads numbers at {', '.join(self.lines[:MAX_LINES])})" if self.lines else ""
                return f"a trace of the model keeps it{lines}: output {differing[0]!r} is another at {new_size}"
        if new_size > size and not is_carried and not self._has_effect(group, size, inputs, outputs):
            return f"what comes after the first {size} changes no output"
        return ""

    def _has_effect(self, group: Group, size: int, inputs: Inputs, outputs: Mapping[str, torch.Tensor]) -> bool:
        """Return whether outputs depend on the entries from ``size`` on, as far as other ones can be made up."""
        changed = list(inputs)
        for position, dimension in group:
            changed[position] = _change_entries(changed[position], dimension, size)
        if all(map(bitwise_equal, changed, inputs)):
            return True
        try:
            other_outputs = evaluate(self.first.source, tuple(changed))
        except TorchferryError:
            return True
        return not all(bitwise_equal(other_outputs[name], value) for name, value in outputs.items())


def _change_entries(value: torch.Tensor, dimension: int, start: int) -> torch.Tensor:
    """Return a copy with other entries from ``start`` on; those of integers are other ones of the tensor's own."""
    changed = value.clone()
    tail = changed.narrow(dimension, start, value.shape[dimension] - start)
    if value.is_floating_point() or value.is_complex():
        tail.mul_(1.5).add_(0.25)
    elif value.dtype == torch.bool:
        tail.logical_not_()
    else:
        picks = (torch.arange(tail.shape[dimension]) * 7 + 1) % start
        tail.copy_(value.index_select(dimension, picks))
    return changed


@dataclass
class _Grouping:
    """The search for sets of dimensions that change together: each as small as it can be."""

    source: Source
    trials: _Trials
    groups: list[Group] = field(default_factory=list)
    reasons: dict[Axis, str] = field(default_factory=dict)
    _tried: set[Group] = field(default_factory=set)

    def split(self, axes: Sequence[Axis]) -> OpenSizes:
        """Return the open sizes among these dimensions."""
        if len(axes) <= MAX_SINGLE:
            for axis in axes:
                self._try_group((axis,))
        for select in (lambda axis: axis[1], self._count_from_right, lambda axis: 0):
            for candidates in self._collect_equal(axes, select):
                self._try_pairs(candidates)
        for select in (lambda axis: axis[1], self._count_from_right, lambda axis: 0):
            for candidates in self._collect_equal(axes, select):
                self._split_candidates(candidates)
        kept = {axis: self.reasons.get(axis, "it does not change alone") for axis in self._list_left(axes)}
        return OpenSizes(tuple(sorted(self.groups)), kept)

    def _count_from_right(self, axis: Axis) -> int:
        return axis[1] - len(self.source.inputs[axis[0]].shape)

    def _list_left(self, axes: Sequence[Axis]) -> list[Axis]:
        open_axes = {axis for group in self.groups for axis in group}
        return [axis for axis in axes if axis not in open_axes]

    def _collect_equal(self, axes: Sequence[Axis], select: Callable[[Axis], int]) -> list[Group]:
        """Collect what is left by its size, and by what is selected of its place."""
        by_size = defaultdict[tuple[int, int], list[Axis]](list)
        for position, dimension in self._list_left(axes):
            size = self.source.inputs[position].static_shape[dimension]
            by_size[size, select((position, dimension))].append((position, dimension))
        return [tuple(group) for group in by_size.values()]

    def _try_pairs(self, candidates: Group) -> None:
        """Find pairs, which a set of two of them would hold together."""
        for pair in itertools.combinations(candidates if len(candidates) <= MAX_PAIRED else (), 2):
            if pair not in self._tried and {*pair} <= {*self._list_left(pair)}:
                self._tried.add(pair)
                self._try_group(pair)

    def _split_candidates(self, candidates: Group) -> None:
        """Split dimensions of one size into sets that change together, if all of them do."""
        while len(candidates) > 1 and self._is_open(candidates):
            kept = candidates
            for axis in candidates[1:]:
                smaller = tuple(other for other in kept if other != axis)
                if len(candidates) <= MAX_SINGLE and len(smaller) > 1 and self._is_open(smaller):
                    kept = smaller
            self.groups.append(kept)
            candidates = tuple(axis for axis in candidates if axis not in kept)

    def _try_group(self, group: Group) -> None:
        if self._is_open(group):
            self.groups.append(group)

    def _is_open(self, group: Group) -> bool:
        reason = self.trials.explain_fixed(group)
        for axis in group if reason else ():
            self.reasons.setdefault(axis, reason)
        return not reason
