"""The same call under other conditions: gradients, default dtype, threads, layouts of memory, inputs that are one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from exporter.archive.contract import Finding
from exporter.common.tensors import spread_out, transposed
from exporter.model.eager.evaluation import flatten, forward_line, inference_conditions
from exporter.model.function_model import Function
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import Eager, Outputs, eager, same_as_one, same_outputs, unlike
from exporter.soundness.execution_paths import where_paths_part
from exporter.soundness.footprint import suspect_line
from exporter.soundness.run_recording import canonical, difference, record

GRAD, DTYPE, THREADS, LAYOUT, ALIAS = "grad mode", "default dtype", "threads", "memory layout", "aliasing"
TRAIN = "train mode"
_MEND = {
    GRAD: "compute the same with and without gradients",
    DTYPE: "make tensors with dtype=x.dtype, or as buffers in __init__",
    THREADS: "keep no state of a thread",
    LAYOUT: "compute the same for every layout: no branch on is_contiguous(), no as_strided",
    ALIAS: "work on copies, and do not compare tensors by identity",
}
# Calls that speak of memory and not of values.
OF_LAYOUT = r"as_strided|stride\(|storage|data_ptr|\bset_\(|is_contiguous"
_Named = dict[str, torch.Tensor]


def check(eager_mode: Eager) -> list[Finding]:
    return eager_mode.room(_check, eager_mode.inputs)


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    with inference_conditions(source):
        reference = eager(source, inputs)
        if isinstance(reference, str):
            return []
        found = []
        for name, run in _conditions(source, inputs):
            try:
                outputs = run()
            except Exception:
                # A condition that the model refuses is not one under which it means something else.
                continue
            apart = _apart(outputs, reference)
            if apart and source.differentiates:
                apart = _apart(outputs, reference, _rounding(source, inputs, reference))
            if not apart:
                continue
            where = where_paths_part(lambda: eager(source, inputs), run)
            if not where and name == LAYOUT:
                where = suspect_line(lambda: eager(source, inputs), OF_LAYOUT)
            if not where and name == DTYPE:
                where = _where_dtypes_part(source, inputs)
            found.append(
                Finding(
                    name,
                    f"outputs depend on {_SAYS[name]}",
                    where or forward_line(source),
                    severity="unsound",
                    evidence=apart,
                    mend=_MEND[name],
                )
            )
        if isinstance(source.named, Function):
            return found
        # Last: the process ends in train mode.
        source.named.train()
        if not same_outputs(eager(source, inputs), reference):
            found.append(
                Finding(TRAIN, "the model computes something else in train mode", reason="it is captured in eval mode")
            )
        return found


_SAYS = {
    GRAD: "whether gradients are recorded",
    DTYPE: "torch's default dtype",
    THREADS: "the thread that calls",
    LAYOUT: "the layout of the inputs in memory",
    ALIAS: "whether two inputs are one tensor",
}


def _conditions(source: Source, inputs: Inputs) -> Iterator[tuple[str, Callable[[], _Named]]]:
    def plain(*given: torch.Tensor) -> _Named:
        return {n: v.detach().clone() for n, v in flatten(source.module(*given), source).items()}

    def copies() -> Inputs:
        return tuple(t.clone() for t in inputs)

    def gradients() -> _Named:
        with _asking(source), torch.enable_grad():
            return plain(*(t.requires_grad_(_can_ask(t)) for t in copies()))

    def inference() -> _Named:
        with torch.inference_mode():
            return plain(*copies())

    def other_dtype() -> _Named:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if before == torch.float32 else torch.float32)
        try:
            return plain(*copies())
        finally:
            torch.set_default_dtype(before)

    def another_thread() -> _Named:
        result: list[Any] = []

        def run() -> None:
            # The number of threads is a thread's own, and a forked process has one.
            torch.set_num_threads(1)
            with contextlib.suppress(Exception), torch.set_grad_enabled(source.differentiates):
                result.append(plain(*copies()))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return result[0]

    if not source.differentiates:
        yield GRAD, gradients
        yield GRAD, inference
    yield DTYPE, other_dtype
    yield THREADS, another_thread
    yield LAYOUT, lambda: plain(*map(spread_out, inputs))
    yield LAYOUT, lambda: plain(*map(transposed, inputs))
    yield LAYOUT, lambda: plain(*map(_further_on, inputs))
    shared = same_as_one(inputs)
    if shared is not None:
        # Against the same values in tensors of their own.
        yield ALIAS, lambda: _relative(plain(*shared), plain(*(t.clone() for t in shared)), eager(source, inputs))


def _where_dtypes_part(source: Source, inputs: Inputs) -> str:
    before, one = torch.get_default_dtype(), record(source, inputs)
    torch.set_default_dtype(torch.float64 if before == torch.float32 else torch.float32)
    try:
        other = record(source, inputs)
    finally:
        torch.set_default_dtype(before)
    if one.graph is None or other.graph is None:
        return ""
    return (difference(canonical(one), canonical(other)) or ("",))[0]


def _relative(got: _Named, wanted: _Named, reference: Outputs) -> _Named:
    """``reference`` where the two agree, so that one comparison serves all conditions."""
    return reference if not _apart(got, wanted) and not isinstance(reference, str) else got


# Runs at inputs that differ in their last bit, and how far beyond what they show rounding may go.
ROUNDINGS, FACTOR = 4, 16.0


def _rounding(source: Source, inputs: Inputs, reference: _Named) -> dict[str, float]:
    """By output, how far rounding moves it: a gradient that is zero by symmetry is nothing but rounding."""
    generator = torch.Generator().manual_seed(0)
    found = dict.fromkeys(reference, 0.0)
    for _ in range(ROUNDINGS):
        moved = tuple(_last_bits(t, generator) if t.is_floating_point() else t for t in inputs)
        outputs = eager(source, moved)
        for name, value in reference.items():
            other = outputs[name] if not isinstance(outputs, str) else value
            if value.is_floating_point() and other.shape == value.shape and value.numel():
                found[name] = max(found[name], FACTOR * float((other - value).abs().max().nan_to_num(0.0, 0.0, 0.0)))
    return found


def _last_bits(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Every number as it is, or the next one up or down."""
    towards = torch.randint(-1, 2, value.shape, generator=generator) * torch.full_like(value, torch.inf)
    return torch.where(towards.isnan(), value, torch.nextafter(value, towards))


def _apart(got: _Named, wanted: _Named, allowed: Mapping[str, float] | None = None) -> str:
    if list(got) != list(wanted):
        return f"outputs {', '.join(got)} against {', '.join(wanted)}"
    for name, value in wanted.items():
        other = got[name]
        if value.is_floating_point() and other.is_floating_point():
            other = other.to(value.dtype)
        found = unlike(other, value)
        if found and allowed and other.shape == value.shape and float((other - value).abs().max()) <= allowed[name]:
            continue
        if found:
            return f"output {name!r}: {found}"
    return ""


def _further_on(value: torch.Tensor) -> torch.Tensor:
    """The same values, not at the beginning of their memory."""
    return torch.cat([value.flatten(), value.flatten()])[value.numel() :].view(value.shape)


def _can_ask(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


@contextlib.contextmanager
def _asking(source: Source) -> Iterator[None]:
    """Parameters that ask for gradients, as a training loop has them."""
    parameters = [p for p in source.named.parameters() if _can_ask(p)]
    for parameter in parameters:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)
