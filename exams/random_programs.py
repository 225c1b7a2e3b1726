"""Random programs: small models in torch's own words, which hypothesis generates and shrinks.

Each statement makes a value from earlier ones: arithmetic with broadcasting in float64, float32, int64 and bool, views,
writes in place, also through views, indices, reductions and branches by ``where``. Values stay of moderate size, so
that only a fault gives another number. A program prints as the source of a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

F64, F32, I64, BOOL = torch.float64, torch.float32, torch.int64, torch.bool
FLOATS = (F64, F32)
# Numbers of one value at most, and statements of one program.
LARGEST, LONGEST = 48, 8
SIZES = (1, 2, 3, 4)
# Rows of the batches that a program is drawn with.
ROWS = (2, 5)


@dataclass(frozen=True)
class Statement:
    """Lines of Python that make the value ``v<i>``, whose number is the statement's place after the inputs."""

    text: str

    def format(self, number: int) -> str:
        return self.text.replace("OUT", f"v{number}")


@dataclass(frozen=True)
class Program:
    """Inputs as shapes and dtypes, statements, and the values that are returned."""

    inputs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    statements: tuple[Statement, ...]
    outputs: tuple[int, ...]
    has_batch: bool

    def format_source(self, name: str = "program") -> str:
        """Return the source of a function of the inputs ``v0``, ``v1``, ..."""
        names = [f"v{i}" for i in range(len(self.inputs))]
        lines = [f"def {name}({', '.join(names)}):"]
        for number, statement in enumerate(self.statements, len(self.inputs)):
            lines += [f"    {line}" for line in statement.format(number).split("\n")]
        lines.append(f"    return {', '.join(f'v{i}' for i in self.outputs)}{',' if len(self.outputs) == 1 else ''}")
        return "\n".join(lines) + "\n"

    def compile(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """Return the function."""
        scope: dict[str, Any] = {"torch": torch}
        exec(self.format_source(), scope)
        return scope["program"]

    def draw_inputs(self, seed: int, rows: int) -> tuple[torch.Tensor, ...]:
        """Return inputs, with ``rows`` rows if they have a batch."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(
            _draw_tensor((rows, *shape) if self.has_batch else shape, dtype, generator) for shape, dtype in self.inputs
        )


def _draw_tensor(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype == BOOL:
        return torch.randint(0, 2, tuple(shape), generator=generator).bool()
    if dtype == I64:
        return torch.randint(-5, 6, tuple(shape), generator=generator)
    return (torch.rand(tuple(shape), dtype=F64, generator=generator) * 3 - 1.5).to(dtype)


class _Builder:
    """Draws statements that fit the values so far, whose shapes and dtypes it knows by running them."""

    def __init__(self, draw: Callable[..., Any], has_batch: bool) -> None:
        self.draw, self.has_batch = draw, has_batch
        # Dimensions before this one belong to the batch.
        self.first = int(has_batch)
        # The values so far, and for other inputs, of a batch of another size.
        self.values: list[torch.Tensor] = []
        self.others: list[torch.Tensor] = []
        self.statements: list[Statement] = []
        # The inputs among the values.
        self.count = 0

    def choose(self, options: Sequence[Any]) -> Any:
        return options[self.draw(st.integers(0, len(options) - 1))]

    def pick(self, *dtypes: torch.dtype, rank: int = 0) -> int | None:
        """Return the number of a value with one of these dtypes and at least ``rank`` dimensions of its own."""
        fitting = [
            i for i, v in enumerate(self.values) if v.dtype in dtypes and v.ndim - self.first >= rank and v.numel()
        ]
        return self.choose(fitting) if fitting else None

    def pick_dimension(self, number: int, extra: int = 0) -> int:
        return self.draw(st.integers(self.first, self.values[number].ndim - 1 + extra))

    def add(self, text: str) -> bool:
        """Add a statement if it runs, and its value is finite and not too large."""
        try:
            value, other = (_run_statement(text, values) for values in (self.values, self.others))
        except (RuntimeError, IndexError):
            return False
        if not (_is_moderate(value) and _is_moderate(other)):
            return False
        # What was rounded to float32 would differ from eager mode by float32's digits, and float64 is held to its own.
        operands = (self.values[int(number)] for number in re.findall(r"\bv(\d+)", text) if int(number) >= self.count)
        if value.dtype == F64 and any(operand.dtype == F32 for operand in operands):
            return False
        if self.has_batch and (
            [t.shape[:1] for t in (value, other)] != [(n,) for n in ROWS] or value.shape[1:] != other.shape[1:]
        ):
            return False
        self.values.append(value)
        self.others.append(other)
        self.statements.append(Statement(text))
        return True


def _run_statement(text: str, values: Sequence[torch.Tensor]) -> torch.Tensor:
    scope: dict[str, Any] = {"torch": torch, **{f"v{i}": v.clone() for i, v in enumerate(values)}}
    exec(text.replace("OUT", "out"), scope)
    return scope["out"]


def _is_moderate(value: torch.Tensor) -> bool:
    """Return whether a value has some numbers, none of them infinite, NaN or large."""
    if not 0 < value.numel() <= LARGEST:
        return False
    if value.is_floating_point():
        return bool(value.isfinite().all()) and float(value.abs().max()) < 1e4
    return value.dtype != I64 or int(value.abs().max()) <= 10**6


UNARY = ("torch.sin({a})", "torch.tanh({a})", "{a}.abs()", "-{a}", "torch.exp(-{a}.abs())",
         "torch.sqrt({a}.abs() + 0.5)", "torch.sigmoid({a})", "torch.relu({a})", "torch.log1p({a}.abs())", "{a} ** 2",
         "{a}.clamp(-0.75, 1.25)",
         "torch.atan({a})", "torch.nn.functional.softplus({a})", "{a} * 0.5 + 1", "{a}.clone()", "torch.sign({a})",
         "torch.zeros_like({a})", "1.5 - {a}", "torch.erf({a})", "torch.nn.functional.gelu({a})")  # fmt: skip
BINARY = ("{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / ({b}.abs() + 1)", "torch.maximum({a}, {b})",
          "torch.minimum({a}, {b})", "torch.atan2({a}, {b}.abs() + 0.5)", "torch.hypot({a}, {b})",
          "({a}.abs() + 0.5) ** {b}.clamp(-2, 2)", "torch.add({a}, {b}, alpha=2)", "torch.lerp({a}, {b}, 0.25)",
          "torch.addcmul({a}, {a}, {b}, value=0.5)")  # fmt: skip
WHOLE_NUMBERS = ("{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} // ({b}.abs() + 1)", "{a} % ({b}.abs() + 2)",
                 "torch.remainder({a}, 3)", "torch.div({a}, {b}.abs() + 1, rounding_mode='trunc')", "{a} & {b}",
                 "{a} | 5", "{a}.abs()", "-{a}", "torch.maximum({a}, {b})", "{a}.clamp(-2, 3)",
                 "torch.fmod({a}, 4)")  # fmt: skip
COMPARISONS = ("{a} > {b}", "{a} <= {b}", "{a} == {b}", "{a} != {b}", "torch.isclose({a}, {b})")
# A number and what another program rounds otherwise may be equal but for that: tanh(x) and a small x.
APART = ("{a} > {b} + 0.125", "{a} <= {b} + 0.125", "{a} - {b} >= 0.375", "torch.isclose({a}, {b} + 0.75, atol=0.4)")
LOGIC = ("{a} & {b}", "{a} | {b}", "{a} ^ {b}", "~{a}", "torch.logical_and({a}, {b})")
REDUCTIONS = ("{a}.sum({d})", "{a}.mean({d})", "{a}.amax({d})", "{a}.amin({d})", "{a}.prod({d})", "{a}.max({d}).values",
              "{a}.sum({d}, keepdim=True)", "torch.logsumexp({a}, {d})", "torch.linalg.vector_norm({a}, dim={d})",
              "{a}.cumsum({d})", "torch.softmax({a}, {d})", "{a}.std({d}, unbiased=False)", "{a}.median({d}).values",
              "{a}.sort({d}).values", "{a}.flip({d})", "torch.roll({a}, 1, {d})",
              "torch.diff({a}, dim={d})")  # fmt: skip
TO_WHOLE = ("{a}.argmax({d})", "{a}.argmin({d})", "{a}.argsort({d})", "({a} * 4).to(torch.int64)")
WRITES = ("{view} = {b}", "{view} += {b}", "{view} *= {b}", "{view}.mul_({b})", "{view}.copy_({b})",
          "{view}.fill_(0.5)", "{view}.clamp_(min=0)", "{view}.zero_()", "{view}.add_({b}, alpha=-1)",
          "{view}.abs_()")  # fmt: skip


def _add_arithmetic(build: _Builder) -> bool:
    kind = build.choose(("unary", "binary", "binary", "whole", "compare", "logic", "where", "cast"))
    if kind in ("unary", "binary"):
        a, b = build.pick(*FLOATS), build.pick(*FLOATS)
        texts = UNARY if kind == "unary" else BINARY
    elif kind == "whole":
        a, b, texts = build.pick(I64), build.pick(I64), WHOLE_NUMBERS
    elif kind == "compare":
        dtypes = build.choose(((I64,), FLOATS, FLOATS))
        a, b, texts = build.pick(*dtypes), build.pick(*dtypes), COMPARISONS if I64 in dtypes else APART
    elif kind == "logic":
        a, b, texts = build.pick(BOOL), build.pick(BOOL), LOGIC
    elif kind == "where":
        condition, a, b = build.pick(BOOL), build.pick(*FLOATS, I64), build.pick(*FLOATS, I64)
        if condition is None:
            return False
        texts = (f"torch.where(v{condition}, {{a}}, {{b}})", f"{{a}}.masked_fill(v{condition}, 2)")
    else:
        a = b = build.pick(*FLOATS, I64, BOOL)
        texts = ("{a}.to(torch.float32)", "{a}.to(torch.float64)", "{a}.double()", "{a} * 1.0", "{a}.bool()")
    if a is None or b is None:
        return False
    return build.add(f"OUT = {build.choose(texts).format(a=f'v{a}', b=f'v{b}')}")


def _add_view(build: _Builder) -> bool:
    a = build.pick(*FLOATS, I64, BOOL, rank=1)
    if a is None:
        return False
    d, e, n = build.pick_dimension(a), build.pick_dimension(a), build.draw(st.integers(-2, 2))
    own, rows, behind = ":, " * d, "V.shape[0], " if build.has_batch else "", ", -1" * (build.values[a].ndim - d)
    new = build.pick_dimension(a, 1)
    texts = (
        f"V.transpose({d}, {e})", f"V.unsqueeze({new})", f"V.reshape({rows}-1)", f"V[{own}{n}]", f"V[{own}{n}:]",
        f"V[{own}::2]", f"V[..., None, {n}]", f"V.select({d}, {n})", f"V.narrow({d}, 0, 1)", f"V.movedim({d}, {e})",
        f"V.unsqueeze({d}).expand({'-1, ' * d}2{behind})", f"V.repeat_interleave(2, dim={d})",
        f"V.diagonal(0, {d}, {e})",
        f"torch.cat([V, V], {d})", f"torch.stack([V, V * 2], {new})", f"V.flatten({d})", f"V.squeeze({d})",
        f"V.unfold({d}, 1, 1)", "V.contiguous()", "V.detach()", "V.tril()", "torch.nn.functional.pad(V, (1, 0))",
    )  # fmt: skip
    return build.add(f"OUT = {build.choose(texts)}".replace("V", f"v{a}"))


def _add_reduction(build: _Builder) -> bool:
    a = build.pick(*FLOATS, rank=1)
    if a is None:
        return False
    texts = build.choose((REDUCTIONS, REDUCTIONS, TO_WHOLE))
    return build.add(f"OUT = {build.choose(texts).format(a=f'v{a}', d=build.pick_dimension(a))}")


def _add_write(build: _Builder) -> bool:
    """Write to a copy, or to a view of a copy, and go on with the whole."""
    a, b = build.pick(*FLOATS, rank=1), build.pick(*FLOATS)
    if a is None or b is None:
        return False
    d, n = build.pick_dimension(a), build.draw(st.integers(-1, 1))
    own = ":, " * d
    view = build.choose((f"OUT[{own}{n}]", f"OUT[{own}1:]", f"OUT[..., {n}]", f"OUT[{own}::2]", "OUT[...]"))
    write = build.choose(WRITES)
    lines = [f"OUT = v{a}.clone()"]
    if write.startswith("{view}.") or build.draw(st.booleans()):
        lines += [f"view = {view}", write.format(view="view[...]" if " = " in write else "view", b=f"v{b}")]
    else:
        lines.append(write.format(view=view, b=f"v{b}"))
    return build.add("\n".join(lines))


def _add_index(build: _Builder) -> bool:
    a = build.pick(*FLOATS, rank=1)
    if a is None:
        return False
    d = build.pick_dimension(a)
    size = build.values[a].shape[d]
    index = build.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=3))
    own, constant = ":, " * d, f"torch.tensor({index})"
    mask = build.pick(BOOL)
    order = f"v{a}.argsort({d})"
    texts = [
        f"OUT = v{a}[{own}{index}]", f"OUT = v{a}.index_select({d}, {constant})", f"OUT = v{a}[{own}{constant}]",
        f"OUT = v{a}.clone()\nOUT[{own}{index}] = 0.25", f"OUT = v{a}.index_fill({d}, {constant}, -1.0)",
        f"OUT = v{a}.index_add({d}, {constant}, v{a}.index_select({d}, {constant}))",
        f"OUT = torch.take_along_dim(v{a}, {order}, {d})", f"OUT = v{a}.scatter({d}, {order}, v{a})",
        f"OUT = v{a}.gather({d}, v{a}.argsort({d}, descending=True))",
    ]  # fmt: skip
    if mask is not None:
        texts.append(f"OUT = v{a}.clone()\nOUT[v{mask}] = 0.125")
        texts.append(f"OUT = v{a}.masked_fill(v{mask}, 3.0)")
    return build.add(build.choose(texts))


def _add_product(build: _Builder) -> bool:
    a, b = build.pick(F64, rank=2), build.pick(F64, rank=2)
    if a is None or b is None:
        return False
    return build.add(build.choose((f"OUT = v{a} @ v{b}.mT", f"OUT = torch.matmul(v{a}, v{b})",
                                   f"OUT = torch.einsum('...ij,...kj->...ik', v{a}, v{b})")))  # fmt: skip


KINDS = (
    _add_arithmetic,
    _add_arithmetic,
    _add_arithmetic,
    _add_view,
    _add_reduction,
    _add_write,
    _add_index,
    _add_product,
)


@st.composite
def programs(draw: Callable[..., Any], has_batch: bool) -> Program:
    """Draw a program; with ``has_batch`` every value keeps the leading dimension, over which nothing happens."""
    build = _Builder(draw, has_batch)
    inputs = []
    for position in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from((F64, F32, F64, I64, BOOL))) if position else F64
        inputs.append((tuple(draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3))), dtype))
    program = Program(tuple(inputs), (), (), has_batch)
    build.count = len(inputs)
    build.values, build.others = (list(program.draw_inputs(number, rows)) for number, rows in enumerate(ROWS))
    for _ in range(draw(st.integers(1, LONGEST))):
        draw(st.sampled_from(KINDS))(build)
    outputs = tuple(range(len(inputs), len(build.values))[-2:])
    return Program(tuple(inputs), tuple(build.statements), outputs, has_batch)
