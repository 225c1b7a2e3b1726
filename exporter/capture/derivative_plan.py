"""Derivatives as methods of the captured module.

The own chain rule of a source library is traced. For any other model, products are captured as graphs: cotangents by a
backward pass, tangents by a backward pass through it (J. Townsend, A new trick for calculating Jacobian vector
products, 2017: the pull-back is linear in the cotangent, so that its derivative by the cotangent is the push-forward).
torch's own forward mode writes the traced sizes into a graph. The Jacobian is assembled from the product that needs
fewer operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from exporter.archive.derivative_request import ResolvedDerivatives
from exporter.archive.method_names import BLOCKS, BY_PARAMETERS, COTANGENTS, JVP, ROWS, SOLVED, TANGENTS, VJP
from exporter.archive.tensor_spec import FLOATING, TensorSpec, infer_spec
from exporter.capture import newton_capture
from exporter.capture.batch_recording import trace_batch_program
from exporter.capture.fx_tracing import FxProgram, trace_to_fx
from exporter.capture.jacobian_source import CapturedProduct, Directions
from exporter.capture.module_tree import Run
from exporter.common.errors import CaptureError, TorchferryError, summarize_error
from exporter.common.tensors import all_close, find_coarsest_dtype
from exporter.common.torch_hooks import swap_parameters
from exporter.model.eager import derivatives
from exporter.model.eager.evaluation import evaluate, expand_constants, normalize_outputs
from exporter.model.eager.warmup import Warmup, find_finite_rows
from exporter.model.implicit.newton_solver import find_solvers
from exporter.model.source import Inputs, Source

FORWARD, REVERSE, CHAIN = "forward mode", "reverse mode", "the chain rule of {}"
Specs = Sequence[TensorSpec]


def count_batch_dims(product: CapturedProduct, batched: bool) -> int:
    """Return the number of batch dimensions of the product's directions: 0 or 1."""
    return 1 if batched and not (product.parameters and product.forward) else 0


@dataclass(frozen=True)
class DerivativePlan:
    """The methods traced beside ``forward``, the products captured already, and how the blocks are computed."""

    derivatives: ResolvedDerivatives
    traced_methods: Mapping[str, tuple[Run, Inputs]] = field(default_factory=dict)
    programs: Mapping[str, FxProgram] = field(default_factory=dict)
    products: tuple[CapturedProduct, ...] = ()
    how: str = ""
    # The product that gives the whole Jacobian, if tangents cannot be captured by themselves.
    row_product: CapturedProduct | None = None
    # Results of the solves of an implicit model, which its products take after the inputs.
    solution_specs: tuple[TensorSpec, ...] = ()

    def list_constants(self, batched: bool) -> list[torch.Tensor]:
        """List the tensors that the methods written here read: directions, and constants of backward passes."""
        products = [*self.products, *([self.row_product] if self.row_product else [])]
        directions = [t for p in products for t in p.directions.build_tensors(count_batch_dims(p, batched))]
        return directions + [t for program in self.programs.values() for t in program.constants.values()]


def plan_derivatives(warm: Warmup, wanted: ResolvedDerivatives, inputs: Inputs) -> DerivativePlan:
    """Choose and capture the products, under ``eager_context``; raises ``CaptureError`` if no way works."""
    source = warm.source
    inputs = _select_solvable(warm, inputs)
    programs: dict[str, FxProgram] = {}
    products: list[CapturedProduct] = []
    traced: dict[str, tuple[Run, Inputs]] = {}
    how, blocks, chain_failure = "", source.compute_jacobian_blocks, "there is none"
    if wanted.pairs and blocks is not None:
        chain_failure = _diagnose_chain_rule(warm, wanted, inputs)
    if wanted.pairs and not chain_failure:
        traced[BLOCKS] = (_make_chain_rule_run(warm, wanted), inputs)
        how = CHAIN.format(source.origin.library)
    elif wanted.pairs:
        name, program, product, how = _choose_cheapest_product(warm, wanted, inputs)
        how += f"; {CHAIN.format(source.origin.library)}: {chain_failure}" if blocks is not None else ""
        programs[name] = program
        products.append(product)
    if wanted.parameter_pairs:
        parameters_by_name = derivatives.list_differentiable_parameters(source)
        names = tuple(dict.fromkeys(wrt for _, wrt in wanted.parameter_pairs))
        specs = tuple(infer_spec(name, parameters_by_name[name]) for name in names)
        output_specs = [s for s in warm.output_specs if any(name == s.name for name, _ in wanted.parameter_pairs)]
        program, product, mode = _capture_parameter_product(warm, inputs, specs, output_specs)
        programs[BY_PARAMETERS] = program
        products.append(product)
        how = f"{how}; by parameters: {mode}" if how else mode
    real_in, real_out = select_real(source.inputs), select_real(warm.output_specs)
    row_product: CapturedProduct | None = None
    if wanted.jvp:
        try:
            programs[JVP] = _trace_tangents(warm, inputs, real_in, real_out)
            _check_product(warm, programs[JVP], real_in, real_out, forward=True)
        except CaptureError:
            programs.pop(JVP, None)
            programs[ROWS] = _trace_cotangents(warm, inputs, real_in, real_out)
            _check_product(warm, programs[ROWS], real_in, real_out, forward=False)
            row_product = CapturedProduct(ROWS, Directions(real_out), tuple(s.name for s in real_in), forward=False)
    if wanted.vjp:
        programs[VJP] = _trace_cotangents(warm, inputs, real_in, real_out)
        _check_product(warm, programs[VJP], real_in, real_out, forward=False)
    solution_specs: tuple[TensorSpec, ...] = ()
    if programs and find_solvers(source.parameter_module):
        solution_specs = newton_capture.list_solution_specs(source, inputs)
        traced[SOLVED] = (lambda *tensors: newton_capture.compute_solutions(source, tensors), inputs)
    return DerivativePlan(wanted, traced, programs, tuple(products), how, row_product, solution_specs)


def _select_solvable(warm: Warmup, inputs: Inputs) -> Inputs:
    """Select the elements that converge: the others have no derivative."""
    if not find_solvers(warm.source.parameter_module) or not warm.source.batch_ndim:
        return inputs
    rows = find_finite_rows(evaluate(warm.source, inputs))
    return inputs if rows is None else tuple(t[rows] for t in inputs)


def _capture_parameter_product(
    warm: Warmup, inputs: Inputs, wrt: Specs, output_specs: Specs
) -> tuple[FxProgram, CapturedProduct, str]:
    """Capture the product with tangents of the parameters.

    If torch's second derivatives cannot be captured, use cotangents: one call for each component of each element's
    outputs."""
    try:
        program = _trace_tangents(warm, inputs, wrt, output_specs, wrt_parameters=True)
        _check_product(warm, program, wrt, output_specs, forward=True)
        names = tuple(s.name for s in output_specs)
        directions = Directions(tuple(wrt))
        return program, CapturedProduct(BY_PARAMETERS, directions, names, forward=True, parameters=True), FORWARD
    except CaptureError as forward_error:
        try:
            program = _trace_cotangents(warm, inputs, wrt, output_specs, wrt_parameters=True)
            _check_product(warm, program, wrt, output_specs, forward=False)
        except CaptureError:
            raise forward_error from None
        names = tuple(s.name for s in wrt)
        product = CapturedProduct(BY_PARAMETERS, Directions(tuple(output_specs)), names, forward=False, parameters=True)
        return program, product, f"{REVERSE}, element by element"


def select_real(specs: Specs) -> tuple[TensorSpec, ...]:
    """Return the variables of floating dtype."""
    return tuple(s for s in specs if s.dtype in FLOATING)


def _choose_cheapest_product(
    warm: Warmup, derivatives: ResolvedDerivatives, inputs: Inputs
) -> tuple[str, FxProgram, CapturedProduct, str]:
    """Return the product that needs fewer operations for all its directions, with its name, graph and description."""
    wrt = tuple(s for s in warm.source.inputs if any(name == s.name for _, name in derivatives.pairs))
    output_specs = tuple(s for s in warm.output_specs if any(name == s.name for name, _ in derivatives.pairs))
    output_names, wrt_names = tuple(s.name for s in output_specs), tuple(s.name for s in wrt)
    candidates: list[tuple[int, str, FxProgram, CapturedProduct]] = []
    notes: list[str] = []
    errors: list[CaptureError] = []
    for mode, name, trace_product, direction_specs, product_names in (
        (FORWARD, TANGENTS, _trace_tangents, wrt, output_names),
        (REVERSE, COTANGENTS, _trace_cotangents, output_specs, wrt_names),
    ):
        try:
            program = trace_product(warm, inputs, wrt, output_specs)
            _check_product(warm, program, wrt, output_specs, forward=mode == FORWARD)
        except CaptureError as error:
            errors.append(error)
            notes.append(f"{mode} is of no use: {error.details.get('got', error.what)}")
            continue
        directions = Directions(direction_specs)
        cost = program.operations * directions.total
        notes.append(f"{mode}: {cost} operations")
        product = CapturedProduct(name, directions, product_names, forward=mode == FORWARD)
        candidates.append((cost, name, program, product))
    if not candidates:
        raise CaptureError(
            f"model {warm.source.name!r} cannot be differentiated",
            check="derivatives",
            where=errors[0].details.get("where", ""),
            got="; ".join(notes),
            expected="operations that torch can differentiate",
            mend="use operations that have derivatives, or ask for other outputs; a submodule that is compiled for its "
            "control flow on data has no derivatives here",
        )
    _, name, program, product = min(candidates, key=lambda candidate: candidate[0])
    return name, program, product, f"{FORWARD if product.forward else REVERSE} ({'; '.join(notes)})"


def _check_product(warm: Warmup, program: FxProgram, wrt: Specs, output_specs: Specs, *, forward: bool) -> None:
    """Compare a product with eager mode at another batch size; raises ``CaptureError`` if they differ.

    torch's own formulas may write a traced size into a graph, or give NaN where others give numbers."""
    source = warm.source
    generator = torch.Generator().manual_seed(0)
    inputs = _select_solvable(warm, warm.sampler.draw(warm.traced_sizes[1], generator))
    parameters = derivatives.list_differentiable_parameters(source)
    has_no_batch = not source.batch_ndim or (program.parameters and forward)
    batch_shape = torch.Size() if has_no_batch else inputs[0].shape[:1]
    specs = wrt if forward else output_specs
    draws = [torch.rand((*batch_shape, *s.static_shape), generator=generator, dtype=torch.float64) for s in specs]
    directions = {s.name: draw.to(getattr(torch, s.dtype)) for s, draw in zip(specs, draws, strict=True)}
    try:
        arguments = (*inputs, *_compute_solutions(source, inputs), *directions.values())
        results = program.graph(*arguments, *(parameters[n].detach() for n in program.parameters))
    except Exception as error:
        message = "the product does not run at another batch size"
        mend = "torch's formula for some operation wrote a size into the graph: use other operations"
        raise CaptureError(message, check="derivatives", got=summarize_error(error), mend=mend) from error
    coarsest = torch.float64
    if forward:
        outputs = dict(zip((s.name for s in warm.output_specs), results, strict=False))
        expected = derivatives.compute_jvp(source, inputs, directions, {s.name: outputs[s.name] for s in output_specs})
        # Of a derivative by a float32 input eager mode has no more digits, whatever the output's dtype is.
        coarsest = find_coarsest_dtype(t.dtype for t in directions.values())
    elif program.parameters:
        expected = _compute_parameter_vjp(source, inputs, directions, [s.name for s in wrt])
    else:
        cotangents = derivatives.compute_vjp(source, inputs, directions)
        expected = {n: v for n, v in cotangents.items() if any(s.name == n for s in wrt)}
    for (name, expected_value), actual_value in zip(expected.items(), results[len(warm.output_specs) :], strict=True):
        if not all_close(*(_round(value, coarsest) for value in (actual_value, expected_value))):
            got = f"{name!r} differs at a batch of {list(batch_shape)}"
            expected_text = "the values of torch's autograd in eager mode"
            what = "a captured product differs from eager mode"
            raise CaptureError(what, check="derivatives", got=got, expected=expected_text)


def _round(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a value in this dtype if that has fewer digits."""
    return value.to(find_coarsest_dtype([dtype, value.dtype]))


def _compute_parameter_vjp(
    source: Source, inputs: Inputs, seeds: Mapping[str, torch.Tensor], names: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Compute gradients of the outputs, weighted by ``seeds``, from the Jacobian blocks of eager mode."""
    nonzero_pairs = derivatives.find_nonzero_blocks(source, inputs)
    gradients: dict[str, torch.Tensor] = {}
    for name in names:
        pairs = [(output, name) for output in seeds if (output, name) in nonzero_pairs]
        blocks = derivatives.compute_jacobian_blocks(source, inputs, pairs)
        terms = [torch.tensordot(seeds[o].to(b.dtype), b, seeds[o].ndim) for (o, _), b in blocks.items()]
        gradients[name] = torch.stack(terms).sum(0)
    return gradients


def _diagnose_chain_rule(warm: Warmup, wanted: ResolvedDerivatives, inputs: Inputs) -> str:
    """Return why the source library's own chain rule does not give these blocks; empty if it does."""
    if any(wrt in warm.source.per_element for _, wrt in wanted.pairs):
        return "it has no blocks by parameters"
    try:
        values = _make_chain_rule_run(warm, wanted)(*(t.clone() for t in inputs))
        expected = derivatives.compute_jacobian_blocks(warm.source, inputs, wanted.pairs)
    except TorchferryError:
        raise
    except Exception as error:
        return summarize_error(error)
    for pair, actual in zip(wanted.pairs, values[len(warm.output_specs) :], strict=True):
        if not all_close(actual, expected[pair]):
            return f"d {pair[0]} / d {pair[1]} is not what the backward pass says"
    return ""


def _make_chain_rule_run(warm: Warmup, derivatives: ResolvedDerivatives) -> Run:
    """Build a function that runs the source library's own chain rule, and expands constant blocks to the batch."""
    blocks = warm.source.compute_jacobian_blocks
    assert blocks is not None
    outs, ins = ({s.name: s.static_shape for s in specs} for specs in (warm.output_specs, warm.source.inputs))

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, block_values = blocks(*tensors)
        batch_shape = (tensors[0].shape[0],) if warm.source.batch_ndim else ()
        values = [v.expand((*batch_shape, *s.static_shape)) for v, s in zip(outputs, warm.output_specs, strict=True)]
        return (*values, *(block_values[o, i].expand((*batch_shape, *outs[o], *ins[i])) for o, i in derivatives.pairs))

    return run


def _trace_tangents(
    warm: Warmup, inputs: Inputs, wrt: Specs, output_specs: Specs, *, wrt_parameters: bool = False
) -> FxProgram:
    """Trace a function from the inputs and the tangents of ``wrt`` to all outputs, then the tangents of
    ``output_specs``."""
    call, select_directions, parameters = _build_call(warm, inputs, wrt, output_specs, wrt_parameters)

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            leaves, outputs, values = call(tensors)
            active_outputs = [(i, v) for i, v in enumerate(outputs) if v.requires_grad]
            # Any seed works; ones, because some backward formulas take its logarithm.
            seeds = [torch.ones_like(v).requires_grad_(True) for _, v in active_outputs]
            active_values = [v for _, v in active_outputs]
            gradients = torch.autograd.grad(active_values, leaves, seeds, create_graph=True, allow_unused=True)
            pairs = zip(gradients, select_directions(tensors), strict=True)
            active_gradients = [(g, t) for g, t in pairs if g is not None and g.requires_grad]
            output_tangents: Sequence[Any] = [None] * len(seeds)
            if active_gradients:
                rows, tangents = zip(*active_gradients, strict=True)
                output_tangents = torch.autograd.grad(rows, seeds, tangents, allow_unused=True)
        tangents_by_index = {i: t for (i, _), t in zip(active_outputs, output_tangents, strict=True) if t is not None}
        zeros = [tangents_by_index[i] if i in tangents_by_index else torch.zeros_like(v) for i, v in enumerate(outputs)]
        return tuple(v.detach() for v in (*values, *zeros))

    ones = _make_ones(warm, inputs, wrt, wrt_parameters)
    return _trace_product(warm, run, inputs, ones, parameters, has_batched_directions=not wrt_parameters)


def _trace_cotangents(
    warm: Warmup, inputs: Inputs, wrt: Specs, output_specs: Specs, *, wrt_parameters: bool = False
) -> FxProgram:
    """Trace a function from the inputs and the cotangents of ``output_specs`` to all outputs, then the cotangents of
    ``wrt``; those of parameters are sums over the batch."""
    call, select_directions, parameters = _build_call(warm, inputs, wrt, output_specs, wrt_parameters)

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            leaves, selected_outputs, values = call(tensors)
            pairs = zip(selected_outputs, select_directions(tensors), strict=True)
            active_outputs = [(v, seed) for v, seed in pairs if v.requires_grad]
            gradients: Sequence[Any] = [None] * len(leaves)
            if active_outputs:
                outputs, seeds = zip(*active_outputs, strict=True)
                gradients = torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)
        zeros = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients, strict=True)]
        return tuple(v.detach() for v in (*values, *zeros))

    ones = _make_ones(warm, inputs, output_specs, False)
    return _trace_product(warm, run, inputs, ones, parameters, has_batched_directions=True)


def _trace_product(
    warm: Warmup,
    run: Run,
    inputs: Inputs,
    directions: Sequence[torch.Tensor],
    parameters: Mapping[str, torch.Tensor],
    *,
    has_batched_directions: bool,
) -> FxProgram:
    """Trace a product: on numbers where the batch is the only size that varies, and a call does not take long."""
    source, names = warm.source, tuple(parameters)
    solutions = _compute_solutions(source, inputs)
    arguments = (*inputs, *solutions, *directions, *parameters.values())
    if not source.batch_ndim or warm.cost.is_costly:
        return trace_to_fx(run, arguments, names, model=source.parameter_module)
    # Solves without tangents return no matrices.
    has_batch = [True] * len(inputs) + [t.shape[:1] == inputs[0].shape[:1] for t in solutions]
    has_batch += [has_batched_directions] * len(directions)
    batched = [i for i, has in enumerate(has_batch) if has]
    return trace_batch_program(run, arguments, batched, names, model=source.parameter_module)


def _compute_solutions(source: Source, inputs: Inputs) -> Inputs:
    return newton_capture.compute_solutions(source, inputs) if find_solvers(source.parameter_module) else ()


def _make_ones(warm: Warmup, inputs: Inputs, specs: Specs, parameters: bool) -> list[torch.Tensor]:
    batch_shape = inputs[0].shape[:1] if warm.source.batch_ndim and not parameters else ()
    return [torch.ones((*batch_shape, *s.static_shape), dtype=getattr(torch, s.dtype)) for s in specs]


_CallResult = tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]


def _build_call(
    warm: Warmup, inputs: Inputs, wrt: Specs, output_specs: Specs, wrt_parameters: bool
) -> tuple[Callable[..., _CallResult], Callable[..., Sequence[torch.Tensor]], dict[str, torch.Tensor]]:
    """Return ``(call, select_directions, parameters)``.

    ``call`` returns the leaves to differentiate with respect to (``wrt``), the outputs ``output_specs`` and all
    outputs; ``select_directions`` selects the directions; ``parameters`` come after them."""
    source = warm.source
    count, names = len(source.inputs), [s.name for s in source.inputs]
    direction_start = count + len(_compute_solutions(source, inputs))
    parameters_by_name = derivatives.list_differentiable_parameters(source)
    # In the order of their directions.
    parameters = {s.name: parameters_by_name[s.name] for s in wrt} if wrt_parameters else {}

    def call(tensors: Sequence[torch.Tensor]) -> _CallResult:
        model_inputs = [t.detach() for t in tensors[:count]]
        leaves = [t.detach().requires_grad_(True) for t in tensors[len(tensors) - len(parameters) :] if parameters]
        for spec in wrt if not parameters else ():
            index = names.index(spec.name)
            model_inputs[index] = model_inputs[index].requires_grad_(True)
            leaves.append(model_inputs[index])
        replacements = dict(zip(parameters, leaves, strict=False))
        solutions = newton_capture.reuse_solutions(source, tensors[count:direction_start])
        with swap_parameters(source.parameter_module, replacements), solutions:
            outputs = normalize_outputs(source.module(*model_inputs), source)
        values = expand_constants(outputs, warm.constant, model_inputs)
        return leaves, [values[s.name] for s in output_specs], list(values.values())

    def select_directions(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return tensors[direction_start : len(tensors) - len(parameters)]

    return call, select_directions, {n: p.detach() for n, p in parameters.items()}
