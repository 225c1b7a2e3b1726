"""The Jacobian put together from products: TorchScript around a captured ``jvp`` or ``vjp``.

A batch whose elements do not see each other is repeated, once for each direction, so that one call gives every column
(forward mode) or row (reverse mode) of every element's block. Shapes that are whole go direction by direction, and so
do parameters, of which all elements share one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from exporter.archive.derivative_request import Pair
from exporter.archive.method_names import METHOD
from exporter.archive.tensor_spec import TensorSpec
from exporter.capture.forward_wrapper import method_source


@dataclass(frozen=True)
class Directions:
    """Unit vectors over the components of some variables: ``tensors[i][k]`` is what direction k is in variable i."""

    specs: tuple[TensorSpec, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(math.prod(s.fixed) for s in self.specs)

    @property
    def total(self) -> int:
        return sum(self.counts)

    def start(self, name: str) -> int:
        at = [s.name for s in self.specs].index(name)
        return sum(self.counts[:at])

    def tensors(self, lead: int) -> tuple[torch.Tensor, ...]:
        """Of shape ``(directions, *[1] * lead, *own)``."""
        eye = torch.eye(self.total, dtype=torch.float64)
        parts = torch.split(eye, list(self.counts), dim=1)
        return tuple(
            part.reshape(self.total, *[1] * lead, *s.fixed).to(getattr(torch, s.dtype))
            for part, s in zip(parts, self.specs, strict=True)
        )


@dataclass(frozen=True)
class Product:
    """A method that was captured: inputs and directions in, outputs and then products out.

    ``along`` are the directions that it takes; ``products`` the names of what it returns behind the outputs.
    """

    method: str
    along: Directions
    products: tuple[str, ...]
    forward: bool
    parameters: bool = False


@dataclass(frozen=True)
class Caller:
    """What a written method takes and gives: names of its arguments, which are the model's inputs, the outputs, and
    whether they have a batch. ``parameters`` are shapes by name."""

    arguments: Sequence[str]
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    batched: bool
    parameters: Mapping[str, tuple[int, ...]]
    # What the solves of an implicit model give, found once and passed to every product.
    solved: Sequence[TensorSpec] = ()
    solved_by: str = ""

    @property
    def given(self) -> str:
        return ", ".join(self.arguments)

    @property
    def passed(self) -> list[tuple[str, TensorSpec]]:
        """What a product takes before its directions."""
        found = [(f"tf_s[{i}]", spec) for i, spec in enumerate(self.solved)]
        return [*zip(self.arguments, self.inputs, strict=True), *found]

    @property
    def lead(self) -> str:
        return "tf_rows, " if self.batched else ""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of what a block may be taken by."""
        return {**self.parameters, **{s.name: s.fixed for s in self.inputs}}

    def rows(self) -> list[str]:
        return [f"tf_rows = {self.arguments[0]}.size(0)"] if self.batched else []

    def solves(self) -> list[str]:
        return [f"tf_s = self.{self.solved_by}({self.given})"] if self.solved else []


def jacobian_source(
    name: str,
    caller: Caller,
    pairs: Sequence[Pair],
    products: Sequence[Product],
    places: Mapping[str, Sequence[str]],
    ready: Sequence[Pair] = (),
    ready_by: str = "",
) -> str:
    """Source of a method that returns the outputs, then the blocks of ``pairs``.

    ``places`` gives for each product the expressions of its direction tensors; ``ready`` are blocks that the method
    ``ready_by`` returns behind the outputs.
    """
    lines = [*caller.rows(), *caller.solves()]
    outputs = len(caller.outputs)
    blocks: dict[Pair, str] = {}
    values: list[str] = []
    if ready:
        lines.append(f"tf_b = self.{ready_by}({caller.given})")
        values = [f"tf_b[{i}]" for i in range(outputs)]
        blocks = {pair: f"tf_b[{outputs + i}]" for i, pair in enumerate(ready)}
    outs = {s.name: s for s in caller.outputs}
    for number, product in enumerate(products):
        made = f"tf_p{number}"
        lines += _way(product, caller.batched)(made, product, caller, places[product.method])
        for of, by in pairs:
            along, along_other = (by, of) if product.forward else (of, by)
            if along not in [s.name for s in product.along.specs] or along_other not in product.products:
                continue
            at = product.products.index(along_other)
            start = product.along.start(along)
            spec = product.along.specs[[s.name for s in product.along.specs].index(along)]
            shape = [*outs[of].fixed, *(spec.fixed if product.forward else caller.shapes[by])]
            part = f"{made}_{at}.narrow(0, {start}, {math.prod(spec.fixed)})"
            # Directions are the last of the block in forward mode, and come before the input's own in reverse mode.
            before = f"{part}.movedim(0, 1)" if caller.batched else part
            turned = f"{part}.movedim(0, -1)" if product.forward else before
            blocks[of, by] = f"{turned}.reshape({_sizes(caller.lead, shape)})"
        if not values:
            values = [f"{made}_out_{i}" for i in range(outputs)]
    return method_source(name, caller.arguments, lines, [*values, *(blocks[pair] for pair in pairs)])


def _way(product: Product, batched: bool) -> Callable[[str, Product, Caller, Sequence[str]], list[str]]:
    if batched and not product.parameters:
        return _repeated
    return _in_a_loop if not batched or product.forward else _element_by_element


def _sizes(lead: str, shape: Sequence[int]) -> str:
    """TorchScript takes an empty list for one of tensors."""
    return f"[{lead}{', '.join(map(str, shape))}]" if lead or shape else "torch.jit.annotate(List[int], [])"


def _repeated(made: str, product: Product, caller: Caller, places: Sequence[str]) -> list[str]:
    n = product.along.total

    def tall(value: str, spec: TensorSpec) -> str:
        own = "".join(f", {d}" for d in spec.fixed)
        return f"{value}.expand([{n}, tf_rows{own}]).reshape([{n} * tf_rows{own}])"

    given = [tall(a, s) for a, s in caller.passed]
    given += [tall(p, s) for p, s in zip(places, product.along.specs, strict=True)]
    outputs = len(caller.outputs)
    lines = [f"{made} = self.{product.method}({', '.join(given)})"]
    lines += [f"{made}_out_{i} = {made}[{i}].narrow(0, 0, tf_rows)" for i in range(outputs)]
    for i in range(len(product.products)):
        value = f"{made}[{outputs + i}]"
        lines.append(f"{made}_{i} = {value}.reshape([{n}, tf_rows] + {value}.shape[1:])")
    return lines


def _in_a_loop(made: str, product: Product, caller: Caller, places: Sequence[str]) -> list[str]:
    def call(at: str) -> str:
        given = [*(a for a, _ in caller.passed), *(f"{p}[{at}]" for p in places)]
        return f"{product.method}({', '.join(given)})"

    lines = [*_begun(made, product, caller, call("0")), *_kept(made, f"{made}_first", product, caller)]
    lines += [f"for tf_k in range(1, {product.along.total}):", f"    {made} = self.{call('tf_k')}"]
    lines += [f"    {line}" for line in _kept(made, made, product, caller)]
    return [*lines, *(f"{made}_{i} = torch.stack({made}_list_{i})" for i in range(len(product.products)))]


def _element_by_element(made: str, product: Product, caller: Caller, places: Sequence[str]) -> list[str]:
    """Rows by parameters: a batch would give their sum."""
    n = product.along.total
    row = ", ".join([*(f"{a}.narrow(0, tf_r, 1)" for a, _ in caller.passed), *(f"{p}[tf_k]" for p in places)])
    lines = _begun(made, product, caller, f"{METHOD}({caller.given})")
    lines += [f"for tf_k in range({n}):", "    for tf_r in range(tf_rows):"]
    lines += [f"        {made} = self.{product.method}({row})"]
    lines += [f"        {line}" for line in _kept(made, made, product, caller)]
    for i, name in enumerate(product.products):
        shape = _sizes(f"{n}, tf_rows, ", caller.shapes[name])
        # An empty batch has no rows to stack.
        lines += [f"{made}_{i} = {places[0]}.new_zeros({shape})", "if tf_rows > 0:"]
        lines += [f"    {made}_{i} = torch.stack({made}_list_{i}).reshape({shape})"]
    return lines


def _begun(made: str, product: Product, caller: Caller, call: str) -> list[str]:
    """A call that gives the outputs, and a list for each product."""
    lines = [f"{made}_first = self.{call}"]
    lines += [f"{made}_out_{i} = {made}_first[{i}]" for i in range(len(caller.outputs))]
    return [*lines, *(f"{made}_list_{i}: List[Tensor] = []" for i in range(len(product.products)))]


def _kept(made: str, value: str, product: Product, caller: Caller) -> list[str]:
    """What a call returned behind the outputs goes into the lists."""
    first = len(caller.outputs)
    return [f"{made}_list_{i}.append({value}[{first + i}])" for i in range(len(product.products))]


def pushed_source(name: str, blocks: str, caller: Caller, by: Sequence[TensorSpec], pairs: Sequence[Pair]) -> str:
    """Source of a method that takes tangents of ``by`` behind the inputs and returns the outputs, then the tangents of
    those outputs that ``pairs`` have, from the method ``blocks``, which returns the outputs and then those pairs."""
    lines = [f"tf_b = self.{blocks}({caller.given})", *caller.rows()]
    outputs, lead = caller.outputs, caller.lead
    pushed = []
    for spec in [s for s in outputs if any(of == s.name for of, _ in pairs)]:
        n = math.prod(spec.fixed)
        terms = []
        for i, other in enumerate(by):
            m = math.prod(other.fixed)
            block = f"tf_b[{len(outputs) + list(pairs).index((spec.name, other.name))}].reshape([{lead}{n}, {m}])"
            terms.append(f"torch.matmul({block}, tf_t_{i}.reshape([{lead}{m}, 1]))")
        pushed.append(f"({' + '.join(terms)}).reshape({_sizes(lead, spec.fixed)})")
    taken = [*caller.arguments, *(f"tf_t_{i}" for i in range(len(by)))]
    return method_source(name, taken, lines, [*(f"tf_b[{i}]" for i in range(len(outputs))), *pushed])


def solved_source(name: str, inner: str, caller: Caller, seeds: Sequence[str], returned: int) -> str:
    """Source of a method that solves, and calls the product ``inner`` with what was found."""
    given = ", ".join([*(a for a, _ in caller.passed), *seeds])
    lines = [*caller.solves(), f"tf_p = self.{inner}({given})"]
    return method_source(name, [*caller.arguments, *seeds], lines, [f"tf_p[{i}]" for i in range(returned)])
