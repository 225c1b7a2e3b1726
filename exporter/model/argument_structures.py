"""Arguments of ``forward`` that hold several tensors: lists, tuples, dicts, and what torch's pytrees know.

Each tensor or array in them is a variable of the file, named by its place: ``state.h``, ``layers.0``. Numbers, texts
and None are fixed, as the user's own call has them."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch

from exporter.archive.format_limits import MAX_ITEMS
from exporter.archive.value_structure import (
    Structure,
    StructureKind,
    StructureNode,
    check_structure,
    format_fixed,
    is_field,
)
from exporter.common.errors import UsageError, summarize_error
from exporter.common.torch_internals import pytree

CHECK = "arguments"
# Values that are no data of a model.
_FIXED = (bool, int, float, complex, str, bytes, type(None))


class ArgumentStructures:
    """What values of arguments by name are made of.

    ``tensors`` are the values of the variables by name, ``fixed`` the other ones by place. Raises ``UsageError`` for a
    value that is neither, or for two of one name."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.tensors: dict[str, Any] = {}
        self.fixed: dict[str, Any] = {}
        self.arguments = list(values)
        self._values = list(values.values())
        self._structures: list[pytree.TreeSpec] = []
        # In order.
        self._places: dict[str, None] = {}
        for argument, value in values.items():
            leaves, structure = flatten_value(argument, value, is_leaf=_is_array)
            self._structures.append(structure)
            for place, leaf in leaves:
                self._add_leaf(place, leaf, where)

    def _add_leaf(self, place: str, leaf: Any, where: str) -> None:
        if place in self._places:
            what, mend = f"two values have the name {place!r}", "give them other keys, without dots"
            raise UsageError(what, where=where, expected="a name for each value", mend=mend)
        self._places[place] = None
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
        return list(self._places) == self.arguments == list(self.tensors)

    def describe(self) -> Structure:
        """Return the structure of the arguments, a dict by their names; empty where no contract can hold it."""
        values = dict(zip(self.arguments, self._values, strict=True))
        return describe_value(values, lambda place, _: place if place in self.tensors else "", _is_leaf)

    def bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function of the variables, in order, that calls ``function`` with the arguments, in order."""

        def call(*tensors: torch.Tensor) -> Any:
            values = {**self.fixed, **dict(zip(self.tensors, tensors, strict=True))}
            leaves = iter([values[place] for place in self._places])
            return function(
                *(pytree.tree_unflatten([next(leaves) for _ in range(s.num_leaves)], s) for s in self._structures)
            )

        return call


def flatten_value(
    name: Any, value: Any, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[tuple[Any, Any]], pytree.TreeSpec]:
    """Return what a value holds that torch's pytrees take apart, each with its place, and its structure.

    The place of a value that they do not take apart is its name.

    Raises ``UsageError`` for a class that has no names for its parts, and for a key that is no name."""
    try:
        leaves, structure = pytree.tree_flatten_with_path(value, is_leaf=is_leaf)
    except ValueError as error:
        what = f"the parts of {str(name)!r} have no names"
        expected = "a class of which torch's pytrees can name the parts"
        mend = "register_pytree_node(..., flatten_with_keys_fn=...), or torch.export.register_dataclass"
        raise UsageError(what, got=summarize_error(error), expected=expected, mend=mend) from None
    return [
        (".".join([str(name), *(_name_step(name, step) for step in path)]) if path else name, leaf)
        for path, leaf in leaves
    ], structure


def describe_value(
    value: Any, name_leaf: Callable[[str, Any], str], is_leaf: Callable[[Any], bool], place: str = ""
) -> Structure:
    """Return the structure of a value; empty where no contract can hold it.

    ``name_leaf`` is given the place and the value of each leaf, and returns the name of its variable; empty for a value
    that is fixed."""
    try:
        nodes = tuple(_iterate_nodes(value, place, name_leaf, is_leaf))
        check_structure(nodes, [node.name for node in nodes if node.kind == "variable"])
    except (_NoStructureError, UsageError, RecursionError):
        return ()
    return nodes if len(nodes) <= MAX_ITEMS else ()


class _NoStructureError(Exception):
    """A value is made of what a contract has no node for."""


def _iterate_nodes(
    value: Any, place: str, name_leaf: Callable[[str, Any], str], is_leaf: Callable[[Any], bool]
) -> Iterator[StructureNode]:
    kind, parts = _split(value) if not is_leaf(value) else ("", [])
    if not kind:
        if name := name_leaf(place, value):
            yield StructureNode("variable", name)
        elif text := format_fixed(value):
            yield StructureNode("fixed", value=text)
        else:
            raise _NoStructureError
        return
    yield StructureNode(kind, keys=tuple(key for key, _ in parts))
    for key, part in parts:
        yield from _iterate_nodes(part, f"{place}.{key}" if place else str(key), name_leaf, is_leaf)


def _split(value: Any) -> tuple[StructureKind | Literal[""], list[tuple[Any, Any]]]:
    """Return what a value is, and its parts by key; no kind for one that has no parts."""
    if isinstance(value, Mapping):
        return "dict", list(value.items())
    try:
        paths, _ = pytree.tree_flatten_with_path(value, is_leaf=lambda part: part is not value)
    except ValueError:
        raise _NoStructureError from None
    if len(paths) == 1 and not paths[0][0]:
        return "", []
    steps: list[Any] = [path[0] for path, _ in paths]
    parts = [part for _, part in paths]
    if all(isinstance(step, pytree.SequenceKey) for step in steps):
        is_known = isinstance(value, (list, tuple)) and not hasattr(value, "_fields")
        if not (steps or is_known):
            raise _NoStructureError
        return "tuple" if isinstance(value, tuple) else "list", list(enumerate(parts))
    if all(isinstance(step, pytree.GetAttrKey) for step in steps):
        # Python's named tuples have no other names.
        is_plain = all(is_field(step.name) and not keyword.iskeyword(step.name) for step in steps)
        return "named tuple" if is_plain else "dict", list(zip([step.name for step in steps], parts, strict=True))
    if all(isinstance(step, pytree.MappingKey) for step in steps):
        return "dict", list(zip([step.key for step in steps], parts, strict=True))
    raise _NoStructureError


def _is_array(value: Any) -> bool:
    """Return whether a value is a tensor or an array, or lists of numbers."""
    if isinstance(value, (list, tuple)):
        is_plain = bool(value) and not hasattr(value, "_fields")
        return is_plain and all(isinstance(v, bool) or _is_number(v) or _is_nested(v) for v in value)
    return isinstance(value, torch.Tensor) or hasattr(value, "__array__")


def _is_leaf(value: Any) -> bool:
    return _is_array(value) or isinstance(value, _FIXED)


def _is_nested(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and _is_array(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex)) and not isinstance(value, bool)


def _name_step(name: Any, step: Any) -> str:
    if isinstance(step, pytree.SequenceKey):
        return str(step.idx)
    key = step.key if isinstance(step, pytree.MappingKey) else step.name
    if isinstance(key, (str, int)) and str(key):
        return str(key)
    what, expected = f"a key in {str(name)!r} is no name", "keys that are texts or whole numbers"
    raise UsageError(what, got=repr(key)[:100], expected=expected, mend="give it another key")
