"""A captured graph as the source of one TorchScript method.

Sizes stay sizes of the inputs; devices, and the dtype of what is made afresh, follow the first input.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from exporter.archive.tensor_spec import TensorSpec
from exporter.capture.forward_wrapper import method_source
from exporter.capture.fx_tracing import Program, space_and_name
from exporter.capture.operator_rewrites import REWRITES
from exporter.capture.origin_tracking import line_of, of_node
from exporter.common.errors import OperatorError

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
        space, name = space_and_name(node.target)
        if space == "profiler":
            return []
        if name.startswith("_foreach"):
            raise _unknown(f"aten::{name}", node, "let the optimiser go parameter by parameter: foreach=False")
        if space != "aten" and f"{space}::{name}" not in _REWRITTEN:
            raise _unknown(f"{space}::{name}", node)
        args = [self.text(a) for a in node.args]
        if name in ("detach", "alias"):
            return [f"{made} = {args[0]}"]
        if name == "lift_fresh_copy":
            return [f"{made} = {args[0]}.clone()"]
        if name in ("sym_size", "sym_stride"):
            return [f"{made} = {args[0]}.{name.removeprefix('sym_')}({args[1]})"]
        if name == "_linalg_check_errors":
            # The operator returns nothing, and TorchScript leaves out what nobody needs.
            said = f"{node.args[1]}: a matrix is singular, or not positive-definite"
            return [f"if bool(({args[0]} != 0).any()):", f'    raise ValueError("{said}")']
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
        args = [
            self._fitting(a, t, s, node.meta.get("val"))
            for a, t, s in zip(node.args, args, schema.arguments, strict=False)
        ]
        args += [f"{k}={self._option(k, v)}" for k, v in node.kwargs.items()]
        return [f"{made} = torch.ops.{space}.{name}({', '.join(args)})"]

    def _fitting(self, value: Any, text: str, argument: Any, made: Any) -> str:
        """A number where the schema has a tensor, which TorchScript does not make of it; lists of optional tensors."""
        kind = str(argument.type)
        if kind == "Tensor" and isinstance(value, (int, float)) and argument.name == "self":
            # As torch has it, a number has no say in the dtype.
            dtype = made.dtype if isinstance(made, torch.Tensor) else self._dtype
            return f"torch.scalar_tensor({text}, dtype={self.text(dtype)}, device={self._first}.device)"
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


def _unknown(name: str, node: torch.fx.Node, mend: str = "write it with torch's own operators") -> OperatorError:
    return OperatorError(
        f"the backward pass calls {name}, which TorchScript does not have",
        check="operators",
        where=line_of(node),
        got=name,
        expected="aten:: operators only",
        mend=mend,
    )
