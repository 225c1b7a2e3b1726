"""Cases that travel in the archive, and fresh ones that only an export can make: it has the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from exporter.archive.cases import EXTREMES, Case
from exporter.archive.contract import Finding, MethodSpec, bare
from exporter.common.errors import WarmupError
from exporter.common.tensors import close, spread_out, transposed
from exporter.model.eager.derivatives import blocks, pulled, pushed
from exporter.model.eager.dynamic_sizes import hold_sizes, text_of
from exporter.model.eager.evaluation import evaluate, inference_conditions
from exporter.model.eager.warmup import Warmup, extremes
from exporter.model.implicit.implicit_update import newton_info
from exporter.model.source import Inputs

METHOD = "forward"


def stored_cases(warm: Warmup, seed: int) -> tuple[Case, ...]:
    """The warmup inputs, a batch of 1, a batch that is not the traced one, extreme magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    with inference_conditions(warm.source):
        drawn = [("warmup", warm.inputs)]
        if warm.source.varies:
            drawn += [
                (f"{_lead(warm)}_{n}", warm.sampler.draw(n, generator))
                for n in (1, warm.traced_sizes[1])
                if n > 1 or n in warm.batch.sizes
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
        if not warm.source.varies:
            drawn = [warm.sampler.draw(0, generator) for _ in range(5)]
            return tuple(_case(warm, f"drawn {i}", x) for i, x in enumerate(drawn)), ()
        cases = [_case(warm, f"{_lead(warm)} {n}", warm.sampler.draw(n, generator)) for n in warm.batch.sizes]
        size = warm.traced_sizes[1]
        whole = warm.sampler.draw(size, generator)
        layouts = [("non-contiguous", tuple(map(spread_out, whole))), ("transposed", tuple(map(transposed, whole)))]
        cases += [_case(warm, name, inputs) for name, inputs in layouts]
        if not warm.source.batch_ndim:
            arranged, limits = _arranged(warm, generator)
            return (*cases, *arranged), limits
        row = tuple(t.expand(size, *t.shape[1:]) for t in warm.sampler.draw(1, generator))
        cases.append(_case(warm, "expanded", row))
        cases.append(_mixed(warm, size, generator))
        unbatched = _unbatched(warm, generator)
        if isinstance(unbatched, Finding):
            return tuple(cases), (unbatched,)
        return (*cases, unbatched), ()


def _arranged(warm: Warmup, generator: torch.Generator) -> tuple[list[Case], tuple[Finding, ...]]:
    """Several open sizes in other orders; what eager mode refuses is said."""
    cases, refused = [], []
    for sizes in warm.sampler.arrangements(warm.traced_sizes[1]):
        name = text_of(sizes)
        if 0 in sizes.values() and 0 not in warm.batch.sizes:
            refused.append(f"{name}: left out, as 0 is")
            continue
        try:
            cases.append(_case(warm, name, warm.sampler.draw(sizes, generator)))
        except WarmupError as error:
            refused.append(f"{name}: {error.details.get('got', error.what)}")
    what = "not compared with eager mode: the source does not admit some open sizes"
    return cases, (Finding("open sizes", what, reason="; ".join(refused)),) if refused else ()


def _lead(warm: Warmup) -> str:
    return "batch" if warm.source.batch_ndim else warm.source.sizes[0]


# A block by a parameter takes a gradient for each row of eager mode.
ROWS = 32


def method_cases(warm: Warmup, methods: Mapping[str, MethodSpec], cases: Sequence[Case], seed: int) -> tuple[Case, ...]:
    """Cases of the methods beside ``forward``, at the inputs of other cases, with what eager mode and its autograd say.

    Where a parameter's blocks are among them, large batches are left to the laws of a batch. At extreme magnitudes two
    right ways to one derivative part by cancellation, and nothing is stored.
    """
    generator = torch.Generator().manual_seed(seed)
    found = []
    for name, spec in methods.items():
        by_parameters = any(not isinstance(o, str) and o[1] not in spec.inputs for o in spec.outputs)
        for case in cases:
            if case.name.startswith(EXTREMES):
                continue
            if name == "newton_info":
                found += [_info_case(warm, case)] if _one_batch(warm, case) else []
            elif _one_batch(warm, case) and not (by_parameters and case.outputs[0].shape[0] > ROWS):
                found.append(_derivative_case(warm, name, spec, case, generator))
    return tuple(found)


def _one_batch(warm: Warmup, case: Case) -> bool:
    """Whether every input has the batch that was traced: one dimension of one size, or none."""
    lead = 1 if warm.source.batch_ndim else 0
    batches = {t.shape[: t.ndim - len(s.shape)] for t, s in zip(case.inputs, warm.source.inputs, strict=True)}
    return len(batches) == 1 and len(next(iter(batches))) == lead


def _derivative_case(warm: Warmup, name: str, spec: MethodSpec, case: Case, generator: torch.Generator) -> Case:
    source = warm.source
    plain = tuple(t.clone(memory_format=torch.contiguous_format) for t in case.inputs)
    outputs = dict(zip((s.name for s in warm.output_specs), case.outputs, strict=True))
    given = dict(zip((s.name for s in source.inputs), plain, strict=True))

    def drawn(names: Sequence[str], like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        held = {bare(name): like[bare(name)] for name in names}
        unit = {n: torch.rand(t.shape, generator=generator, dtype=torch.float64) for n, t in held.items()}
        return {n: (2 * unit[n] - 1).to(t.dtype) for n, t in held.items()}

    with inference_conditions(source):
        directions = spec.inputs[len(plain) :]
        if name == "jvp":
            extra = drawn(directions, given)
            made = pushed(source, plain, extra, [bare(str(o)) for o in spec.outputs[len(outputs) :]])
        elif name == "vjp":
            extra = drawn(directions, outputs)
            made = pulled(source, plain, extra)
        else:
            extra = {}
            pairs = [o for o in spec.outputs if not isinstance(o, str)]
            made = blocks(source, plain, pairs)
    values = (*case.outputs, *made.values())
    return Case(case.name, name, (*case.inputs, *extra.values()), tuple(v.contiguous() for v in values))


def _info_case(warm: Warmup, case: Case) -> Case:
    with inference_conditions(warm.source):
        info = newton_info(warm.source, *(t.clone(memory_format=torch.contiguous_format) for t in case.inputs))
    return Case(case.name, "newton_info", case.inputs, info)


def _case(warm: Warmup, name: str, inputs: Inputs) -> Case:
    """Raises ``CaptureError`` where an output has other open sizes than its declaration says."""
    outputs = _outputs(warm, inputs)
    if warm.source.sizes:
        hold_sizes(warm.source, inputs, warm.output_specs, outputs)
    return Case(name, METHOD, inputs, outputs)


def _outputs(warm: Warmup, inputs: Inputs) -> Inputs:
    """Eager outputs; one that does not depend on the inputs is given the batch, as the archive gives it."""
    # Contiguous copies: the model may take no others, and a write in place must not reach the case.
    copies = tuple(t.clone(memory_format=torch.contiguous_format) for t in inputs)
    values = evaluate(warm.source, copies).values()
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
        agree = all(close(a, b) for a, b in zip(outputs, batched, strict=True))
        reason = "" if agree else "it means something else by them than by a batch of 1"
    except WarmupError as error:
        outputs, reason = (), error.details.get("got", error.what)
    if reason:
        return Finding(
            "unbatched inputs",
            "not compared with eager mode: the source does not admit unbatched inputs",
            reason=reason,
        )
    return Case("unbatched", METHOD, single, outputs)


def _mixed(warm: Warmup, size: int, generator: torch.Generator) -> Case:
    """Two batch dimensions, the first input without any: the archive broadcasts, as torch does."""
    flat = warm.sampler.draw(2 * size, generator)
    one = flat[0][:1]
    flat = (one.expand(2 * size, *one.shape[1:]), *flat[1:])
    outputs = tuple(v.reshape(2, size, *v.shape[1:]) for v in _outputs(warm, flat))
    inputs = tuple(t.reshape(2, size, *t.shape[1:]) for t in flat[1:])
    first = one[0] if inputs else flat[0].reshape(2, size, *flat[0].shape[1:])
    return Case("broadcast", METHOD, (first, *inputs), outputs)
