"""Methods that return derivatives, written into the module around the captured products."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from exporter.archive.contract import COTANGENT, TANGENT, MethodSpec
from exporter.archive.method_names import BLOCKS, EVERY, JACOBIAN, JVP, ROWS, SOLVED, VJP
from exporter.capture.batch_chunking import CHUNK, REPEATED, add_chunked_method, is_chunkable
from exporter.capture.derivative_plan import FORWARD, REVERSE, DerivativePlan, Specs, count_batch_dims, select_real
from exporter.capture.forward_wrapper import emit_forward_source, make_argument_names
from exporter.capture.jacobian_source import (
    Caller,
    CapturedProduct,
    emit_jacobian_source,
    emit_jvp_source,
    emit_solve_source,
)
from exporter.capture.torchscript_writer import emit_torchscript, find_varying_sizes
from exporter.model.eager.warmup import Warmup
from exporter.model.implicit.newton_solver import find_solvers

# Gives the expression for a tensor of the module in its source.
FormatPlace = Callable[[torch.Tensor], str]


def define_derivative_methods(
    warm: Warmup, plan: DerivativePlan, module: torch.jit.ScriptModule, format_place: FormatPlace
) -> dict[str, MethodSpec]:
    """Write the derivative methods into ``module``, return their specs; ``format_place`` locates a tensor."""
    writer = _MethodWriter(warm, plan, module, format_place)
    writer.define_programs()
    methods: dict[str, MethodSpec] = {}
    if plan.derivatives.pairs or plan.derivatives.parameter_pairs:
        methods["jacobian"] = writer.define_jacobian()
    if plan.derivatives.jvp:
        methods["jvp"] = writer.define_jvp()
    if plan.derivatives.vjp:
        methods["vjp"] = writer.define_vjp()
    return methods


class _MethodWriter:
    """Writes derivative methods into a module."""

    def __init__(
        self, warm: Warmup, plan: DerivativePlan, module: torch.jit.ScriptModule, format_place: FormatPlace
    ) -> None:
        source = warm.source
        self._warm, self._plan, self._module, self._format_place = warm, plan, module, format_place
        self._inputs, self._outputs = source.inputs, warm.output_specs
        self._is_batched = bool(source.batch_ndim)
        self._names = make_argument_names([s.name for s in source.inputs])
        self._real_in, self._real_out = select_real(source.inputs), select_real(warm.output_specs)
        self._parameters = dict(source.parameter_module.named_parameters())
        shapes = {n: tuple(p.shape) for n, p in self._parameters.items()}
        batched, solutions = self._is_batched, plan.solution_specs
        self._caller = Caller(self._names, source.inputs, warm.output_specs, batched, shapes, solutions, SOLVED)
        self._in_names, self._out_names = tuple(s.name for s in source.inputs), tuple(s.name for s in self._outputs)

    def define_programs(self) -> None:
        """Define a method for each program of operators, and one that solves before it where it needs a solution."""
        plan = self._plan
        common_arguments = [*self._names, *(f"tf_{s.name}" for s in plan.solution_specs)]
        varying = find_varying_sizes((*self._inputs, *plan.solution_specs), self._is_batched)
        for name, program in plan.programs.items():
            seeds = [f"tf_seed_{i}" for i in range(program.inputs - len(common_arguments) - len(program.parameters))]
            places = (self._format_place(self._parameters[n]) for n in program.parameters)
            arguments = [*common_arguments, *seeds, *places]
            constants = {target: self._format_place(t) for target, t in program.constants.items()}
            needs_solve = name in (JVP, VJP) and bool(plan.solution_specs)
            method = f"{name}_solved" if needs_solve else name
            self._module.define(emit_torchscript(program, method, arguments, constants, varying))
            if needs_solve:
                result_count = len(self._outputs) + len(self._real_out if name == JVP else self._real_in)
                self._module.define(emit_solve_source(name, method, self._caller, seeds, result_count))

    def define_jacobian(self) -> MethodSpec:
        """Define ``jacobian``, by the products of the plan or by the traced blocks."""
        plan, inner = self._plan, BLOCKS
        pairs = (*plan.derivatives.pairs, *plan.derivatives.parameter_pairs)
        if plan.products:
            inner = JACOBIAN
            ready = plan.derivatives.pairs if BLOCKS in plan.traced_methods else ()
            places = {p.method: self._place_directions(p) for p in plan.products}
            self._module.define(emit_jacobian_source(inner, self._caller, pairs, plan.products, places, ready, BLOCKS))
        self._define_forward("jacobian", inner, self._inputs, len(self._outputs) + len(pairs))
        zeros, symmetric = plan.derivatives.zeros, plan.derivatives.symmetric
        return MethodSpec(self._in_names, (*self._out_names, *pairs), how=plan.how, zeros=zeros, symmetric=symmetric)

    def define_jvp(self) -> MethodSpec:
        """Define ``jvp``, by forward mode, or by all rows where forward mode has no rule."""
        row_product = self._plan.row_product
        tangents = [dataclasses.replace(s, name=TANGENT + s.name) for s in self._real_in]
        if row_product:
            places = {ROWS: self._place_directions(row_product)}
            all_pairs = [(o.name, i.name) for o in self._real_out for i in self._real_in]
            self._module.define(emit_jacobian_source(EVERY, self._caller, all_pairs, [row_product], places))
            self._module.define(emit_jvp_source(JVP, EVERY, self._caller, self._real_in, all_pairs))
        self._define_forward("jvp", JVP, (*self._inputs, *tangents), len(self._outputs) + len(self._real_out))
        result_names = (*self._out_names, *(TANGENT + s.name for s in self._real_out))
        how = f"{REVERSE}, times the tangents" if row_product else FORWARD
        return MethodSpec((*self._in_names, *(s.name for s in tangents)), result_names, how=how)

    def define_vjp(self) -> MethodSpec:
        """Define ``vjp``, by reverse mode."""
        seeds = [dataclasses.replace(s, name=COTANGENT + s.name) for s in self._real_out]
        self._define_forward("vjp", VJP, (*self._inputs, *seeds), len(self._outputs) + len(self._real_in))
        result_names = (*self._out_names, *(COTANGENT + s.name for s in self._real_in))
        return MethodSpec((*self._in_names, *(s.name for s in seeds)), result_names, how=REVERSE)

    def _place_directions(self, product: CapturedProduct) -> list[str]:
        tensors = product.directions.build_tensors(count_batch_dims(product, self._is_batched))
        return [self._format_place(t) for t in tensors]

    def _define_forward(self, name: str, inner: str, taken: Specs, count: int) -> None:
        # A Newton solver has its own chunks, but not for products that are repeated for every direction.
        if is_chunkable(self._warm) and (inner == JACOBIAN or not find_solvers(self._warm.source.parameter_module)):
            size = CHUNK if inner == BLOCKS else REPEATED
            names = make_argument_names([s.name for s in taken])
            inner = add_chunked_method(self._module, name, inner, names, count, size)
        # A graph of operators depends on the traced strides.
        contiguous = self._warm.contiguous or bool(self._plan.programs)
        source = emit_forward_source(taken, count, self._is_batched, contiguous, name=name, inner=inner)
        self._module.define(source)
