"""Large batches, slice by slice: intermediate values stay in the cache, and memory is reused.

A slice is called as the whole batch is, so numbers do not depend on it where the elements of a batch do not see each
other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from exporter.capture.entry import method_source
from exporter.capture.operators import nodes
from exporter.newton import loops
from exporter.warmup import Warmup

# Measured: graphs of some operations are 2 to 5 times as fast in slices at 300,000 rows, of any size from 2,048 to
# 65,536; those of fewer lose by the copy that puts the slices together.
SLICE, OPERATIONS = 16_384, 12
# Where each row is repeated for every direction of a derivative.
REPEATED = 4_096


def sliceable(warm: Warmup) -> bool:
    """Whether all that a method takes and gives has the batch; a Newton loop has slices of its own."""
    source = warm.source
    return bool(source.batch_ndim and source.inputs) and not any(warm.constant) and not loops(source.named)


def sliced(
    module: torch.jit.ScriptModule,
    method: str,
    inner: str,
    arguments: Sequence[str],
    returned: int,
    size: int = SLICE,
) -> str:
    """Writes the method that calls ``inner`` on slices, and gives its name; ``inner`` itself where slices do not pay.

    ``arguments`` and what is ``returned`` are tensors that all have the batch.
    """
    graph = module._c._get_method(inner).graph.copy()
    torch._C._jit_pass_inline(graph)
    if sum(node.kind().startswith("aten::") for node in nodes(graph)) < OPERATIONS:
        return inner
    name = f"{method}_slices_batch"
    module.define(sliced_source(name, inner, arguments, returned, size))
    return name


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
