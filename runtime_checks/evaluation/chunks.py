"""Chunks of a data set: blocks of its elements that are read, evaluated and written at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy

# Bytes of inputs and outputs of a chunk, unless the chunks of the data set are larger.
CHUNK_BYTES = 64 * 2**20
# A chunk that holds whole stored ones may be so many times as large.
LARGEST = 8


@dataclass(frozen=True)
class Chunk:
    """A block of elements: ``start`` and ``stop`` by dimension, in the order of the grid's dimensions."""

    index: int
    dims: tuple[str, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the number of elements along each dimension."""
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def slices(self) -> dict[str, slice]:
        """Return the slice of each dimension."""
        return {dim: slice(a, b) for dim, a, b in zip(self.dims, self.start, self.stop, strict=True)}

    def select(self, dims: Sequence[str]) -> tuple[slice, ...]:
        """Return the slices of some dimensions, all of one that the grid does not have."""
        return tuple(self.slices.get(dim, slice(None)) for dim in dims)

    def spread(self, value: numpy.ndarray, dims: Sequence[str]) -> numpy.ndarray:
        """Return a variable's values as ``(elements, *event)``, repeated along the dimensions that it lacks.

        Args:
            value: The values of a chunk; its first dimensions are those of elements.
            dims: The names of these dimensions, in any order.
        """
        import numpy

        own = value.shape[len(dims) :]
        order = [dims.index(dim) for dim in self.dims if dim in dims]
        value = value.transpose(*order, *range(len(dims), value.ndim))
        value = value[tuple(slice(None) if dim in dims else None for dim in self.dims)]
        # What is broadcast cannot be written to, and would be copied.
        wide = value if value.shape == (*self.shape, *own) else numpy.broadcast_to(value, (*self.shape, *own))
        return wide.reshape(math.prod(self.shape), *own)

    def describe(self) -> str:
        """Return the chunk as text: ``chunk 3: sample 200 to 299``."""
        parts = [f"{d} {a} to {b - 1}" for d, a, b in zip(self.dims, self.start, self.stop, strict=True)]
        return f"chunk {self.index}: {', '.join(parts) or 'the only element'}"


@dataclass(frozen=True)
class Grid:
    """All elements of a data set, cut into chunks: the ``sizes`` of its dimensions, and those of a chunk.

    The last chunk along a dimension may be shorter. Without dimensions there is one element."""

    dims: tuple[str, ...]
    sizes: tuple[int, ...]
    chunk_sizes: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the number of chunks along each dimension."""
        return tuple(-(-size // step) for size, step in zip(self.sizes, self.chunk_sizes, strict=True))

    def __len__(self) -> int:
        return math.prod(self.counts)

    @property
    def elements(self) -> int:
        """Return the number of all elements."""
        return math.prod(self.sizes)

    def chunk(self, index: int) -> Chunk:
        """Return a chunk by its number; the last dimension changes first."""
        places = find_place(index, self.counts)
        start = tuple(place * step for place, step in zip(places, self.chunk_sizes, strict=True))
        stop = tuple(min(a + c, n) for a, c, n in zip(start, self.chunk_sizes, self.sizes, strict=True))
        return Chunk(index, self.dims, start, stop)

    def find_chunk(self, place: Sequence[int]) -> Chunk:
        """Return the chunk that an element is in."""
        places = [position // step for position, step in zip(place, self.chunk_sizes, strict=True)]
        return self.chunk(find_number(places, self.counts))


def find_number(place: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the number of a place among all of a block; the last dimension changes first."""
    import numpy

    return int(numpy.ravel_multi_index(tuple(place), tuple(sizes)))


def find_place(number: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return a place of a block by its number."""
    import numpy

    return tuple(map(int, numpy.unravel_index(number, tuple(sizes))))


def plan_grid(
    sizes: Mapping[str, int],
    stored: Mapping[str, int],
    element_bytes: int,
    single: Sequence[str] = (),
    elements: int | None = None,
) -> Grid:
    """Cut the elements into chunks.

    Args:
        sizes: The size of each dimension.
        stored: The sizes of the chunks that the data are stored in, where they are: whole ones are read at once.
        element_bytes: Bytes of the inputs and outputs of an element.
        single: Dimensions of which a chunk has one place.
        elements: At most so many elements has a chunk; by default about what ``CHUNK_BYTES`` hold.

    Returns:
        A grid whose chunks are whole numbers of stored chunks, as many as fit; at least one, unless ``elements`` are
        fewer, or it would be ``LARGEST`` times too large.
    """
    wanted = elements or max(1, CHUNK_BYTES // max(element_bytes, 1))
    # A chunk holds whole stored ones, unless fewer elements are asked for.
    own = dict.fromkeys(sizes, 1) if elements else {dim: min(stored.get(dim, 1), n) for dim, n in sizes.items()}
    steps = {dim: 1 if dim in single else max(own[dim], 1) for dim in sizes}
    for dim in reversed([dim for dim in sizes if dim not in single]):
        others = math.prod(step for other, step in steps.items() if other != dim)
        room, base = max(1, wanted // others), max(stored.get(dim, 1), 1)
        steps[dim] = min(max(steps[dim], room // base * base or (room if elements else base)), max(sizes[dim], 1))
        if steps[dim] < sizes[dim]:
            break
    if not elements and math.prod(steps.values()) > LARGEST * wanted:
        # Stored chunks that lie across each other, or are too large: some are read more than once.
        return plan_grid(sizes, stored, element_bytes, single, LARGEST * wanted)
    return Grid(tuple(sizes), tuple(sizes.values()), tuple(steps.values()))
