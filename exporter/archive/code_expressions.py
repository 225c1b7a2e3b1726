"""Types of the expressions in a TorchScript file's code, as far as tuples and lists make them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from exporter.archive.code_lines import CodeLine, is_name, is_number
from exporter.archive.format_limits import MAX_CHAIN, MAX_TYPE_DEPTH, MAX_TYPE_PARTS, MAX_TYPES

# Operators whose results have the types of their arguments, and those among them that make pairs.
_GENERIC = frozenset({
    "__getitem__", "_set_item", "_unwrap_optional", "add", "add_", "append", "copy", "dequantize", "dict", "get",
    "items", "list", "local_value", "mul", "mul_", "pop", "popitem", "select", "setdefault", "slice", "sorted",
    "to_here", "values", "wait", "IfThenElse", "ModuleContainerIndex", "TupleIndex", "Uninitialized",
    "awaitable_nowait", "awaitable_wait", "unchecked_cast", "unchecked_unwrap_optional",
})  # fmt: skip
_PAIRS = frozenset({"items", "popitem"})
_CASTS = frozenset({"annotate", "unchecked_cast", "uninitialized"})
# Operators that give an element of a list, a value of a dict, or what is optional.
_PICKS = frozenset({"__getitem__", "_unwrap_optional", "get", "pop", "select"})
# What calls give no parts by these names: of an object, each calls a method.
_CONVERSIONS = frozenset({"int", "float", "bool", "str", "complex"})
_OTHER_CALLS = frozenset({"ord", "isinstance", "print"})
_TUPLES = frozenset({"Tuple", "tuple"})
_CONTAINERS = frozenset({"List", "Dict", "Optional", "Union", "Future", "Await", "RRef", "Final", "list", "dict"})
_SPACES = frozenset({"torch", "ops"})
_ROOTS = _SPACES | {"CONSTANTS", "__torch__"}
_CLOSED_BY = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class TypeTree:
    """A type: how many parts it has, itself included, how deep they are in each other, the elements of a tuple, what a
    list or the values of a dict are, and the path of a class."""

    parts: int = 1
    depth: int = 0
    elements: tuple[TypeTree, ...] = ()
    inner: TypeTree | None = None
    owner: str = ""

    @property
    def is_plain(self) -> bool:
        """Return whether it is the type of a tensor, a number or None: nothing in it, and no object."""
        return not (self.depth or self.owner)


PLAIN = TypeTree()
# The class of an object that may be of several, and of a value that may be one: its methods and attributes are those of
# all classes.
ANY = "*"


def make_tuple(elements: Sequence[TypeTree]) -> TypeTree:
    """Return the type of a tuple."""
    depth = 1 + max((e.depth for e in elements), default=0)
    return TypeTree(1 + sum(e.parts for e in elements), depth, tuple(elements))


def make_container(inner: Sequence[TypeTree]) -> TypeTree:
    """Return a type of lists or dicts that hold these: of several types, torch makes a union."""
    joined = join_all(inner)
    parts = sum(t.parts for t in inner if not t.is_plain)
    joined = replace(joined, parts=max(parts, joined.parts))
    return TypeTree(1 + joined.parts, 1 + joined.depth, inner=joined)


def join_all(types: Iterable[TypeTree]) -> TypeTree:
    """Return a type that is at least as large as all of these."""
    return functools.reduce(join_types, types, PLAIN)


def join_types(one: TypeTree, other: TypeTree) -> TypeTree:
    """Return a type that is at least as large as both."""
    if one is other or other.is_plain:
        return one
    if one.is_plain:
        return other
    joined = _join_part(one, other)
    elements: tuple[TypeTree, ...] = ()
    if len(one.elements) == len(other.elements):
        elements = tuple(_join_part(a, b) for a, b in zip(one.elements, other.elements, strict=True))
    elif not (one.depth and other.depth):
        elements = one.elements or other.elements
    inner = None
    if one.inner and other.inner:
        inner = _join_part(one.inner, other.inner)
    elif not (one.depth and other.depth):
        inner = one.inner or other.inner
    return replace(joined, elements=elements, inner=inner)


def _join_part(one: TypeTree, other: TypeTree) -> TypeTree:
    """Join what two types hold, without what that holds: types that share parts are walked through no further."""
    if one is other:
        return one
    owner = one.owner if one.owner == other.owner else ANY
    return TypeTree(max(one.parts, other.parts), max(one.depth, other.depth), owner=owner)


@dataclass
class Signatures:
    """What the code defines: tuples with names, classes and functions by path, and types of attributes and of results
    by the path of their class and their name. Of a class that is not known each is the largest of all: ``*.name``."""

    tuple_keys: set[str] = field(default_factory=set)
    tuples: dict[str, TypeTree] = field(default_factory=dict)
    classes: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    attributes: dict[str, TypeTree] = field(default_factory=dict)
    results: dict[str, TypeTree] = field(default_factory=dict)

    def find_attribute(self, owner: str, name: str) -> TypeTree:
        """Return the type of an attribute."""
        return self.attributes.get(f"{owner or ANY}.{name}", PLAIN)


@dataclass
class Scope:
    """What a function's names stand for, which of them are other functions, and the keys of what it names and calls."""

    bound: set[str] = field(default_factory=set)
    values: dict[str, TypeTree] = field(default_factory=dict)
    functions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    called: list[str] = field(default_factory=list)


def make_key(path: Sequence[str]) -> str:
    """Return what a class or function is known by: for the names of modules, which are those of records, torch's reader
    of zip files does not look at the case of letters."""
    return f"{'.'.join(path[:-1]).lower()}.{path[-1]}"


@dataclass
class TypeCount:
    """The parts of all types that were read so far."""

    parts: int = 0

    def add(self, kind: TypeTree, line: CodeLine) -> None:
        """Count a type. Raises ``ValueError`` beyond the limits."""
        if kind.parts > MAX_TYPE_PARTS:
            raise line.fail(f"a type of {kind.parts} parts")
        if kind.depth > MAX_TYPE_DEPTH:
            raise line.fail(f"a type of {kind.depth} tuples and lists in each other")
        # Most values have no parts, or are lists of such: they cost what their words cost.
        self.parts += kind.parts if kind.parts > 2 else 0
        if self.parts > MAX_TYPES:
            raise line.fail(f"types of more than {MAX_TYPES} parts in all")


@dataclass
class Operand:
    """What has been read of an expression: its type, the names of a dotted path, and the word of a number or text.

    ``before`` is the type of what the last name of the path is an attribute of; ``chain`` is how many attributes,
    elements and calls are after each other, and ``is_known`` whether the path leads to or below a class or function."""

    type: TypeTree
    path: tuple[str, ...] = ()
    word: str = ""
    before: TypeTree = PLAIN
    chain: int = 0
    is_known: bool = False


@dataclass
class _Bracket:
    """An open bracket: what it stands after, if anything, and what has been read in it."""

    mark: str
    after: Operand | None
    operands: list[Operand] = field(default_factory=list)
    commas: int = 0
    has_colon: bool = False


class ExpressionReader:
    """Reader of the words of a line, from the left."""

    def __init__(self, line: CodeLine, signatures: Signatures, scope: Scope, count: TypeCount) -> None:
        self.line, self.words, self.at = line, line.split(), 0
        self._signatures, self._scope, self._count = signatures, scope, count
        self._brackets: list[_Bracket] = []
        self._sign = ""

    @property
    def word(self) -> str:
        """Return the word that comes next, empty at the end of the line."""
        return self.words[self.at] if self.at < len(self.words) else ""

    def take(self, *allowed: str) -> bool:
        """Skip the next word, if it is one of these; return whether it was."""
        is_next = self.word in allowed
        self.at += is_next
        return is_next

    def expect(self, *allowed: str) -> None:
        """Skip the next word. Raises ``ValueError`` if it is none of these."""
        if not self.take(*allowed):
            raise self.fail()

    def take_name(self) -> str:
        """Return the next word and skip it. Raises ``ValueError`` if it is no name."""
        name = self.word
        if not is_name(name):
            raise self.fail()
        self.at += 1
        return name

    def fail(self) -> ValueError:
        """Make the error of a word that torch does not write where it stands."""
        return self.line.fail(f"{self.word or 'an early end'!r}, which torch does not write there")

    def read_all(self) -> list[Operand]:
        """Read expressions with commas between them, until another word. A comma may follow the last of them."""
        operands = [self.read()]
        while self.take(","):
            if self.word in ("", "="):
                break
            operands.append(self.read())
        return operands

    def read(self) -> Operand:
        """Read one expression. Raises ``ValueError`` for what torch does not write, and for a type of many parts."""
        value: Operand | None = None
        while True:
            word = self.word
            if is_name(word) or is_number(word) or word.startswith('"'):
                value = self._read_word(value)
            elif word and word in "+-":
                value = self._read_sign(value)
            elif word == "." and value is not None:
                self.at += 1
                value = self._read_attribute(value)
                continue
            elif word and word in "([{" and (value is None or word != "{"):
                self._brackets.append(_Bracket(word, value))
                value = None
            elif self._brackets and word and word in ")]},:=":
                value = self._read_mark(value)
            elif value is not None and not self._brackets:
                return value
            else:
                raise self.fail()
            self.at += 1

    def _find_result(self, path: tuple[str, ...]) -> TypeTree:
        """Return the type of what a class or a function of the code gives when it is called by its path."""
        # torch writes ``C.__new__(C)`` for a new object.
        path = path[:-1] if path[-1] == "__new__" else path
        key = make_key(path)
        if key in self._signatures.functions:
            self._scope.called.append(key)
            # Headers are read before what functions give is known.
            return self._signatures.results.get(key, PLAIN)
        if (kind := self._find_class(key)) is not None:
            self.note_call(kind, "__init__")
            return kind
        return self._find_method(TypeTree(owner=make_key(path[:-1])), path[-1]) if len(path) > 2 else PLAIN

    def _find_class(self, key: str) -> TypeTree | None:
        if key in self._signatures.tuple_keys and key not in self._signatures.tuples:
            raise self.line.fail("a tuple that is named before what it holds, as torch does not write it")
        return self._signatures.tuples.get(key) or (TypeTree(owner=key) if key in self._signatures.classes else None)

    def note_call(self, value: TypeTree, *names: str) -> None:
        """Note that methods of an object may be called without being named: ``__bool__`` where it is a condition."""
        owner = value.owner or (ANY if value.depth else "")
        self._scope.called += [f"{owner}.{name}" for name in names if owner]

    def enter(self, value: TypeTree) -> TypeTree:
        """Return what ``with`` gives a name, and note that the object's methods are called."""
        self.note_call(value, "__exit__")
        return self._find_method(value, "__enter__")

    def _find_method(self, before: TypeTree, name: str) -> TypeTree:
        """Return the type of what a method gives. Of an object of no known class, any may be called."""
        key = f"{before.owner or ANY}.{name}"
        if key not in self._signatures.results:
            return PLAIN
        self._scope.called.append(key)
        return self._signatures.results[key]

    def _read_word(self, value: Operand | None) -> Operand:
        word = self.word
        if value is not None:
            raise self.fail()
        if not is_name(word):
            sign, self._sign = self._sign, ""
            return Operand(PLAIN, word=sign + word)
        self._sign = ""
        kind = self._scope.values.get(word, PLAIN)
        self._count.add(kind, self.line)
        return Operand(kind, (word,), word if word in ("inf", "nan") else "")

    def _read_sign(self, value: Operand | None) -> None:
        """Read the sign of a number, or that between the two of a complex one: no more than one is before a number."""
        after = self.words[self.at + 1] if self.at + 1 < len(self.words) else ""
        has_number = is_number(after) or after in ("inf", "nan")
        if not has_number or (value is not None and (not value.word or value.word[-1] == "j" or after[-1] != "j")):
            raise self.fail()
        self._sign = self.word

    def _read_attribute(self, value: Operand) -> Operand:
        name = self.take_name()
        path, chain = (*(value.path or ("",)), name), self._lengthen(value)
        if path[0] in _ROOTS:
            self.check_free(path[0])
        if path[0] in _SPACES or path[0] == "CONSTANTS":
            return Operand(PLAIN, path, chain=chain)
        kind, is_known = self._find_path(path) if path[0] == "__torch__" else (None, False)
        kind = kind or self._signatures.find_attribute(value.type.owner, name)
        self._count.add(kind, self.line)
        return Operand(kind, path, before=value.type, chain=chain, is_known=is_known or value.is_known)

    def check_free(self, name: str) -> None:
        """Raise ``ValueError`` if a name that torch's compiler reads in a way of its own stands for a value."""
        if name in self._scope.bound:
            raise self.line.fail(f"a value with the name {name}, where that means something else")

    def read_text(self, word: str) -> str:
        """Return what stands in a text that is a name. Raises ``ValueError`` for anything else."""
        if not word.startswith('"') or "\\" in word:
            raise self.line.fail(f"{word!r} for a name, which torch does not write")
        return word[1:-1]

    def check_value(self, value: Operand) -> None:
        """Raise ``ValueError`` for what is given another name, and is no value, no function and no class."""
        is_space = value.path[:1] and (value.path[0] in _SPACES or value.path == ("CONSTANTS",))
        is_elsewhere = value.path[:1] == ("__torch__",) and not value.is_known
        if is_space or is_elsewhere or (len(value.path) == 1 and value.path[0] in self._scope.functions):
            raise self.line.fail(f"another name for {'.'.join(value.path)}, which torch does not write")

    def _find_path(self, path: tuple[str, ...]) -> tuple[TypeTree | None, bool]:
        """Return the type that a path names, and whether there is one, or a function; note that it is named."""
        key = make_key(path)
        kind = self._find_class(key)
        is_known = kind is not None or key in self._signatures.functions
        if is_known:
            self._scope.named.add(key)
        return kind, is_known

    def _lengthen(self, value: Operand) -> int:
        """Return how long a chain is with one more attribute, element or call behind this."""
        if value.chain >= MAX_CHAIN:
            raise self.line.fail(f"more than {MAX_CHAIN} attributes, elements and calls after each other")
        return value.chain + 1

    def _read_mark(self, value: Operand | None) -> Operand | None:
        word, bracket = self.word, self._brackets[-1]
        if word == "=":
            # The name of an argument.
            if bracket.mark != "(" or bracket.after is None or value is None or len(value.path) != 1:
                raise self.fail()
            return None
        if value is not None:
            bracket.operands.append(value)
        if word == ",":
            bracket.commas += 1
            if value is None:
                raise self.fail()
            return None
        if word == ":":
            if bracket.mark == "(":
                raise self.fail()
            bracket.has_colon = True
            return None
        if _CLOSED_BY[bracket.mark] != word:
            raise self.fail()
        self._brackets.pop()
        closed = self._close(bracket)
        if bracket.after is not None:
            closed.chain = self._lengthen(bracket.after)
        self._count.add(closed.type, self.line)
        return closed

    def _close(self, bracket: _Bracket) -> Operand:
        types = [o.type for o in bracket.operands]
        if bracket.after is not None:
            read = self._call if bracket.mark == "(" else self._pick
            return Operand(read(bracket.after, bracket, types))
        if bracket.mark != "(":
            return Operand(make_container(types))
        if len(types) == 1 and not bracket.commas:
            return bracket.operands[0]
        return Operand(make_tuple(types))

    def _call(self, called: Operand, bracket: _Bracket, types: Sequence[TypeTree]) -> TypeTree:
        """Return the type of what a call gives."""
        name, space = called.path[-1] if called.path else "", called.path[0] if called.path else ""
        if not name:
            raise self.line.fail("a call of something without a name, which torch does not write")
        if len(called.path) == 1:
            return self._call_name(name, bracket.operands, types)
        if space == "__torch__":
            return self._find_result(called.path)
        result = _find_generic_result(name, join_all([called.before, *types])) if name in _GENERIC else PLAIN
        if space in _SPACES:
            return result
        self.note_call(called.type, "__call__", "forward")
        return join_types(result, self._find_method(called.before, name))

    def _call_name(self, name: str, operands: Sequence[Operand], types: Sequence[TypeTree]) -> TypeTree:
        """Return what a call by a single name gives. ``annotate`` and its like give the type that stands first."""
        if name in self._scope.functions:
            return self._find_result(self._scope.functions[name])
        self.check_free(name)
        if name in _CASTS and types:
            return types[0]
        if name == "getattr" and len(types) == 2 and operands[0].path[:1] != ("__torch__",):
            return self._signatures.find_attribute(types[0].owner, self.read_text(operands[1].word))
        if name == "sorted" and types:
            return join_all(types)
        if name in _CONVERSIONS:
            self.note_call(join_all(types), f"__{name}__")
        elif name not in _OTHER_CALLS:
            raise self.line.fail(f"a call of {name}, which torch does not write")
        return PLAIN

    def _pick(self, whole: Operand, bracket: _Bracket, types: Sequence[TypeTree]) -> TypeTree:
        """Return the type of an element, or of some, of what stands in front of a bracket; or the type it names."""
        name = whole.path[0] if len(whole.path) == 1 else ""
        named = PLAIN
        if name in _TUPLES:
            named = make_tuple(types)
        elif name in _CONTAINERS:
            # Parts of all, of a dict's keys too.
            kinds = make_tuple(types)
            named = TypeTree(kinds.parts, kinds.depth, inner=types[-1] if types else None)
        if named.depth and name not in self._scope.bound:
            return named
        # A value may have the name of a type: it is one, or the other.
        return join_types(named, self._pick_element(whole.type, bracket, types))

    def _pick_element(self, whole: TypeTree, bracket: _Bracket, types: Sequence[TypeTree]) -> TypeTree:
        if bracket.has_colon or len(types) != 1:
            return whole
        if whole.owner:
            return join_types(whole, self._find_method(whole, "__getitem__"))
        index = bracket.operands[0].word
        if len(index) < 7 and index.isdigit() and int(index) < len(whole.elements):
            return whole.elements[int(index)]
        # Any of them, by an index that is not known here.
        if not all(e.is_plain for e in whole.elements):
            return replace(whole, owner=ANY)
        return whole.inner or whole


def _find_generic_result(name: str, whole: TypeTree) -> TypeTree:
    """Return the type of what an operator gives, from the largest type of its arguments."""
    inner = whole.inner or whole
    if name in _PAIRS:
        pair = make_tuple([PLAIN, inner])
        pair = replace(pair, parts=max(pair.parts, whole.parts + 2), depth=max(pair.depth, whole.depth + 1))
        return pair if name == "popitem" else TypeTree(pair.parts + 1, pair.depth + 1, inner=pair)
    return replace(whole, owner=inner.owner) if name in _PICKS else whole
