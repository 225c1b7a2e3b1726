"""Types of TorchScript's source, and whether a value of one fits an argument of another."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass

# Types that are not classes of the file; any other short name in a schema is a variable that stands for a type.
_NAMES = frozenset({
    "Tensor", "int", "float", "bool", "complex", "str", "number", "Any", "NoneType", "Device", "Generator", "Storage",
    "Stream", "Layout", "ScalarType", "MemoryFormat", "Dimname", "QScheme", "AnyEnumType", "AnyListType",
    "AnyTupleType", "List", "Dict", "Optional", "Tuple", "Union", "Future", "RRef",
})  # fmt: skip

# Parts of a type, counted as often as they stand in it.
MAX_TYPE = 100_000


@dataclass(frozen=True)
class ScriptType:
    """A type: its name, or the path of its class, and what stands in its brackets."""

    name: str
    arguments: tuple[ScriptType, ...] = ()

    def __post_init__(self) -> None:
        # A few lines of code could make a type of as many parts as they like.
        size = 1 + sum(a.size for a in self.arguments)
        if size > MAX_TYPE:
            raise ValueError(f"a type of more than {MAX_TYPE} parts")
        self.__dict__.update(_size=size, _hash=hash((self.name, self.arguments)))

    def __hash__(self) -> int:
        return self.__dict__["_hash"]

    @property
    def size(self) -> int:
        """Return how many parts it has, itself included."""
        return self.__dict__["_size"]

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.arguments))
        return f"{self.name}[{inner}]" if self.arguments else self.name

    @property
    def is_variable(self) -> bool:
        """Return whether it stands for a type, as ``t`` in ``t[]``."""
        return not self.arguments and self.name not in _NAMES and "." not in self.name


Bindings = dict[str, ScriptType]
TENSOR, INT, FLOAT, BOOL, STR, COMPLEX, NONE = map(
    ScriptType, ("Tensor", "int", "float", "bool", "str", "complex", "NoneType")
)
NUMBER, ANY, DEVICE = map(ScriptType, ("number", "Any", "Device"))
NUMBERS = (INT, FLOAT, COMPLEX)


def list_of(element: ScriptType) -> ScriptType:
    """Return the type of a list."""
    return ScriptType("List", (element,))


def parse_type(node: ast.expr) -> ScriptType:
    """Return the type that an annotation names. Raises ``ValueError`` for what is none."""
    if isinstance(node, ast.Constant) and node.value is None:
        return NONE
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        name, arguments = join_names(node.value), tuple(map(parse_type, parts))
        return _simplify_union(arguments) if name == "Union" else ScriptType(name, arguments)
    return ScriptType(join_names(node))


def _simplify_union(arguments: tuple[ScriptType, ...]) -> ScriptType:
    """Return what torch writes as a union: an optional, or one type alone."""
    others = tuple(a for a in arguments if a != NONE)
    if len(others) != 1:
        return ScriptType("Union", arguments)
    return ScriptType("Optional", others) if len(others) < len(arguments) else others[0]


def join_names(node: ast.expr) -> str:
    """Return a dotted name. Raises ``ValueError`` for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise ValueError(f"no name where one belongs: {type(node).__name__}")
    return ".".join([node.id, *reversed(parts)])


@functools.cache
def parse_type_text(text: str) -> ScriptType:
    """Return the type that torch writes as this text; one of its kinds without a form in Python is its text."""
    try:
        return parse_type(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError):
        return ScriptType(text.replace(".", "_"))


def measure_fit(formal: ScriptType, actual: ScriptType, bindings: Bindings) -> int | None:
    """Return how far a value's type is from an argument's: 0 if it is the same, None if the value does not fit.

    ``bindings`` get the types that variables stand for."""
    if formal == actual:
        return 0
    if formal.is_variable:
        # One that is wider takes the value too, as an element of ``List[Optional[Tensor]]``.
        bound = bindings.setdefault(formal.name, actual)
        return 1 if bound == actual else measure_fit(bound, actual, bindings)
    if formal == ANY:
        return 4
    if formal == NUMBER:
        return 2 if actual in NUMBERS else None
    if formal.name == "Optional":
        inner = actual.arguments[0] if actual.name == "Optional" else actual
        fit = 0 if actual == NONE else measure_fit(formal.arguments[0], inner, bindings)
        return None if fit is None else fit + 1
    if formal.name != actual.name or len(formal.arguments) != len(actual.arguments) or not formal.arguments:
        return None
    total = 0
    for inner, given_inner in zip(formal.arguments, actual.arguments, strict=True):
        # Lists can be written to: their elements are of one type exactly.
        is_exact = formal.name != "Tuple" and not _has_variable(inner)
        fit = (0 if inner == given_inner else None) if is_exact else measure_fit(inner, given_inner, bindings)
        if fit is None:
            return None
        total += fit
    return total


def _has_variable(script_type: ScriptType) -> bool:
    return script_type.is_variable or any(map(_has_variable, script_type.arguments))


def resolve_type(script_type: ScriptType, bindings: Bindings) -> ScriptType:
    """Return a type with what its variables stand for."""
    if script_type.is_variable:
        return bindings.get(script_type.name, script_type)
    return ScriptType(script_type.name, tuple(resolve_type(a, bindings) for a in script_type.arguments))


def unify(first: ScriptType, second: ScriptType) -> ScriptType:
    """Return the type of a value that is of either. Raises ``ValueError`` if they have nothing in common."""
    for wider, other in ((first, second), (second, first)):
        if measure_fit(wider, other, {}) is not None:
            return wider
        if other == NONE:
            return ScriptType("Optional", (wider,))
    raise ValueError(f"a value that is a {first} or a {second}")
