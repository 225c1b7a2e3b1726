"""What torch's compiler makes of the code of a TorchScript file, from its bytes.

It compares and prints types as trees: tuples of tuples that double from line to line cost it time and memory without
measure. It unrolls loops over tuples, and walks through expressions by recursion. What is read here is what torch
writes (torch/csrc/jit/serialization/python_print.cpp), and nothing else: no loop but over a range, no starred value, no
comprehension, no operator between two values. ``runtime_checks/native/src/code_check.cpp`` reads the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from exporter.archive.code_calls import Definition, check_calls
from exporter.archive.code_expressions import (
    ANY,
    PLAIN,
    ExpressionReader,
    Operand,
    Scope,
    Signatures,
    TypeCount,
    TypeTree,
    join_types,
    make_key,
    make_tuple,
)
from exporter.archive.code_lines import CodeLine, split_lines

_PATH = re.compile(r"__torch__[A-Za-z0-9_.\x80-\xff]*")
_RETURN = re.compile(r"return(?![A-Za-z0-9_\x80-\xff])")
_BASES = frozenset({"Module", "NamedTuple", "Interface", "ModuleInterface", "Enum"})
# What files of old versions of torch begin with.
_BEFORE_CLASSES = re.compile(r"import [A-Za-z0-9_.\x80-\xff]+|op_version_set = [0-9]+")


@dataclass
class _Class:
    """A class of the code: where it begins, whether it is a tuple with names, and the lines of its attributes."""

    line: CodeLine
    is_tuple: bool = False
    attributes: list[CodeLine] = field(default_factory=list)


@dataclass
class _Function:
    """A function, or a method of a class: its header, its name, what it is known by, and the lines of its body."""

    header: CodeLine
    name: str
    key: str
    owner: str
    body: list[CodeLine] = field(default_factory=list)


@dataclass
class _ParsedCode:
    """What stands in the records: classes by key, and functions."""

    classes: dict[str, _Class] = field(default_factory=dict)
    functions: list[_Function] = field(default_factory=list)


def check_code(records: Iterable[tuple[str, bytes]]) -> None:
    """Check what torch's compiler makes of a file's parsed, pairs of a record's name and its bytes.

    Raises ``ValueError``, with line and record, for types of too many parts, for what is too deep in each other or too
    long with all that it calls, and for what torch does not write."""
    parsed = _ParsedCode()
    for record, data in records:
        _read_record(parsed, record, data)
    signatures, count = Signatures(), TypeCount()
    for key, known in parsed.classes.items():
        (signatures.tuple_keys if known.is_tuple else signatures.classes).add(key)
    _read_tuples(parsed, signatures, count)
    definitions = _read_classes(parsed, signatures, count)
    signatures.functions.update(f.key for f in parsed.functions if not f.owner)
    scopes = [_read_header(function, signatures, count) for function in parsed.functions]
    for function, (_, result) in zip(parsed.functions, scopes, strict=True):
        for key in (function.key, f"{ANY}.{function.name}") if function.owner else (function.key,):
            signatures.results[key] = join_types(signatures.results.get(key, PLAIN), result)
    for function, (scope, _) in zip(parsed.functions, scopes, strict=True):
        _check_blocks(function)
        for line in function.body:
            _read_statement(line, signatures, scope, count)
        _define(definitions, function, scope)
    check_calls(definitions)


def _check_blocks(function: _Function) -> None:
    """Check that blocks stand two spaces further right than what they are in, and that a function returns at its end.

    torch puts all that follows another return into a block of its own."""
    before = function.header.indent
    for line in function.body:
        if line.indent % 2 or line.indent > before + 2:
            raise line.fail(f"{line.indent} spaces in front of a line, which torch does not write there")
        before = line.indent
        is_at_end = line is function.body[-1] and line.indent == function.header.indent + 2
        if _RETURN.match(line.text) and not is_at_end:
            raise line.fail("a return that is not a function's last line, which torch does not write")


def _define(definitions: dict[str, Definition], function: _Function, scope: Scope) -> None:
    if function.key in definitions:
        raise function.header.fail(f"another definition of {function.name}, which torch does not write")
    length = sum(len(line.text) for line in (function.header, *function.body))
    named = scope.named - {function.owner}
    definitions[function.key] = Definition(function.header, length, named, scope.called)
    if function.owner:
        definitions[function.owner].named.add(function.key)
        definitions.setdefault(f"{ANY}.{function.name}", Definition(function.header)).called.append(function.key)


def _read_record(parsed: _ParsedCode, record: str, data: bytes) -> None:
    """Sort the lines of a record: by classes, and by functions."""
    module = record[len("code/") :].lower().removesuffix(".py").replace("/", ".")
    entered, key = None, ""
    function: _Function | None = None
    for line in split_lines(record, data):
        if function is not None and line.indent > function.header.indent:
            function.body.append(line)
            continue
        function = None
        if line.indent == 0:
            entered, key = None, ""
        if line.text.startswith("class "):
            words = line.split()
            base = words[3] if len(words) == 6 else ""
            if words[2:] not in ([":"], ["(", base, ")", ":"]) or (base and base not in _BASES):
                raise line.fail("a class that is not like those that torch writes")
            key = make_key((module, words[1]))
            if key in parsed.classes or line.indent:
                raise line.fail(f"another definition of {words[1]}, or one inside another")
            entered = parsed.classes[key] = _Class(line, base == "NamedTuple")
        elif line.text.startswith("def "):
            name = line.split()[1]
            function = _Function(line, name, f"{key}.{name}" if key else make_key((module, name)), key)
            parsed.functions.append(function)
        elif entered is not None:
            entered.attributes.append(line)
        elif not _BEFORE_CLASSES.fullmatch(line.text):
            raise line.fail("a statement outside of functions, which torch does not write")


def _read_tuples(parsed: _ParsedCode, signatures: Signatures, count: TypeCount) -> None:
    """Read the tuples with names, those first that others hold. Raises ``ValueError`` for one that holds itself."""
    entered = set[str]()
    todo = [key for key, known in parsed.classes.items() if known.is_tuple]
    while todo:
        key, known = todo[-1], parsed.classes[todo[-1]]
        if key in signatures.tuples:
            todo.pop()
            continue
        keys = {make_key(path.split(".")) for line in known.attributes for path in _PATH.findall(line.text)}
        missing = [k for k in keys if k not in signatures.tuples and k in parsed.classes and parsed.classes[k].is_tuple]
        if missing and key in entered:
            raise known.line.fail("a tuple that holds itself")
        entered.add(key)
        todo += missing
        if not missing:
            attributes = [_read_attribute(line, signatures, Scope(), count) for line in known.attributes]
            signatures.tuples[key] = make_tuple([kind for _, kind in filter(None, attributes)])
            count.add(signatures.tuples[key], known.line)


def _read_classes(parsed: _ParsedCode, signatures: Signatures, count: TypeCount) -> dict[str, Definition]:
    """Read the attributes of all classes; return the classes as definitions, of what their attributes name."""
    definitions: dict[str, Definition] = {}
    for key, known in parsed.classes.items():
        scope = Scope()
        for line in known.attributes:
            if attribute := _read_attribute(line, signatures, scope, count):
                name, kind = attribute
                for place in (f"{key}.{name}", f"{ANY}.{name}"):
                    signatures.attributes[place] = join_types(signatures.attributes.get(place, PLAIN), kind)
        definitions[key] = Definition(known.line, named=scope.named - {key})
    return definitions


def _read_attribute(
    line: CodeLine, signatures: Signatures, scope: Scope, count: TypeCount
) -> tuple[str, TypeTree] | None:
    """Read a line of a class: the name and the type of an attribute, none for lists of names and values of an enum."""
    reader = ExpressionReader(line, signatures, scope, count)
    name, kind = reader.take_name(), None
    if reader.take("["):
        if name != "__annotations__":
            raise reader.fail()
        name = reader.read_text(reader.word)
        reader.at += 1
        reader.expect("]")
        reader.expect("=")
        kind = reader.read().type
    elif reader.take("="):
        reader.read()
    else:
        reader.expect(":")
        kind = reader.read().type
        if reader.take("="):
            reader.read()
    reader.expect("")
    return (name, kind) if kind else None


def _read_header(function: _Function, signatures: Signatures, count: TypeCount) -> tuple[Scope, TypeTree]:
    """Return the types of a function's arguments, and that of its result."""
    scope = Scope()
    reader = ExpressionReader(function.header, signatures, scope, count)
    reader.expect("def")
    reader.take_name()
    reader.expect("(")
    # The first argument of a method is the object, whatever is said of its type.
    owner = function.owner
    while not reader.take(")"):
        argument = reader.take_name()
        kind = reader.read().type if reader.take(":") else PLAIN
        _assign(scope, argument, TypeTree(owner=owner) if owner else kind)
        owner = ""
        if reader.take("="):
            reader.read()
        if not reader.take(","):
            reader.expect(")")
            break
    # What is not said would be inferred.
    reader.expect("->")
    result = reader.read().type
    reader.expect(":")
    reader.expect("")
    return scope, result


def _read_statement(line: CodeLine, signatures: Signatures, scope: Scope, count: TypeCount) -> None:
    reader = ExpressionReader(line, signatures, scope, count)
    if reader.take("pass"):
        pass
    elif reader.take("else"):
        reader.expect(":")
    elif reader.take("return"):
        if reader.word:
            reader.read_all()
    elif reader.take("if", "while"):
        reader.note_call(reader.read().type, "__bool__")
        reader.expect(":")
    elif reader.take("for"):
        _assign(scope, reader.take_name(), PLAIN)
        reader.expect("in")
        reader.check_free("range")
        reader.expect("range")
        reader.expect("(")
        reader.read()
        reader.expect(")")
        reader.expect(":")
    elif reader.take("with"):
        entered = reader.enter(reader.read().type)
        if reader.take("as"):
            _assign(scope, reader.take_name(), entered)
        reader.expect(":")
    else:
        _read_assignment(reader, scope)
    reader.expect("")


def _read_assignment(reader: ExpressionReader, scope: Scope) -> None:
    """Read an expression that stands alone, or that is given to names, to a name of a type, or to an attribute."""
    targets = reader.read_all()
    names = [target.path[0] if len(target.path) == 1 else "" for target in targets]
    is_attribute = len(targets) == 1 and len(targets[0].path) > 1
    if reader.word and not (all(names) or is_attribute):
        raise reader.fail()
    has_comma = reader.words[reader.at - 1] == ","
    if not has_comma and len(names) == 1 and reader.take(":"):
        kind = reader.read().type
        if reader.take("="):
            value = reader.read()
            reader.check_value(value)
            if value.path[:1] == ("__torch__",):
                raise reader.line.fail("a function or a class of another type, which torch does not write")
        _assign(scope, names[0], kind)
    elif reader.take("="):
        values = reader.read_all()
        for name, value in zip(names, _unpack(values, len(names), has_comma), strict=True):
            reader.check_value(value)
            if value.path[:1] == ("__torch__",) and scope.functions.setdefault(name, value.path) != value.path:
                raise reader.line.fail(f"another function for {name}, which torch does not write")
            _assign(scope, name, value.type)


def _unpack(values: Sequence[Operand], count: int, has_comma: bool) -> Sequence[Operand]:
    """Return what each of so many names stands for."""
    if len(values) == count and not (count == 1 and has_comma):
        return values
    whole = values[0].type if len(values) == 1 else make_tuple([v.type for v in values])
    if len(whole.elements) == count:
        return [Operand(kind) for kind in whole.elements]
    return [Operand(whole.inner or whole)] * count


def _assign(scope: Scope, name: str, kind: TypeTree) -> None:
    """Keep what a name stands for: of several values, from branches and loops, the largest counts."""
    scope.bound.add(name)
    if name and not kind.is_plain:
        scope.values[name] = join_types(scope.values.get(name, PLAIN), kind)
