"""A graph as plain values: the common form for reading, comparing and drawing saved graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from exporter.saved_code.origin import Origin

if TYPE_CHECKING:
    import torch

UNKNOWN = Origin("")
# The call of another method of the same module, whose name follows in brackets.
CALL = "prim::CallMethod"
# The call of a submodule that is not inlined; its path follows in brackets.
APART = "torchferry::apart"


@dataclass(frozen=True)
class TensorConstant:
    """A tensor held by the file. ``name`` is its path in the file if it can be set or is written to; one that only
    stands in the graph has none. ``key`` finds its value; ``digest`` is the sha256 of its bytes; tensors of one
    ``memory`` share it."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    name: str = ""
    key: str = field(default="", compare=False)
    memory: str = field(default="", compare=False)

    def kind(self) -> str:
        """Return dtype and shape as text, such as ``float64[3]``."""
        return f"{self.dtype}{list(self.shape)}".replace(" ", "")


@dataclass(frozen=True)
class Literal:
    """A number, text, list of them, or ``None``, as source text; floats so that they are read back to the bit.

    ``value`` is the Python object. ``is_shared``: it is a list that is an attribute, the same one at each read."""

    text: str
    value: Any = field(default=None, compare=False)
    is_shared: bool = field(default=False, compare=False)


# A value of the graph is an integer.
Input = int | Literal | TensorConstant


@dataclass(frozen=True)
class Block:
    """A list of nodes with its inputs and outputs; ``types`` are those of the inputs."""

    inputs: tuple[int, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Input, ...]
    types: tuple[str, ...] = ()


@dataclass(frozen=True)
class Node:
    """One operation. ``operator`` has its overload (``aten::add.Tensor``), and its attributes if it has any.

    ``types`` are those of the outputs; ``schema`` is torch's own, empty without one. ``effect``: the node writes to
    memory, raises, prints, draws random numbers or sets an attribute. ``writes`` and ``reads`` name memory that some
    node of the graph writes to. ``origin`` (submodule, source line) is no part of what is computed."""

    operator: str
    inputs: tuple[Input, ...]
    outputs: tuple[int, ...]
    types: tuple[str, ...]
    blocks: tuple[Block, ...] = ()
    schema: str = ""
    effect: bool = False
    reads: frozenset[int | str] = frozenset()
    writes: frozenset[int | str] = frozenset()
    origin: Origin = UNKNOWN

    @property
    def kind(self) -> str:
        """Return the operator without its overload and attributes."""
        return self.operator.partition("[")[0].partition(".")[0]


@dataclass(frozen=True)
class Graph:
    """One method. ``types`` are those of the inputs; the module itself is no input."""

    method: str
    body: Block
    types: tuple[str, ...]

    def __iter__(self) -> Iterator[Node]:
        """Yield every node, those of inner blocks after the node that holds them."""
        return walk_nodes(self.body)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class SavedGraphs:
    """A module's methods as graphs, by name, and the tensors that they hold, by ``TensorConstant.key``."""

    graphs: Mapping[str, Graph]
    tensors: Mapping[str, torch.Tensor]


_Value = TypeVar("_Value", Node, Block, Graph)


def replace_fields(value: _Value, **fields: Any) -> _Value:
    """Return a copy with other fields, as ``dataclasses.replace`` does: that takes five times as long, and graphs have
    tens of thousands of nodes."""
    copied = object.__new__(type(value))
    vars(copied).update(vars(value), **fields)
    return copied


def get_callee(node: Node) -> str:
    """Return the method that a ``CALL`` node calls, or the path that an ``APART`` node calls."""
    return node.operator.partition("[")[2].removesuffix("]").removeprefix("name=").strip("'")


def walk_nodes(block: Block) -> Iterator[Node]:
    """Yield every node of a block, those of inner blocks after the node that holds them."""
    for node in block.nodes:
        yield node
        for inner in node.blocks:
            yield from walk_nodes(inner)


def count_prior_writes(block: Block) -> dict[int, int]:
    """Return, by ``id`` of each node that reads memory, the number of earlier writes to it in the block."""
    counts: dict[int, int] = {}
    writes: dict[int | str, int] = {}
    for node in block.nodes:
        if node.reads:
            counts[id(node)] = sum(writes.get(memory, 0) for memory in node.reads)
        for memory in node.writes:
            writes[memory] = writes.get(memory, 0) + 1
    return counts


def select_values(inputs: tuple[Input, ...]) -> list[int]:
    """Return the inputs that are values of the graph, without constants."""
    return [i for i in inputs if isinstance(i, int)]


def find_free_values(block: Block) -> list[int]:
    """Return the outer values that a block reads, in the order in which it first does."""
    bound = set(block.inputs)
    free: dict[int, None] = {}
    for node in block.nodes:
        for value in (*select_values(node.inputs), *(v for inner in node.blocks for v in find_free_values(inner))):
            if value not in bound:
                free.setdefault(value)
        bound |= set(node.outputs)
    for value in select_values(block.outputs):
        if value not in bound:
            free.setdefault(value)
    return list(free)


def list_last_uses(block: Block) -> list[list[int]]:
    """Return for each node of a block which of the block's own values nobody needs after it."""
    own = {*block.inputs, *(value for node in block.nodes for value in node.outputs)}
    needed = {value for value in block.outputs if isinstance(value, int)}
    uses: list[list[int]] = []
    for node in reversed(block.nodes):
        read = {*select_values(node.inputs), *(v for inner in node.blocks for v in find_free_values(inner))}
        last = ((read | set(node.outputs)) & own) - needed
        uses.append(sorted(last))
        needed |= read
    return uses[::-1]
