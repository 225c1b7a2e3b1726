"""An expression node as C text, from the names of its arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence

from exporter.backends.c_kernel.expression_graph import BOOL, F32, F64, I32, I64, REAL

TYPES = {F64: "double", F32: "float", I64: "int64_t", I32: "int32_t", BOOL: "int"}
# Types of torch's tensors in memory.
MEMORY = TYPES | {BOOL: "unsigned char"}
# Functions of libm that compilers do not vectorise.
LIBM = {
    "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "exp2", "lgamma", "pow", "atan2", "hypot", "fmod", "remainder",
    "div_floor",
}  # fmt: skip
# Functions that compilers have instructions for, or that cost little.
_CALLS = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "nearbyint", "fmax": "fmax",
          "fmin": "fmin", "copysign": "copysign"}  # fmt: skip
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_BITS = {"bit_and": "&", "bit_or": "|", "bit_xor": "^"}
_LOGIC = {"and": "&", "or": "|", "xor": "^"}

# Helper functions in C by name; a source has each at most once, and only if it is called.
HELPERS = {
    "tf_floored": """/* floor(a / b), exact where a / b rounds to a whole number */
TF_FUNCTION double tf_floored(double a, double b) {
  if (b == 0.0) return a / b;
  const double rest = fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0.0 && (b < 0.0) != (rest < 0.0)) quotient -= 1.0;
  if (quotient == 0.0) return copysign(0.0, a / b);
  const double whole = floor(quotient);
  return quotient - whole > 0.5 ? whole + 1.0 : whole;
}""",
    "tf_remainder": """/* of the sign of b */
TF_FUNCTION double tf_remainder(double a, double b) {
  const double rest = fmod(a, b);
  return rest != 0.0 && (b < 0.0) != (rest < 0.0) ? rest + b : rest;
}""",
    "tf_whole": """/* A number as an integer; what has none is the least one, as the processor has it. */
TF_FUNCTION int64_t tf_whole(double x) {
  return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? (int64_t)x : INT64_MIN;
}""",
    "tf_whole32": """TF_FUNCTION int32_t tf_whole32(double x) {
  return x > -2147483649.0 && x < 2147483648.0 ? (int32_t)x : INT32_MIN;
}""",
    "tf_truncated": """/* Of integers; nothing is divided by 0, which has no number. */
TF_FUNCTION int64_t tf_truncated(int64_t a, int64_t b) {
  if (b == 0) return 0;
  return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}""",
    "tf_floored_whole": """TF_FUNCTION int64_t tf_floored_whole(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return (int64_t)(0 - (uint64_t)a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}""",
    "tf_remainder_whole": """TF_FUNCTION int64_t tf_remainder_whole(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}""",
    "tf_below": """/* How many of the ordered numbers are below x, or equal to it where right; NaN is behind all. */
TF_FUNCTION int64_t tf_below(const double *numbers, int64_t count, double x, int right) {
  int64_t from = 0, to = count;
  while (from < to) {
    const int64_t middle = from + (to - from) / 2;
    const int here = right ? !(numbers[middle] > x) : !(numbers[middle] >= x);
    from = here ? middle + 1 : from;
    to = here ? to : middle;
  }
  return from;
}""",
    "tf_raised": """TF_FUNCTION int64_t tf_raised(int64_t base, int64_t exponent) {
  uint64_t found = 1, square = (uint64_t)base;
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  for (; exponent; exponent /= 2, square *= square)
    if (exponent % 2) found *= square;
  return (int64_t)found;
}""",
}


def format_literal(value: float | int, dtype: str) -> str:
    """Return a constant as a C literal."""
    if dtype in REAL:
        if math.isnan(value):
            return "NAN" if dtype == F32 else "(double)NAN"
        if math.isinf(value):
            word = "INFINITY" if dtype == F32 else "(double)INFINITY"
            return word if value > 0 else f"(-{word})"
        text = repr(float(value))
        if "e" not in text and "." not in text:
            text += ".0"
        text += "f" if dtype == F32 else ""
        return f"({text})" if text.startswith("-") else text
    if dtype == I64:
        return f"INT64_C({value})" if value >= 0 else "INT64_MIN" if value == -(2**63) else f"(-INT64_C({-value}))"
    return str(int(value)) if value >= 0 else f"({int(value)})"


def format_expression(op: str, dtype: str, dtypes: Sequence[str], args: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the C text and the helpers that it calls; ``dtypes`` are those of the arguments. Raises ``KeyError`` for
    an unknown operation."""
    suffix = "f" if dtype == F32 else ""
    arg_dtype = dtypes[0]
    if dtype in (I64, I32) and op in ("add", "sub", "mul", "neg"):
        # Integers wrap around, as torch's do.
        wide = "uint64_t" if dtype == I64 else "uint32_t"
        parts = [f"({wide}){a}" for a in args]
        body = f"0 - {parts[0]}" if op == "neg" else f"{parts[0]} {_INFIX[op]} {parts[1]}"
        return f"({TYPES[dtype]})({body})", ()
    if op in _INFIX:
        return f"{args[0]} {_INFIX[op]} {args[1]}", ()
    if op in _LOGIC:
        return f"{args[0]} {_LOGIC[op]} {args[1]}", ()
    if op in _BITS:
        return f"({TYPES[dtype]})({args[0]} {_BITS[op]} {args[1]})", ()
    if op == "bit_not":
        return f"({TYPES[dtype]})~{args[0]}", ()
    if op == "not":
        return f"!{args[0]}", ()
    if op == "where":
        return f"{args[0]} ? {args[1]} : {args[2]}", ()
    if op == "neg":
        return f"-{args[0]}", ()
    if op in ("max", "min"):
        sign = ">" if op == "max" else "<"
        nan = f" || {args[0]} != {args[0]}" if dtype in REAL else ""
        return f"({args[0]} {sign} {args[1]}{nan}) ? {args[0]} : {args[1]}", ()
    if op == "abs":
        return (f"fabs{suffix}({args[0]})" if dtype in REAL else f"{args[0]} < 0 ? -{args[0]} : {args[0]}"), ()
    if op == "sign":
        return f"({TYPES[dtype]})(({args[0]} > 0) - ({args[0]} < 0))", ()
    if op in ("isnan", "isinf", "isfinite"):
        if arg_dtype not in REAL:
            return ("1" if op == "isfinite" else "0"), ()
        return f"{op}({args[0]}) != 0", ()
    if op == "cast":
        return _format_cast(dtype, arg_dtype, args[0])
    integer_helpers = {"div_trunc": "tf_truncated", "remainder": "tf_remainder_whole", "div_floor": "tf_floored_whole",
             "pow_int": "tf_raised"}  # fmt: skip
    if dtype in (I64, I32) and op in integer_helpers:
        name = integer_helpers[op]
        return f"({TYPES[dtype]}){name}({args[0]}, {args[1]})", (name,)
    if op in ("div_floor", "remainder"):
        name = "tf_floored" if op == "div_floor" else "tf_remainder"
        return (f"(float){name}({args[0]}, {args[1]})" if suffix else f"{name}({args[0]}, {args[1]})"), (name,)
    if op in LIBM or op in _CALLS:
        return f"{_CALLS.get(op, op)}{suffix}({', '.join(args)})", ()
    raise KeyError(op)


def _format_cast(dtype: str, arg_dtype: str, argument: str) -> tuple[str, tuple[str, ...]]:
    if dtype == BOOL:
        return f"{argument} != 0", ()
    if dtype in (I64, I32) and arg_dtype in REAL:
        name = "tf_whole" if dtype == I64 else "tf_whole32"
        return f"{name}({argument})", (name,)
    return f"({TYPES[dtype]}){argument}", ()
