"""What the code of a TorchScript file names: how deep in each other, and how long that is with all calls inlined.

torch's compiler reads a class or a function where another first names it, by recursion, and its executor inlines what a
method calls, as often as it is called. ``runtime_checks/native/src/code_calls.cpp`` counts the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporter.archive.code_lines import CodeLine
from exporter.archive.format_limits import MAX_NAMED_DEPTH, MAX_REPEATED_TEXT, MAX_REPEATS


@dataclass
class Definition:
    """A class, a function or a method: how long its text is, and the keys of what it names, and of what it calls."""

    line: CodeLine
    length: int = 0
    named: set[str] = field(default_factory=set)
    called: list[str] = field(default_factory=list)


def check_calls(definitions: Mapping[str, Definition]) -> None:
    """Check how deep definitions are in each other. Raises ``ValueError``, also for one that needs itself."""
    lengths, depths, entered = dict[str, int](), dict[str, int](), set[str]()
    todo = list(definitions)
    longest = MAX_REPEATS * sum(d.length for d in definitions.values()) + MAX_REPEATED_TEXT
    while todo:
        key = todo[-1]
        if key in depths:
            todo.pop()
            continue
        definition = definitions[key]
        needed = [n for n in (*definition.named, *definition.called) if n in definitions]
        missing = [n for n in needed if n not in depths]
        if missing and key in entered:
            raise definition.line.fail("something that needs itself, which torch does not write")
        entered.add(key)
        todo += missing
        if missing:
            continue
        depths[key] = 1 + max((depths[n] for n in needed), default=0)
        lengths[key] = definition.length + sum(lengths[n] for n in definition.called if n in definitions)
        if depths[key] > MAX_NAMED_DEPTH:
            raise definition.line.fail(f"{depths[key]} classes and functions in each other")
        if lengths[key] > longest:
            raise definition.line.fail(f"{lengths[key]} characters with all that is called")
