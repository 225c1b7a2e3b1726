"""Methods that return derivatives, written into the module around the captured products."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from exporter.archive.contract import COTANGENT, TANGENT, MethodSpec
from exporter.archive.method_names import BLOCKS, EVERY, JACOBIAN, JVP, ROWS, SOLVED, VJP
from exporter.capture.batch_chunking import REPEATED, SLICE, add_chunked_method, is_chunkable
from exporter.capture.derivative_plan import FORWARD, REVERSE, DerivativePlan, Specs, count_batch_dims, select_real
from exporter.capture.forward_wrapper import emit_forward_source, make_argument_names
from exporter.capture.jacobian_source import Caller, emit_jacobian_source, emit_jvp_source, emit_solve_source
from exporter.capture.torchscript_writer import emit_torchscript, find_varying_sizes
from exporter.model.eager.warmup import Warmup
from exporter.model.implicit.newton_solver import find_solvers


def define_derivative_methods(
    warm: Warmup, plan: DerivativePlan, module: torch.jit.ScriptModule, format_place: Callable[[torch.Tensor], str]
) -> dict[str, MethodSpec]:
    """Write the derivative methods into ``module``, return their specs; ``format_place`` locates a tensor."""
    source, specs = warm.source, warm.output_specs
    batched = bool(source.batch_ndim)
    names = make_argument_names([s.name for s in source.inputs])
    real_in, real_out = select_real(source.inputs), select_real(specs)
    parameters = dict(source.parameter_module.named_parameters())
    shapes = {n: tuple(p.shape) for n, p in parameters.items()}
    caller = Caller(names, source.inputs, specs, batched, shapes, plan.solution_specs, SOLVED)
    common_arguments = [*names, *(f"tf_{s.name}" for s in plan.solution_specs)]
    varying = find_varying_sizes((*source.inputs, *plan.solution_specs), batched)
    for name, program in plan.programs.items():
        seeds = [f"tf_seed_{i}" for i in range(program.inputs - len(common_arguments) - len(program.parameters))]
        arguments = [*common_arguments, *seeds, *(format_place(parameters[n]) for n in program.parameters)]
        constant_expressions = {target: format_place(t) for target, t in program.constants.items()}
        needs_solve = name in (JVP, VJP) and bool(plan.solution_specs)
        module.define(
            emit_torchscript(
                program, f"{name}_solved" if needs_solve else name, arguments, constant_expressions, varying
            )
        )
        if needs_solve:
            result_count = len(specs) + len(real_out if name == JVP else real_in)
            module.define(emit_solve_source(name, f"{name}_solved", caller, seeds, result_count))
    ins, outs = tuple(s.name for s in source.inputs), tuple(s.name for s in specs)
    methods: dict[str, MethodSpec] = {}

    # A graph of operators depends on the traced strides.
    contiguous = warm.contiguous or bool(plan.programs)

    def define_forward(name: str, inner: str, taken: Specs, count: int) -> None:
        # A Newton solver has its own slices, but not for products that are repeated for every direction.
        if is_chunkable(warm) and (inner == JACOBIAN or not find_solvers(source.parameter_module)):
            size = SLICE if inner == BLOCKS else REPEATED
            inner = add_chunked_method(module, name, inner, make_argument_names([s.name for s in taken]), count, size)
        module.define(emit_forward_source(taken, count, batched, contiguous, name=name, inner=inner))

    pairs = (*plan.derivatives.pairs, *plan.derivatives.parameter_pairs)
    if pairs:
        inner = BLOCKS
        if plan.products:
            inner = JACOBIAN
            places = {
                p.method: [format_place(t) for t in p.directions.build_tensors(count_batch_dims(p, batched))]
                for p in plan.products
            }
            ready = plan.derivatives.pairs if BLOCKS in plan.traced_methods else ()
            module.define(emit_jacobian_source(inner, caller, pairs, plan.products, places, ready, BLOCKS))
        define_forward("jacobian", inner, source.inputs, len(specs) + len(pairs))
        zeros, symmetric = plan.derivatives.zeros, plan.derivatives.symmetric
        methods["jacobian"] = MethodSpec(ins, (*outs, *pairs), how=plan.how, zeros=zeros, symmetric=symmetric)
    if plan.derivatives.jvp:
        tangents = [dataclasses.replace(s, name=TANGENT + s.name) for s in real_in]
        if plan.row_product:
            places = {
                ROWS: [
                    format_place(t)
                    for t in plan.row_product.directions.build_tensors(count_batch_dims(plan.row_product, batched))
                ]
            }
            all_pairs = [(o.name, i.name) for o in real_out for i in real_in]
            module.define(emit_jacobian_source(EVERY, caller, all_pairs, [plan.row_product], places))
            module.define(emit_jvp_source(JVP, EVERY, caller, real_in, all_pairs))
        define_forward("jvp", JVP, (*source.inputs, *tangents), len(specs) + len(real_out))
        result_names = (*outs, *(TANGENT + s.name for s in real_out))
        how = f"{REVERSE}, times the tangents" if plan.row_product else FORWARD
        methods["jvp"] = MethodSpec((*ins, *(s.name for s in tangents)), result_names, how=how)
    if plan.derivatives.vjp:
        seeds = [dataclasses.replace(s, name=COTANGENT + s.name) for s in real_out]
        define_forward("vjp", VJP, (*source.inputs, *seeds), len(specs) + len(real_in))
        result_names = (*outs, *(COTANGENT + s.name for s in real_in))
        methods["vjp"] = MethodSpec((*ins, *(s.name for s in seeds)), result_names, how=REVERSE)
    return methods
