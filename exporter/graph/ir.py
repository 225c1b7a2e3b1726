"""A graph as plain values: what reading, comparing and drawing of saved graphs speak of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from exporter.graph.origin import Origin

UNKNOWN = Origin("")


@dataclass(frozen=True)
class Held:
    """A tensor that the file holds. ``name`` is its path in the file where it can be set or is written to; one that
    only stands in the graph has none. ``key`` finds its value; ``digest`` is the sha256 of its bytes; tensors of one
    ``memory`` share it."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    name: str = ""
    key: str = field(default="", compare=False)
    memory: str = field(default="", compare=False)

    def kind(self) -> str:
        return f"{self.dtype}{list(self.shape)}".replace(" ", "")


@dataclass(frozen=True)
class Literal:
    """A number, text, list of them, or ``None``, as it is written; floats so that they are read back to the bit.

    ``value`` is the thing itself."""

    text: str
    value: Any = field(default=None, compare=False)


# A value of the graph is an integer.
Input = int | Literal | Held


@dataclass(frozen=True)
class Block:
    """``types`` of the inputs."""

    inputs: tuple[int, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Input, ...]
    types: tuple[str, ...] = ()


@dataclass(frozen=True)
class Node:
    """``operator`` has its overload (``aten::add.Tensor``), and its attributes where it has any.

    ``types`` are those of the outputs; ``schema`` is torch's own, empty for what has none. ``effect``: the node writes
    to memory, raises, prints, draws random numbers or sets an attribute. ``writes`` and ``reads`` name memory that some
    node of the graph writes to. ``origin`` (submodule, line of source) is no part of what is computed.
    """

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
        """The operator without its overload and attributes."""
        return self.operator.partition("[")[0].partition(".")[0]


@dataclass(frozen=True)
class Graph:
    """One method. ``types`` of the inputs; the module itself is no input."""

    method: str
    body: Block
    types: tuple[str, ...]

    def __iter__(self) -> Iterator[Node]:
        """Every node, those of inner blocks behind the node that holds them."""
        return walk(self.body)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def walk(block: Block) -> Iterator[Node]:
    for node in block.nodes:
        yield node
        for inner in node.blocks:
            yield from walk(inner)


def versions(block: Block) -> dict[int, int]:
    """By ``id`` of each node that reads memory: how many writes to each piece of it stand before, in the block."""
    found: dict[int, int] = {}
    writes: dict[int | str, int] = {}
    for node in block.nodes:
        if node.reads:
            found[id(node)] = sum(writes.get(memory, 0) for memory in node.reads)
        for memory in node.writes:
            writes[memory] = writes.get(memory, 0) + 1
    return found


def values_of(inputs: tuple[Input, ...]) -> list[int]:
    return [i for i in inputs if isinstance(i, int)]


def free_values(block: Block) -> list[int]:
    """Values of outside that a block reads, in the order in which it first does."""
    own = set(block.inputs)
    found: dict[int, None] = {}
    for node in block.nodes:
        for value in (*values_of(node.inputs), *(v for inner in node.blocks for v in free_values(inner))):
            if value not in own:
                found.setdefault(value)
        own |= set(node.outputs)
    for value in values_of(block.outputs):
        if value not in own:
            found.setdefault(value)
    return list(found)
