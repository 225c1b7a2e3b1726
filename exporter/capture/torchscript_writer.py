"""A captured graph as the source of one TorchScript method.

Sizes remain sizes of the inputs; devices, and the dtype of new tensors, follow the first input."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from exporter.archive.tensor_spec import TensorSpec
from exporter.capture.forward_wrapper import emit_method_source
from exporter.capture.fx_tracing import FxProgram, split_operator_name
from exporter.capture.operator_rewrites import OPERATOR_REWRITES
from exporter.capture.origin_tracking import get_origin, get_user_line
from exporter.common.errors import OperatorError
from exporter.common.torch_internals import OpOverload

# Operators of source libraries that are rewritten to torch's once the method is defined.
_REWRITTEN = frozenset(row.operator for row in OPERATOR_REWRITES)
_SYMBOLS: Mapping[Any, str] = {
    operator.add: "({} + {})", operator.sub: "({} - {})", operator.mul: "({} * {})", operator.neg: "(-{})",
    operator.floordiv: "({} // {})", operator.mod: "({} % {})", operator.truediv: "({} / {})",
    operator.pow: "({} ** {})", operator.eq: "({} == {})", operator.ne: "({} != {})", operator.lt: "({} < {})",
    operator.le: "({} <= {})", operator.gt: "({} > {})", operator.ge: "({} >= {})", torch.sym_float: "float({})",
    torch.sym_int: "int({})", torch.sym_max: "max({}, {})", torch.sym_min: "min({}, {})", torch.sym_not: "(not {})",
    math.floor: "math.floor({})", math.ceil: "math.ceil({})", math.trunc: "int({})",
}  # fmt: skip


def emit_torchscript(
    program: FxProgram,
    name: str,
    arguments: Sequence[str],
    places: Mapping[str, str],
    varying: Sequence[tuple[int, int]],
    extra_arguments: Sequence[str] = (),
) -> str:
    """Return source of a method that computes the program.

    ``places`` maps each constant to an expression of ``self``, and so do the last of ``arguments`` for parameters;
    ``varying`` are the sizes (input, dimension) that differ from call to call. ``extra_arguments`` are further ones,
    which ``places`` may use. Raises ``OperatorError`` for operations that TorchScript has no operator for."""
    nodes = list(program.graph.graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    dtypes = zip(arguments, map(_get_dtype, placeholders), strict=True)
    reference, dtype = next(((a, dtype) for a, dtype in dtypes if dtype.is_floating_point), (arguments[0], None))
    writer = _SourceWriter(reference, dtype, dict(places), _collect_symbols(placeholders, varying))
    writer.names.update({n.name: a for n, a in zip(placeholders, arguments, strict=True)})
    lines = [line for n in nodes if n.op not in ("placeholder", "output") for line in writer.write_node(n)]
    (output,) = (n for n in nodes if n.op == "output")
    results = [writer.format_value(v) for v in output.args[0]]
    method_arguments = [*arguments[: len(arguments) - len(program.parameters)], *extra_arguments]
    return emit_method_source(name, method_arguments, lines, results)


def find_varying_sizes(specs: Sequence[TensorSpec], batched: bool) -> list[tuple[int, int]]:
    """Return the sizes that differ from call to call, as (input, dimension): the batch, or open sizes."""
    if batched:
        return [(i, 0) for i in range(len(specs))]
    return [(i, dim) for i, spec in enumerate(specs) for dim, size in enumerate(spec.shape) if isinstance(size, str)]


def _collect_symbols(placeholders: Sequence[torch.fx.Node], varying: Sequence[tuple[int, int]]) -> frozenset[Any]:
    """Return the symbols in the sizes that vary; every other size is fixed by the contract, and a number."""
    sizes = [placeholders[i].meta["val"].shape[dim] for i, dim in varying]
    return frozenset().union(*(_get_symbols(s) for s in sizes if isinstance(s, torch.SymInt)))


def _get_symbols(size: torch.SymInt) -> frozenset[Any]:
    """Return the symbols of a size as it was written: torch may have replaced one by a number since."""
    return frozenset(size.node._expr.free_symbols)


def _get_dtype(node: torch.fx.Node) -> torch.dtype:
    return node.meta["val"].dtype


class _SourceWriter:
    """A writer of statements that keeps the names of values written so far."""

    def __init__(self, first: str, dtype: torch.dtype | None, places: dict[str, str], batch: frozenset[Any]) -> None:
        self.names: dict[str, str] = {}
        self._reference = first
        self._dtype = dtype
        self._places = places
        self._batch = batch

    def write_node(self, node: torch.fx.Node) -> list[str]:
        """Return the lines that compute a node, each with its origin as a comment."""
        name = f"tf_{node.name}"
        if node.op == "get_attr":
            self.names[node.name] = self._places[str(node.target)]
            return []
        self.names[node.name] = name
        origin = get_origin(node)
        return [f"{line}  # {origin.to_text()}" if origin else line for line in self._write_statements(node, name)]

    def _write_statements(self, node: torch.fx.Node, result: str) -> list[str]:
        if node.target in _SYMBOLS:
            return [f"{result} = {_SYMBOLS[node.target].format(*map(self.format_value, node.args))}"]
        if node.target is operator.getitem:
            return [f"{result} = {self.format_value(node.args[0])}[{self.format_value(node.args[1])}]"]
        if not isinstance(node.target, OpOverload):
            raise _unsupported_operator_error(str(node.target), node)
        space, name = split_operator_name(node.target)
        if space == "profiler":
            return []
        if name.startswith("_foreach"):
            mend = "let the optimiser go parameter by parameter: foreach=False"
            raise _unsupported_operator_error(f"aten::{name}", node, mend)
        if space != "aten" and f"{space}::{name}" not in _REWRITTEN:
            raise _unsupported_operator_error(f"{space}::{name}", node)
        args = [self.format_value(a) for a in node.args]
        if name in ("detach", "alias"):
            return [f"{result} = {args[0]}"]
        if name == "lift_fresh_copy":
            return [f"{result} = {args[0]}.clone()"]
        if name in ("sym_size", "sym_stride"):
            return [f"{result} = {args[0]}.{name.removeprefix('sym_')}({args[1]})"]
        if name == "_linalg_check_errors":
            # The operator returns nothing, and TorchScript removes what is not used.
            message = f"{node.args[1]}: a matrix is singular, or not positive-definite"
            return [f"if bool(({args[0]} != 0).any()):", f'    raise ValueError("{message}")']
        if name == "sym_numel":
            return [f"{result} = {args[0]}.numel()"]
        if name.startswith(("_assert", "sym_constrain")):
            return []
        if name in ("view", "_unsafe_view"):
            # Which of them torch chose depended on the traced strides. One size may be -1, which is ambiguous for an
            # empty batch.
            shape: Any = node.args[1]
            sizes = [self._format_size(s, m) for s, m in zip(shape, node.meta["val"].shape, strict=True)]
            return [f"{result} = {args[0]}.reshape([{', '.join(sizes)}])"]
        schema = node.target._schema
        values = zip(node.args, args, schema.arguments, strict=False)
        args = [self._convert_argument(a, t, s, node.meta.get("val")) for a, t, s in values]
        args += [f"{k}={self._format_option(k, v)}" for k, v in node.kwargs.items()]
        return [f"{result} = torch.ops.{space}.{name}({', '.join(args)})"]

    def _convert_argument(self, value: Any, text: str, argument: Any, result: Any) -> str:
        """Make a tensor of a number where the schema has a tensor, and annotate lists of optional tensors."""
        argument_type = str(argument.type)
        if argument_type == "Tensor" and isinstance(value, (int, float)) and argument.name == "self":
            # As in torch, a number does not influence the dtype.
            dtype = getattr(result, "dtype", self._dtype)
            return f"torch.scalar_tensor({text}, dtype={self.format_value(dtype)}, device={self._reference}.device)"
        if argument_type == "List[Optional[Tensor]]":
            return f"torch.jit.annotate(List[Optional[Tensor]], {text})"
        return text

    def _format_option(self, name: str, value: Any) -> str:
        # New tensors get the device and dtype of the inputs.
        if name == "device" and value is not None:
            return f"{self._reference}.device"
        if name == "dtype" and value is not None and value == self._dtype:
            return f"{self._reference}.dtype"
        if name == "layout":
            return "None"
        return self.format_value(value)

    def _format_size(self, size: Any, traced_size: Any) -> str:
        if size != -1:
            return self.format_value(size)
        fixed_size = self._get_fixed_size(traced_size)
        return "-1" if fixed_size is None else str(fixed_size)

    def _get_fixed_size(self, size: Any) -> int | None:
        """Return a size as a number, or None if it depends on the batch."""
        if not isinstance(size, torch.SymInt):
            return size if isinstance(size, int) else None
        return None if _get_symbols(size) & self._batch else size.node.hint

    def format_value(self, value: Any) -> str:
        """Return the source text of a value."""
        if isinstance(value, torch.fx.Node):
            fixed_size = self._get_fixed_size(value.meta.get("val"))
            return self.names[value.name] if fixed_size is None else str(fixed_size)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self.format_value, value))}]"
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if isinstance(value, complex):
            return f"complex({value.real!r}, {value.imag!r})"
        if isinstance(value, torch.device):
            return f"{self._reference}.device"
        if isinstance(value, torch.dtype):
            return f"{self._reference}.dtype" if value == self._dtype else str(value)
        if isinstance(value, torch.layout):
            return "None"
        return str(value) if isinstance(value, torch.memory_format) else repr(value)


def _unsupported_operator_error(
    name: str, node: torch.fx.Node, mend: str = "write it with torch's own operators"
) -> OperatorError:
    what, expected = f"the backward pass calls {name}, which TorchScript does not have", "aten:: operators only"
    return OperatorError(what, check="operators", where=get_user_line(node), got=name, expected=expected, mend=mend)
