"""Tensors of terms: torch's operators, run on them, write down scalar expressions.

What only moves numbers (views, stack, gather, index, permute, ...) is run by torch itself on the integer tensor of the
terms; what computes has a rule in ``rules``; what torch composes of others is decomposed by torch. Operations on
constants alone are torch's own, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from exporter.backends.c_kernel.expression_graph import KINDS, Terms
from exporter.backends.c_kernel.registry import RULES
from exporter.common.errors import UnsupportedError

# Run on the terms; a number that they fill in is zero, which is term 0.
MOVED = {
    "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "select", "slice", "unsqueeze", "squeeze",
    "stack", "cat", "unbind", "split", "split_with_sizes", "clone", "detach", "alias", "lift_fresh", "lift_fresh_copy",
    "diagonal", "diag_embed", "tril", "triu", "slice_backward", "select_backward", "diagonal_backward", "roll", "flip",
    "repeat", "as_strided", "index", "index_select", "gather", "movedim", "unfold", "contiguous", "broadcast_tensors",
    "constant_pad_nd", "slice_scatter", "select_scatter", "_reshape_alias", "view_copy", "expand_copy", "squeeze_copy",
    "unsqueeze_copy", "select_copy", "slice_copy", "permute_copy", "transpose_copy", "t_copy", "detach_copy",
    "alias_copy", "narrow_copy", "_reshape_copy", "diagonal_copy", "unbind_copy", "narrow", "zeros_like", "new_zeros",
    "diagonal_scatter",
}  # fmt: skip

# What takes the factors of a matrix, and its pivots.
FACTORS = {"clone", "detach", "alias", "linalg_lu_solve"}


class Symbol(torch.Tensor):
    """A tensor whose numbers are terms: ``ids``. ``factorised``: those of the matrix whose LU factors, or pivots, it
    is, which are no terms."""

    ids: torch.Tensor
    factorised: torch.Tensor | None

    @staticmethod
    def __new__(cls, ids: torch.Tensor, dtype: torch.dtype) -> Symbol:
        made = torch.Tensor._make_wrapper_subclass(cls, ids.shape, strides=ids.stride(), dtype=dtype)  # pyright: ignore[reportAttributeAccessIssue]
        made.ids, made.factorised = ids, None
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Symbol({list(self.ids.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} is run outside of its lowering")


def kind_of(dtype: torch.dtype, where: str = "") -> str:
    """Raises ``UnsupportedError`` for numbers that a kernel does not have."""
    name = str(dtype).removeprefix("torch.")
    if name not in KINDS:
        raise UnsupportedError(
            "a kernel has no numbers of this type",
            check="kernel",
            where=where,
            got=name,
            expected=", ".join(KINDS),
            mend="use the .pt",
        )
    return name


class Lowering(TorchDispatchMode):
    """While it lasts, torch's operators on tensors are written down in ``terms``."""

    def __init__(self, terms: Terms) -> None:
        super().__init__()
        self.terms = terms

    def symbol(self, value: torch.Tensor) -> Symbol:
        """Constants as terms."""
        if isinstance(value, Symbol):
            return value
        kind = kind_of(value.dtype, self.terms.origin)
        numbers = [self.terms.constant(v, kind) for v in value.detach().reshape(-1).tolist()]
        return Symbol(torch.tensor(numbers, dtype=torch.int64).reshape(value.shape), value.dtype)

    def leaves(self, name: str, shape: Sequence[int], dtype: torch.dtype, rows: int = 0, loop: int = 0) -> torch.Tensor:
        """The terms of a variable, of one element of the batch."""
        kind = kind_of(dtype, name)
        count = torch.Size(shape).numel()
        found = [self.terms.leaf(name, i, kind, rows, loop) for i in range(count)]
        return torch.tensor(found, dtype=torch.int64).reshape(tuple(shape))

    def constants(self, symbol: Symbol) -> torch.Tensor | None:
        """The numbers, where all of them are known."""
        if symbol.factorised is not None:
            return None
        values = [self.terms.value(i) for i in symbol.ids.reshape(-1).tolist()]
        if any(v is None for v in values):
            return None
        return torch.tensor(values, dtype=symbol.dtype).reshape(symbol.ids.shape)

    def cast(self, symbol: Symbol, dtype: torch.dtype) -> Symbol:
        if symbol.dtype == dtype:
            return symbol
        kind = kind_of(dtype, self.terms.origin)
        return self.each(lambda i: self.terms.make("cast", (i,), kind), dtype, symbol)

    def each(self, function: Callable[..., int], dtype: torch.dtype, *symbols: Symbol) -> Symbol:
        """Element by element, with broadcasting."""
        ids = torch.broadcast_tensors(*(s.ids for s in symbols))
        lists = [i.reshape(-1).tolist() for i in ids]
        found = [function(*one) for one in zip(*lists, strict=True)]
        return Symbol(torch.tensor(found, dtype=torch.int64).reshape(ids[0].shape), dtype)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        flat, _ = tree_flatten((args, kwargs))
        symbols = [v for v in flat if isinstance(v, Symbol)]
        if not symbols:
            return self._made(func, args, kwargs)
        name = func.overloadpacket.__name__
        if name not in FACTORS and any(s.factorised is not None for s in symbols):
            raise self.refused(f"aten::{name} of the factors of a matrix, or of its pivots", "linalg.lu_solve")
        if func._schema.is_mutable:
            return self._written(func, name, args, kwargs)
        # Views of what may be written to later stay views.
        if name in MOVED:
            return self._moved(func, name, args, kwargs)
        numbers = [self.constants(s) for s in symbols]
        # Factors of constants are to be read with others that are not.
        factors = name == "linalg_lu_factor_ex" or any(s.factorised is not None for s in symbols)
        if not factors and all(n is not None for n in numbers):
            known = {id(s): n for s, n in zip(symbols, numbers, strict=True)}
            given = tree_map(lambda v: known[id(v)] if isinstance(v, Symbol) else v, (args, kwargs))
            return self._wrapped(func(*given[0], **given[1]))
        rule = RULES.get(name)
        if rule is not None:
            return rule(self, func, args, kwargs)
        if func in decomposition_table:
            with self:
                return decomposition_table[func](*args, **kwargs)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **kwargs)
        raise self.refused(f"aten::{name}")

    def refused(
        self, what: str, expected: str = "an operator that has a rule in exporter/backends/c_kernel/rules"
    ) -> Exception:
        return UnsupportedError(
            "an operator has no form in a kernel",
            check="kernel",
            where=self.terms.origin,
            got=what,
            expected=expected,
            mend="use the .pt, or write it with other operators",
        )

    def _wrapped(self, found: Any) -> Any:
        return tree_map(lambda v: self.symbol(v) if isinstance(v, torch.Tensor) else v, found)

    def _made(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Of no tensors, or of constants that are held: everything that comes of it may be written to with terms."""
        return self._wrapped(func(*args, **kwargs))

    def _moved(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        indices = {"index": 1, "index_select": 2, "gather": 2}
        if name in indices:
            at = indices[name]
            whole = list(args)
            if not isinstance(whole[0], Symbol):
                whole[0] = self.symbol(whole[0])
            known, open_ = self._indices(whole[at])
            if open_:
                return RULES[name](self, func, whole, kwargs)
            whole[at], args = known, whole
            found = func(args[0].ids, *args[1:], **kwargs)
            return Symbol(self._typed(found, args[0].dtype), args[0].dtype)
        if name == "constant_pad_nd" and (args[2] if len(args) > 2 else kwargs.get("value", 0)) != 0:
            raise self.refused("aten::constant_pad_nd with another value than 0", "zeros, and torch.where or cat")
        tensors = [v for v in tree_flatten((args, kwargs))[0] if isinstance(v, torch.Tensor)]
        dtype = tensors[0].dtype
        for one in tensors[1:]:
            dtype = torch.promote_types(dtype, one.dtype)
        if kwargs.get("dtype"):
            dtype = kwargs["dtype"]
        moved = lambda v: self.cast(self.symbol(v), dtype).ids if isinstance(v, torch.Tensor) else v  # noqa: E731
        if any(isinstance(v, Symbol) and v.factorised is not None for v in tensors):
            return tensors[0]
        given, named = tree_map(moved, (args, {k: v for k, v in kwargs.items() if k not in ("dtype", "memory_format")}))
        if name in ("clone", "contiguous"):
            return Symbol(given[0].clone(), dtype)
        if name in ("zeros_like", "new_zeros") or "_like" in name:
            return self.symbol(func(torch.empty_like(given[0], dtype=dtype), *given[1:], **kwargs))
        found = func(*given, **named)
        return tree_map(lambda v: Symbol(self._typed(v, dtype), dtype) if isinstance(v, torch.Tensor) else v, found)

    def _typed(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """With zeros of the right kind in the place of term 0, where data movement has filled in some."""
        kind = kind_of(dtype, self.terms.origin)
        if kind == self.terms[0].kind or not bool((ids == 0).any()):
            return ids
        return torch.where(ids == 0, self.terms.constant(0, kind), ids)

    def _indices(self, given: Any) -> tuple[Any, bool]:
        """The numbers of index tensors, and whether some are not known."""
        several = isinstance(given, (list, tuple))
        found = []
        for one in given if several else [given]:
            value = self.constants(one) if isinstance(one, Symbol) else one
            if one is not None and value is None:
                return None, True
            found.append(value)
        return (found if several else found[0]), False

    def _written(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """In-place operators: what they compute is written where the tensor's terms stand."""
        target = args[0]
        if not isinstance(target, Symbol) or not name.endswith("_") or kwargs.get("out") is not None:
            raise self.refused(f"aten::{name}", "an operator that writes to a tensor of the graph")
        if name == "copy_":
            found = self.symbol(args[1])
        elif name in ("zero_", "fill_"):
            value = 0 if name == "zero_" else args[1]
            found = self.symbol(value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=target.dtype))
        else:
            plain = getattr(torch.ops.aten, name.removesuffix("_"), None)
            if plain is None:
                raise self.refused(f"aten::{name}")
            with self:
                found = plain(*args, **kwargs)
        target.ids.copy_(self.cast(found, target.dtype).ids.expand(target.ids.shape))
        return target
