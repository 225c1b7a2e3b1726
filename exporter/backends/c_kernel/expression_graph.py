"""Scalar expressions in static single assignment, each stored once (hash-consing: Filliâtre and Conchon, "Type-safe
modular hash-consing", 2006).

A node is an operation on earlier nodes; its index stands for it. An operation with several results (a factorised
matrix, the solution of a linear system, a Newton loop, a loop over directions) is a node too, whose numbers are
``pick``s of it. Simplifications hold for every IEEE number, signed zeros, infinities and NaN among them; with
``finite_math`` also those that hold for finite ones."""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Union

import torch

from exporter.common.errors import UnsupportedError

# Names of torch's dtypes.
F64, F32, I64, I32, BOOL = "float64", "float32", "int64", "int32", "bool"
DTYPES = (F64, F32, I64, I32, BOOL)
REAL = (F64, F32)
COMMUTATIVE = {"add", "mul", "eq", "ne", "and", "or", "xor"}
# Operations with several results.
LU, SOLVED, NEWTON, COLUMNS = "lu", "solved", "newton", "columns"
MIXED = "mixed"
SEVERAL = (LU, SOLVED, NEWTON, COLUMNS)
# The number of a table at an index, and the count of those below a number: the table is the arguments after the first.
READ, SEARCHED = "read", "searched"
TABLES = (READ, SEARCHED)
# Leaves of parameters have this before their name; inputs go by their own names.
PARAMETER = "parameter:"
# More nodes than this take minutes to lower, and a compiler longer.
MOST = 400_000
Operand = Union["Expr", float, int]
# Takes and returns expressions.
Formula = Callable[..., "Expr"]


@dataclass(frozen=True)
class ExprNode:
    """Expression node: ``extra`` is the value of a constant, the index of a pick, or the like."""

    op: str
    args: tuple[int, ...]
    extra: tuple[Any, ...]
    dtype: str


def leaf_name(parameter: str) -> str:
    """Return the leaf name of a parameter."""
    return PARAMETER + parameter


def too_big_error(where: str, got: str, expected: str) -> UnsupportedError:
    """Return the error for a model that is too big for a kernel."""
    what = "the model is too big for a kernel"
    mend = "use the .pt, or ask for fewer derivatives (--derivative OUT:IN, --jvp)"
    return UnsupportedError(what, check="kernel", where=where, got=got, expected=expected, mend=mend)


class ExprGraph:
    """Graph of expression nodes. Per node, ``batch_rows`` has a bit for each element of the batch that it depends on,
    ``loops`` one for each loop whose own leaves it depends on, and ``origins`` its place in the model."""

    def __init__(self, *, finite_math: bool = False) -> None:
        self.finite_math = finite_math
        self.nodes: list[ExprNode] = []
        self.batch_rows: list[int] = []
        self.loops: list[int] = []
        self.origins: list[str] = []
        self.origin = ""
        self._loop_count = 0
        self._indices: dict[tuple[object, ...], int] = {}
        # Data movement fills with zeros: node 0 is one.
        self.add_constant(0.0, F64)

    def __getitem__(self, index: int) -> ExprNode:
        return self.nodes[index]

    def __len__(self) -> int:
        return len(self.nodes)

    def new_loop(self) -> int:
        """Return the number of a new loop: its bit in ``loops``."""
        self._loop_count += 1
        return self._loop_count - 1

    def add_leaf(self, name: str, index: int, dtype: str, batch_rows: int = 0, loop: int = 0) -> int:
        """Add a number from outside: ``index`` in the flattened variable ``name`` of the element ``batch_rows``."""
        return self._intern(ExprNode("leaf", (), (name, index, batch_rows), dtype), batch_rows, loop)

    def add_constant(self, value: float | int | bool, dtype: str) -> int:
        """Add a constant."""
        if dtype in REAL:
            bits = struct.pack("d", value)
            return self._intern(ExprNode("const", (), (float(value),), dtype), 0, 0, bits)
        return self._intern(ExprNode("const", (), (int(value),), dtype), 0, 0, b"")

    def constant_value(self, index: int) -> Any:
        """Return the value of a constant, and None for other nodes."""
        node = self.nodes[index]
        return node.extra[0] if node.op == "const" else None

    def add(self, op: str, args: Sequence[int], dtype: str, extra: tuple[object, ...] = ()) -> int:
        """Add an operation, simplified; one that mixes two elements of the batch, or such a result, is unusable."""
        args = tuple(args)
        if dtype == BOOL:
            op = {"add": "or", "mul": "and", "max": "or", "min": "and"}.get(op, op)
        simplified = self._simplify(op, args, dtype, extra)
        if simplified is not None:
            return simplified
        if op in COMMUTATIVE and args[0] > args[1]:
            args = (args[1], args[0])
        batch_rows = loops = 0
        for i in args:
            batch_rows |= self.batch_rows[i]
            loops |= self.loops[i]
        mixed = next((i for i in args if self.nodes[i].op == MIXED), None)
        if mixed is not None:
            return self._intern(dataclasses.replace(self.nodes[mixed], dtype=dtype), 0, 0)
        if batch_rows & (batch_rows - 1):
            return self.add_mixed(op, dtype)
        return self._intern(ExprNode(op, args, extra, dtype), batch_rows, loops)

    def unpack(self, op: str, args: Sequence[int], extra: tuple[object, ...], dtypes: Iterable[str]) -> list[int]:
        """Add an operation with several results and return its picks, one for each of ``dtypes``."""
        node = self.add(op, args, F64, extra)
        return [self.add("pick", (node,), dtype, (index,)) for index, dtype in enumerate(dtypes)]

    def _intern(self, node: ExprNode, batch_rows: int, loops: int, bits: bytes = b"") -> int:
        key = (node.op, node.args, bits or node.extra, node.dtype)
        index = self._indices.get(key)
        if index is None:
            index = self._indices[key] = len(self.nodes)
            if index >= MOST:
                raise too_big_error(self.origin, f"more than {MOST} scalar operations", "a model of small tensors")
            self.nodes.append(node)
            self.batch_rows.append(batch_rows)
            self.loops.append(loops)
            self.origins.append(self.origin)
        return index

    def add_mixed(self, op: str, dtype: str = BOOL) -> int:
        """Add a node of several elements, whose value no kernel knows.

        It may decide over an error, which a kernel never raises, or only its shape may matter: the backward pass of a
        sum over the batch begins with ones in the shape of that sum."""
        return self._intern(ExprNode(MIXED, (), (op, self.origin), dtype), 0, 0)

    def check_unmixed(self, indices: Iterable[int]) -> None:
        """Raise ``UnsupportedError`` if one of these nodes mixes elements of the batch."""
        mixed = next((self.nodes[i] for i in indices if self.nodes[i].op == MIXED), None)
        if mixed is None:
            return
        op, where = mixed.extra
        what, got = "an operation mixes elements of the batch", f"{op} of numbers from two elements"
        expected, mend = "elements that do not see each other", "use the .pt: a kernel is a loop over elements"
        raise UnsupportedError(what, check="kernel", where=str(where), got=got, expected=expected, mend=mend)

    def _simplify(self, op: str, args: tuple[int, ...], dtype: str, extra: tuple[object, ...]) -> int | None:
        values = [self.constant_value(i) for i in args]
        if op in ("leaf", "pick") or op in SEVERAL:
            return None
        if args and all(v is not None for v in values):
            constant = fold_constants(op, values, dtype, [self.nodes[i].dtype for i in args])
            if constant is not None:
                return self.add_constant(constant, dtype)
        if op == "cast":
            return args[0] if self.nodes[args[0]].dtype == dtype else None
        if op == "where":
            return self._simplify_where(args, values[0])
        if op == "neg":
            inner = self.nodes[args[0]]
            return inner.args[0] if inner.op == "neg" else None
        if dtype in REAL and op in ("add", "sub", "mul", "div"):
            return self._simplify_arithmetic(op, args, values, dtype)
        if dtype == BOOL and op in ("and", "or"):
            for value, operand in ((values[0], args[1]), (values[1], args[0])):
                if value is not None:
                    return operand if bool(value) is (op == "and") else self.add_constant(op == "or", BOOL)
            return args[0] if args[0] == args[1] else None
        return None

    def _simplify_where(self, args: tuple[int, ...], condition: Any) -> int | None:
        if condition is not None:
            return args[1] if condition else args[2]
        return args[1] if args[1] == args[2] else None

    def _simplify_arithmetic(self, op: str, args: tuple[int, ...], values: Sequence[Any], dtype: str) -> int | None:
        """Simplify: ``x * 1``, ``x / 1``, ``x - 0``, ``x + -0`` are ``x`` for every number, ``x * -1`` its negative."""
        left, right = values
        first, second = args
        if op in ("mul", "div") and right == 1.0:
            return first
        if op == "mul" and left == 1.0:
            return second
        if op in ("mul", "div") and right == -1.0:
            return self.add("neg", (first,), dtype)
        if op == "mul" and left == -1.0:
            return self.add("neg", (second,), dtype)
        if op == "sub" and right == 0.0 and math.copysign(1.0, right) > 0:
            return first
        if op == "add":
            for value, operand in ((left, second), (right, first)):
                if value == 0.0 and (self.finite_math or math.copysign(1.0, value) < 0):
                    return operand
        if op == "add" and self.nodes[second].op == "neg":
            return self.add("sub", (first, self.nodes[second].args[0]), dtype)
        if op == "sub" and self.nodes[second].op == "neg":
            return self.add("add", (first, self.nodes[second].args[0]), dtype)
        if not self.finite_math:
            return None
        if op == "sub" and (left == 0.0 or right == 0.0):
            return self.add("neg", (second,), dtype) if left == 0.0 else first
        if op == "mul" and 0.0 in (left, right):
            return self.add_constant(0.0, dtype)
        return self.add_constant(0.0, dtype) if op == "div" and left == 0.0 else None


_UNARY = {name: getattr(torch, name) for name in (
    "sqrt", "exp", "log", "sin", "cos", "tan", "tanh", "sinh", "cosh", "asin", "acos", "atan", "abs", "neg", "floor",
    "ceil", "trunc", "round", "sign", "log2", "log10", "log1p", "expm1", "erf", "erfc", "asinh", "acosh", "atanh",
)}  # fmt: skip
_BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow, "atan2": torch.atan2,
    "lt": torch.lt, "le": torch.le, "eq": torch.eq, "ne": torch.ne, "max": torch.maximum, "min": torch.minimum,
    "and": torch.logical_and, "or": torch.logical_or, "xor": torch.logical_xor,
}  # fmt: skip


def fold_constants(op: str, values: Sequence[float | int], dtype_name: str, dtype_names: Sequence[str]) -> float | None:
    """Return torch's result of an operation on constants; None where it is left to the run."""
    tensors = [torch.tensor(v, dtype=getattr(torch, k)) for v, k in zip(values, dtype_names, strict=True)]
    dtype = getattr(torch, dtype_name)
    if op == "cast":
        return tensors[0].to(dtype).item()
    if op == "not":
        return not values[0]
    run = _UNARY.get(op) or _BINARY.get(op)
    if run is None or (op == "neg" and dtype_names[0] == BOOL):
        return None
    return run(*tensors).to(dtype).item()


@dataclass(frozen=True, eq=False)
class Expr:
    """A node with Python's operators, so that a rule reads as its formula: ``x / (1 + x * x)``. A plain number beside
    it is a constant of its dtype."""

    graph: ExprGraph
    index: int

    @property
    def dtype(self) -> str:
        return self.graph[self.index].dtype

    @property
    def constant(self) -> Any:
        """Return the value of a constant, and None for other nodes."""
        return self.graph.constant_value(self.index)

    def apply(self, op: str, *others: Operand, dtype: str = "", extra: tuple[object, ...] = ()) -> Expr:
        """Return an operation on this node and others, by default of its dtype."""
        args = (self.index, *(self.match(other).index for other in others))
        return Expr(self.graph, self.graph.add(op, args, dtype or self.dtype, extra))

    def match(self, value: Operand) -> Expr:
        """Return a node as it is, and a number as a constant of this node's dtype."""
        return value if isinstance(value, Expr) else Expr(self.graph, self.graph.add_constant(value, self.dtype))

    def cast(self, dtype: str) -> Expr:
        return self.apply("cast", dtype=dtype)

    def equals(self, other: Operand) -> Expr:
        return self.apply("eq", other, dtype=BOOL)

    def __add__(self, other: Operand) -> Expr:
        return self.apply("add", other)

    def __radd__(self, other: Operand) -> Expr:
        return self.match(other) + self

    def __sub__(self, other: Operand) -> Expr:
        return self.apply("sub", other)

    def __rsub__(self, other: Operand) -> Expr:
        return self.match(other) - self

    def __mul__(self, other: Operand) -> Expr:
        return self.apply("mul", other)

    def __rmul__(self, other: Operand) -> Expr:
        return self.match(other) * self

    def __truediv__(self, other: Operand) -> Expr:
        return self.apply("div", other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return self.match(other) / self

    def __pow__(self, other: Operand) -> Expr:
        return self.apply("pow", other)

    def __neg__(self) -> Expr:
        return self.apply("neg")

    def __lt__(self, other: Operand) -> Expr:
        return self.apply("lt", other, dtype=BOOL)

    def __le__(self, other: Operand) -> Expr:
        return self.apply("le", other, dtype=BOOL)

    def __gt__(self, other: Operand) -> Expr:
        return self.match(other) < self

    def __ge__(self, other: Operand) -> Expr:
        return self.match(other) <= self

    def __and__(self, other: Expr) -> Expr:
        return self.apply("and", other, dtype=BOOL)


def where(condition: Expr, first: Operand, second: Operand) -> Expr:
    """Return ``first`` where the condition holds, else ``second``; at least one of both is a node."""
    example = first if isinstance(first, Expr) else second
    assert isinstance(example, Expr)
    first, second = example.match(first), example.match(second)
    return condition.apply("where", first, second, dtype=example.dtype)


def sqrt(x: Expr) -> Expr:
    """Return the square root."""
    return x.apply("sqrt")


def exp(x: Expr) -> Expr:
    """Return the exponential."""
    return x.apply("exp")


def log(x: Expr) -> Expr:
    """Return the natural logarithm."""
    return x.apply("log")
