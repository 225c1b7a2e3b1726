"""Data that Python reads: ``bool()``, ``.item()``, ``.tolist()``, ``numpy()`` and their kin.

A read is judged by what follows from it. What depends on an input (or on random numbers) is read again with another
value in its place: where an output changes, or the run fails, a trace would have frozen what the model computes. A
read of parameters, buffers or constants is sound, and so is one that only reaches a log. A branch is sound, too, where
inputs that go either way are known and the run that is captured serves all of them (``if mask.any(): x[mask] = ...``,
captured with some of the mask set).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.jit._fuser import optimized_execution

from exporter.archive.contract import Finding
from exporter.common.forking import NotRun
from exporter.model.eager.evaluation import inference_conditions
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import Eager, Outputs, eager, same_outputs, submodules_of_line, unlike
from exporter.soundness.data_dependence import COUNT, SIZE
from exporter.soundness.run_recording import Recording, record

CHECK = "data read"
BOTH_WAYS = "inputs that go either way are computed alike by the run that is captured"
# A model with more lines than this that read data is refused at the first of them all the same.
LINES = 60


def check(eager_mode: Eager) -> list[Finding]:
    return eager_mode.room(_check, [inputs for _, inputs in eager_mode.draws])


def _check(source: Source, draws: Sequence[Inputs]) -> list[Finding]:
    with inference_conditions(source):
        # Without values one recording is like another.
        bases = [record(source, inputs) for inputs in draws[: 1 if source.differentiates else 2]]
        failed = [base for base in bases if base.graph is None]
        if failed:
            raise NotRun(failed[0].failure)
        lines: dict[tuple[str, str], frozenset[str]] = {}
        for base in bases:
            for read, origin in zip(base.reads, base.origins, strict=True):
                key = (read.where, read.kind)
                lines[key] = lines.get(key, frozenset()) | origin
        counted = [key for key, labels in lines.items() if _is_count(labels)]
        moving = _changing(source, draws, counted) if counted else set()
        found: list[Finding] = []
        for (where, kind), labels in list(lines.items())[:LINES]:
            origin = [label for label in sorted(labels) if not label.startswith(SIZE)]
            counts = _is_count(labels)
            if not origin or (counts and (where, kind) not in moving):
                continue
            told = [i for i in _telling(source, draws, where, kind) if i > 1]
            candidates = [*zip(draws[:2], bases, strict=True), *((draws[i], record(source, draws[i])) for i in told)]
            effect = _effect(source, candidates, where, kind)
            if effect and kind == "bool()" and told and _serves_all(source, bases[0], draws):
                effect, reason = "", BOTH_WAYS
            else:
                reason = "no output depends on what was read"
            found.append(_finding(source, where, kind, origin, effect, reason))
        return found


def _telling(source: Source, draws: Sequence[Inputs], where: str, kind: str) -> list[int]:
    """Draws at which this line reads something else than at the draws before; none where it runs a number of times
    that data decide."""
    seen: dict[tuple[str, ...], int] = {}
    counts = set()
    for i, inputs in enumerate(draws):
        recording = record(source, inputs)
        if recording.graph is not None:
            values = tuple(r.value for r in recording.reads if (r.where, r.kind) == (where, kind))
            counts.add(len(values))
            seen.setdefault(values, i)
    return list(seen.values())[:4] if len(seen) > 1 and len(counts) == 1 else []


def _serves_all(source: Source, base: Recording, draws: Sequence[Inputs]) -> bool:
    """Whether the run that would be captured gives eager mode's outputs at every draw."""
    replay = torch._C._create_function_from_graph("forward", base.graph)
    return all(_agrees(replay, inputs, eager(source, inputs)) for inputs in draws)


def _agrees(replay: Any, inputs: Inputs, wanted: Outputs) -> bool:
    if isinstance(wanted, str):
        # What the model refuses, a replay must refuse.
        wanted = {}
    try:
        with optimized_execution(False):
            got = replay(*(t.clone() for t in inputs))
    except Exception:
        return not wanted
    return bool(wanted) and all(not unlike(a, b) for a, b in zip(got, wanted.values(), strict=False))


def _is_count(labels: frozenset[str]) -> bool:
    """Whether sizes that data decide are all that was read, beside sizes of the inputs."""
    rest = [label for label in labels if not label.startswith(SIZE)]
    return bool(rest) and all(label.startswith(COUNT) for label in rest)


def _changing(source: Source, draws: Sequence[Inputs], lines: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Of these lines those that read other values at other data."""
    seen: dict[tuple[str, str], set[tuple[str, ...]]] = {line: set() for line in lines}
    for inputs in draws:
        recording = record(source, inputs)
        for line, values in seen.items():
            values.add(tuple(r.value for r in recording.reads if (r.where, r.kind) == line))
    return {line for line, values in seen.items() if len(values) > 1}


def _effect(source: Source, bases: Sequence[tuple[Inputs, Recording]], where: str, kind: str) -> str:
    """What changes when Python is given another value; empty where nothing does."""
    for inputs, base in bases:
        at = [i for i, read in enumerate(base.reads) if (read.where, read.kind) == (where, kind)]
        for position in dict.fromkeys([*at[:1], *at[len(at) // 2 : len(at) // 2 + 1], *at[-1:]]):
            for index in range(VARIANTS):
                shown: list[str] = []

                def change(value: Any, index: int = index, shown: list[str] = shown) -> Any:
                    given = variants(value)[index % len(variants(value))]
                    shown.append(_short(given))
                    return given

                run = record(source, inputs, {position: change}, LONGEST)
                read = base.reads[position]
                instead = f"{read.value or 'data'} was read; with {shown[0] if shown else 'another value'} in its place"
                if run.failure:
                    return f"{instead} the model raises {run.failure}"
                if not same_outputs(run.outputs, base.outputs):
                    changed = [n for n in base.outputs if not same_outputs({n: base.outputs[n]}, _only(run.outputs, n))]
                    return f"{instead} {', '.join(f'output {n!r}' for n in changed) or 'the order of outputs'} changes"
    return ""


def _only(outputs: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {name: outputs[name]} if name in outputs else {}


VARIANTS = 6
# Seconds; a loop that was given another bound may have no end.
LONGEST = 2.0


def variants(value: Any) -> list[Any]:
    """Other values of the same kind; as many as tell apart what a program may do with it."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return list(dict.fromkeys([value + 1, max(value - 1, 0) if value > 0 else value - 1, 0, 2 * value + 3]))
    if isinstance(value, float):
        return [value + 1.0, -value, 0.5 * value, 1e30, -1e30, float("nan")]
    if isinstance(value, complex):
        return [value + 1.0, -value]
    if isinstance(value, str):
        return ["another text"]
    if isinstance(value, (list, tuple)):
        return [type(value)(variants(v)[0] if v is not None else v for v in value), type(value)(reversed(value))]
    if isinstance(value, torch.Tensor):
        return [~value] if value.dtype == torch.bool else [value + 1, -value]
    if hasattr(value, "__array__") and hasattr(value, "dtype"):
        return [~value] if value.dtype.kind == "b" else [value + value.dtype.type(1), -value]
    return [value]


def _finding(source: Source, where: str, kind: str, origin: Sequence[str], effect: str, reason: str) -> Finding:
    what = f"{kind} reads data into Python that depend on {', '.join(origin)}"
    if not effect:
        return Finding(CHECK, what, where, reason=reason)
    inside = [path for path in submodules_of_line(source, where) if path]
    script = f', or torchferry.mark(..., jit="script") for submodule {inside[-1]!r}' if inside else ""
    return Finding(
        CHECK,
        what,
        where,
        severity="unsound",
        evidence=effect,
        mend="keep it a tensor: torch.where instead of a branch, indexing by tensors, a fixed number of iterations"
        + script,
    )


def _short(value: Any) -> str:
    text = str(value).replace("\n", " ")
    return text if len(text) < 30 else text[:27] + "..."
