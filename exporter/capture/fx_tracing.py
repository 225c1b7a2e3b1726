"""Functions that differentiate themselves, traced by ``make_fx``.

``torch.jit.trace`` cannot follow ``torch.autograd.grad``. ``make_fx`` runs the function on tensors with symbolic sizes
and records the calls to torch's dispatcher, including the backward pass. What it needs takes up to two seconds
to import, and is imported where a model needs it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from exporter.capture.determinant_gradients import SmallDeterminants
from exporter.capture.origin_tracking import OriginTracker, get_user_line, relabel_forward_parts
from exporter.capture.symbolic_guards import SizeGuardRecorder
from exporter.capture.value_reads import ValueRead
from exporter.common import torch_internals
from exporter.common.errors import IN_SCRIPT, CaptureError, TorchferryError, summarize_error
from exporter.common.torch_internals import FAKE_TENSORS, OpOverload, get_decompositions
from exporter.common.user_code import user_traceback_location
from exporter.model.eager.evaluation import deterministic_kernels

# Operations that only rearrange or query, which are not counted.
_FREE = ("detach", "alias", "sym_size", "sym_numel", "sym_stride", "lift_fresh_copy")
# Views whose schemas do not say that they are.
_UNSAFE_VIEWS = ("_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk")
# Errors of torch that TorchScript's interpreter passes on as text.
_DATA_DEPENDENT = re.compile("GuardOnDataDependentSymNode|DataDependentOutputException")
# The kernel of the first divides by the number of elements, and crashes the process for an empty batch; those of the
# others take no view of one row that is repeated for every direction.
_aten: Any = torch.ops.aten
DECOMPOSED: Any = get_decompositions(
    [_aten.native_batch_norm_backward, _aten.native_group_norm, _aten.native_group_norm_backward]
)


@dataclass(frozen=True)
class FxProgram:
    """A function as a graph. ``constants`` are its tensors; ``parameters`` are its last inputs; ``size_reads`` are the
    questions about open sizes that Python asked while it was traced."""

    graph: torch.fx.GraphModule
    constants: Mapping[str, torch.Tensor]
    operations: int
    inputs: int
    parameters: tuple[str, ...] = ()
    size_reads: tuple[ValueRead, ...] = ()


def trace_to_fx(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    parameters: tuple[str, ...] = (),
    *,
    model: nn.Module | None = None,
    has_open_sizes: bool = True,
) -> FxProgram:
    """Trace ``function``, run once on ``inputs``, of which the last are ``parameters``.

    With ``model``, the module that the function runs, every operation gets its origin. Without ``has_open_sizes`` all
    sizes are those of ``inputs``. If the trace fails, raises ``CaptureError`` with torch's own message and the user's
    line."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    fake = logging.getLogger(FAKE_TENSORS)
    level = fake.level
    # Fake tensors log a page before they raise.
    fake.setLevel(logging.CRITICAL)

    def run(*tensors: torch.Tensor) -> Any:
        with OriginTracker(model, _get_traced_graph) if model is not None else contextlib.nullcontext():
            return function(*tensors)

    try:
        # The fused kernels of attention have no second derivative.
        with deterministic_kernels(), SmallDeterminants(), SizeGuardRecorder() as comparisons:
            mode = "symbolic" if has_open_sizes else "fake"
            trace = make_fx(run, DECOMPOSED, mode, _allow_non_fake_inputs=True)
            graph = trace(*(t.clone() for t in inputs))
    except TorchferryError:
        raise
    except torch_internals.DataDependentOutputException as error:
        raise _data_read_error(error, "a value", f"{error.func} of a tensor") from error
    except GuardOnDataDependentSymNode as error:
        raise _data_read_error(error, "a branch", "a comparison of a tensor's values") from error
    except Exception as error:
        if str(error).startswith(IN_SCRIPT) and _DATA_DEPENDENT.search(str(error)):
            # TorchScript's interpreter makes one error of all.
            raise _data_read_error(error, "a branch", "a comparison of a tensor's values") from error
        place = user_traceback_location(error)
        what, where = "the backward pass cannot be captured", "" if place.startswith("<") else place
        got, expected = summarize_error(error), "a function that torch.fx.experimental.proxy_tensor.make_fx can follow"
        mend = "use torch operations on tensors only, no NumPy; torch.func.jacrev instead of jacfwd and hessian"
        raise CaptureError(what, check="derivatives", where=where, got=got, expected=expected, mend=mend) from error
    finally:
        fake.setLevel(level)
    constants = {str(n.target): _get_tensor(graph, str(n.target)) for n in graph.graph.nodes if n.op == "get_attr"}
    program = finish_program(graph, constants, len(inputs))
    return dataclasses.replace(program, parameters=parameters, size_reads=tuple(comparisons.reads))


def _get_traced_graph() -> torch.fx.Graph | None:
    # Imported by whoever traces.
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    mode = get_proxy_mode()
    return mode.tracer.graph if mode is not None else None


def finish_program(graph: torch.fx.GraphModule, constants: Mapping[str, torch.Tensor], input_count: int) -> FxProgram:
    """Return a recorded graph as a program, without what nothing uses. Raises ``CaptureError``."""
    relabel_forward_parts(graph)
    # The check that raises for a singular matrix returns nothing, but must stay.
    graph.graph.eliminate_dead_code(lambda n: n.is_impure() or n.target is torch.ops.aten._linalg_check_errors.default)
    _check_constant_writes(graph)
    read_names = {str(n.target) for n in graph.graph.nodes if n.op == "get_attr"}
    constants = {name: value for name, value in constants.items() if name in read_names}
    calls = [n for n in graph.graph.nodes if n.op == "call_function" and isinstance(n.target, OpOverload)]
    count = sum(1 for n in calls if not split_operator_name(n.target)[1].startswith(_FREE))
    return FxProgram(graph, constants, count, input_count)


def _check_constant_writes(graph: torch.fx.GraphModule) -> None:
    """Check that no operation writes in place to a tensor that the file keeps: a later call would read the result.

    Raises ``CaptureError``."""
    roots = find_memory_roots(graph.graph)
    for node in graph.graph.nodes:
        for argument, value in list_written_arguments(node.target, node.args, node.kwargs):
            if value in roots and roots[value].op == "get_attr":
                raise CaptureError(
                    "an operation writes to a tensor that the file keeps",
                    check="side effect",
                    where=get_user_line(node),
                    got=f"{node.target} writes to its argument {argument!r}",
                    expected="a call without side effects",
                    mend="set gradients to None before the backward pass (zero_grad() does), and make what an "
                    "optimiser updates inputs and outputs",
                )


def list_written_arguments(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return what a call of an operator writes to, tensors or nodes, with the names of the arguments."""
    if not isinstance(operator, OpOverload):
        return []
    arguments = operator._schema.arguments
    positional = zip(arguments, args, strict=False)
    keywords = [(a, kwargs[a.name]) for a in arguments if a.name in kwargs]
    written = [(a.name, v) for a, v in [*positional, *keywords] if a.alias_info is not None and a.alias_info.is_write]
    return [(name, v) for name, vs in written for v in (vs if isinstance(vs, (list, tuple)) else [vs])]


def find_memory_roots(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.fx.Node]:
    """Return for each node the one that made the memory of its value: views, parts and writes share it."""
    roots: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        # An operation on a list of tensors has memory of each of them or of none.
        source = node.args[0] if node.target is operator.getitem or _is_view(node) else None
        roots[node] = roots[source] if isinstance(source, torch.fx.Node) else node
    return roots


def _is_view(node: torch.fx.Node) -> bool:
    """Return whether the result of an operation shares the memory of its first argument."""
    if not isinstance(node.target, OpOverload):
        return False
    arguments = node.target._schema.arguments
    has_alias = bool(arguments) and arguments[0].alias_info is not None
    return has_alias or node.target.overloadpacket.__name__ in _UNSAFE_VIEWS


def _data_read_error(error: Exception, what: str, got: str) -> CaptureError:
    place = user_traceback_location(error)
    where, what = "" if place.startswith("<") else place, f"{what} that depends on data is read into Python"
    what += " while a backward pass is captured"
    expected = "operations on tensors only: no value is known while the graph is traced"
    mend = "use torch.where instead of a branch, no .item(), and a fixed number of iterations"
    return CaptureError(what, check="data read", where=where, got=got, expected=expected, mend=mend)


def _get_tensor(module: Any, path: str) -> torch.Tensor:
    for part in path.split("."):
        module = getattr(module, part)
    if not isinstance(module, torch.Tensor):
        raise CaptureError("the backward pass holds a non-tensor", check="derivatives", got=type(module).__name__)
    return module


def split_operator_name(overload: Any) -> tuple[str, str]:
    """Return the namespace and the name of an operator."""
    space, _, name = overload._schema.name.partition("::")
    return space, name
