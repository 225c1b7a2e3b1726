"""Forgeries of JSON: every value inside, changed in every way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

# On a terminal the line so far is gone, and a green word stands there.
ESCAPE = "x\x1b[2K\x1b[32mverified\x1b[0m"
Place = tuple[str | int, ...]
VALUES: tuple[Any, ...] = (
    None, True, -1, 2**40 + 1, 2**64, 1.5, -0.5, 1e308, "", "x", "x\x1b[2J", "a\nb", "\u202e", "n" * 501,
    [], [[]], {}, {"x": 1},
)  # fmt: skip


def list_places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Every value inside, by its path; of a long list the first three."""
    yield place
    if isinstance(value, dict):
        for key, item in value.items():
            yield from list_places(item, (*place, key))
    if isinstance(value, list):
        for i, item in enumerate(value[:3]):
            yield from list_places(item, (*place, i))


def find_owner(contract: Any, place: Place) -> Any:
    for key in place[:-1]:
        contract = contract[key]
    return contract


def remove(contract: Any, place: Place) -> None:
    del find_owner(contract, place)[place[-1]]


def double(contract: Any, place: Place) -> None:
    owner = find_owner(contract, place)
    if isinstance(owner, list):
        owner.append(owner[int(place[-1])])
    else:
        owner[f"{place[-1]} again"] = owner[place[-1]]


def put(value: Any) -> Callable[[Any, Place], None]:
    def change(contract: Any, place: Place) -> None:
        find_owner(contract, place)[place[-1]] = value

    change.__name__ = f"{value!r:.20}"
    return change


CHANGES = (remove, double, *map(put, VALUES))
