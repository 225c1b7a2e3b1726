"""Groups of operations that torch's executor fuses: their type checks, their operations, and the fallback beside them.

The fuser is NNC (torch/csrc/jit/passes/tensorexpr_fuser.cpp). It makes one kernel of neighbouring elementwise
operations, for the dtypes, sizes, strides and devices that the first call had; a check before it leads other tensors to
a fallback of the same operations, which run one after the other."""

from __future__ import annotations

import re
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from exporter.common.recursion import with_deep_recursion
from exporter.common.torch_internals import can_fuse_on_cpu, has_llvm
from exporter.graph.listing import ListingRow, format_value, list_block_rows, name_inputs
from exporter.saved_code.ir import Block, Graph, Node, walk_nodes

GROUP, CHECK, FALLBACK = "prim::TensorExprGroup", "prim::TypeCheck", "prim::CallFunction"


@dataclass(frozen=True)
class FusionGroup:
    """Operations that become one kernel.

    Attributes:
        rows: Its lines: what it takes, its operations, what it gives.
        operations: How many operations it has.
        checks: What is checked before it runs: values with dtype, sizes, strides and device, each as text.
        has_fallback: Whether other types run the same operations one after the other.
    """

    rows: tuple[ListingRow, ...]
    operations: int
    checks: tuple[str, ...]
    has_fallback: bool


@dataclass(frozen=True)
class Fusion:
    """The groups of a graph in order, and how often operators stand outside of them."""

    groups: tuple[FusionGroup, ...]
    apart: Mapping[str, int]


@with_deep_recursion
def find_fusion(graph: Graph, names: Sequence[str] = ()) -> Fusion:
    """Find the groups of a graph that torch's executor has fused; ``names`` are those of its inputs."""
    groups = tuple(_iterate_groups(graph.body, name_inputs(graph, names)))
    return Fusion(groups, dict(Counter(_iterate_apart(graph.body)).most_common()))


def describe_support() -> str:
    """Return where this torch fuses, as a line for people."""
    if can_fuse_on_cpu():
        return "this torch fuses on the CPU and on GPUs"
    reason = "it is off by default" if has_llvm() else "torch is built without LLVM"
    return f"this torch fuses on GPUs; on the CPU each operation runs by itself ({reason})"


def _iterate_groups(block: Block, names: MutableMapping[int, str]) -> Iterator[FusionGroup]:
    checks = {node.outputs[-1]: node for node in block.nodes if node.kind == CHECK}
    for node in block.nodes:
        condition = node.inputs[0] if node.kind == "prim::If" else None
        check = checks.get(condition) if isinstance(condition, int) else None
        if node.kind == GROUP:
            yield _make_group(node, None, names, has_fallback=False)
        elif check is not None:
            fused, other = node.blocks
            has_fallback = any(inner.kind == FALLBACK for inner in other.nodes)
            yield from (_make_group(inner, check, names, has_fallback) for inner in fused.nodes if inner.kind == GROUP)
        else:
            for inner in node.blocks:
                yield from _iterate_groups(inner, names)


def _make_group(node: Node, check: Node | None, names: MutableMapping[int, str], has_fallback: bool) -> FusionGroup:
    """Return a group, whose values are named as they are outside of it and of the check."""
    (body,) = node.blocks
    outside, checks = ChainMap({}, names), list[str]()
    if check is not None:
        whole_types = _CHECKED_TYPE.findall(check.operator)
        types = whole_types if len(whole_types) == len(check.inputs) else check.types
        for passed, value, type_text in zip(check.outputs, check.inputs, types, strict=False):
            outside[passed] = format_value(value, names)
            checks.append(f"{outside[passed]}: {type_text}")
    own_names = {inner: format_value(value, outside) for inner, value in zip(body.inputs, node.inputs, strict=True)}
    rows = tuple(list_block_rows(body, body.types, own_names))
    return FusionGroup(rows, sum(1 for _ in walk_nodes(body)), tuple(checks), has_fallback)


# As the reader of graphs writes the types that a check compares.
_CHECKED_TYPE = re.compile(r"[a-z]+\d*\[[\d, ]*\] strides=\[[\d, ]*\] [a-z]+(?::\d+)?")


def _iterate_apart(block: Block) -> Iterator[str]:
    for node in block.nodes:
        if node.kind == GROUP:
            continue
        if not node.kind.startswith("prim::"):
            yield node.kind
        for inner in node.blocks:
            yield from _iterate_apart(inner)
