"""Eager runs before capture: what comes out, whether it repeats, what it leaves behind, which batches it admits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from exporter.archive.contract import Batch, Finding
from exporter.archive.tensor_spec import FLOATING, Sampling, TensorSpec
from exporter.common.errors import CaptureError, WarmupError
from exporter.common.tensors import close, finite, same_bits, spread_out, transposed
from exporter.model.eager.dynamic_sizes import admitted_batches, admitted_sizes, distinct_sizes, with_open_sizes
from exporter.model.eager.evaluation import evaluate, forward_line, inference_conditions
from exporter.model.eager.input_sampling import SPREAD, Sampler, blended, recorded
from exporter.model.eager.preconditions import refuse_training, refuse_unready
from exporter.model.eager.second_step import continued
from exporter.model.implicit.implicit_update import newton_info
from exporter.model.implicit.newton_solver import CONVERGED, STATUS, loops
from exporter.model.source import Inputs, Source

# Rows that the warmup case keeps: enough to stand for a history, small enough to store.
ROWS = 32


@dataclass(frozen=True)
class Warmup:
    """What eager mode showed. ``inputs`` are the warmup case; ``constant`` marks outputs without a batch."""

    source: Source
    inputs: Inputs
    output_specs: tuple[TensorSpec, ...]
    constant: tuple[bool, ...]
    sampler: Sampler
    traced_sizes: tuple[int, int]
    batch: Batch
    contiguous: bool
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class FirstRun:
    """Warmup inputs, how more are drawn, and copies of the outputs that the first run gave.

    ``sizes``: of the batch, or of the first open size, to trace at, and another one.
    """

    source: Source
    sizes: tuple[int, int]
    sampler: Sampler
    inputs: Inputs
    outputs: dict[str, torch.Tensor]


def first_run(source: Source, seed: int) -> FirstRun:
    """Run the model once on inputs that give finite outputs.

    Raises ``WarmupError`` where the model is not ready, fails, or gives no finite outputs.
    """
    refuse_unready(source)
    refuse_training(source)
    generator = torch.Generator().manual_seed(seed)
    with inference_conditions(source):
        source = continued(source)
        if source.sizes:
            sizes = admitted_sizes(source, sampler_of(source))
        else:
            sizes = distinct_sizes(source) if source.batch_ndim else (0, 0)
        return FirstRun(source, sizes, *find_inputs(source, generator, sizes[0] if source.sizes else 3))


def sampler_of(source: Source, low: float = -1.0, high: float = 1.0) -> Sampler:
    """Around the calls that were recorded; else by the hints of the signature, and in [low, high) without one."""
    if not source.calls:
        return Sampler(tuple(_hinted(spec, low, high) for spec in source.inputs), source.batch_ndim, None)
    # A step of a history that is perturbed here and there is no step of any.
    history = bool(loops(source.named)) and bool(source.batch_ndim)
    hints = [blended(s) if history else recorded(s, SPREAD) for s in source.inputs]
    specs = tuple(dataclasses.replace(s, sampling=h) for s, h in zip(source.inputs, hints, strict=True))
    return Sampler(specs, source.batch_ndim, stack(source))


def warm_up(first: FirstRun, seed: int) -> Warmup:
    """Run the model in eager mode until it is known what to capture.

    Raises ``WarmupError`` where eager mode fails or is not finite; ``CaptureError`` where outputs do not carry the
    batch.
    """
    source, sampler, inputs = first.source, first.sampler, first.inputs
    generator = torch.Generator().manual_seed(seed)
    with inference_conditions(source):
        sizes = first.sizes
        specs, constant = output_specs(source, sampler, first.outputs, sizes, generator)
        batch = admitted_batches(source, sampler, specs, sizes[0], generator)
        sampler, finding = tame(source, sampler, sizes[1], generator)
        contiguous, layout = needs_contiguous(source, sampler, sizes[1], generator)
    bare = dataclasses.replace(source, inputs=sampler.specs, outputs=specs)
    return Warmup(
        bare,
        inputs,
        specs,
        constant,
        sampler,
        sizes,
        batch,
        contiguous,
        (*source.findings, *finding, *layout),
    )


def find_inputs(
    source: Source, generator: torch.Generator, size: int
) -> tuple[Sampler, Inputs, dict[str, torch.Tensor]]:
    """Warmup inputs: those that were given or recorded, else the first seeded sample of this size with finite outputs.

    The outputs are copies of what the first run on them gave.
    """
    if source.calls:
        rows = stack(source)
        inputs = thin(rows) if source.batch_ndim else rows
        outputs = _on_copies(source, inputs)
        refuse_non_finite(source, outputs, inputs)
        return sampler_of(source), inputs, outputs
    failure, solves = "", ""
    for low, high in ((-1.0, 1.0), (0.1, 1.0), (1e-3, 0.1)):
        sampler = sampler_of(source, low, high)
        inputs = sampler.draw(size, generator)
        outputs = _on_copies(source, inputs)
        if all(map(finite, outputs.values())):
            return sampler, inputs, outputs
        failure = ", ".join(repr(n) for n, v in outputs.items() if not finite(v))
        solves = _of_solves(source, inputs, _first_lost(outputs, size) if source.batch_ndim else None)
    raise WarmupError(
        f"model {source.name!r} gives NaN or infinity in warmup",
        check="finite outputs",
        where=f"output {failure}, on inputs sampled from [-1, 1), [0.1, 1) and [0.001, 0.1)",
        got="a value that is not finite",
        expected="finite outputs",
        mend="give inputs that the model is meant for: --inputs FILE" + solves,
    )


def _first_lost(outputs: Mapping[str, torch.Tensor], size: int) -> int | None:
    """The first element of the batch that is not finite in some output."""
    good = finite_rows({name: v for name, v in outputs.items() if v.shape[:1] == (size,)})
    return None if good is None or bool(good.all()) else int((~good).nonzero()[0])


def _on_copies(source: Source, inputs: Inputs) -> dict[str, torch.Tensor]:
    outputs = evaluate(source, tuple(t.clone() for t in inputs))
    return {name: value.clone() for name, value in outputs.items()}


def _hinted(spec: TensorSpec, low: float, high: float) -> TensorSpec:
    """The spec with this range, unless its author gave one; integers are 0 and 1, which index most things."""
    if spec.sampling != Sampling():
        return spec
    hint = Sampling("uniform", low, high) if spec.dtype in FLOATING else Sampling("uniform", 0, 2)
    return dataclasses.replace(spec, sampling=hint)


def refuse_non_finite(source: Source, outputs: dict[str, torch.Tensor], inputs: Inputs) -> None:
    for name, value in outputs.items():
        if finite(value):
            continue
        worst = (~torch.isfinite(value)).nonzero()[0].tolist()
        row = worst[0] if source.batch_ndim and worst else None
        given = "; ".join(
            f"{spec.name} = {(t[row] if row is not None and t.shape[0] > row else t).tolist()}"
            for spec, t in zip(source.inputs, inputs, strict=True)
        )
        raise WarmupError(
            f"model {source.name!r} gives NaN or infinity in warmup",
            check="finite outputs",
            where=f"output {name!r}, element {worst}",
            got=f"{value[tuple(worst)].item()} for {given[:400]}",
            expected="finite outputs for the warmup inputs",
            mend="give inputs that the model is meant for: --inputs FILE" + _of_solves(source, inputs, row),
        )


def _of_solves(source: Source, inputs: Inputs, row: int | None) -> str:
    """Why a solve of that element has failed, where one has."""
    if row is None or not loops(source.named):
        return ""
    iterations, norm, status = (of[row].reshape(-1).tolist() for of in newton_info(source, *inputs))
    said = [
        f"{path}: {STATUS[status[i]]} (iterations {iterations[i]}, norm of the residual {norm[i]:.3g}, settings "
        + ", ".join(f"{name} = {value:g}" for name, value in loop.settings().items())
        + ")"
        for i, (path, loop) in enumerate(loops(source.named).items())
        if status[i] != CONVERGED
    ]
    return "; or mend the solver, ".join(["", *said])


def output_specs(
    source: Source,
    sampler: Sampler,
    seen: dict[str, torch.Tensor],
    sizes: Sequence[int],
    generator: torch.Generator,
) -> tuple[tuple[TensorSpec, ...], tuple[bool, ...]]:
    declared = {spec.name: spec for spec in source.outputs}
    runs = [seen]
    if source.varies:
        runs = [evaluate(source, sampler.draw(size, generator)) for size in sizes]
    specs, constant = [], []
    for name, value in seen.items():
        shapes = [tuple(run[name].shape) for run in runs]
        carries = (
            all(shape[:1] == (size,) for shape, size in zip(shapes, sizes, strict=False))
            and len({shape[1:] for shape in shapes}) == 1
        )
        same = len(set(shapes)) == 1 and all(same_bits(r[name], runs[0][name]) for r in runs)
        if source.batch_ndim and not carries and not same:
            raise CaptureError(
                f"output {name!r} of model {source.name!r} does not carry the batch",
                check="batch",
                where=forward_line(source),
                got="; ".join(f"shape {list(s)} at batch {n}" for s, n in zip(shapes, sizes, strict=False)),
                expected=f"shape [batch, ...], here [{sizes[0]}, ...] and [{sizes[1]}, ...]",
                mend="if the elements of a batch depend on each other, name that size in the signature, which then has "
                "whole shapes: Signature.of({'x': ('n', 3)}, {'loss': ()})",
            )
        own = shapes[0][1:] if source.batch_ndim and carries else shapes[0]
        spec = declared.get(name, TensorSpec(name))
        if source.sizes:
            own = with_open_sizes(source, name, shapes, [sampler.sizes(n) for n in sizes], spec.shape)
        dtype = str(value.dtype).removeprefix("torch.")
        if source.declares_outputs and (spec.shape, spec.dtype) != (own, dtype):
            raise CaptureError(
                f"output {name!r} of model {source.name!r} is not what its signature declares",
                check="outputs",
                got=f"{list(own)} {dtype}",
                expected=f"{list(spec.shape)} {spec.dtype}",
                mend="mend the signature, or the module",
            )
        specs.append(dataclasses.replace(spec, shape=own, dtype=dtype))
        constant.append(bool(source.batch_ndim) and not carries)
    return tuple(specs), tuple(constant)


def tame(
    source: Source, sampler: Sampler, size: int, generator: torch.Generator
) -> tuple[Sampler, tuple[Finding, ...]]:
    """The widest spread around the recorded inputs at which eager mode stays finite."""
    if sampler.rows is None or not any(s.dtype in FLOATING for s in sampler.specs):
        return sampler, ()
    # An element that does not converge is an answer; it must not be most of them.
    solves = bool(loops(source.named)) and bool(sampler.batch_ndim)
    if solves and _mostly(evaluate(source, sampler.draw(4 * size, generator))):
        return sampler, ()
    for spread in (SPREAD, SPREAD / 10, SPREAD / 1000, 0.0):
        specs = tuple(dataclasses.replace(s, sampling=recorded(s, spread)) for s in sampler.specs)
        tried = Sampler(specs, sampler.batch_ndim, sampler.rows)
        try:
            draws = [evaluate(source, tried.draw(size, generator)) for _ in range(4)]
        except WarmupError:
            continue
        if all((solves and _mostly(run)) or all(map(finite, run.values())) for run in draws):
            break
    else:
        raise WarmupError(f"model {source.name!r} gives NaN or infinity on its own warmup inputs")
    if spread == SPREAD:
        return tried, ()
    return tried, (
        Finding(
            "sampling",
            f"inputs are drawn with a spread of {spread:g} around the recorded ones",
            reason="farther out eager mode itself gives NaN or infinity",
        ),
    )


def _mostly(outputs: Mapping[str, torch.Tensor]) -> bool:
    """Whether half of the batch is finite in all outputs."""
    good = finite_rows({name: v for name, v in outputs.items() if v.ndim})
    return good is None or float(good.double().mean()) >= 0.5


def finite_rows(outputs: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Which elements of the batch are finite in all outputs; none where no output has floating values."""
    good = [
        torch.isfinite(v.detach()).reshape(v.shape[0], math.prod(v.shape[1:])).all(1)
        for v in outputs.values()
        if v.is_floating_point()
    ]
    return torch.stack(good).all(0) if good else None


def needs_contiguous(
    source: Source, sampler: Sampler, size: int, generator: torch.Generator
) -> tuple[bool, tuple[Finding, ...]]:
    """Whether eager mode takes contiguous inputs only (it calls ``view``); the archive then copies others first."""
    drawn = sampler.draw(size, generator)
    wanted = evaluate(source, drawn)
    reason = ""
    for inputs in (tuple(map(spread_out, drawn)), tuple(map(transposed, drawn))):
        try:
            got = evaluate(source, inputs)
        except WarmupError as error:
            reason = error.details.get("got", error.what)
            break
        if not all(close(got[name], value) for name, value in wanted.items()):
            reason = "it gives other outputs for them"
            break
    if not reason:
        return False, ()
    what = "the source does not admit non-contiguous inputs; the archive copies them first"
    return True, (Finding("memory layout", what, reason=reason),)


def extremes(warm: Warmup) -> Iterator[tuple[str, Inputs]]:
    """Inputs of extreme magnitude that the model admits: the farthest decade with finite outputs."""
    for name, powers in (("small", (-12, -9, -6, -3, -1)), ("large", (12, 9, 6, 3, 1))):
        for power in powers:
            scaled = tuple(
                (t * 10.0**power).to(t.dtype) if t.dtype.is_floating_point or t.dtype.is_complex else t
                for t in warm.inputs
            )
            try:
                outputs = evaluate(warm.source, scaled)
            except WarmupError:
                continue
            if all(map(finite, outputs.values())):
                yield f"{name}_1e{power:+d}", scaled
                break


def stack(source: Source) -> Inputs:
    """All recorded calls as one set of rows."""
    if not source.batch_ndim:
        return source.calls[-1]
    return tuple(torch.cat(parts) for parts in zip(*source.calls, strict=True))


def thin(rows: Inputs) -> Inputs:
    if not rows or rows[0].shape[0] <= ROWS:
        return rows
    picked = torch.linspace(0, rows[0].shape[0] - 1, ROWS, dtype=torch.float64).long()
    return tuple(t[picked] for t in rows)
