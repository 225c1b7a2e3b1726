"""Components of variables, as users write them: ``stress[0]``, ``D[0,1]``, or the name alone of a single number."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from exporter.common.errors import UsageError, suggest_names

_COMPONENT = re.compile(r"(?P<name>[^\[\]]+)(\[(?P<index>[0-9]{1,9}(,[0-9]{1,9})*)\])?")
Index = tuple[int, ...]


def split_component(text: str) -> tuple[str, Index]:
    """Return the variable and the index of a component; a text that is none is a name."""
    match = _COMPONENT.fullmatch(text)
    if match is None:
        return text, ()
    return match["name"], tuple(map(int, (match["index"] or "").split(","))) if match["index"] else ()


def find_component(text: str, shapes: Mapping[str, Sequence[int]], where: str) -> tuple[str, Index]:
    """Return the variable and the index of a component. Raises ``UsageError`` if there is none like this."""
    name, index = split_component(text)
    if text in shapes:
        name, index = text, ()
    if name not in shapes:
        raise UsageError(f"there is no variable {name!r}", where=where, expected=suggest_names(name, shapes))
    shape = tuple(shapes[name])
    if len(index) != len(shape) or any(i >= size for i, size in zip(index, shape, strict=True)):
        expected = f"{name}[{', '.join(f'0 to {size - 1}' for size in shape)}]" if shape else name
        raise UsageError(f"{name!r} has no such component", where=where, got=text, expected=expected)
    return name, index


def list_components(name: str, shape: Sequence[int]) -> list[tuple[str, Index]]:
    """Return the components of a variable, with their texts."""
    indices: list[Index] = [()]
    for size in shape:
        indices = [(*index, i) for index in indices for i in range(size)]
    return [(f"{name}[{','.join(map(str, index))}]" if index else name, index) for index in indices]
