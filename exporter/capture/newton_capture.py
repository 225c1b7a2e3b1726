"""Newton loops in the file: residual and Jacobian are captured as graphs, and the loop around them is compiled."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.jit._fuser import optimized_execution

from exporter.archive.tensor_spec import TensorSpec
from exporter.capture import fx_tracing
from exporter.capture.constant_folding import folded
from exporter.capture.operator_rewrites import rewrite_operators
from exporter.capture.torchscript_writer import torchscript
from exporter.common.errors import CaptureError
from exporter.common.tensors import close
from exporter.common.torch_hooks import called_instead, tracing_paused
from exporter.model.eager.evaluation import evaluate
from exporter.model.eager.warmup import finite_rows
from exporter.model.implicit.newton_solver import Newton, loops
from exporter.model.implicit.solve_recording import Taken, calls
from exporter.model.source import Inputs, Source

# What a loop gives.
GIVEN = ("unknowns", "Jacobians", "iterations", "norms of the residual", "status", "factors")


@dataclass(frozen=True)
class Captured:
    """A loop, and the graphs that it calls: of ``(u, *held)``."""

    loop: Newton
    residual: fx_tracing.Program
    jacobian: fx_tracing.Program

    def scripted(self) -> torch.jit.ScriptModule:
        """Anew with each call: the passes of a capture write to what they are given."""
        made = copy.copy(self.loop)
        made._modules = {}
        for name, program in (("residual", self.residual), ("jacobian", self.jacobian)):
            made.__dict__.pop(name)
            made.add_module(name, _graph(program, self.loop.batched, several=name == "jacobian"))
        return torch.jit.script(made)


def captured_loop(path: str, loop: Newton, taken: Inputs) -> Captured:
    """``taken``: unknowns and what is given. Call it under ``inference_conditions``; raises ``CaptureError``."""
    guess, held = taken[0], loop.held(taken[1:])
    return Captured(
        loop, *(graph_of(getattr(loop, name), (guess, held), path, loop) for name in ("residual", "jacobian"))
    )


def refuse_borrowed(path: str, one: Captured, named: nn.Module) -> None:
    """Raises ``CaptureError`` where the residual reads a parameter that is not its own: the file would keep a copy."""
    own = {p.data_ptr(): name for name, p in named.named_parameters() if p.numel()}
    for program in (one.residual, one.jacobian):
        for value in program.constants.values():
            if value.numel() and value.data_ptr() in own:
                raise CaptureError(
                    f"the residual of {path!r} reads a parameter that is not its own",
                    check="implicit",
                    where=path,
                    got=own[value.data_ptr()],
                    expected="parameters of the residual and of its submodules",
                    mend="register the module that has the parameter in the residual",
                )


def hold(path: str, one: Captured, taken: Sequence[Inputs]) -> None:
    """Raises ``CaptureError`` where the compiled loop does not solve as eager mode does, to the last iteration."""
    compiled = _called(one.scripted())
    for guess, *given in taken:
        wanted, got = (run(guess, one.loop.held(given), True) for run in (one.loop.forward, compiled))
        for name, value, other in zip(GIVEN, wanted, got, strict=True):
            if not close(other, value):
                raise CaptureError(
                    f"the implicit update {path!r} is not solved as in eager mode",
                    check="implicit",
                    where=path,
                    got=f"{name} differ at a batch of {guess.shape[0]}",
                    expected="the iterations of eager mode",
                )


def refuse_hidden(path: str, loop: Newton, source: Source, inputs: Inputs) -> None:
    """Raises ``CaptureError`` where an element that this loop does not solve has outputs like any other."""
    if not loop.fails_by_nan:
        return

    def failing(u: torch.Tensor, held: list[torch.Tensor], tangents: bool = False) -> tuple[torch.Tensor, ...]:
        *found, status, factor = forward(u, held, tangents)
        return *found, torch.ones_like(status), torch.full_like(factor, float("nan"))

    forward = loop.forward
    with called_instead({loop: failing}):
        good = finite_rows(evaluate(source, inputs))
    if good is None or bool(good.any()):
        raise CaptureError(
            f"the model hides that {path!r} has not converged",
            check="implicit",
            where=path,
            got="outputs that are finite where the unknowns are NaN",
            expected="NaN in some output of each element that has not converged",
            mend="return the unknowns too, or choose between values without torch.where on what is solved",
        )


@contextlib.contextmanager
def standing_in(solves: Mapping[str, Captured]) -> Iterator[None]:
    """While this lasts, solves run as they will in the file: some ten times as fast as in eager mode."""
    with called_instead({one.loop: _called(one.scripted()) for one in solves.values()}):
        yield


def _called(compiled: torch.jit.ScriptModule) -> Callable[..., Any]:
    def forward(u: torch.Tensor, held: list[torch.Tensor], tangents: bool = False) -> tuple[torch.Tensor, ...]:
        state = torch._C._get_tracing_state()
        # Optimised it is as fast, after a second that every process would spend anew.
        with tracing_paused(state) if state else contextlib.nullcontext(), optimized_execution(False):
            return compiled(u, held, tangents)

    return forward


def graph_of(function: Callable[..., Any], taken: Taken, path: str, named: nn.Module) -> fx_tracing.Program:
    guess, held = taken

    def run(u: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = function(u, list(rest))
        return found if isinstance(found, tuple) else (found,)

    try:
        return folded(fx_tracing.without_copies(fx_tracing.captured(run, (guess, *held), named=named)), (guess, *held))
    except CaptureError as error:
        error.details["where"] = error.details.get("where") or path
        raise


class _Held(nn.Module):
    """Constants of a graph."""

    def __init__(self, values: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        for i, value in enumerate(values.values()):
            self.register_buffer(f"tf_{i}", value.detach().clone())


def _graph(program: fx_tracing.Program, batched: int, *, several: bool) -> torch.jit.ScriptModule:
    # A class of its own: TorchScript gives modules of one class one set of methods.
    module = torch.jit.script(type("Graph", (_Held,), {})(program.constants))
    names = [f"x{i}" for i in range(program.inputs)]
    places = {target: f"self.tf_{i}" for i, target in enumerate(program.constants)}
    module.define(torchscript(program, "graph", names, places, [(i, 0) for i in range(1 + batched)]))
    rewrite_operators(module)
    given = ", ".join(["u", *(f"held[{i}]" for i in range(program.inputs - 1))])
    returns, tail = ("Tuple[Tensor, Tensor]", "") if several else ("Tensor", "[0]")
    module.define(
        f"def forward(self, u: Tensor, held: List[Tensor]) -> {returns}:\n    return self.graph({given}){tail}\n"
    )
    return module


def solved(source: Source, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """What the solves of a run give, one after the other."""
    return tuple(value for _, _, given in calls(source, inputs) for value in given)


def solved_specs(source: Source, inputs: Inputs) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(f"solved_{i}", tuple(value.shape[1:]), str(value.dtype).removeprefix("torch."))
        for i, value in enumerate(solved(source, inputs))
    )


@contextlib.contextmanager
def solved_already(source: Source, values: Sequence[torch.Tensor]) -> Iterator[None]:
    """While this lasts, the solves of a run give ``values``, as ``solved`` has them."""
    left = list(values)

    def run(u: torch.Tensor, held: list[torch.Tensor], tangents: bool = False) -> tuple[torch.Tensor, ...]:
        found, left[: len(GIVEN)] = tuple(left[: len(GIVEN)]), []
        return found

    with called_instead(dict.fromkeys(loops(source.named).values(), run)):
        yield
