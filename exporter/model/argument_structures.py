"""Arguments of ``forward`` that hold several tensors: lists, tuples, dicts, and what torch's pytrees know.

Each tensor in them is a variable of the file, named by its place: ``state.h``, ``layers.0``. Numbers are tensors, too;
other values are fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from exporter.common.errors import UsageError

# Values that are no data of a model.
_FIXED = (bool, str, bytes, type(None))


class ArgumentStructures:
    """What values of arguments by name are made of.

    ``tensors`` are the values of the variables by name, ``fixed`` the other ones by place. Raises ``UsageError`` for a
    value that is neither, or for two of one name."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.tensors: dict[str, Any] = {}
        self.fixed: dict[str, Any] = {}
        self.arguments = list(values)
        self._structures: list[pytree.TreeSpec] = []
        self._places: list[str] = []
        for argument, value in values.items():
            leaves, structure = pytree.tree_flatten_with_path(value, is_leaf=_is_array)
            self._structures.append(structure)
            for path, leaf in leaves:
                self._add_leaf(_name_place(argument, path), leaf, where)

    def _add_leaf(self, place: str, leaf: Any, where: str) -> None:
        if place in self._places:
            what, expected = f"two values have the name {place!r}", "keys without dots, each a text or a number"
            raise UsageError(what, where=where, expected=expected)
        self._places.append(place)
        if isinstance(leaf, _FIXED):
            self.fixed[place] = leaf
        elif _is_array(leaf):
            self.tensors[place] = leaf
        else:
            what, got = f"value {place!r} is of a type that holds no tensors", type(leaf).__name__
            expected = "tensors, arrays, numbers, texts or None, also in lists, tuples and dicts"
            mend = "for a class of your own: torch.export.register_dataclass(Type)"
            raise UsageError(what, where=where, got=got, expected=expected, mend=mend)

    @property
    def is_flat(self) -> bool:
        """Return whether each argument is one tensor."""
        return self._places == self.arguments == list(self.tensors)

    def bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function of the variables, in order, that calls ``function`` with the arguments, in order."""

        def call(*tensors: torch.Tensor) -> Any:
            values = {**self.fixed, **dict(zip(self.tensors, tensors, strict=True))}
            leaves = iter([values[place] for place in self._places])
            return function(
                *(pytree.tree_unflatten([next(leaves) for _ in range(s.num_leaves)], s) for s in self._structures)
            )

        return call


def flatten_value(name: Any, value: Any) -> dict[Any, Any]:
    """Return the values that a list, a tuple or a dict holds, named by their places."""
    leaves, _ = pytree.tree_flatten_with_path(value)
    return {_name_place(name, path): leaf for path, leaf in leaves}


def _is_array(value: Any) -> bool:
    """Return whether a value is a tensor, an array or a number, or lists of numbers."""
    if isinstance(value, (list, tuple)):
        is_plain = bool(value) and not hasattr(value, "_fields")
        return is_plain and all(isinstance(v, bool) or _is_number(v) or _is_nested(v) for v in value)
    return isinstance(value, torch.Tensor) or hasattr(value, "__array__") or _is_number(value)


def _is_nested(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and _is_array(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex)) and not isinstance(value, bool)


def _name_place(name: Any, path: tuple[Any, ...]) -> str:
    return ".".join([str(name), *map(_name_step, path)])


def _name_step(step: Any) -> str:
    if isinstance(step, pytree.SequenceKey):
        return str(step.idx)
    return str(step.key) if isinstance(step, pytree.MappingKey) else str(step.name)
