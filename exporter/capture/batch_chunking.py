"""Large batches, chunk by chunk: intermediate values stay in the cache, and memory is reused.

A chunk is called as the whole batch is, so results do not depend on chunks if the elements of a batch are independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from exporter.capture.forward_wrapper import emit_method_source
from exporter.common.script_loading import iterate_nodes, list_inputs, list_outputs
from exporter.common.torch_internals import inline_calls, optimized_execution
from exporter.model.eager.warmup import Warmup

# Measured: chunks pay if a graph computes this many times the numbers that it returns (2 to 4 times as fast at 300,000
# rows); below that the copy that joins them costs more than it saves.
MIN_WORK_RATIO = 12
# Bytes that an operation computes for a chunk, about. Chunks of 2,048 to 65,536 rows have most of the gain.
BYTES, SMALLEST, CHUNK = 2**19, 1_024, 16_384
# A GPU starts an operation in about the time that it computes one for thousands of rows: its chunks are so many times
# as long, and bound the memory.
ON_DEVICES = 32
# For derivatives, whose rows are repeated for every direction, or carry a tangent with each value.
REPEATED = 4_096


def is_chunkable(warm: Warmup) -> bool:
    """Return whether all inputs and outputs of the model's methods have the batch, and large batches are verified:
    what was never run is not written."""
    source = warm.source
    return bool(source.batch_ndim and source.inputs) and not any(warm.constant) and warm.batch.has_large


def add_chunked_method(
    module: torch.jit.ScriptModule, method: str, inner: str, arguments: Sequence[str], count: int, max_rows: int = CHUNK
) -> str:
    """Write the method that calls ``inner`` on chunks, and return its name; ``inner`` itself if chunks do not pay.

    The ``arguments`` and the ``count`` results are tensors that all have the batch; ``max_rows`` are the rows of a
    chunk at most."""
    # The sizes are those of the graph as torch optimises it, whatever eager mode around this does.
    with optimized_execution(True):
        computed_counts, returned_count = _count_numbers(module._c._get_method(inner).graph.copy())
    if sum(computed_counts) < MIN_WORK_RATIO * returned_count:
        return inner
    fitting_rows = BYTES * len(computed_counts) // (8 * max(sum(computed_counts), 1))
    rows = min(max_rows, max(SMALLEST, 2 ** (fitting_rows.bit_length() - 1)))
    name = f"{method}_slices_batch"
    module.define(emit_chunked_source(name, inner, arguments, count, rows))
    return name


def _count_numbers(graph: Any) -> tuple[list[int], int]:
    """Return how many numbers each operation computes for one row, and how many the graph returns.

    A graph that was not traced knows no sizes: its operations are counted as if each computed one result."""
    inline_calls(graph)
    operations = [node for node in iterate_nodes(graph) if node.kind().startswith("aten::")]
    computed_sizes = [
        _get_sizes(v) for node in operations for v in list_outputs(node) if v.type().kind() == "TensorType"
    ]
    returned_sizes = [_get_sizes(v) for v in list_inputs(next(iter(graph.outputs())).node())]
    input_sizes = [sizes for value in graph.inputs() if (sizes := _get_sizes(value))]
    if not input_sizes or None in computed_sizes or None in returned_sizes:
        return [1] * len(computed_sizes), 1
    batch = input_sizes[0][0]
    counts = [math.prod(sizes or ()) // batch for sizes in (*computed_sizes, *returned_sizes)]
    return counts[: len(computed_sizes)], sum(counts[len(computed_sizes) :])


def _get_sizes(value: Any) -> list[int] | None:
    return value.type().sizes() if value.type().kind() == "TensorType" else None


def emit_chunked_source(name: str, inner: str, arguments: Sequence[str], count: int, size: int) -> str:
    """Return source of a method that calls ``inner`` on chunks of ``size`` rows, or of more on a GPU."""
    chunks = [f"tf_x_{i}" for i in range(len(arguments))]
    lines = [f"tf_rows = {arguments[0]}.size(0)"]
    lines += [f"tf_most = {size} if {arguments[0]}.is_cpu else {size * ON_DEVICES}"]
    lines += [f"tf_list_{i}: List[Tensor] = []" for i in range(count)]
    # The trace is called at one place only, as in ``forward``; an empty batch is a chunk, too.
    lines += ["for tf_start in range(0, max(tf_rows, 1), tf_most):"]
    lines += [f"    {chunk} = {a}" for chunk, a in zip(chunks, arguments, strict=True)]
    lines += ["    if tf_rows > tf_most:", "        tf_count = min(tf_most, tf_rows - tf_start)"]
    lines += [f"        {chunk} = {chunk}.narrow(0, tf_start, tf_count)" for chunk in chunks]
    lines += [f"    tf_v = self.{inner}({', '.join(chunks)})"]
    lines += [f"    tf_list_{i}.append(tf_v[{i}])" for i in range(count)]
    results = [f"tf_o_{i}" for i in range(count)]
    lines += [f"{result} = tf_list_{i}[0]" for i, result in enumerate(results)]
    # A copy of a single chunk would cost its memory once more.
    lines += ["if tf_rows > tf_most:", *(f"    {r} = torch.cat(tf_list_{i})" for i, r in enumerate(results))]
    return emit_method_source(name, arguments, lines, results)
