"""Functions that differentiate themselves: captured by ``make_fx``, written as TorchScript.

``torch.jit.trace`` cannot follow ``torch.autograd.grad``. ``make_fx`` runs the function on tensors whose sizes are
symbols and records what torch's dispatcher is asked for, the backward pass included; what it records is written here as
the source of one TorchScript method. Sizes stay sizes of the inputs; devices, and the dtype of what is made afresh,
follow the first input.
"""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._decomp import get_decompositions
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.attention import SDPBackend, sdpa_kernel

from exporter.capture.entry import method_source
from exporter.capture.operators import REWRITES
from exporter.capture.origins import Origins, of_node
from exporter.contract import TensorSpec
from exporter.eager import raised_at
from exporter.errors import CaptureError, OperatorError, TorchferryError, first_line
from exporter.reads import NOT_THE_USERS, Read

# A comparison, or a number made of a size.
COMPARED = "a question about a size"
# What only rearranges or asks: an operation that is counted computes something.
_FREE = ("detach", "alias", "sym_size", "sym_numel", "sym_stride", "lift_fresh_copy")
# Operators of source libraries that become ones of torch's once the method is there.
_REWRITTEN = frozenset(row.operator for row in REWRITES)
_SYMBOLS: Mapping[Any, str] = {
    operator.add: "({} + {})",
    operator.sub: "({} - {})",
    operator.mul: "({} * {})",
    operator.floordiv: "({} // {})",
    operator.mod: "({} % {})",
    operator.neg: "(-{})",
    operator.truediv: "({} / {})",
    operator.pow: "({} ** {})",
    operator.eq: "({} == {})",
    operator.ne: "({} != {})",
    operator.lt: "({} < {})",
    operator.le: "({} <= {})",
    operator.gt: "({} > {})",
    operator.ge: "({} >= {})",
    torch.sym_float: "float({})",
    torch.sym_int: "int({})",
    torch.sym_max: "max({}, {})",
    torch.sym_min: "min({}, {})",
    torch.sym_not: "(not {})",
    math.floor: "math.floor({})",
    math.ceil: "math.ceil({})",
    math.trunc: "int({})",
}


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
        with sdpa_kernel(SDPBackend.MATH), Comparisons() as comparisons:
            made = make_fx(run, _DECOMPOSED, "symbolic", _allow_non_fake_inputs=True)
            graph = made(*(t.clone() for t in inputs))
    except TorchferryError:
        raise
    except DataDependentOutputException as error:
        raise _reads_data(error, "a value") from error
    except GuardOnDataDependentSymNode as error:
        raise _reads_data(error, "a branch") from error
    except Exception as error:
        raise CaptureError(
            "the backward pass cannot be captured",
            check="derivatives",
            where=place if not (place := raised_at(error)).startswith("<") else "",
            got=first_line(error),
            expected="a function that torch.fx.experimental.proxy_tensor.make_fx can follow",
        ) from error
    finally:
        fake.setLevel(level)
    graph.graph.eliminate_dead_code()
    _refuse_writes_to_constants(graph)
    held = {str(n.target): _attribute(graph, str(n.target)) for n in graph.graph.nodes if n.op == "get_attr"}
    calls = [n for n in graph.graph.nodes if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload)]
    count = sum(1 for n in calls if not _name(n.target)[1].startswith(_FREE))
    return Program(graph, held, count, len(inputs), parameters, tuple(comparisons.reads))


def _refuse_writes_to_constants(graph: torch.fx.GraphModule) -> None:
    """Raises ``CaptureError`` where an operation writes in place to a tensor that the file would keep: what one call
    leaves there the next would find."""
    for node in graph.graph.nodes:
        for argument, value in _written(node):
            root = value
            while isinstance(root, torch.fx.Node) and root.op == "call_function" and _is_view(root):
                root = root.args[0]
            if isinstance(root, torch.fx.Node) and root.op == "get_attr":
                origin = of_node(node)
                raise CaptureError(
                    "an operation writes to a tensor that the file keeps",
                    check="side effect",
                    where=first_line_of_user(node) or (origin.where if origin else ""),
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


def _reads_data(error: Exception, what: str) -> CaptureError:
    return CaptureError(
        f"{what} that depends on data is read into Python, where a backward pass is captured",
        check="data read",
        where=place if not (place := raised_at(error)).startswith("<") else "",
        got=first_line(error),
        expected="tensors all the way: no value is known while the graph is made",
        mend="torch.where instead of a branch, no .item(), a fixed number of iterations",
    )


def _attribute(module: Any, path: str) -> torch.Tensor:
    for part in path.split("."):
        module = getattr(module, part)
    if not isinstance(module, torch.Tensor):
        raise CaptureError("the backward pass holds an object", check="derivatives", got=type(module).__name__)
    return module


def torchscript(
    program: Program,
    name: str,
    arguments: Sequence[str],
    places: Mapping[str, str],
    varying: Sequence[tuple[int, int]],
    held: Sequence[str] = (),
) -> str:
    """Source of a method. ``places`` gives an expression of ``self`` for each constant, and so do the last of
    ``arguments`` for parameters; ``varying`` are those sizes (input, dimension) that differ from call to call. ``held``
    are further arguments, which ``places`` speak of.

    Raises ``OperatorError`` for what TorchScript has no operator for.
    """
    nodes = list(program.graph.graph.nodes)
    given = [n for n in nodes if n.op == "placeholder"]
    first = next((a for a, n in zip(arguments, given, strict=True) if _dtype_of(n).is_floating_point), arguments[0])
    dtype = next((_dtype_of(n) for n in given if _dtype_of(n).is_floating_point), None)
    writer = _Writer(first, dtype, dict(places), _symbols_of(given, varying))
    writer.names.update({n.name: a for n, a in zip(given, arguments, strict=True)})
    lines = [line for n in nodes if n.op not in ("placeholder", "output") for line in writer.lines(n)]
    (output,) = (n for n in nodes if n.op == "output")
    returned = [writer.text(v) for v in output.args[0]]
    taken = [*arguments[: len(arguments) - len(program.parameters)], *held]
    return method_source(name, taken, lines, returned)


def varying_sizes(specs: Sequence[TensorSpec], batched: bool) -> list[tuple[int, int]]:
    """The sizes that differ from call to call: of the batch, or those that are open."""
    if batched:
        return [(i, 0) for i in range(len(specs))]
    return [(i, at) for i, spec in enumerate(specs) for at, size in enumerate(spec.shape) if isinstance(size, str)]


def _symbols_of(given: Sequence[torch.fx.Node], varying: Sequence[tuple[int, int]]) -> frozenset[Any]:
    """What the sizes that vary are made of; every other size is the contract's, and a number."""
    sizes = [given[i].meta["val"].shape[at] for i, at in varying]
    return frozenset().union(*(_symbols(s) for s in sizes if isinstance(s, torch.SymInt)))


def _symbols(size: torch.SymInt) -> frozenset[Any]:
    """As they were written: torch may have noted since that one stands for a number."""
    return frozenset(size.node._expr.free_symbols)


def _dtype_of(node: torch.fx.Node) -> torch.dtype:
    return node.meta["val"].dtype


class _Writer:
    """Names of values that are written already, and how arguments are spelt."""

    def __init__(self, first: str, dtype: torch.dtype | None, places: dict[str, str], batch: frozenset[Any]) -> None:
        self.names: dict[str, str] = {}
        self._first = first
        self._dtype = dtype
        self._places = places
        self._batch = batch

    def lines(self, node: torch.fx.Node) -> list[str]:
        made = f"tf_{node.name}"
        if node.op == "get_attr":
            self.names[node.name] = self._places[str(node.target)]
            return []
        self.names[node.name] = made
        origin = of_node(node)
        return [f"{line}  # {origin.text()}" if origin else line for line in self._statements(node, made)]

    def _statements(self, node: torch.fx.Node, made: str) -> list[str]:
        if node.target in _SYMBOLS:
            return [f"{made} = {_SYMBOLS[node.target].format(*map(self.text, node.args))}"]
        if node.target is operator.getitem:
            return [f"{made} = {self.text(node.args[0])}[{self.text(node.args[1])}]"]
        if not isinstance(node.target, torch._ops.OpOverload):
            raise _unknown(str(node.target), node)
        space, name = _name(node.target)
        if space == "profiler":
            return []
        if space != "aten" and f"{space}::{name}" not in _REWRITTEN:
            raise _unknown(f"{space}::{name}", node)
        args = [self.text(a) for a in node.args]
        if name in ("detach", "alias"):
            return [f"{made} = {args[0]}"]
        if name == "lift_fresh_copy":
            return [f"{made} = {args[0]}.clone()"]
        if name in ("sym_size", "sym_stride"):
            return [f"{made} = {args[0]}.{name.removeprefix('sym_')}({args[1]})"]
        if name == "sym_numel":
            return [f"{made} = {args[0]}.numel()"]
        if name.startswith(("_assert", "sym_constrain")):
            return []
        if name in ("view", "_unsafe_view"):
            # Which of them torch took was a matter of the strides that it saw. One size may be open, and is ambiguous
            # for an empty batch.
            asked: Any = node.args[1]
            sizes = [self._size(s, m) for s, m in zip(asked, node.meta["val"].shape, strict=True)]
            return [f"{made} = {args[0]}.reshape([{', '.join(sizes)}])"]
        schema = node.target._schema
        args = [self._fitting(a, t, s) for a, t, s in zip(node.args, args, schema.arguments, strict=False)]
        args += [f"{k}={self._option(k, v)}" for k, v in node.kwargs.items()]
        return [f"{made} = torch.ops.{space}.{name}({', '.join(args)})"]

    def _fitting(self, value: Any, text: str, argument: Any) -> str:
        """A number where the schema has a tensor, which TorchScript does not make of it; lists of optional tensors."""
        kind = str(argument.type)
        if kind == "Tensor" and isinstance(value, (int, float)) and argument.name == "self":
            return f"torch.scalar_tensor({text}, dtype={self._first}.dtype, device={self._first}.device)"
        if kind == "List[Optional[Tensor]]":
            return f"torch.jit.annotate(List[Optional[Tensor]], {text})"
        return text

    def _option(self, name: str, value: Any) -> str:
        # Fresh tensors are made where the inputs are, and of their kind.
        if name == "device" and value is not None:
            return f"{self._first}.device"
        if name == "dtype" and value is not None and value == self._dtype:
            return f"{self._first}.dtype"
        if name == "layout":
            return "None"
        return self.text(value)

    def _size(self, given: Any, made: Any) -> str:
        if given != -1:
            return self.text(given)
        fixed = self._fixed(made)
        return "-1" if fixed is None else str(fixed)

    def _fixed(self, size: Any) -> int | None:
        """The number that a size is, unless it depends on the batch."""
        if not isinstance(size, torch.SymInt):
            return size if isinstance(size, int) else None
        return None if _symbols(size) & self._batch else size.node.hint

    def text(self, value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            fixed = self._fixed(value.meta.get("val"))
            return self.names[value.name] if fixed is None else str(fixed)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self.text, value))}]"
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if isinstance(value, complex):
            return f"complex({value.real!r}, {value.imag!r})"
        if isinstance(value, torch.device):
            return f"{self._first}.device"
        if isinstance(value, torch.dtype):
            return f"{self._first}.dtype" if value == self._dtype else str(value)
        if isinstance(value, torch.layout):
            return "None"
        return str(value) if isinstance(value, torch.memory_format) else repr(value)


def _name(overload: Any) -> tuple[str, str]:
    space, _, name = overload._schema.name.partition("::")
    return space, name


class Comparisons:
    """A context manager: what the user's own lines asked of sizes that are symbols, and were answered with a number.

    Such an answer holds for the sizes that were seen, and is not in the graph.
    """

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Comparisons:
        for name in ("guard_bool", "guard_int", "guard_float"):
            original = getattr(SymNode, name)

            def noted(node: Any, *args: Any, original: Any = original) -> Any:
                expression, value = str(node.expr), original(node, *args)
                where = _asking_line()
                if where:
                    self.reads.append(Read(COMPARED, where, f"{expression} is {value}", size=True))
                return value

            setattr(SymNode, name, noted)
            self._exit.callback(setattr, SymNode, name, original)
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()


# What hands a question of Python's to a symbol.
_SYMBOLIC = tuple(f"{Path(torch.__file__).parent}/{part}" for part in ("__init__.py", "fx/", "utils/"))


def _asking_line() -> str:
    """The line that asked, where it is the user's."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith((*_SYMBOLIC, __file__)):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(NOT_THE_USERS):
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _unknown(name: str, node: torch.fx.Node) -> OperatorError:
    return OperatorError(
        f"the backward pass calls {name}, which TorchScript does not have",
        check="operators",
        where=first_line_of_user(node),
        got=name,
        expected="aten:: operators only",
        mend="write the operation with torch's own operators",
    )


def first_line_of_user(node: torch.fx.Node) -> str:
    """``file:line`` of the user's that made a node, where torch kept it."""
    trace = node.meta.get("stack_trace") or ""
    places = [line.split('"') for line in trace.splitlines() if line.strip().startswith("File")]
    found = [(p[1], p[2]) for p in places if len(p) > 2 and not p[1].startswith(NOT_THE_USERS)]
    return f"{found[-1][0]}:{found[-1][1].split('line ')[-1].split(',')[0]}" if found else ""
