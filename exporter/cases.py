"""Cases that travel in the archive, and fresh ones that only an export can make: it has the model."""

from __future__ import annotations

import torch

from exporter.archive import Case
from exporter.contract import Finding
from exporter.eager import evaluate, inference_conditions, same_bits
from exporter.errors import first_line
from exporter.sources.source import Inputs
from exporter.warmup import Warmup, extremes

METHOD = "forward"
UNTRACED = 3


def stored_cases(warm: Warmup, seed: int) -> tuple[Case, ...]:
    """The warmup inputs, a batch of 1, a batch that is not the traced one, extreme magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    with inference_conditions(warm.source):
        drawn = [("warmup", warm.inputs)]
        if warm.source.batch_ndim:
            drawn += [
                (f"batch_{n}", warm.sampler.draw(n, generator))
                for n in (1, UNTRACED)
                if n == UNTRACED or n in warm.batch.sizes
            ]
        else:
            drawn.append(("drawn", warm.sampler.draw(0, generator)))
        drawn += extremes(warm)
        return tuple(_case(warm, name, inputs) for name, inputs in drawn)


def fresh_cases(warm: Warmup, seed: int) -> tuple[tuple[Case, ...], tuple[Finding, ...]]:
    """Inputs drawn anew, with eager outputs: every admitted batch size, unbatched, strided and broadcast inputs.

    What the source itself does not admit comes back as a finding, with the reason.
    """
    generator = torch.Generator().manual_seed(seed)
    with inference_conditions(warm.source):
        if not warm.source.batch_ndim:
            drawn = [warm.sampler.draw(0, generator) for _ in range(5)]
            return tuple(_case(warm, f"drawn {i}", x) for i, x in enumerate(drawn)), ()
        cases = [_case(warm, f"batch {n}", warm.sampler.draw(n, generator)) for n in warm.batch.sizes]
        size = warm.traced_sizes[1]
        strided = tuple(map(spread_out, warm.sampler.draw(size, generator)))
        cases.append(_case(warm, "non-contiguous", strided))
        row = warm.sampler.draw(1, generator)
        expanded = tuple(t.expand(size, *t.shape[1:]) for t in row)
        cases.append(_case(warm, "expanded", expanded))
        findings = []
        if warm.source.inputs:
            cases.append(_mixed(warm, size, generator))
            unbatched = _unbatched(warm, generator)
            (cases if isinstance(unbatched, Case) else findings).append(unbatched)  # pyright: ignore[reportArgumentType]
        return tuple(cases), tuple(findings)


def _case(warm: Warmup, name: str, inputs: Inputs) -> Case:
    return Case(name, METHOD, inputs, _outputs(warm, inputs))


def _outputs(warm: Warmup, inputs: Inputs) -> Inputs:
    """Eager outputs; one that does not depend on the inputs is given the batch, as the archive gives it."""
    values = evaluate(warm.source, inputs).values()
    return tuple(
        v.expand((inputs[0].shape[0], *v.shape)) if constant else v
        for v, constant in zip(values, warm.constant, strict=True)
    )


def _unbatched(warm: Warmup, generator: torch.Generator) -> Case | Finding:
    """A single element without a batch dimension, where eager mode takes it and means the same by it."""
    row = warm.sampler.draw(1, generator)
    single = tuple(t[0] for t in row)
    batched = tuple(v[0] for v in _outputs(warm, row))
    try:
        outputs = tuple(evaluate(warm.source, single).values())
        reason = "" if _agree(outputs, batched) else "it means something else by them than by a batch of 1"
    except Exception as error:
        outputs, reason = (), first_line(error)
    if reason:
        return Finding(
            "unbatched inputs",
            "not compared with eager mode: the source does not admit unbatched inputs",
            reason=reason,
        )
    return Case("unbatched", METHOD, single, outputs)


def _agree(a: Inputs, b: Inputs) -> bool:
    return all(
        x.shape == y.shape and (same_bits(x, y) or torch.allclose(x, y, rtol=1e-9, atol=0.0, equal_nan=True))
        for x, y in zip(a, b, strict=True)
    )


def _mixed(warm: Warmup, size: int, generator: torch.Generator) -> Case:
    """Two batch dimensions, the first input without any: the archive broadcasts, as torch does."""
    flat = warm.sampler.draw(2 * size, generator)
    one = flat[0][:1]
    flat = (one.expand(2 * size, *one.shape[1:]), *flat[1:])
    outputs = tuple(v.reshape(2, size, *v.shape[1:]) for v in _outputs(warm, flat))
    inputs = tuple(t.reshape(2, size, *t.shape[1:]) for t in flat[1:])
    first = one[0] if inputs else flat[0].reshape(2, size, *flat[0].shape[1:])
    return Case("broadcast", METHOD, (first, *inputs), outputs)


def spread_out(value: torch.Tensor) -> torch.Tensor:
    """The same values with other strides: every second element of a larger, transposed tensor."""
    wide = value.new_zeros((*reversed(value.shape[1:]), 2 * value.shape[0]))
    view = wide.permute(*reversed(range(wide.ndim)))[::2]
    return view.copy_(value)
