"""Generation of the cases stored in the archive, and of fresh ones, which only an export can make: it has the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from exporter.archive.cases import ReferenceCase
from exporter.archive.contract import Finding, MethodSpec, strip_prefix
from exporter.archive.tensor_spec import fits_shape
from exporter.common.errors import WarmupError
from exporter.common.tensors import all_close, copy_transposed, copy_with_gaps
from exporter.model.eager.derivatives import compute_jacobian_blocks, compute_jvp, compute_vjp
from exporter.model.eager.dynamic_sizes import OPEN_SIZES, check_output_sizes, format_sizes
from exporter.model.eager.evaluation import eager_context, evaluate, expand_constants
from exporter.model.eager.extreme_inputs import draw_extreme_inputs
from exporter.model.eager.warmup import Warmup
from exporter.model.implicit.implicit_update import record_solves, stack_infos
from exporter.model.source import Inputs

METHOD = "forward"


@dataclass(frozen=True)
class EvaluatedCase:
    """A case of ``forward``, and what its solves recorded: iterations, norms of residuals, statuses."""

    forward: ReferenceCase
    solve_info: Inputs = ()


def make_stored_cases(warm: Warmup, seed: int) -> tuple[EvaluatedCase, ...]:
    """Make cases of the warmup inputs, a batch of 1, a batch that is not the traced one, extreme magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    with eager_context(warm.source):
        samples = [("warmup", warm.inputs)]
        if warm.source.has_dynamic_size:
            sizes = [n for n in (1, warm.traced_sizes[1]) if n > 1 or n in warm.batch.sizes]
            samples += [(f"{warm.source.size_name}_{n}", warm.sampler.draw(n, generator)) for n in sizes]
        else:
            samples.append(("drawn", warm.sampler.draw(0, generator)))
        samples += draw_extreme_inputs(warm)
        return tuple(_make_case(warm, name, inputs) for name, inputs in samples)


def make_fresh_cases(warm: Warmup, seed: int) -> tuple[tuple[EvaluatedCase, ...], tuple[Finding, ...]]:
    """Draw new inputs with eager outputs: every accepted batch size, unbatched, strided and broadcast inputs.

    What the source itself does not accept is returned as a finding, with the reason."""
    generator = torch.Generator().manual_seed(seed)
    with eager_context(warm.source):
        if not warm.source.has_dynamic_size:
            samples = [warm.sampler.draw(0, generator) for _ in range(5)]
            return tuple(_make_case(warm, f"drawn {i}", x) for i, x in enumerate(samples)), ()
        cases = [
            _make_case(warm, f"{warm.source.size_name} {n}", warm.sampler.draw(n, generator)) for n in warm.batch.sizes
        ]
        size = warm.traced_sizes[1]
        batch = warm.sampler.draw(size, generator)
        for name, copy in (("non-contiguous", copy_with_gaps), ("transposed", copy_transposed)):
            cases.append(_make_case(warm, name, tuple(map(copy, batch))))
        if not warm.source.batch_ndim:
            size_cases, limits = _make_size_cases(warm, generator)
            return (*cases, *size_cases), (_describe_ranges(warm, [*cases, *size_cases]), *limits)
        element = tuple(t.expand(size, *t.shape[1:]) for t in warm.sampler.draw(1, generator))
        cases.append(_make_case(warm, "expanded", element))
        cases.append(EvaluatedCase(make_broadcast_case(warm, size, generator)))
        unbatched = _make_unbatched_case(warm, generator)
        if isinstance(unbatched, Finding):
            return tuple(cases), (unbatched,)
        return (*cases, EvaluatedCase(unbatched)), ()


def _make_size_cases(warm: Warmup, generator: torch.Generator) -> tuple[list[EvaluatedCase], tuple[Finding, ...]]:
    """Make cases with several open sizes in other orders; report the ones that eager mode rejects."""
    cases, rejections = [], []
    for sizes in warm.sampler.arrange_sizes(warm.traced_sizes[1]):
        name = format_sizes(sizes)
        if 0 in sizes.values() and 0 not in warm.batch.sizes:
            rejections.append(f"{name}: left out, as 0 is")
            continue
        try:
            cases.append(_make_case(warm, name, warm.sampler.draw(sizes, generator)))
        except WarmupError as error:
            rejections.append(f"{name}: {error.details.get('got', error.what)}")
    what = "not compared with eager mode: the source does not admit some open sizes"
    return cases, (Finding(OPEN_SIZES, what, reason="; ".join(rejections)),) if rejections else ()


def _describe_ranges(warm: Warmup, cases: Sequence[EvaluatedCase]) -> Finding:
    """Describe from where to where each open size goes in these cases."""
    values: dict[str, list[int]] = {name: [] for name in warm.source.sizes}
    for case in cases:
        sizes: dict[str, int] = {}
        for spec, value in zip(warm.source.inputs, case.forward.inputs, strict=True):
            fits_shape(value.shape, spec.shape, sizes)
        for name, size in sizes.items():
            values[name].append(size)
    ranges = ", ".join(f"{name} from {min(sizes)} to {max(sizes)}" for name, sizes in values.items())
    return Finding(OPEN_SIZES, f"compared with eager mode: {ranges}", reason=f"{len(cases)} cases of other sizes")


# A Jacobian block with respect to a parameter takes one gradient per row of eager mode.
MAX_PARAMETER_ROWS = 32


def make_method_cases(
    warm: Warmup, methods: Mapping[str, MethodSpec], cases: Sequence[EvaluatedCase], seed: int
) -> tuple[ReferenceCase, ...]:
    """Make cases of the methods beside ``forward``, at the inputs of other cases, from eager mode and its autograd.

    Where parameter blocks are among them, large batches are left to the batch invariance checks. At extreme magnitudes
    two correct ways to one derivative differ by cancellation, and nothing is stored; nor without a batch where an
    output and a derivative are NaN: 0 times NaN is a derivative by all inputs, or none, as it is computed backwards or
    forwards."""
    generator = torch.Generator().manual_seed(seed)
    results = []
    for name, spec in methods.items():
        has_parameter_blocks = any(not isinstance(o, str) and o[1] not in spec.inputs for o in spec.outputs)
        for evaluated in cases:
            case = evaluated.forward
            if case.is_extreme or not _has_traced_batch_ndim(warm, case):
                continue
            if name == "newton_info":
                results.append(ReferenceCase(case.name, name, case.inputs, evaluated.solve_info))
            elif not (has_parameter_blocks and case.outputs[0].shape[0] > MAX_PARAMETER_ROWS):
                derived = _make_derivative_case(warm, name, spec, case, generator)
                is_outside = _has_nan(case.outputs) and _has_nan(derived.outputs[len(case.outputs) :])
                results += [] if is_outside and not warm.source.batch_ndim else [derived]
    return tuple(results)


def _has_nan(tensors: Inputs) -> bool:
    return any(bool(tensor.isnan().any()) for tensor in tensors)


def _has_traced_batch_ndim(warm: Warmup, case: ReferenceCase) -> bool:
    """Return whether every input has the batch that was traced: one dimension of one size, or none."""
    batch_ndim = 1 if warm.source.batch_ndim else 0
    batches = {t.shape[: t.ndim - len(s.shape)] for t, s in zip(case.inputs, warm.source.inputs, strict=True)}
    return len(batches) == 1 and len(next(iter(batches))) == batch_ndim


def _make_derivative_case(
    warm: Warmup, name: str, spec: MethodSpec, case: ReferenceCase, generator: torch.Generator
) -> ReferenceCase:
    source = warm.source
    inputs = tuple(t.clone(memory_format=torch.contiguous_format) for t in case.inputs)
    outputs = dict(zip((s.name for s in warm.output_specs), case.outputs, strict=True))
    named_inputs = dict(zip((s.name for s in source.inputs), inputs, strict=True))

    def draw_directions(names: Sequence[str], like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        examples = {strip_prefix(name): like[strip_prefix(name)] for name in names}
        unit = {n: torch.rand(t.shape, generator=generator, dtype=torch.float64) for n, t in examples.items()}
        return {n: (2 * unit[n] - 1).to(t.dtype) for n, t in examples.items()}

    with eager_context(source):
        directions = spec.inputs[len(inputs) :]
        if name == "jvp":
            extra = draw_directions(directions, named_inputs)
            pushed = {n: outputs[n] for n in (strip_prefix(str(o)) for o in spec.outputs[len(outputs) :])}
            derivatives = compute_jvp(source, inputs, extra, pushed)
        elif name == "vjp":
            extra = draw_directions(directions, outputs)
            derivatives = compute_vjp(source, inputs, extra)
        else:
            extra = {}
            pairs = [o for o in spec.outputs if not isinstance(o, str)]
            derivatives = compute_jacobian_blocks(source, inputs, pairs)
    values = (*case.outputs, *derivatives.values())
    return ReferenceCase(case.name, name, (*case.inputs, *extra.values()), tuple(v.contiguous() for v in values))


def _make_case(warm: Warmup, name: str, inputs: Inputs) -> EvaluatedCase:
    """Evaluate the model into a case; raise ``CaptureError`` if an output's open sizes differ from its declaration."""
    with record_solves() as infos:
        outputs = _evaluate_outputs(warm, inputs)
    if warm.source.sizes:
        check_output_sizes(warm.source, inputs, warm.output_specs, outputs)
    return EvaluatedCase(ReferenceCase(name, METHOD, inputs, outputs), stack_infos(warm.source, infos))


def _evaluate_outputs(warm: Warmup, inputs: Inputs) -> Inputs:
    """Return eager outputs; one that does not depend on the inputs gets the batch, as the archive does it."""
    # Contiguous copies: the model may accept no others, and an in-place write must not reach the case.
    copies = tuple(t.clone(memory_format=torch.contiguous_format) for t in inputs)
    return tuple(expand_constants(evaluate(warm.source, copies), warm.constant, copies).values())


def _make_unbatched_case(warm: Warmup, generator: torch.Generator) -> ReferenceCase | Finding:
    """Make a case of one element without batch dimension if eager mode accepts it with the same meaning."""
    row = warm.sampler.draw(1, generator)
    single = tuple(t[0] for t in row)
    batched = tuple(v[0] for v in _evaluate_outputs(warm, row))
    try:
        outputs = tuple(evaluate(warm.source, single).values())
        agree = all(all_close(a, b) for a, b in zip(outputs, batched, strict=True))
        reason = "" if agree else "its outputs for them differ from those for a batch of 1"
    except WarmupError as error:
        outputs, reason = (), error.details.get("got", error.what)
    if reason:
        what = "not compared with eager mode: the source does not admit unbatched inputs"
        return Finding("unbatched inputs", what, reason=reason)
    return ReferenceCase("unbatched", METHOD, single, outputs)


def make_broadcast_case(warm: Warmup, size: int, generator: torch.Generator) -> ReferenceCase:
    """Make a case of two batch dimensions whose first input has none: the archive broadcasts, as torch does."""
    flat = warm.sampler.draw(2 * size, generator)
    element = flat[0][:1]
    flat = (element.expand(2 * size, *element.shape[1:]), *flat[1:])
    outputs = tuple(v.reshape(2, size, *v.shape[1:]) for v in _evaluate_outputs(warm, flat))
    inputs = tuple(t.reshape(2, size, *t.shape[1:]) for t in flat[1:])
    first = element[0] if inputs else flat[0].reshape(2, size, *flat[0].shape[1:])
    return ReferenceCase("broadcast", METHOD, (first, *inputs), outputs)
