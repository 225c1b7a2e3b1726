"""Eager runs before capture: what comes out, whether it repeats, what it leaves behind, which batches it admits."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from exporter.contract import FLOATING, Batch, Finding, Sampling, TensorSpec
from exporter.eager import evaluate, inference_conditions, same_bits, state
from exporter.errors import CaptureError, TorchferryError, WarmupError, first_line
from exporter.reads import ReadRecorder
from exporter.sampling import SPREAD, Sampler, recorded
from exporter.sources.source import Inputs, Source

RUNS = 3
# Rows that the warmup case keeps: enough to stand for a history, small enough to store.
ROWS = 32
# The traced size and the one it is compared with: neither may be a dimension of the model.
TRACED_SIZES = (5, 7, 11, 13, 17, 19, 23, 29)
PRIME = 13
LADDER = (0, 1, 2, PRIME, 1000)


@dataclass(frozen=True)
class Warmup:
    """What eager mode showed. ``inputs`` are the warmup case; ``constant`` marks outputs without a batch."""

    source: Source
    inputs: Inputs
    outputs: tuple[torch.Tensor, ...]
    output_specs: tuple[TensorSpec, ...]
    constant: tuple[bool, ...]
    sampler: Sampler
    traced_sizes: tuple[int, int]
    batch: Batch
    findings: tuple[Finding, ...]


def warm_up(source: Source, seed: int) -> Warmup:
    """Run the model in eager mode until it is known what to capture.

    Raises ``WarmupError`` where no finite outputs are found, where two runs on equal inputs differ, where a run
    changes its inputs, parameters or buffers, or where it reads a tensor's data into Python; ``CaptureError``
    where outputs do not carry the batch.
    """
    refuse_training(source)
    generator = torch.Generator().manual_seed(seed)
    with inference_conditions(source):
        sampler, inputs = find_inputs(source, generator)
        outputs = repeat(source, inputs)
        sizes = distinct_sizes(source)
        specs, constant = output_specs(source, sampler, outputs, sizes, generator)
        batch = admitted_batches(source, sampler, sizes[0], generator)
        sampler, finding = tame(source, sampler, sizes[1], generator)
    bare = dataclasses.replace(source, inputs=sampler.specs, outputs=specs)
    return Warmup(
        bare,
        inputs,
        tuple(outputs.values()),
        specs,
        constant,
        sampler,
        sizes,
        batch,
        (*source.findings, *finding),
    )


def refuse_training(source: Source) -> None:
    training = [name or "the model itself" for name, m in source.module.named_modules() if m.training]
    if training:
        raise WarmupError(
            f"model {source.name!r} is in train mode although eval() was called",
            where="submodule " + ", ".join(training[:5]),
            got="training = True",
            expected="training = False everywhere: dropout and batch statistics off",
            mend="do not override train() or eval(), and do not call train() in the factory's hooks",
        )


def find_inputs(source: Source, generator: torch.Generator) -> tuple[Sampler, Inputs]:
    """Warmup inputs: those that were given or recorded, else the first seeded sample with finite outputs."""
    if source.calls:
        rows = stack(source)
        specs = tuple(dataclasses.replace(s, sampling=recorded(s, SPREAD)) for s in source.inputs)
        inputs = thin(rows) if source.batch_ndim else rows
        refuse_non_finite(source, first_run(source, inputs), inputs)
        return Sampler(specs, source.batch_ndim, rows), inputs
    failure: str = ""
    for low, high in ((-1.0, 1.0), (0.1, 1.0), (1e-3, 0.1)):
        specs = tuple(_hinted(spec, low, high) for spec in source.inputs)
        sampler = Sampler(specs, source.batch_ndim, None)
        inputs = sampler.draw(3, generator)
        outputs = first_run(source, inputs)
        if all(map(finite, outputs.values())):
            return sampler, inputs
        failure = ", ".join(repr(n) for n, v in outputs.items() if not finite(v))
    raise WarmupError(
        f"model {source.name!r} gives NaN or infinity in warmup",
        where=f"output {failure}, on inputs sampled from [-1, 1), [0.1, 1) and [0.001, 0.1)",
        got="a value that is not finite",
        expected="finite outputs",
        mend="give inputs that the model is meant for: --inputs FILE",
    )


def _hinted(spec: TensorSpec, low: float, high: float) -> TensorSpec:
    """The spec with this range, unless its author gave one; integers are 0 and 1, which index most things."""
    if spec.sampling != Sampling():
        return spec
    hint = Sampling("uniform", low, high) if spec.dtype in FLOATING else Sampling("uniform", 0, 2)
    return dataclasses.replace(spec, sampling=hint)


def first_run(source: Source, inputs: Inputs) -> dict[str, torch.Tensor]:
    """The model's very first run: what it raises is told with the line that raised it."""
    try:
        return evaluate(source, inputs)
    except TorchferryError:
        raise
    except Exception as error:
        shapes = zip(source.inputs, inputs, strict=True)
        raise WarmupError(
            f"model {source.name!r} fails in eager mode",
            where=_raised_at(error),
            got=first_line(error),
            expected="outputs for inputs " + "; ".join(f"{s.name} {list(t.shape)}" for s, t in shapes),
            mend="give inputs that the model is meant for: --inputs FILE, or mend its shapes in the signature",
        ) from error


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
            where=f"output {name!r}, element {worst}",
            got=f"{value[tuple(worst)].item()} for {given[:400]}",
            expected="finite outputs for the warmup inputs",
            mend="give inputs that the model is meant for: --inputs FILE",
        )


def repeat(source: Source, inputs: Inputs) -> dict[str, torch.Tensor]:
    """The outputs of ``RUNS`` runs on equal inputs, which must agree to the bit and leave everything as it was."""
    before = state(source.named)
    pristine = tuple(t.clone() for t in inputs)
    recorder = ReadRecorder()
    first: dict[str, torch.Tensor] = {}
    for run in range(RUNS):
        with recorder:
            outputs = evaluate(source, inputs)
        outputs = {name: value.clone() for name, value in outputs.items()}
        _refuse_changes(source, inputs, pristine, before)
        first = first or outputs
        for name, value in outputs.items():
            if not same_bits(value, first[name]):
                raise WarmupError(
                    f"model {source.name!r} gives other outputs for equal inputs",
                    where=f"output {name!r}, run {run + 1} against run 1",
                    got=_difference(value, first[name]),
                    expected="equal bits: no random numbers, no hidden state",
                    mend="remove dropout, noise, counters and caches from forward",
                )
    if recorder.reads:
        read = recorder.reads[0]
        raise WarmupError(
            f"model {source.name!r} reads a tensor's data into Python, and a trace would keep the value it saw",
            where=", ".join(dict.fromkeys(r.where for r in recorder.reads)),
            got=f"{read.kind} gave {read.value}" if read.value else read.kind,
            expected="a forward that computes with tensors only",
            mend="replace a branch by torch.where and a loop count by a fixed number; make a constant in __init__",
        )
    return first


def _refuse_changes(source: Source, inputs: Inputs, pristine: Inputs, before: dict[str, torch.Tensor]) -> None:
    after = state(source.named)
    changed = [
        f"input {spec.name!r}"
        for spec, new, old in zip(source.inputs, inputs, pristine, strict=True)
        if not same_bits(new, old)
    ]
    parameters = {name for name, _ in source.named.named_parameters()}
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after or not same_bits(before[name], after[name]):
            changed.append(f"{'parameter' if name in parameters else 'buffer'} {name!r}")
    if changed:
        raise WarmupError(
            f"model {source.name!r} changes what it is given",
            where=", ".join(changed),
            got="another value after a run than before it",
            expected="a forward without side effects",
            mend="work on a copy (x = x.clone()), and return state instead of storing it",
        )


def distinct_sizes(source: Source) -> tuple[int, int]:
    """Two batch sizes that no dimension of the model has, so that a size that was baked in shows."""
    taken = {d for spec in source.inputs for d in spec.shape}
    taken |= {d for t in state(source.named).values() for d in t.shape}
    free = [size for size in TRACED_SIZES if size not in taken]
    fresh = itertools.count(31, 2)
    while len(free) < 2:
        size = next(fresh)
        free += [size] if size not in taken else []
    return free[0], free[1]


def output_specs(
    source: Source,
    sampler: Sampler,
    seen: dict[str, torch.Tensor],
    sizes: Sequence[int],
    generator: torch.Generator,
) -> tuple[tuple[TensorSpec, ...], tuple[bool, ...]]:
    declared = {spec.name: spec for spec in source.outputs}
    runs = [seen]
    if source.batch_ndim:
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
                got="; ".join(f"shape {list(s)} at batch {n}" for s, n in zip(shapes, sizes, strict=False)),
                expected=f"shape [batch, ...], here [{sizes[0]}, ...] and [{sizes[1]}, ...]",
                mend="declare batch_ndim=0 in the signature if the elements of a batch depend on each other "
                "(the shapes are then fixed)",
            )
        own = shapes[0][1:] if source.batch_ndim and carries else shapes[0]
        spec = declared.get(name, TensorSpec(name))
        dtype = str(value.dtype).removeprefix("torch.")
        if name in declared and spec.shape not in ((), own):
            raise CaptureError(
                f"output {name!r} of model {source.name!r} has not the shape that is declared",
                got=str(list(own)),
                expected=str(list(spec.shape)),
            )
        specs.append(dataclasses.replace(spec, shape=own, dtype=dtype))
        constant.append(bool(source.batch_ndim) and not carries)
    return tuple(specs), tuple(constant)


def admitted_batches(source: Source, sampler: Sampler, traced: int, generator: torch.Generator) -> Batch:
    """The sizes of ``LADDER`` that eager mode itself runs; the archive is held to the same ones."""
    if not source.batch_ndim:
        return Batch(0, limits="fixed shapes: the elements of a batch are not independent")
    sizes, limits = [], []
    for size in sorted({*LADDER, traced}):
        try:
            evaluate(source, sampler.draw(size, generator))
        except Exception as error:
            limits.append(f"batch {size}: {first_line(error)}")
        else:
            sizes.append(size)
    return Batch(1, tuple(sizes), (0, 1, 2), "; ".join(limits))


def tame(
    source: Source, sampler: Sampler, size: int, generator: torch.Generator
) -> tuple[Sampler, tuple[Finding, ...]]:
    """The widest spread around the recorded inputs at which eager mode stays finite."""
    if sampler.rows is None or not any(s.dtype in FLOATING for s in sampler.specs):
        return sampler, ()
    for spread in (SPREAD, SPREAD / 10, SPREAD / 1000, 0.0):
        specs = tuple(dataclasses.replace(s, sampling=recorded(s, spread)) for s in sampler.specs)
        tried = Sampler(specs, sampler.batch_ndim, sampler.rows)
        draws = [evaluate(source, tried.draw(size, generator)) for _ in range(4)]
        if all(finite(v) for run in draws for v in run.values()):
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
            except Exception:
                continue
            if all(map(finite, outputs.values())):
                yield f"{name}_1e{power:+d}", scaled
                break


def finite(value: torch.Tensor) -> bool:
    return bool(torch.isfinite(value).all())


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


def _difference(a: torch.Tensor, b: torch.Tensor) -> str:
    if a.shape != b.shape:
        return f"shape {list(a.shape)} against {list(b.shape)}"
    if a.dtype != b.dtype:
        return f"{a.dtype} against {b.dtype}"
    worst = (a != b).nonzero()[0].tolist()
    at = tuple(worst)
    return f"{a[at].item()} against {b[at].item()} at {worst}"


def _raised_at(error: BaseException) -> str:
    trace = error.__traceback__
    where = ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "/torch/" not in name:
            where = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return where
