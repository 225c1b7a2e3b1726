"""Large batches, slice by slice: intermediate values stay in the cache, and memory is reused.

A slice is called as the whole batch is, so numbers do not depend on it where the elements of a batch do not see each
other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from exporter.capture.forward_wrapper import method_source
from exporter.graph.torch_nodes import nodes
from exporter.model.eager.warmup import Warmup

# Measured: slices pay where a graph makes this many times the numbers that it returns (2 to 4 times as fast at 300,000
# rows); below that they lose by the copy that puts them together.
MADE = 12
# Rows of a slice: what an operation makes is about this large. Most of the gain is there from 2,048 to 65,536 rows.
BYTES, SMALLEST, SLICE = 2**19, 1_024, 16_384
# For derivatives, whose rows are repeated for every direction, or carry a tangent with each value.
REPEATED = 4_096


def sliceable(warm: Warmup) -> bool:
    """Whether all that a method takes and gives has the batch."""
    source = warm.source
    return bool(source.batch_ndim and source.inputs) and not any(warm.constant)


def sliced(
    module: torch.jit.ScriptModule,
    method: str,
    inner: str,
    arguments: Sequence[str],
    returned: int,
    most: int = SLICE,
) -> str:
    """Writes the method that calls ``inner`` on slices, and gives its name; ``inner`` itself where slices do not pay.

    ``arguments`` and what is ``returned`` are tensors that all have the batch; ``most`` are the rows of a slice.
    """
    made, given = _numbers(module._c._get_method(inner).graph.copy())
    if sum(made) < MADE * given:
        return inner
    fitting = BYTES * len(made) // (8 * max(sum(made), 1))
    rows = min(most, max(SMALLEST, 2 ** (fitting.bit_length() - 1)))
    name = f"{method}_slices_batch"
    module.define(sliced_source(name, inner, arguments, returned, rows))
    return name


def _numbers(graph: Any) -> tuple[list[int], int]:
    """For one row, how many numbers each operation makes, and how many the graph returns.

    A graph that was not traced knows no sizes: its operations are counted, as if each made what is returned.
    """
    torch._C._jit_pass_inline(graph)
    operations = [node for node in nodes(graph) if node.kind().startswith("aten::")]
    made = [_sizes(v) for node in operations for v in node.outputs() if v.type().kind() == "TensorType"]
    given = [_sizes(v) for v in next(iter(graph.outputs())).node().inputs()]
    traced = [sizes for value in graph.inputs() if (sizes := _sizes(value))]
    if not traced or None in made or None in given:
        return [1] * len(made), 1
    batch = traced[0][0]
    counts = [math.prod(sizes or ()) // batch for sizes in (*made, *given)]
    return counts[: len(made)], sum(counts[len(made) :])


def _sizes(value: Any) -> list[int] | None:
    return value.type().sizes() if value.type().kind() == "TensorType" else None


def sliced_source(name: str, inner: str, arguments: Sequence[str], returned: int, size: int) -> str:
    first, other = (
        ", ".join(f"{a}.narrow(0, {start}, {count})" for a in arguments)
        for start, count in ((0, size), ("tf_start", f"min({size}, tf_rows - tf_start)"))
    )
    lines = [f"tf_rows = {arguments[0]}.size(0)"]
    lines += [f"if tf_rows <= {size}:", f"    tf_v = self.{inner}({', '.join(arguments)})"]
    lines += ["else:", f"    tf_v = self.{inner}({first})"]
    lines += [f"tf_o_{i} = tf_v[{i}]" for i in range(returned)]
    lines += [f"if tf_rows > {size}:", *(f"    tf_list_{i} = [tf_o_{i}]" for i in range(returned))]
    lines += [f"    for tf_start in range({size}, tf_rows, {size}):", f"        tf_v = self.{inner}({other})"]
    lines += [f"        tf_list_{i}.append(tf_v[{i}])" for i in range(returned)]
    lines += [f"    tf_o_{i} = torch.cat(tf_list_{i})" for i in range(returned)]
    return method_source(name, arguments, lines, [f"tf_o_{i}" for i in range(returned)])
