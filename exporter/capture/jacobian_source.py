"""TorchScript source that assembles the Jacobian from a captured ``jvp`` or ``vjp``.

A batch of independent elements is repeated, once for each direction, so that one call gives every column (forward mode)
or row (reverse mode) of every element's block. Shapes without a batch go direction by direction, and so do parameters,
which all elements share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from exporter.archive.derivative_request import Pair
from exporter.archive.method_names import METHOD
from exporter.archive.tensor_spec import TensorSpec
from exporter.capture.forward_wrapper import emit_method_source


@dataclass(frozen=True)
class Directions:
    """Unit vectors over the components of some variables: ``tensors[i][k]`` is direction k in variable i."""

    specs: tuple[TensorSpec, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the number of components of each variable."""
        return tuple(math.prod(s.static_shape) for s in self.specs)

    @property
    def total(self) -> int:
        """Return the number of directions."""
        return sum(self.counts)

    def find_start(self, name: str) -> int:
        """Return the index of the first direction of a variable."""
        index = [s.name for s in self.specs].index(name)
        return sum(self.counts[:index])

    def build_tensors(self, batch_dims: int) -> tuple[torch.Tensor, ...]:
        """Build the tensors, each of shape ``(directions, *[1] * batch_dims, *event_shape)``."""
        eye = torch.eye(self.total, dtype=torch.float64)
        parts = torch.split(eye, list(self.counts), dim=1)
        pairs = zip(parts, self.specs, strict=True)
        shaped = [(part.reshape(self.total, *[1] * batch_dims, *s.static_shape), s.dtype) for part, s in pairs]
        return tuple(part.to(getattr(torch, dtype)) for part, dtype in shaped)


@dataclass(frozen=True)
class CapturedProduct:
    """A captured method that takes inputs and directions and returns outputs and then products.

    ``directions`` are those that it takes; ``products`` the names of what it returns after the outputs."""

    method: str
    directions: Directions
    products: tuple[str, ...]
    forward: bool
    parameters: bool = False


@dataclass(frozen=True)
class Caller:
    """The signature of a generated method: its arguments, which are the model's inputs, the outputs, and whether they
    have a batch. ``parameters`` are shapes by name."""

    arguments: Sequence[str]
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    batched: bool
    parameters: Mapping[str, tuple[int, ...]]
    # Results of the solves of an implicit model, computed once and passed to every product.
    solution_specs: Sequence[TensorSpec] = ()
    solve_method: str = ""

    @property
    def argument_list(self) -> str:
        """Return the arguments as text."""
        return ", ".join(self.arguments)

    @property
    def product_arguments(self) -> list[tuple[str, TensorSpec]]:
        """Return what a product takes before its directions."""
        solutions = [(f"tf_s[{i}]", spec) for i, spec in enumerate(self.solution_specs)]
        return [*zip(self.arguments, self.inputs, strict=True), *solutions]

    @property
    def batch_prefix(self) -> str:
        """Return the text of the batch dimension in a list of sizes."""
        return "tf_rows, " if self.batched else ""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of everything that a block can be taken with respect to."""
        return {**self.parameters, **{s.name: s.static_shape for s in self.inputs}}

    def emit_batch_size(self) -> list[str]:
        """Return the line that reads the batch size."""
        return [f"tf_rows = {self.arguments[0]}.size(0)"] if self.batched else []

    def emit_solves(self) -> list[str]:
        """Return the line that runs the solves."""
        return [f"tf_s = self.{self.solve_method}({self.argument_list})"] if self.solution_specs else []


def emit_jacobian_source(
    name: str,
    caller: Caller,
    pairs: Sequence[Pair],
    products: Sequence[CapturedProduct],
    places: Mapping[str, Sequence[str]],
    precomputed: Sequence[Pair] = (),
    precomputed_by: str = "",
) -> str:
    """Return source of a method that returns the outputs, then the blocks of ``pairs``.

    ``places`` maps each product to the expressions of its direction tensors; ``precomputed`` are blocks that the method
    ``precomputed_by`` returns after the outputs."""
    lines = [*caller.emit_batch_size(), *caller.emit_solves()]
    outputs = len(caller.outputs)
    blocks: dict[Pair, str] = {}
    values: list[str] = []
    if precomputed:
        lines.append(f"tf_b = self.{precomputed_by}({caller.argument_list})")
        values = [f"tf_b[{i}]" for i in range(outputs)]
        blocks = {pair: f"tf_b[{outputs + i}]" for i, pair in enumerate(precomputed)}
    output_specs = {s.name: s for s in caller.outputs}
    for number, product in enumerate(products):
        prefix = f"tf_p{number}"
        lines += _select_emitter(product, caller.batched)(prefix, product, caller, places[product.method])
        for output, wrt in pairs:
            direction_name, product_name = (wrt, output) if product.forward else (output, wrt)
            if direction_name not in [s.name for s in product.directions.specs] or product_name not in product.products:
                continue
            index = product.products.index(product_name)
            start = product.directions.find_start(direction_name)
            spec = next(s for s in product.directions.specs if s.name == direction_name)
            wrt_shape = spec.static_shape if product.forward else caller.shapes[wrt]
            shape = [*output_specs[output].static_shape, *wrt_shape]
            part = f"{prefix}_{index}.narrow(0, {start}, {math.prod(spec.static_shape)})"
            # Directions are the last dimension of the block in forward mode; in reverse mode the first.
            batch_first = f"{part}.movedim(0, 1)" if caller.batched else part
            block = f"{part}.movedim(0, -1)" if product.forward else batch_first
            blocks[output, wrt] = f"{block}.reshape({_format_sizes(caller.batch_prefix, shape)})"
        if not values:
            values = [f"{prefix}_out_{i}" for i in range(outputs)]
    return emit_method_source(name, caller.arguments, lines, [*values, *(blocks[pair] for pair in pairs)])


Emitter = Callable[[str, CapturedProduct, Caller, Sequence[str]], list[str]]


def _select_emitter(product: CapturedProduct, batched: bool) -> Emitter:
    if batched and not product.parameters:
        return _emit_repeated_call
    return _emit_direction_loop if not batched or product.forward else _emit_element_loop


def _format_sizes(batch_prefix: str, shape: Sequence[int]) -> str:
    """Format a list of sizes; TorchScript would take an empty list for a list of tensors."""
    sizes = f"[{batch_prefix}{', '.join(map(str, shape))}]"
    return sizes if sizes != "[]" else "torch.jit.annotate(List[int], [])"


def _emit_repeated_call(prefix: str, product: CapturedProduct, caller: Caller, places: Sequence[str]) -> list[str]:
    n = product.directions.total

    def repeat(value: str, spec: TensorSpec) -> str:
        own = "".join(f", {d}" for d in spec.static_shape)
        return f"{value}.expand([{n}, tf_rows{own}]).reshape([{n} * tf_rows{own}])"

    arguments = [repeat(a, s) for a, s in caller.product_arguments]
    arguments += [repeat(p, s) for p, s in zip(places, product.directions.specs, strict=True)]
    outputs = len(caller.outputs)
    lines = [f"{prefix} = self.{product.method}({', '.join(arguments)})"]
    lines += [f"{prefix}_out_{i} = {prefix}[{i}].narrow(0, 0, tf_rows)" for i in range(outputs)]
    for i in range(len(product.products)):
        value = f"{prefix}[{outputs + i}]"
        lines.append(f"{prefix}_{i} = {value}.reshape([{n}, tf_rows] + {value}.shape[1:])")
    return lines


def _emit_direction_loop(prefix: str, product: CapturedProduct, caller: Caller, places: Sequence[str]) -> list[str]:
    def call(index: str) -> str:
        arguments = [*(a for a, _ in caller.product_arguments), *(f"{p}[{index}]" for p in places)]
        return f"{product.method}({', '.join(arguments)})"

    lines = _emit_first_call(prefix, product, caller, call("0"))
    lines += _emit_appends(prefix, f"{prefix}_first", product, caller)
    lines += [f"for tf_k in range(1, {product.directions.total}):", f"    {prefix} = self.{call('tf_k')}"]
    lines += [f"    {line}" for line in _emit_appends(prefix, prefix, product, caller)]
    return [*lines, *(f"{prefix}_{i} = torch.stack({prefix}_list_{i})" for i in range(len(product.products)))]


def _emit_element_loop(prefix: str, product: CapturedProduct, caller: Caller, places: Sequence[str]) -> list[str]:
    """Emit a call for each element, for rows with respect to parameters: a batch would give their sum."""
    n = product.directions.total
    elements = [f"{a}.narrow(0, tf_r, 1)" for a, _ in caller.product_arguments]
    arguments = ", ".join([*elements, *(f"{p}[tf_k]" for p in places)])
    lines = _emit_first_call(prefix, product, caller, f"{METHOD}({caller.argument_list})")
    lines += [f"for tf_k in range({n}):", "    for tf_r in range(tf_rows):"]
    lines += [f"        {prefix} = self.{product.method}({arguments})"]
    lines += [f"        {line}" for line in _emit_appends(prefix, prefix, product, caller)]
    for i, name in enumerate(product.products):
        shape = _format_sizes(f"{n}, tf_rows, ", caller.shapes[name])
        # An empty batch has no rows to stack.
        lines += [f"{prefix}_{i} = {places[0]}.new_zeros({shape})", "if tf_rows > 0:"]
        lines += [f"    {prefix}_{i} = torch.stack({prefix}_list_{i}).reshape({shape})"]
    return lines


def _emit_first_call(prefix: str, product: CapturedProduct, caller: Caller, call: str) -> list[str]:
    """Emit a call that gives the outputs, and an empty list for each product."""
    lines = [f"{prefix}_first = self.{call}"]
    lines += [f"{prefix}_out_{i} = {prefix}_first[{i}]" for i in range(len(caller.outputs))]
    return [*lines, *(f"{prefix}_list_{i}: List[Tensor] = []" for i in range(len(product.products)))]


def _emit_appends(prefix: str, value: str, product: CapturedProduct, caller: Caller) -> list[str]:
    """Emit lines that append what a call returned after the outputs to the lists."""
    first = len(caller.outputs)
    return [f"{prefix}_list_{i}.append({value}[{first + i}])" for i in range(len(product.products))]


def emit_jvp_source(name: str, blocks: str, caller: Caller, wrt: Sequence[TensorSpec], pairs: Sequence[Pair]) -> str:
    """Return source of a method that computes tangents from Jacobian blocks.

    It takes tangents of ``wrt`` after the inputs and returns the outputs, then the tangents of the outputs in
    ``pairs``; the method ``blocks`` returns the outputs and then those pairs."""
    lines = [f"tf_b = self.{blocks}({caller.argument_list})", *caller.emit_batch_size()]
    outputs, batch_prefix = caller.outputs, caller.batch_prefix
    tangents = []
    for spec in [s for s in outputs if any(output == s.name for output, _ in pairs)]:
        n = math.prod(spec.static_shape)
        terms = []
        for i, wrt_spec in enumerate(wrt):
            m = math.prod(wrt_spec.static_shape)
            index = len(outputs) + list(pairs).index((spec.name, wrt_spec.name))
            block = f"tf_b[{index}].reshape([{batch_prefix}{n}, {m}])"
            terms.append(f"torch.matmul({block}, tf_t_{i}.reshape([{batch_prefix}{m}, 1]))")
        tangents.append(f"({' + '.join(terms)}).reshape({_format_sizes(batch_prefix, spec.static_shape)})")
    arguments = [*caller.arguments, *(f"tf_t_{i}" for i in range(len(wrt)))]
    return emit_method_source(name, arguments, lines, [*(f"tf_b[{i}]" for i in range(len(outputs))), *tangents])


def emit_solve_source(name: str, inner: str, caller: Caller, seeds: Sequence[str], result_count: int) -> str:
    """Return source of a method that solves, and calls the product ``inner`` with the results."""
    arguments = ", ".join([*(a for a, _ in caller.product_arguments), *seeds])
    lines = [*caller.emit_solves(), f"tf_p = self.{inner}({arguments})"]
    return emit_method_source(name, [*caller.arguments, *seeds], lines, [f"tf_p[{i}]" for i in range(result_count)])
