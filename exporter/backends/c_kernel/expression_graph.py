"""Scalar expressions in static single assignment, each there once (hash-consing: Filliâtre and Conchon, "Type-safe
modular hash-consing", 2006).

A term is a number: an operation on earlier terms. What stands for several numbers (a factorised matrix, the solution of
a linear system, a Newton loop, a loop over directions) is a term too, whose numbers are ``pick``s of it.
Simplifications hold for every IEEE number, signed zeros, infinities and NaN among them; with ``finite_math`` those too
that hold for finite ones.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from exporter.common.errors import UnsupportedError

# Kinds of numbers, as torch has them.
F64, F32, I64, I32, BOOL = "float64", "float32", "int64", "int32", "bool"
KINDS = (F64, F32, I64, I32, BOOL)
REAL = (F64, F32)
COMMUTATIVE = {"add", "mul", "eq", "ne", "and", "or", "xor"}
# Terms of several numbers.
LU, SOLVED, NEWTON, COLUMNS = "lu", "solved", "newton", "columns"
MIXED = "mixed"
SEVERAL = (LU, SOLVED, NEWTON, COLUMNS)
# A number of a table at a place, and how many of one are below a number: the table is the arguments after the first.
READ, SEARCHED = "read", "searched"
TABLES = (READ, SEARCHED)
# More terms than this take torch's operators minutes to write down, and a compiler longer.
MOST = 400_000


@dataclass(frozen=True)
class Term:
    """``extra`` is what the operation has beside its arguments: the value of a constant, the place of a pick."""

    op: str
    args: tuple[int, ...]
    extra: tuple[Any, ...]
    kind: str


def too_big(where: str, got: str, expected: str) -> UnsupportedError:
    return UnsupportedError(
        "the model is too big for a kernel",
        check="kernel",
        where=where,
        got=got,
        expected=expected,
        mend="use the .pt, or ask for fewer derivatives (--derivative OUT:IN, --jvp)",
    )


class Terms:
    """A table of terms. ``rows`` says for each of which element of the batch it speaks (a bit each), ``origins`` where
    in the model it came from; ``loops`` for each which loops' own leaves it depends on (a bit each)."""

    def __init__(self, *, finite_math: bool = False) -> None:
        self.finite_math = finite_math
        self.terms: list[Term] = []
        self.rows: list[int] = []
        self.loops: list[int] = []
        self.origins: list[str] = []
        self.origin = ""
        self._loops = 0
        self._known: dict[tuple[object, ...], int] = {}
        # Data movement fills with zeros: their number is 0.
        self.constant(0.0, F64)

    def __getitem__(self, index: int) -> Term:
        return self.terms[index]

    def __len__(self) -> int:
        return len(self.terms)

    def loop(self) -> int:
        """A new one: its bit in ``loops``."""
        self._loops += 1
        return self._loops - 1

    def leaf(self, name: str, place: int, kind: str, rows: int = 0, loop: int = 0) -> int:
        """A number from outside: ``place`` in the flattened variable ``name`` of the element ``rows``."""
        return self._made(Term("leaf", (), (name, place, rows), kind), rows, loop)

    def constant(self, value: float | int | bool, kind: str) -> int:
        if kind in REAL:
            bits = struct.pack("d", value)
            return self._made(Term("const", (), (float(value),), kind), 0, 0, bits)
        return self._made(Term("const", (), (int(value),), kind), 0, 0, b"")

    def value(self, index: int) -> Any:
        """Of a constant."""
        term = self.terms[index]
        return term.extra[0] if term.op == "const" else None

    def make(self, op: str, args: Sequence[int], kind: str, extra: tuple[object, ...] = ()) -> int:
        """Raises ``UnsupportedError`` where one term would speak of two elements of the batch."""
        args = tuple(args)
        if kind == BOOL:
            op = {"add": "or", "mul": "and", "max": "or", "min": "and"}.get(op, op)
        found = self._simpler(op, args, kind, extra)
        if found is not None:
            return found
        if op in COMMUTATIVE and args[0] > args[1]:
            args = (args[1], args[0])
        rows = loops = 0
        for i in args:
            rows |= self.rows[i]
            loops |= self.loops[i]
        if rows & (rows - 1) or any(self.terms[i].op == MIXED for i in args):
            self.refuse_mixed(op)
        return self._made(Term(op, args, extra, kind), rows, loops)

    def picks(self, op: str, args: Sequence[int], extra: tuple[object, ...], kinds: Iterable[str]) -> list[int]:
        """The numbers of a term that has several, one of each kind."""
        whole = self.make(op, args, F64, extra)
        return [self.make("pick", (whole,), kind, (place,)) for place, kind in enumerate(kinds)]

    def _made(self, term: Term, rows: int, loops: int, bits: bytes = b"") -> int:
        key = (term.op, term.args, bits or term.extra, term.kind)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.terms)
            if found >= MOST:
                raise too_big(self.origin, f"more than {MOST} scalar operations", "a model of small tensors")
            self.terms.append(term)
            self.rows.append(rows)
            self.loops.append(loops)
            self.origins.append(self.origin)
        return found

    def mixed(self, op: str) -> int:
        """What speaks of several elements, and may decide over an error, which a kernel does not raise: of no use in
        any term."""
        return self._made(Term(MIXED, (), (op,), BOOL), 0, 0)

    def refuse_mixed(self, op: str) -> NoReturn:
        raise UnsupportedError(
            "an operation mixes elements of the batch",
            check="kernel",
            where=self.origin,
            got=f"{op} of numbers of two elements",
            expected="elements that do not see each other",
            mend="use the .pt: a kernel is a loop over elements",
        )

    def _simpler(self, op: str, args: tuple[int, ...], kind: str, extra: tuple[object, ...]) -> int | None:
        values = [self.value(i) for i in args]
        if op in ("leaf", "pick") or op in SEVERAL:
            return None
        if args and all(v is not None for v in values):
            found = folded(op, values, kind, [self.terms[i].kind for i in args])
            if found is not None:
                return self.constant(found, kind)
        if op == "cast":
            return args[0] if self.terms[args[0]].kind == kind else None
        if op == "where":
            return self._chosen(args, values[0])
        if op == "neg":
            inner = self.terms[args[0]]
            return inner.args[0] if inner.op == "neg" else None
        if kind in REAL and op in ("add", "sub", "mul", "div"):
            return self._arithmetic(op, args, values, kind)
        if kind == BOOL and op in ("and", "or"):
            for value, other in ((values[0], args[1]), (values[1], args[0])):
                if value is not None:
                    return other if bool(value) is (op == "and") else self.constant(op == "or", BOOL)
            return args[0] if args[0] == args[1] else None
        return None

    def _chosen(self, args: tuple[int, ...], condition: Any) -> int | None:
        if condition is not None:
            return args[1] if condition else args[2]
        return args[1] if args[1] == args[2] else None

    def _arithmetic(self, op: str, args: tuple[int, ...], values: Sequence[Any], kind: str) -> int | None:
        """``x * 1``, ``x / 1``, ``x - 0`` and ``x + -0`` are ``x`` for every number, ``x * -1`` its negative."""
        left, right = values
        first, second = args
        if op in ("mul", "div") and right == 1.0:
            return first
        if op == "mul" and left == 1.0:
            return second
        if op in ("mul", "div") and right == -1.0:
            return self.make("neg", (first,), kind)
        if op == "mul" and left == -1.0:
            return self.make("neg", (second,), kind)
        if op == "sub" and right == 0.0 and math.copysign(1.0, right) > 0:
            return first
        if op == "add":
            for value, other in ((left, second), (right, first)):
                if value == 0.0 and (self.finite_math or math.copysign(1.0, value) < 0):
                    return other
        if op == "add" and self.terms[second].op == "neg":
            return self.make("sub", (first, self.terms[second].args[0]), kind)
        if op == "sub" and self.terms[second].op == "neg":
            return self.make("add", (first, self.terms[second].args[0]), kind)
        if not self.finite_math:
            return None
        if op == "sub" and (left == 0.0 or right == 0.0):
            return self.make("neg", (second,), kind) if left == 0.0 else first
        if op == "mul" and 0.0 in (left, right):
            return self.constant(0.0, kind)
        return self.constant(0.0, kind) if op == "div" and left == 0.0 else None


_ALONE = {name: getattr(torch, name) for name in (
    "sqrt", "exp", "log", "sin", "cos", "tan", "tanh", "sinh", "cosh", "asin", "acos", "atan", "abs", "neg", "floor",
    "ceil", "trunc", "round", "sign", "log2", "log10", "log1p", "expm1", "erf", "erfc", "asinh", "acosh", "atanh",
)}  # fmt: skip
_PAIRS = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "lt": torch.lt,
    "le": torch.le,
    "eq": torch.eq,
    "ne": torch.ne,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "xor": torch.logical_xor,
    "max": torch.maximum,
    "min": torch.minimum,
}


def folded(op: str, values: Sequence[float | int], kind: str, kinds: Sequence[str]) -> float | int | None:
    """What torch makes of constants; None where it is left to the run."""
    given = [torch.tensor(v, dtype=getattr(torch, k)) for v, k in zip(values, kinds, strict=True)]
    dtype = getattr(torch, kind)
    if op == "cast":
        return given[0].to(dtype).item()
    if op == "not":
        return not values[0]
    run = _ALONE.get(op) or _PAIRS.get(op)
    if run is None or (op == "neg" and kinds[0] == BOOL):
        return None
    return run(*given).to(dtype).item()
