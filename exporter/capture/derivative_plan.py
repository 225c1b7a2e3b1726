"""Derivatives as methods of the captured module.

A source library's own chain rule is traced. For any other model products are captured as graphs: cotangents by a
backward pass, tangents by a backward pass through it (J. Townsend, A new trick for calculating Jacobian vector
products, 2017: the pull-back is linear in the cotangent, so that its derivative by the cotangent is the push-forward).
torch's own forward mode writes the sizes that it saw into a graph. The Jacobian is written around the product that
needs fewer operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from exporter.archive.derivative_request import Wanted
from exporter.archive.method_names import BLOCKS, BY_PARAMETERS, COTANGENTS, JVP, ROWS, SOLVED, TANGENTS, VJP
from exporter.archive.tensor_spec import FLOATING, TensorSpec
from exporter.capture import fx_tracing, newton_capture
from exporter.capture.jacobian_source import Directions, Product
from exporter.capture.module_tree import Run
from exporter.common.errors import CaptureError, TorchferryError, first_line
from exporter.common.parameter_swap import moved
from exporter.common.tensors import close
from exporter.model.eager import derivatives
from exporter.model.eager.evaluation import evaluate, flatten
from exporter.model.eager.warmup import Warmup, finite_rows
from exporter.model.implicit.newton_solver import loops
from exporter.model.source import Inputs, Source

FORWARD, REVERSE, CHAIN = "forward mode", "reverse mode", "the chain rule of {}"
Specs = Sequence[TensorSpec]


def lead_of(product: Product, batched: bool) -> int:
    return 1 if batched and not (product.parameters and product.forward) else 0


@dataclass(frozen=True)
class Plan:
    """What is traced beside ``forward``, the products that are captured already, and how the blocks are computed."""

    wanted: Wanted
    traced: Mapping[str, tuple[Run, Inputs]] = field(default_factory=dict)
    programs: Mapping[str, fx_tracing.Program] = field(default_factory=dict)
    products: tuple[Product, ...] = ()
    how: str = ""
    # The whole Jacobian, where tangents cannot be captured by themselves.
    rows: Product | None = None
    # What the solves of an implicit model give, which its products take behind the inputs.
    solved: tuple[TensorSpec, ...] = ()

    def constants(self, batched: bool) -> list[torch.Tensor]:
        """Tensors that the methods read which are written here: directions, and what backward passes hold."""
        products = [*self.products, *([self.rows] if self.rows else [])]
        found = [t for p in products for t in p.along.tensors(lead_of(p, batched))]
        return found + [t for program in self.programs.values() for t in program.constants.values()]


def plan(warm: Warmup, wanted: Wanted, inputs: Inputs) -> Plan:
    """Call it under ``inference_conditions``. Raises ``CaptureError`` where no way to the derivatives works."""
    source = warm.source
    inputs = _solvable(warm, inputs)
    programs: dict[str, fx_tracing.Program] = {}
    products: list[Product] = []
    traced: dict[str, tuple[Run, Inputs]] = {}
    how = ""
    chain = _chain_rule(warm, wanted, inputs) if wanted.pairs and source.blocks is not None else "there is none"
    if wanted.pairs and not chain:
        traced[BLOCKS] = (_blocks_run(warm, wanted), inputs)
        how = CHAIN.format(source.origin.library)
    elif wanted.pairs:
        name, program, product, how = _cheapest(warm, wanted, inputs)
        how += f"; {CHAIN.format(source.origin.library)}: {chain}" if source.blocks is not None else ""
        programs[name] = program
        products.append(product)
    if wanted.by_parameters:
        named = derivatives.parameters_of(source)
        names = tuple(dict.fromkeys(by for _, by in wanted.by_parameters))
        specs = tuple(TensorSpec(n, tuple(named[n].shape), str(named[n].dtype).removeprefix("torch.")) for n in names)
        of = [s for s in warm.output_specs if any(name == s.name for name, _ in wanted.by_parameters)]
        program, product, mode = _by_parameters(warm, inputs, specs, of)
        programs[BY_PARAMETERS] = program
        products.append(product)
        how = f"{how}; by parameters: {mode}" if how else mode
    real_in, real_out = real(source.inputs), real(warm.output_specs)
    rows: Product | None = None
    if wanted.jvp:
        try:
            programs[JVP] = _tangents(warm, inputs, real_in, real_out)
            _hold(warm, programs[JVP], real_in, real_out, forward=True)
        except CaptureError:
            programs.pop(JVP, None)
            programs[ROWS] = _cotangents(warm, inputs, real_in, real_out)
            _hold(warm, programs[ROWS], real_in, real_out, forward=False)
            rows = Product(ROWS, Directions(real_out), tuple(s.name for s in real_in), forward=False)
    if wanted.vjp:
        programs[VJP] = _cotangents(warm, inputs, real_in, real_out)
        _hold(warm, programs[VJP], real_in, real_out, forward=False)
    solved: tuple[TensorSpec, ...] = ()
    if programs and loops(source.named):
        solved = newton_capture.solved_specs(source, inputs)
        traced[SOLVED] = (functools.partial(_solved_run, source), inputs)
    return Plan(wanted, traced, programs, tuple(products), how, rows, solved)


def _solved_run(source: Source, *inputs: torch.Tensor) -> Inputs:
    return newton_capture.solved(source, inputs)


def _solvable(warm: Warmup, inputs: Inputs) -> Inputs:
    """Elements that converge: the others have no derivative."""
    if not loops(warm.source.named) or not warm.source.batch_ndim:
        return inputs
    rows = finite_rows(evaluate(warm.source, inputs))
    return inputs if rows is None else tuple(t[rows] for t in inputs)


def _by_parameters(warm: Warmup, inputs: Inputs, by: Specs, of: Specs) -> tuple[fx_tracing.Program, Product, str]:
    """By tangents of the parameters; where torch's second derivatives cannot be captured, by cotangents, a call for
    each component of each element's outputs."""
    try:
        program = _tangents(warm, inputs, by, of, by_parameters=True)
        _hold(warm, program, by, of, forward=True)
        names = tuple(s.name for s in of)
        return program, Product(BY_PARAMETERS, Directions(tuple(by)), names, forward=True, parameters=True), FORWARD
    except CaptureError as refused:
        try:
            program = _cotangents(warm, inputs, by, of, by_parameters=True)
            _hold(warm, program, by, of, forward=False)
        except CaptureError:
            raise refused from None
        names = tuple(s.name for s in by)
        product = Product(BY_PARAMETERS, Directions(tuple(of)), names, forward=False, parameters=True)
        return program, product, f"{REVERSE}, element by element"


def real(specs: Specs) -> tuple[TensorSpec, ...]:
    return tuple(s for s in specs if s.dtype in FLOATING)


def _cheapest(warm: Warmup, wanted: Wanted, inputs: Inputs) -> tuple[str, fx_tracing.Program, Product, str]:
    """The product with fewer operations for all its directions, and how that is said."""
    by = tuple(s for s in warm.source.inputs if any(name == s.name for _, name in wanted.pairs))
    of = tuple(s for s in warm.output_specs if any(name == s.name for name, _ in wanted.pairs))
    names_of, names_by = tuple(s.name for s in of), tuple(s.name for s in by)
    ways: list[tuple[int, str, fx_tracing.Program, Product]] = []
    said: list[str] = []
    failed: list[CaptureError] = []
    for mode, name, make, along, others in (
        (FORWARD, TANGENTS, _tangents, by, names_of),
        (REVERSE, COTANGENTS, _cotangents, of, names_by),
    ):
        try:
            program = make(warm, inputs, by, of)
            _hold(warm, program, by, of, forward=mode == FORWARD)
        except CaptureError as error:
            failed.append(error)
            said.append(f"{mode} is of no use: {error.details.get('got', error.what)}")
            continue
        directions = Directions(along)
        cost = program.operations * directions.total
        said.append(f"{mode}: {cost} operations")
        ways.append((cost, name, program, Product(name, directions, others, forward=mode == FORWARD)))
    if not ways:
        raise CaptureError(
            f"model {warm.source.name!r} cannot be differentiated",
            check="derivatives",
            where=failed[0].details.get("where", ""),
            got="; ".join(said),
            expected="operations that torch can differentiate",
            mend="write the operation with ones that have derivatives, or ask for other outputs; a submodule that is "
            "compiled for its control flow on data has none here",
        )
    _, name, program, product = min(ways, key=lambda way: way[0])
    return name, program, product, f"{FORWARD if product.forward else REVERSE} ({'; '.join(said)})"


def _hold(warm: Warmup, program: fx_tracing.Program, by: Specs, of: Specs, *, forward: bool) -> None:
    """A product at another batch size, against eager mode: raises ``CaptureError`` where the two part.

    torch's own formulas may write a size that they saw into a graph, or give NaN where others give numbers.
    """
    source = warm.source
    generator = torch.Generator().manual_seed(0)
    inputs = _solvable(warm, warm.sampler.draw(warm.traced_sizes[1], generator))
    parameters = derivatives.parameters_of(source)
    whole = not source.batch_ndim or (program.parameters and forward)
    lead = torch.Size() if whole else inputs[0].shape[:1]
    directions = {
        s.name: torch.rand((*lead, *s.fixed), generator=generator, dtype=torch.float64).to(getattr(torch, s.dtype))
        for s in (by if forward else of)
    }
    held = [parameters[n].detach() for n in program.parameters]
    try:
        got = program.graph(*inputs, *_solved(source, inputs), *directions.values(), *held)[len(warm.output_specs) :]
    except Exception as error:
        what = "the product does not run at another batch size"
        mend = "torch's own formula of some operation wrote a size into the graph: write it with other operations"
        raise CaptureError(what, check="derivatives", got=first_line(error), mend=mend) from error
    if forward:
        wanted = derivatives.pushed(source, inputs, directions, [s.name for s in of])
    elif program.parameters:
        wanted = _pulled_to_parameters(source, inputs, directions, [s.name for s in by])
    else:
        wanted = {
            n: v for n, v in derivatives.pulled(source, inputs, directions).items() if any(s.name == n for s in by)
        }
    for (name, value), found in zip(wanted.items(), got, strict=True):
        if not close(found, value):
            raise CaptureError(
                "a product that was captured is not that of eager mode",
                check="derivatives",
                got=f"{name!r} differs at a batch of {list(lead)}",
                expected="what torch's autograd gives in eager mode",
            )


def _pulled_to_parameters(
    source: Source, inputs: Inputs, seeds: Mapping[str, torch.Tensor], names: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Gradients of the outputs, weighted by ``seeds``, from the blocks of eager mode."""
    reached = derivatives.reached(source, inputs)
    found: dict[str, torch.Tensor] = {}
    for name in names:
        parts = [(of, name) for of in seeds if (of, name) in reached]
        rows = [
            torch.tensordot(seeds[of].to(block.dtype), block, seeds[of].ndim)
            for (of, _), block in derivatives.blocks(source, inputs, parts).items()
        ]
        found[name] = torch.stack(rows).sum(0)
    return found


def _chain_rule(warm: Warmup, wanted: Wanted, inputs: Inputs) -> str:
    """Why the source library's own chain rule does not give these blocks; empty where it does."""
    try:
        values = _blocks_run(warm, wanted)(*(t.clone() for t in inputs))
        expected = derivatives.blocks(warm.source, inputs, wanted.pairs)
    except TorchferryError:
        raise
    except Exception as error:
        return first_line(error)
    for pair, got in zip(wanted.pairs, values[len(warm.output_specs) :], strict=True):
        if not close(got, expected[pair]):
            return f"d {pair[0]} / d {pair[1]} is not what the backward pass says"
    return ""


def _blocks_run(warm: Warmup, wanted: Wanted) -> Run:
    """Through the source library's own chain rule. A constant block, too, is given for every element of the batch."""
    blocks = warm.source.blocks
    assert blocks is not None
    outs, ins = {s.name: s.fixed for s in warm.output_specs}, {s.name: s.fixed for s in warm.source.inputs}

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, found = blocks(*tensors)
        lead = (tensors[0].shape[0],) if warm.source.batch_ndim else ()
        values = [v.expand((*lead, *s.fixed)) for v, s in zip(outputs, warm.output_specs, strict=True)]
        return (*values, *(found[o, i].expand((*lead, *outs[o], *ins[i])) for o, i in wanted.pairs))

    return run


def _tangents(warm: Warmup, inputs: Inputs, by: Specs, of: Specs, *, by_parameters: bool = False) -> fx_tracing.Program:
    """Inputs, then tangents of ``by``, to all outputs, then the tangents of ``of``."""
    source = warm.source
    call, moving, parameters = _call(warm, inputs, by, of, by_parameters)

    def run(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            leaves, picked, values = call(given)
            used = [(i, v) for i, v in enumerate(picked) if v.requires_grad]
            # Any seed will do; some backward formulas take the logarithm of it.
            seeds = [torch.ones_like(v).requires_grad_(True) for _, v in used]
            pulled = torch.autograd.grad([v for _, v in used], leaves, seeds, create_graph=True, allow_unused=True)
            linear = [(g, t) for g, t in zip(pulled, moving(given), strict=True) if g is not None and g.requires_grad]
            pushed: Sequence[Any] = [None] * len(seeds)
            if linear:
                rows, tangents = zip(*linear, strict=True)
                pushed = torch.autograd.grad(rows, seeds, tangents, allow_unused=True)
        found = {i: t for (i, _), t in zip(used, pushed, strict=True) if t is not None}
        zeros = [found[i] if i in found else torch.zeros_like(v) for i, v in enumerate(picked)]
        return tuple(v.detach() for v in (*values, *zeros))

    return fx_tracing.captured(
        run,
        (*inputs, *_solved(source, inputs), *_ones(warm, inputs, by, by_parameters), *parameters.values()),
        tuple(parameters),
        named=warm.source.named,
    )


def _cotangents(
    warm: Warmup, inputs: Inputs, by: Specs, of: Specs, *, by_parameters: bool = False
) -> fx_tracing.Program:
    """Inputs, then cotangents of ``of``, to all outputs, then the cotangents of ``by``; those of parameters are sums
    over the batch."""
    source = warm.source
    call, moving, parameters = _call(warm, inputs, by, of, by_parameters)

    def run(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            leaves, picked, values = call(given)
            used = [(v, seed) for v, seed in zip(picked, moving(given), strict=True) if v.requires_grad]
            pulled: Sequence[Any] = [None] * len(leaves)
            if used:
                outputs, seeds = zip(*used, strict=True)
                pulled = torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)
        zeros = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, pulled, strict=True)]
        return tuple(v.detach() for v in (*values, *zeros))

    given = (*inputs, *_solved(source, inputs), *_ones(warm, inputs, of, False), *parameters.values())
    return fx_tracing.captured(run, given, tuple(parameters), named=warm.source.named)


def _solved(source: Source, inputs: Inputs) -> Inputs:
    return newton_capture.solved(source, inputs) if loops(source.named) else ()


def _ones(warm: Warmup, inputs: Inputs, specs: Specs, parameters: bool) -> list[torch.Tensor]:
    lead = inputs[0].shape[:1] if warm.source.batch_ndim and not parameters else ()
    return [torch.ones((*lead, *s.fixed), dtype=getattr(torch, s.dtype)) for s in specs]


_Called = tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]


def _call(
    warm: Warmup, inputs: Inputs, by: Specs, of: Specs, by_parameters: bool
) -> tuple[Callable[..., _Called], Callable[..., Sequence[torch.Tensor]], dict[str, torch.Tensor]]:
    """``(call, moving, parameters)``. ``call`` gives the leaves ``by`` that gradients are taken of, the outputs ``of``
    and all outputs; ``moving`` picks the directions; ``parameters`` come behind them."""
    source = warm.source
    count, names = len(source.inputs), [s.name for s in source.inputs]
    first = count + len(_solved(source, inputs))
    named = derivatives.parameters_of(source)
    # In the order of their directions.
    parameters = {s.name: named[s.name] for s in by} if by_parameters else {}

    def call(given: Sequence[torch.Tensor]) -> _Called:
        whole = [t.detach() for t in given[:count]]
        leaves = [t.detach().requires_grad_(True) for t in given[len(given) - len(parameters) :]] if parameters else []
        for spec in by if not parameters else ():
            at = names.index(spec.name)
            whole[at] = whole[at].requires_grad_(True)
            leaves.append(whole[at])
        others = dict(zip(parameters, leaves, strict=False))
        with moved(source.named, others), newton_capture.solved_already(source, given[count:first]):
            outputs = flatten(source.module(*whole), source)
        rows = whole[0].shape[0] if any(warm.constant) else 0
        values = {
            name: value.expand((rows, *value.shape)) if constant else value
            for (name, value), constant in zip(outputs.items(), warm.constant, strict=True)
        }
        return leaves, [values[s.name] for s in of], list(values.values())

    def moving(given: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return given[first : len(given) - len(parameters)]

    return call, moving, {n: p.detach() for n, p in parameters.items()}
