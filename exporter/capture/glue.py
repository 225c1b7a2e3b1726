"""The Jacobian put together from products: TorchScript around a captured ``jvp`` or ``vjp``.

A batch whose elements do not see each other is repeated, once for each direction, so that one call gives every column
(forward mode) or row (reverse mode) of every element's block. Shapes that are whole go direction by direction, and so
do parameters, of which all elements share one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from exporter.capture.boxes import METHOD
from exporter.capture.entry import method_source
from exporter.derivatives.request import Pair
from exporter.variables import TensorSpec


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


def jacobian_source(
    name: str,
    arguments: Sequence[str],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    pairs: Sequence[Pair],
    products: Sequence[Product],
    places: Mapping[str, Sequence[str]],
    batched: bool,
    ready: Sequence[Pair] = (),
    ready_by: str = "",
    parameters: Mapping[str, tuple[int, ...]] | None = None,
) -> str:
    """Source of a method that returns the outputs, then the blocks of ``pairs``; ``parameters`` are shapes by name.

    ``places`` gives for each product the expressions of its direction tensors; ``ready`` are blocks that the method
    ``ready_by`` returns behind the outputs.
    """
    lines: list[str] = [f"tf_rows = {arguments[0]}.size(0)"] if batched else []
    blocks: dict[Pair, str] = {}
    values: list[str] = []
    if ready:
        lines.append(f"tf_b = self.{ready_by}({', '.join(arguments)})")
        values = [f"tf_b[{i}]" for i in range(len(outputs))]
        blocks = {pair: f"tf_b[{len(outputs) + i}]" for i, pair in enumerate(ready)}
    shapes, outs = {s.name: s.fixed for s in inputs} | dict(parameters or {}), {s.name: s for s in outputs}
    for number, product in enumerate(products):
        made = f"tf_p{number}"
        call = _in_a_loop if not batched or product.parameters else _repeated
        if batched and product.parameters and not product.forward:
            call = functools.partial(_element_by_element, shapes=shapes)
        lines += call(made, product, arguments, inputs, outputs, places[product.method])
        lead = "tf_rows, " if batched else ""
        for of, by in pairs:
            along, along_other = (by, of) if product.forward else (of, by)
            if along not in [s.name for s in product.along.specs] or along_other not in product.products:
                continue
            at = product.products.index(along_other)
            start = product.along.start(along)
            spec = product.along.specs[[s.name for s in product.along.specs].index(along)]
            by_shape = spec.fixed if product.forward else shapes[by]
            shape = [*outs[of].fixed, *by_shape]
            part = f"{made}_{at}.narrow(0, {start}, {math.prod(spec.fixed)})"
            # Directions are the last of the block in forward mode, and come before the input's own in reverse mode.
            turned = f"{part}.movedim(0, -1)" if product.forward else f"{part}.movedim(0, 1)" if batched else part
            blocks[of, by] = f"{turned}.reshape({_sizes(lead, shape)})"
        if not values:
            values = [f"{made}_out_{i}" for i in range(len(outputs))]
    return method_source(name, arguments, lines, [*values, *(blocks[pair] for pair in pairs)])


def _sizes(lead: str, shape: Sequence[int]) -> str:
    """TorchScript takes an empty list for one of tensors."""
    return f"[{lead}{', '.join(map(str, shape))}]" if lead or shape else "torch.jit.annotate(List[int], [])"


def _repeated(
    made: str,
    product: Product,
    arguments: Sequence[str],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    places: Sequence[str],
) -> list[str]:
    n = product.along.total

    def tall(value: str, spec: TensorSpec) -> str:
        own = "".join(f", {d}" for d in spec.fixed)
        return f"{value}.expand([{n}, tf_rows{own}]).reshape([{n} * tf_rows{own}])"

    given = [tall(a, s) for a, s in zip(arguments, inputs, strict=True)]
    given += [tall(p, s) for p, s in zip(places, product.along.specs, strict=True)]
    lines = [f"{made} = self.{product.method}({', '.join(given)})"]
    lines += [f"{made}_out_{i} = {made}[{i}].narrow(0, 0, tf_rows)" for i in range(len(outputs))]
    for i in range(len(product.products)):
        value = f"{made}[{len(outputs) + i}]"
        lines.append(f"{made}_{i} = {value}.reshape([{n}, tf_rows] + {value}.shape[1:])")
    return lines


def _in_a_loop(
    made: str,
    product: Product,
    arguments: Sequence[str],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    places: Sequence[str],
) -> list[str]:
    given = ", ".join(arguments)
    zeros = ", ".join([given, *(f"{p}[0]" for p in places)])
    along = ", ".join([given, *(f"{p}[tf_k]" for p in places)])
    count = len(product.products)
    lines = [f"{made}_list_{i}: List[Tensor] = []" for i in range(count)]
    lines += [f"{made} = self.{product.method}({zeros})"]
    lines += [f"{made}_list_{i}.append({made}[{len(outputs) + i}])" for i in range(count)]
    lines += [f"for tf_k in range(1, {product.along.total}):"]
    lines += [f"    {made} = self.{product.method}({along})"]
    lines += [f"    {made}_list_{i}.append({made}[{len(outputs) + i}])" for i in range(count)]
    lines += [f"{made}_out_{i} = {made}[{i}]" for i in range(len(outputs))]
    return [*lines, *(f"{made}_{i} = torch.stack({made}_list_{i})" for i in range(count))]


def _element_by_element(
    made: str,
    product: Product,
    arguments: Sequence[str],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    places: Sequence[str],
    *,
    shapes: Mapping[str, tuple[int, ...]],
) -> list[str]:
    """Rows by parameters: a batch would give their sum."""
    count, n = len(product.products), product.along.total
    row = ", ".join([*(f"{a}.narrow(0, tf_r, 1)" for a in arguments), *(f"{p}[tf_k]" for p in places)])
    lines = [f"{made}_all = self.{METHOD}({', '.join(arguments)})"]
    lines += [f"{made}_out_{i} = {made}_all[{i}]" for i in range(len(outputs))]
    lines += [f"{made}_list_{i}: List[Tensor] = []" for i in range(count)]
    lines += [f"for tf_k in range({n}):", "    for tf_r in range(tf_rows):"]
    lines += [f"        {made} = self.{product.method}({row})"]
    lines += [f"        {made}_list_{i}.append({made}[{len(outputs) + i}])" for i in range(count)]
    for i, name in enumerate(product.products):
        shape = _sizes(f"{n}, tf_rows, ", shapes[name])
        lines += [f"{made}_{i} = {places[0]}.new_zeros({shape})", "if tf_rows > 0:"]
        lines += [f"    {made}_{i} = torch.stack({made}_list_{i}).reshape({shape})"]
    return lines


def pushed_source(
    name: str,
    blocks: str,
    arguments: Sequence[str],
    by: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    pairs: Sequence[Pair],
    batched: bool,
) -> str:
    """Source of a method that takes tangents of ``by`` behind the inputs and returns the outputs, then the tangents of
    those outputs that ``pairs`` have, from the method ``blocks``, which returns the outputs and then those pairs."""
    lead = "tf_rows, " if batched else ""
    lines = [f"tf_b = self.{blocks}({', '.join(arguments)})"]
    lines += [f"tf_rows = {arguments[0]}.size(0)"] if batched else []
    pushed = []
    for spec in [s for s in outputs if any(of == s.name for of, _ in pairs)]:
        n = math.prod(spec.fixed)
        terms = []
        for i, other in enumerate(by):
            m = math.prod(other.fixed)
            block = f"tf_b[{len(outputs) + list(pairs).index((spec.name, other.name))}].reshape([{lead}{n}, {m}])"
            terms.append(f"torch.matmul({block}, tf_t_{i}.reshape([{lead}{m}, 1]))")
        pushed.append(f"({' + '.join(terms)}).reshape({_sizes(lead, spec.fixed)})")
    taken = [*arguments, *(f"tf_t_{i}" for i in range(len(by)))]
    return method_source(name, taken, lines, [*(f"tf_b[{i}]" for i in range(len(outputs))), *pushed])
