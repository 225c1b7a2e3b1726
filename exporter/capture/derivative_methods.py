"""The methods that give derivatives, written into the module around the products that were captured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from exporter.archive.contract import COTANGENT, TANGENT, MethodSpec
from exporter.archive.method_names import BLOCKS, EVERY, JACOBIAN, JVP, ROWS, SOLVED, VJP
from exporter.capture.batch_chunking import REPEATED, SLICE, sliceable, sliced
from exporter.capture.derivative_plan import FORWARD, REVERSE, Plan, Specs, lead_of, real
from exporter.capture.forward_wrapper import argument_names, forward_source
from exporter.capture.jacobian_source import Caller, jacobian_source, pushed_source, solved_source
from exporter.capture.torchscript_writer import torchscript, varying_sizes
from exporter.model.eager.warmup import Warmup
from exporter.model.implicit.newton_solver import loops


def define(
    warm: Warmup, chosen: Plan, module: torch.jit.ScriptModule, place: Callable[[torch.Tensor], str]
) -> dict[str, MethodSpec]:
    """Write the methods into ``module``, and say what they take and return. ``place``: where a tensor is read from."""
    source, specs = warm.source, warm.output_specs
    batched = bool(source.batch_ndim)
    names = argument_names([s.name for s in source.inputs])
    real_in, real_out = real(source.inputs), real(specs)
    parameters = dict(source.named.named_parameters())
    shapes = {n: tuple(p.shape) for n, p in parameters.items()}
    caller = Caller(names, source.inputs, specs, batched, shapes, chosen.solved, SOLVED)
    passed = [*names, *(f"tf_{s.name}" for s in chosen.solved)]
    varying = varying_sizes((*source.inputs, *chosen.solved), batched)
    for name, program in chosen.programs.items():
        seeds = [f"tf_seed_{i}" for i in range(program.inputs - len(passed) - len(program.parameters))]
        arguments = [*passed, *seeds, *(place(parameters[n]) for n in program.parameters)]
        held = {target: place(t) for target, t in program.constants.items()}
        whole = name in (JVP, VJP) and bool(chosen.solved)
        module.define(torchscript(program, f"{name}_solved" if whole else name, arguments, held, varying))
        if whole:
            returned = len(specs) + len(real_out if name == JVP else real_in)
            module.define(solved_source(name, f"{name}_solved", caller, seeds, returned))
    ins, outs = tuple(s.name for s in source.inputs), tuple(s.name for s in specs)
    methods: dict[str, MethodSpec] = {}

    # A graph of operators goes by the strides that it saw.
    contiguous = warm.contiguous or bool(chosen.programs)

    def outer(name: str, inner: str, taken: Specs, count: int) -> None:
        # A Newton loop has slices of its own, but not the products that are repeated for every direction.
        if sliceable(warm) and (inner == JACOBIAN or not loops(source.named)):
            size = SLICE if inner == BLOCKS else REPEATED
            inner = sliced(module, name, inner, argument_names([s.name for s in taken]), count, size)
        module.define(forward_source(taken, count, batched, contiguous, name=name, inner=inner))

    pairs = (*chosen.wanted.pairs, *chosen.wanted.by_parameters)
    if pairs:
        inner = BLOCKS
        if chosen.products:
            inner = JACOBIAN
            places = {p.method: [place(t) for t in p.along.tensors(lead_of(p, batched))] for p in chosen.products}
            ready = chosen.wanted.pairs if BLOCKS in chosen.traced else ()
            module.define(jacobian_source(inner, caller, pairs, chosen.products, places, ready, BLOCKS))
        outer("jacobian", inner, source.inputs, len(specs) + len(pairs))
        zeros, symmetric = chosen.wanted.zeros, chosen.wanted.symmetric
        methods["jacobian"] = MethodSpec(ins, (*outs, *pairs), how=chosen.how, zeros=zeros, symmetric=symmetric)
    if chosen.wanted.jvp:
        tangents = [dataclasses.replace(s, name=TANGENT + s.name) for s in real_in]
        if chosen.rows:
            places = {ROWS: [place(t) for t in chosen.rows.along.tensors(lead_of(chosen.rows, batched))]}
            every = [(o.name, i.name) for o in real_out for i in real_in]
            module.define(jacobian_source(EVERY, caller, every, [chosen.rows], places))
            module.define(pushed_source(JVP, EVERY, caller, real_in, every))
        outer("jvp", JVP, (*source.inputs, *tangents), len(specs) + len(real_out))
        returned = (*outs, *(TANGENT + s.name for s in real_out))
        how = f"{REVERSE}, times the tangents" if chosen.rows else FORWARD
        methods["jvp"] = MethodSpec((*ins, *(s.name for s in tangents)), returned, how=how)
    if chosen.wanted.vjp:
        seeds = [dataclasses.replace(s, name=COTANGENT + s.name) for s in real_out]
        outer("vjp", VJP, (*source.inputs, *seeds), len(specs) + len(real_in))
        returned = (*outs, *(COTANGENT + s.name for s in real_in))
        methods["vjp"] = MethodSpec((*ins, *(s.name for s in seeds)), returned, how=REVERSE)
    return methods
