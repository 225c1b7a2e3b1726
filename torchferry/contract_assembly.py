"""The contract of a captured model: what the file promises to whoever loads it."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Sequence

import torch

from exporter import __version__
from exporter.archive import derivative_request
from exporter.archive.cases import Cases
from exporter.archive.contract import (
    DEFAULT_TOLERANCE,
    NEWTON_OUTPUTS,
    SCHEMA,
    TANGENT,
    Contract,
    CreatedWith,
    Envelope,
    Finding,
    MethodSpec,
    ParameterSpec,
    Range,
    Solver,
    Tolerance,
    block_name,
)
from exporter.archive.derivative_request import DerivativeRequest
from exporter.archive.tensor_spec import FLOATING, TensorSpec, name_dtype
from exporter.archive.value_structure import Structure
from exporter.capture.determinant_gradients import has_other_gradients
from exporter.capture.passes import CaptureResult
from exporter.common.plain_text import escape_unsafe
from exporter.common.source_paths import strip_local_paths
from exporter.common.tensors import estimate_rounding
from exporter.model.eager.case_generation import METHOD
from exporter.model.eager.derivatives import find_nonzero_blocks
from exporter.model.eager.evaluation import describe_results, eager_context, evaluate_on_copies
from exporter.model.eager.gradient_outputs import GradientCall
from exporter.model.eager.warmup import Warmup
from exporter.model.implicit.newton_solver import find_solvers
from exporter.model.implicit.solver_tolerances import solver_tolerances


def build_contract(
    warm: Warmup,
    captured: CaptureResult,
    devices: Sequence[str],
    request: DerivativeRequest | None,
    command: str,
) -> Contract:
    """Build the contract of a captured model, which knows of no checks and no cases yet."""
    source = warm.source
    outputs = warm.output_specs
    parameter_names = [name for name, _ in source.parameter_module.named_parameters()]
    wrt_names = {o[1] for m in captured.methods.values() for o in m.outputs if not isinstance(o, str)}
    wrt_names -= {s.name for s in source.inputs}
    solvers = find_solvers(source.parameter_module)
    shape = () if len(solvers) == 1 else (len(solvers),)
    requested, resolve = request.parameters if request else (), derivative_request.resolve_settable_parameters
    settable = resolve(requested, captured.parameters, parameter_names, wrt_names)
    parameters = {n: p for n, p in source.parameter_module.named_parameters() if n in settable}
    forward = MethodSpec(tuple(s.name for s in source.inputs), tuple(s.name for s in outputs))
    return Contract(
        schema=SCHEMA,
        name=source.name,
        source=source.origin,
        created_with=CreatedWith(__version__, str(torch.__version__), platform.python_version(), command),
        inputs=source.inputs,
        outputs=outputs,
        batch=warm.batch,
        methods={METHOD: forward, **captured.methods},
        parameters=tuple(ParameterSpec(name, tuple(p.shape), name_dtype(p)) for name, p in parameters.items()),
        tolerance=_make_tolerance(warm, captured, bool(solvers)),
        devices=tuple(devices),
        operators=captured.operators,
        findings=tuple(map(_strip_finding_paths, warm.findings)),
        envelope=Envelope(),
        differentiable=request is not None and request.differentiable,
        solvers=tuple(Solver(path, loop.read_settings(), loop.get_failure_policy()) for path, loop in solvers.items()),
        per_element=source.per_element,
        metadata=source.metadata,
        arguments=source.arguments,
        positional=source.positional,
        results=_describe_results(warm),
        info=tuple(TensorSpec(n, shape, d) for n, d in NEWTON_OUTPUTS.items()) if solvers else (),
    )


def _describe_results(warm: Warmup) -> Structure:
    """Return the structure of what the user's own call returns. NEML2 alone knows that of its models."""
    source = warm.source
    if isinstance(source.module, GradientCall):
        # The gradients are no part of it.
        source = source.module.source
    if source.origin.kind == "neml2":
        return ()
    with eager_context(source):
        return describe_results(source, warm.inputs)


def _make_tolerance(warm: Warmup, captured: CaptureResult, is_implicit: bool) -> Tolerance:
    """Return the tolerance; a tangent has the bounds of the coarsest input that its output depends on, if wider.

    Eager mode's derivative by a float32 input is float32, and a tangent is put together of such."""
    tolerance = solver_tolerances(warm, captured.methods) if is_implicit else DEFAULT_TOLERANCE
    if has_other_gradients(warm.source, captured.operators):
        tolerance = _add_floors(tolerance, warm, captured)
    dtypes = {spec.name: spec.dtype for spec in warm.source.inputs if spec.dtype in FLOATING}
    if "jvp" not in captured.methods or len({*dtypes.values(), *(spec.dtype for spec in warm.output_specs)}) < 2:
        return tolerance
    with eager_context(warm.source):
        pairs = find_nonzero_blocks(warm.source, warm.inputs)
    outputs = dict(tolerance.outputs)
    for spec in warm.output_specs:
        bounds = [tolerance.dtypes[dtypes[wrt]] for output, wrt in pairs if output == spec.name and wrt in dtypes]
        coarsest = max(bounds, key=lambda b: b.rtol, default=None)
        if coarsest is not None and coarsest.is_wider(tolerance.bounds(TANGENT + spec.name, spec.dtype)):
            outputs[TANGENT + spec.name] = coarsest
    return dataclasses.replace(tolerance, outputs=outputs)


def _add_floors(tolerance: Tolerance, warm: Warmup, captured: CaptureResult) -> Tolerance:
    """Return the tolerance with floors for outputs, which may be gradients: the rounding of their terms.

    Blocks keep their bounds."""
    with eager_context(warm.source):
        outputs = evaluate_on_copies(warm.source, warm.inputs)
    dtypes = {spec.name: spec.dtype for spec in warm.output_specs}
    pairs = {pair for method in captured.methods.values() for pair in method.outputs if not isinstance(pair, str)}
    blocks = {block_name(*pair): tolerance.bounds(pair, dtypes[pair[0]]) for pair in sorted(pairs)}
    bounds = {**blocks, **tolerance.outputs}
    for spec in warm.output_specs:
        if spec.dtype in FLOATING:
            plain, floor = tolerance.bounds(spec.name, spec.dtype), estimate_rounding(outputs[spec.name])
            bounds[spec.name] = dataclasses.replace(plain, floor=max(plain.floor, floor))
    return dataclasses.replace(tolerance, outputs=bounds)


def add_evidence(contract: Contract, cases: Cases, findings: Sequence[Finding]) -> Contract:
    """Return the contract with the range that these cases cover, and more findings."""
    findings = (*contract.findings, *map(_strip_finding_paths, findings))
    return dataclasses.replace(contract, findings=findings, envelope=compute_envelope(contract.inputs, cases))


def _strip_finding_paths(finding: Finding) -> Finding:
    """Return the finding without local folders in its texts, which a file must not name, and as text that shows."""
    texts = {f.name: escape_unsafe(strip_local_paths(getattr(finding, f.name))) for f in dataclasses.fields(finding)}
    return Finding(**texts)  # pyright: ignore[reportArgumentType]


def compute_envelope(specs: Sequence[TensorSpec], cases: Cases) -> Envelope:
    """Return the range of finite values that each real input had in these cases."""
    values = {}
    for i, spec in enumerate(specs):
        # A model that takes gradients may have had them recorded for its inputs.
        samples = [case.inputs[i].detach().flatten() for case in cases]
        if spec.dtype == "bool" or spec.dtype.startswith("complex"):
            continue
        numbers = torch.cat([t.to(torch.float64) for t in samples]) if samples else torch.empty(0)
        finite = numbers[torch.isfinite(numbers)]
        if finite.numel():
            values[spec.name] = Range(float(finite.min()), float(finite.max()))
    return Envelope(values, tuple(dict.fromkeys(spec.dtype for spec in specs)))
