"""Symbolic tensors: torch's operators, run on them, add scalar expression nodes to a graph.

Data movement (views, stack, gather, index, permute, ...) is run by torch itself on the integer tensor of the nodes;
operators that compute have a lowering rule in ``RULES``; composite operators are decomposed by torch. Operations on
constants alone are torch's own, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from exporter.archive.tensor_spec import name_dtype
from exporter.backends.c_kernel.expression_graph import DTYPES, Expr, ExprGraph, Formula
from exporter.common.errors import UnsupportedError
from exporter.common.torch_hooks import DispatchHook
from exporter.common.torch_internals import (
    DisableTorchDispatch,
    decomposition_table,
    has_dispatch_kernel,
    make_wrapper_tensor,
    pytree,
)

AnyRule = TypeVar("AnyRule", bound=Callable[..., Any])
# Operators that run on the node indices; where they fill in a number it is zero, which is node 0.
DATA_MOVEMENT = {
    "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "select", "slice", "unsqueeze", "squeeze",
    "stack", "cat", "unbind", "split", "split_with_sizes", "clone", "detach", "alias", "lift_fresh", "lift_fresh_copy",
    "diagonal", "diag_embed", "tril", "triu", "slice_backward", "select_backward", "diagonal_backward", "roll", "flip",
    "repeat", "as_strided", "index", "index_select", "gather", "movedim", "unfold", "contiguous", "broadcast_tensors",
    "constant_pad_nd", "slice_scatter", "select_scatter", "_reshape_alias", "view_copy", "expand_copy", "squeeze_copy",
    "unsqueeze_copy", "select_copy", "slice_copy", "permute_copy", "transpose_copy", "t_copy", "detach_copy",
    "alias_copy", "narrow_copy", "_reshape_copy", "diagonal_copy", "unbind_copy", "narrow", "zeros_like", "new_zeros",
    "diagonal_scatter",
}  # fmt: skip

# Operators that take the factors of a matrix, and its pivots.
FACTORS = {"clone", "detach", "alias", "linalg_lu_solve"}


class RuleTable(dict[str, AnyRule]):
    """Rules by name. A decorator registers them; each name has one."""

    def register(self, *names: str) -> Callable[[AnyRule], AnyRule]:
        """Register the decorated function under these names. Raises ``ValueError`` for a name that has a rule."""

        def decorate(rule: AnyRule) -> AnyRule:
            if taken := [name for name in names if name in self]:
                raise ValueError(f"{taken[0]} has two rules")
            self.update(dict.fromkeys(names, rule))
            return rule

        return decorate


# Returns what the operator returns, of expressions.
Rule = Callable[["OperatorCall"], Any]
# By operators' names without overload: ``@lowers("div")``.
RULES: RuleTable[Rule] = RuleTable()
lowers = RULES.register


class SymbolicTensor(torch.Tensor):
    """Tensor whose numbers are expression nodes, ``ids``. ``factored_matrix`` has the nodes of the matrix whose LU
    factors, or pivots, the tensor is; those have no nodes."""

    ids: torch.Tensor
    factored_matrix: torch.Tensor | None

    @staticmethod
    def __new__(cls, ids: torch.Tensor, dtype: torch.dtype) -> SymbolicTensor:
        symbol = make_wrapper_tensor(cls, ids.shape, strides=ids.stride(), dtype=dtype)
        symbol.ids, symbol.factored_matrix = ids, None
        return symbol

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"SymbolicTensor({list(self.ids.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} is run outside of its lowering")


def make_symbol(nodes: Sequence[int], shape: Sequence[int], dtype: torch.dtype) -> SymbolicTensor:
    """Return nodes as a symbolic tensor of a shape."""
    return SymbolicTensor(torch.tensor(nodes, dtype=torch.int64).reshape(tuple(shape)), dtype)


def get_dtype_name(dtype: torch.dtype, where: str = "") -> str:
    """Return the name of a dtype. Raises ``UnsupportedError`` for one that a kernel does not have."""
    name = name_dtype(dtype)
    if name not in DTYPES:
        what, expected = "a kernel has no numbers of this type", ", ".join(DTYPES)
        raise UnsupportedError(what, check="kernel", where=where, got=name, expected=expected, mend="use the .pt")
    return name


def promote_dtypes(values: Sequence[Any]) -> torch.dtype:
    """Return the dtype that torch computes in where the result's does not tell: comparisons."""
    first, second = _make_ones(values[0]), _make_ones(values[-1])
    return torch.result_type(first, second)


def _make_ones(value: Any) -> Any:
    # For tensors without data torch imports its compiler, which takes a second.
    return torch.ones(value.shape, dtype=value.dtype) if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True)
class OperatorCall:
    """One call of an operator of torch, which a lowering rule takes; ``func`` is the overload."""

    dispatch: SymbolicDispatch
    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return the operator's name without the overload."""
        return self.func.overloadpacket.__name__

    @property
    def graph(self) -> ExprGraph:
        """Return the graph that takes the nodes."""
        return self.dispatch.graph

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument that is passed by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def infer_dtype(self) -> torch.dtype:
        """Return the dtype that torch gives the result, from a run of the operator on ones."""
        keywords = {k: v for k, v in self.kwargs.items() if k != "device"}
        args, keywords = pytree.tree_map(_make_ones, (list(self.args), keywords))
        return self.func(*args, **keywords).dtype

    def cast(self, value: Any, dtype: torch.dtype) -> SymbolicTensor:
        """Return a tensor or a number as a symbolic tensor of ``dtype``."""
        if not isinstance(value, torch.Tensor):
            return self.dispatch.to_symbol(torch.tensor(value, dtype=dtype))
        return self.dispatch.cast(self.dispatch.to_symbol(value), dtype)

    def make_constant(self, value: float, dtype: torch.dtype) -> Expr:
        """Return a number as an expression."""
        return Expr(self.graph, self.graph.add_constant(value, get_dtype_name(dtype, self.graph.origin)))

    def apply(self, formula: Formula, dtype: torch.dtype, *values: Any) -> SymbolicTensor:
        """Apply a formula of expressions to tensors or numbers of ``dtype``, element by element, with broadcasting."""
        return self.dispatch.map_expressions(formula, dtype, *(self.cast(v, dtype) for v in values))


class SymbolicDispatch(DispatchHook):
    """Dispatch mode in which torch's operators on tensors add nodes to ``graph``."""

    def __init__(self, graph: ExprGraph) -> None:
        super().__init__()
        self.graph = graph

    def to_symbol(self, value: torch.Tensor) -> SymbolicTensor:
        """Return a tensor as a symbolic one; numbers become constants."""
        if isinstance(value, SymbolicTensor):
            return value
        dtype_name = get_dtype_name(value.dtype, self.graph.origin)
        numbers = [self.graph.add_constant(v, dtype_name) for v in value.detach().reshape(-1).tolist()]
        return make_symbol(numbers, value.shape, value.dtype)

    def add_leaves(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, batch_rows: int = 0, loop: int = 0
    ) -> torch.Tensor:
        """Return the nodes of a variable, of one element of the batch."""
        dtype_name = get_dtype_name(dtype, name)
        count = torch.Size(shape).numel()
        nodes = [self.graph.add_leaf(name, i, dtype_name, batch_rows, loop) for i in range(count)]
        return torch.tensor(nodes, dtype=torch.int64).reshape(tuple(shape))

    def read_constants(self, symbol: SymbolicTensor) -> torch.Tensor | None:
        """Return the numbers of a tensor, where all of them are constants."""
        if symbol.factored_matrix is not None:
            return None
        values = [self.graph.constant_value(i) for i in symbol.ids.reshape(-1).tolist()]
        if any(v is None for v in values):
            return None
        return torch.tensor(values, dtype=symbol.dtype).reshape(symbol.ids.shape)

    def cast(self, symbol: SymbolicTensor, dtype: torch.dtype) -> SymbolicTensor:
        """Return the tensor in another dtype."""
        if symbol.dtype == dtype:
            return symbol
        dtype_name = get_dtype_name(dtype, self.graph.origin)
        return self.map_expressions(lambda x: x.cast(dtype_name), dtype, symbol)

    def map_expressions(self, formula: Formula, dtype: torch.dtype, *symbols: SymbolicTensor) -> SymbolicTensor:
        """Apply a formula of expressions element by element, with broadcasting."""
        # An unknown dtype is an error also where there are no elements.
        get_dtype_name(dtype, self.graph.origin)
        ids = torch.broadcast_tensors(*(s.ids for s in symbols))
        rows = zip(*(i.reshape(-1).tolist() for i in ids), strict=True)
        nodes = [formula(*(Expr(self.graph, i) for i in row)).index for row in rows]
        return make_symbol(nodes, ids[0].shape, dtype)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        flat, _ = pytree.tree_flatten((args, kwargs))
        symbols = [v for v in flat if isinstance(v, SymbolicTensor)]
        if not symbols:
            # The results are symbolic too, as nodes may be written to them.
            return self._wrap(func(*args, **kwargs))
        name = func.overloadpacket.__name__
        if name not in FACTORS and any(s.factored_matrix is not None for s in symbols):
            what = f"aten::{name} of the factors of a matrix, or of its pivots"
            raise self.unsupported_error(what, "linalg.lu_solve")
        if func._schema.is_mutable:
            return self._run_in_place(func, name, args, kwargs)
        # Views of a tensor that may be written to later stay views.
        if name in DATA_MOVEMENT:
            return self._run_data_movement(func, name, args, kwargs)
        numbers = [self.read_constants(s) for s in symbols]
        # Factors of constants may be combined with right sides that are not constant.
        factors = name == "linalg_lu_factor_ex" or any(s.factored_matrix is not None for s in symbols)
        if not factors and all(n is not None for n in numbers):
            constants = {id(s): n for s, n in zip(symbols, numbers, strict=True)}
            plain_args = pytree.tree_map(
                lambda v: constants[id(v)] if isinstance(v, SymbolicTensor) else v, (args, kwargs)
            )
            return self._wrap(func(*plain_args[0], **plain_args[1]))
        rule = RULES.get(name)
        if rule is not None:
            return rule(OperatorCall(self, func, args, kwargs))
        if func in decomposition_table:
            with self:
                return decomposition_table[func](*args, **kwargs)
        if has_dispatch_kernel(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **kwargs)
        raise self.unsupported_error(f"aten::{name}")

    def unsupported_error(
        self, what: str, expected: str = "an operator that has a rule in exporter/backends/c_kernel/rules"
    ) -> Exception:
        """Return the ``UnsupportedError`` for an operator that has no form in a kernel."""
        where, mend = self.graph.origin, "use the .pt, or rewrite the model with other operators"
        summary = "an operator has no form in a kernel"
        return UnsupportedError(summary, check="kernel", where=where, got=what, expected=expected, mend=mend)

    def _wrap(self, result: Any) -> Any:
        return pytree.tree_map(lambda v: self.to_symbol(v) if isinstance(v, torch.Tensor) else v, result)

    def _run_data_movement(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        indices = {"index": 1, "index_select": 2, "gather": 2}
        if name in indices:
            position = indices[name]
            operands = list(args)
            if not isinstance(operands[0], SymbolicTensor):
                operands[0] = self.to_symbol(operands[0])
            constant_indices, has_unknown = self._read_indices(operands[position])
            if has_unknown:
                return RULES[name](OperatorCall(self, func, operands, kwargs))
            operands[position], args = constant_indices, operands
            result = func(args[0].ids, *args[1:], **kwargs)
            return SymbolicTensor(self._cast_filled_zeros(result, args[0].dtype), args[0].dtype)
        tensors = [v for v in pytree.tree_flatten((args, kwargs))[0] if isinstance(v, torch.Tensor)]
        dtype = tensors[0].dtype
        for tensor in tensors[1:]:
            dtype = torch.promote_types(dtype, tensor.dtype)
        if kwargs.get("dtype"):
            dtype = kwargs["dtype"]
        to_ids = lambda v: self.cast(self.to_symbol(v), dtype).ids if isinstance(v, torch.Tensor) else v  # noqa: E731
        if any(isinstance(v, SymbolicTensor) and v.factored_matrix is not None for v in tensors):
            return tensors[0]
        plain_kwargs = {k: v for k, v in kwargs.items() if k not in ("dtype", "memory_format")}
        id_args, id_kwargs = pytree.tree_map(to_ids, (args, plain_kwargs))
        if name == "constant_pad_nd":
            value = torch.tensor(args[2] if len(args) > 2 else 0, dtype=dtype).item()
            filled = self.graph.add_constant(value, get_dtype_name(dtype, self.graph.origin))
            return SymbolicTensor(func(*id_args[:2], filled), dtype)
        if name in ("clone", "contiguous"):
            layout = torch.contiguous_format if name == "contiguous" else torch.preserve_format
            return SymbolicTensor(id_args[0].clone(memory_format=kwargs.get("memory_format") or layout), dtype)
        if name in ("zeros_like", "new_zeros") or "_like" in name:
            return self.to_symbol(func(torch.empty_like(id_args[0], dtype=dtype), *id_args[1:], **kwargs))

        def wrap(value: Any) -> Any:
            is_tensor = isinstance(value, torch.Tensor)
            return SymbolicTensor(self._cast_filled_zeros(value, dtype), dtype) if is_tensor else value

        return pytree.tree_map(wrap, func(*id_args, **id_kwargs))

    def _cast_filled_zeros(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Put zeros of the right dtype in the place of node 0, where data movement has filled in some."""
        dtype_name = get_dtype_name(dtype, self.graph.origin)
        if dtype_name == self.graph[0].dtype or not bool((ids == 0).any()):
            return ids
        return torch.where(ids == 0, self.graph.add_constant(0, dtype_name), ids)

    def _read_indices(self, indices: Any) -> tuple[Any, bool]:
        """Return the numbers of index tensors, and whether some are not constant."""
        several = isinstance(indices, (list, tuple))
        values = []
        for index in indices if several else [indices]:
            value = self.read_constants(index) if isinstance(index, SymbolicTensor) else index
            if index is not None and value is None:
                return None, True
            values.append(value)
        return (values if several else values[0]), False

    def _run_in_place(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Run an in-place operator: the nodes of its result replace the tensor's."""
        target = args[0]
        if not isinstance(target, SymbolicTensor) or not name.endswith("_") or kwargs.get("out") is not None:
            raise self.unsupported_error(f"aten::{name}", "an operator that writes to a tensor of the graph")
        if torch.Tag.inplace_view in func.tags and name.removesuffix("_") in DATA_MOVEMENT:
            # It changes the shape alone, and whoever called it goes on with this very tensor.
            func(target.ids, *args[1:], **kwargs)
            with DisableTorchDispatch():
                func(target, *args[1:], **kwargs)
            return target
        if name == "copy_":
            result = self.to_symbol(args[1])
        elif name in ("zero_", "fill_"):
            value = 0 if name == "zero_" else args[1]
            is_tensor = isinstance(value, torch.Tensor)
            result = self.to_symbol(value if is_tensor else torch.tensor(value, dtype=target.dtype))
        else:
            plain = getattr(torch.ops.aten, name.removesuffix("_"), None)
            if plain is None:
                raise self.unsupported_error(f"aten::{name}")
            with self:
                result = plain(*args, **kwargs)
        target.ids.copy_(self.cast(result, target.dtype).ids.expand(target.ids.shape))
        return target
