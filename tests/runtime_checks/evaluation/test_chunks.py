"""Chunks cover all elements once, and hold whole stored ones."""

from __future__ import annotations

import itertools
import math

import numpy
from hypothesis import given
from hypothesis import strategies as st

from runtime_checks.evaluation.chunks import CHUNK_BYTES, LARGEST, Chunk, Grid, find_number, find_place, plan_grid

SIZES = st.lists(st.integers(1, 9), max_size=3)


def list_places(grid: Grid) -> list[tuple[int, ...]]:
    chunks = map(grid.chunk, range(len(grid)))
    ranges = ([range(a, b) for a, b in zip(c.start, c.stop, strict=True)] for c in chunks)
    return [place for sides in ranges for place in itertools.product(*sides)]


@given(st.data(), SIZES)
def test_chunks_cover_every_element_once(data, sizes):
    steps = tuple(data.draw(st.integers(1, size)) for size in sizes)
    grid = Grid(tuple("abc"[: len(sizes)]), tuple(sizes), steps)
    places = list_places(grid)
    assert len(places) == len(set(places)) == grid.elements == math.prod(sizes)
    for place in places:
        number = find_number(place, grid.sizes)
        assert find_place(number, grid.sizes) == place
        chunk = grid.find_chunk(place)
        assert all(a <= p < b for a, p, b in zip(chunk.start, place, chunk.stop, strict=True))
        assert grid.chunk(chunk.index) == chunk
    assert sorted(find_number(place, grid.sizes) for place in places) == list(range(grid.elements))


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 12)), min_size=1, max_size=3), st.integers(1, 400))
def test_a_chunk_is_whole_stored_chunks(pairs, elements):
    sizes = {f"d{k}": size for k, (size, _) in enumerate(pairs)}
    stored = {f"d{k}": min(step, size) for k, (size, step) in enumerate(pairs)}
    grid = plan_grid(sizes, stored, CHUNK_BYTES // elements)
    if math.prod(stored.values()) <= elements * LARGEST:
        for size, step, own in zip(grid.sizes, grid.chunk_sizes, stored.values(), strict=True):
            assert step == size or step % own == 0
    # More than one stored chunk is taken only where that fits.
    assert math.prod(grid.chunk_sizes) <= max(elements * 2, min(math.prod(stored.values()), elements * LARGEST))


def test_a_number_of_elements_that_is_asked_for():
    assert plan_grid({"x": 1000}, {"x": 100}, 8, elements=250).chunk_sizes == (200,)
    assert plan_grid({"x": 1000}, {"x": 100}, 8, elements=30).chunk_sizes == (30,)
    assert plan_grid({"t": 10, "x": 1000}, {}, 8, elements=300).chunk_sizes == (1, 300)
    assert plan_grid({"t": 10, "x": 100}, {}, 8, elements=300).chunk_sizes == (3, 100)
    assert plan_grid({"x": 10}, {}, 8, elements=300).chunk_sizes == (10,)


def test_values_are_spread_over_a_chunk():
    """As broadcasting by name has it: dimensions in any order, and repeated where they lack."""
    chunk = Chunk(0, ("t", "x", "y"), (0, 0, 0), (2, 3, 4))
    value = numpy.arange(40.0).reshape(4, 2, 5)
    spread = chunk.spread(value, ["y", "t"]).reshape(2, 3, 4, 5)
    for t, x, y in itertools.product(range(2), range(3), range(4)):
        assert numpy.array_equal(spread[t, x, y], value[y, t])
    whole = numpy.zeros((2, 3, 4))
    assert numpy.shares_memory(chunk.spread(whole, ["t", "x", "y"]), whole)


def test_what_is_studied_by_parameter_is_alone_in_a_chunk():
    assert plan_grid({"E": 5, "x": 100}, {}, 8, ("E",)).chunk_sizes == (1, 100)


def test_memory_is_bounded_by_no_stored_chunk():
    sizes = {"t": 10_000, "x": 10_000}
    assert math.prod(plan_grid(sizes, sizes, 100).chunk_sizes) * 100 <= LARGEST * CHUNK_BYTES


def test_no_dimensions():
    grid = plan_grid({}, {}, 8)
    assert (len(grid), grid.elements, grid.chunk(0).describe()) == (1, 1, "chunk 0: the only element")


def test_a_chunk_says_where_it_is():
    assert Grid(("t", "x"), (4, 10), (2, 5)).chunk(3).describe() == "chunk 3: t 2 to 3, x 5 to 9"
