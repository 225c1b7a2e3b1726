"""Functions that differentiate themselves, captured by ``make_fx``.

``torch.jit.trace`` cannot follow ``torch.autograd.grad``. ``make_fx`` runs the function on tensors whose sizes are
symbols and records what torch's dispatcher is asked for, the backward pass included.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._decomp import get_decompositions
from torch._functorch.compile_utils import fx_graph_cse
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from exporter.capture.origin_tracking import Origins, line_of, settle
from exporter.capture.symbolic_guards import Comparisons
from exporter.capture.value_reads import Read
from exporter.common.errors import CaptureError, TorchferryError, first_line
from exporter.model.eager.evaluation import as_captured, raised_at

# What only rearranges or asks: an operation that is counted computes something.
_FREE = ("detach", "alias", "sym_size", "sym_numel", "sym_stride", "lift_fresh_copy")
# Its kernel divides by the number of elements, and ends the process of an empty batch.
_DECOMPOSED: Any = get_decompositions([torch.ops.aten.native_batch_norm_backward])


@dataclass(frozen=True)
class Program:
    """A function as a graph. ``constants`` are the tensors that it holds; ``parameters`` are its last inputs;
    ``compared`` is what Python asked of open sizes on the way."""

    graph: torch.fx.GraphModule
    constants: Mapping[str, torch.Tensor]
    operations: int
    inputs: int
    parameters: tuple[str, ...] = ()
    compared: tuple[Read, ...] = ()


def captured(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    parameters: tuple[str, ...] = (),
    *,
    named: nn.Module | None = None,
) -> Program:
    """``function`` of tensors, run once; the last of ``inputs`` are ``parameters``.

    With ``named``, the module that the function runs, every operation is given its origin. Raises ``CaptureError`` with
    torch's own words, and the user's line, where it cannot be captured.
    """
    fake = logging.getLogger("torch._subclasses.fake_tensor")
    level = fake.level
    # It prints a page before it raises.
    fake.setLevel(logging.CRITICAL)

    def run(*given: torch.Tensor) -> Any:
        with Origins(named) if named is not None else contextlib.nullcontext():
            return function(*given)

    try:
        # The fused kernels of attention have no second derivative.
        with as_captured(), Comparisons() as comparisons:
            made = make_fx(run, _DECOMPOSED, "symbolic", _allow_non_fake_inputs=True)
            graph = made(*(t.clone() for t in inputs))
    except TorchferryError:
        raise
    except DataDependentOutputException as error:
        raise _reads_data(error, "a value", f"{error.func} of a tensor") from error
    except GuardOnDataDependentSymNode as error:
        raise _reads_data(error, "a branch", "a comparison of a tensor's values") from error
    except Exception as error:
        raise CaptureError(
            "the backward pass cannot be captured",
            check="derivatives",
            where=place if not (place := raised_at(error)).startswith("<") else "",
            got=first_line(error),
            expected="a function that torch.fx.experimental.proxy_tensor.make_fx can follow",
            mend="operations of torch on tensors alone, no NumPy; torch.func.jacrev in place of jacfwd and hessian",
        ) from error
    finally:
        fake.setLevel(level)
    settle(graph)
    # What raises for a matrix without an inverse returns nothing.
    graph.graph.eliminate_dead_code(lambda n: n.is_impure() or n.target is torch.ops.aten._linalg_check_errors.default)
    _refuse_writes_to_constants(graph)
    held = {str(n.target): _attribute(graph, str(n.target)) for n in graph.graph.nodes if n.op == "get_attr"}
    calls = [n for n in graph.graph.nodes if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload)]
    count = sum(1 for n in calls if not space_and_name(n.target)[1].startswith(_FREE))
    return Program(graph, held, count, len(inputs), parameters, tuple(comparisons.reads))


def without_copies(program: Program) -> Program:
    """What is computed twice is computed once: for graphs that are run many times in one call."""
    graph = torch.fx.GraphModule(program.graph, fx_graph_cse(program.graph.graph))
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return dataclasses.replace(program, graph=graph)


def _refuse_writes_to_constants(graph: torch.fx.GraphModule) -> None:
    """Raises ``CaptureError`` where an operation writes in place to a tensor that the file would keep: what one call
    leaves there the next would find."""
    for node in graph.graph.nodes:
        for argument, value in _written(node):
            root = value
            while isinstance(root, torch.fx.Node) and (root.target is operator.getitem or _is_view(root)):
                root = root.args[0]
            if isinstance(root, torch.fx.Node) and root.op == "get_attr":
                raise CaptureError(
                    "an operation writes to a tensor that the file keeps",
                    check="side effect",
                    where=line_of(node),
                    got=f"{node.target} writes to its argument {argument!r}",
                    expected="a call that leaves nothing behind",
                    mend="gradients that are None before the backward pass (zero_grad() sets them so), and what an "
                    "optimiser moves taken as inputs and returned as outputs",
                )


def _written(node: torch.fx.Node) -> list[tuple[str, Any]]:
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    arguments = node.target._schema.arguments
    positional = zip(arguments, node.args, strict=False)
    named = [(a, node.kwargs[a.name]) for a in arguments if a.name in node.kwargs]
    found = [(a.name, v) for a, v in [*positional, *named] if a.alias_info is not None and a.alias_info.is_write]
    return [(name, v) for name, values in found for v in (values if isinstance(values, (list, tuple)) else [values])]


def _is_view(node: torch.fx.Node) -> bool:
    first = node.target._schema.arguments[:1] if isinstance(node.target, torch._ops.OpOverload) else []
    return bool(first) and first[0].alias_info is not None


def _reads_data(error: Exception, what: str, got: str) -> CaptureError:
    return CaptureError(
        f"{what} that depends on data is read into Python, where a backward pass is captured",
        check="data read",
        where=place if not (place := raised_at(error)).startswith("<") else "",
        got=got,
        expected="tensors all the way: no value is known while the graph is made",
        mend="torch.where instead of a branch, no .item(), a fixed number of iterations",
    )


def _attribute(module: Any, path: str) -> torch.Tensor:
    for part in path.split("."):
        module = getattr(module, part)
    if not isinstance(module, torch.Tensor):
        raise CaptureError("the backward pass holds an object", check="derivatives", got=type(module).__name__)
    return module


def space_and_name(overload: Any) -> tuple[str, str]:
    space, _, name = overload._schema.name.partition("::")
    return space, name
