"""How deeply the records of a TorchScript file are nested, from their bytes.

``runtime_checks/native/src/pickles.cpp`` measures the same."""

from __future__ import annotations

import pickletools

from exporter.archive.format_limits import MAX_CODE_NESTING, MAX_SHARED_VALUES

_POPPED = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "REDUCE": 2, "BUILD": 2, "NEWOBJ": 2, "BINPERSID": 1}
# What goes into the container below.
_INTO = {"APPEND": 1, "SETITEM": 2}
_IDLE = ("PROTO", "STOP")


def measure_depth(pickled: bytes, most_parts: int = MAX_SHARED_VALUES) -> int:
    """Return how deep containers are nested in what a pickle makes. Raises ``ValueError`` for one that holds itself,
    for one that is very much larger without sharing, for one that holds a value of more than ``most_parts``, for one
    that keeps a value further off than it has kept, and for what is no pickle."""
    # What each value holds, by its number: a container may grow after others hold it.
    contents: list[list[int]] = []
    stack, marks, memo = list[int](), list[int](), dict[int, int]()

    def take(count: int | None) -> list[int]:
        start = len(stack) - count if count is not None else marks.pop()
        if not 0 <= start <= len(stack):
            raise ValueError("a pickle takes more than there is")
        values = stack[start:]
        del stack[start:]
        return values

    def push(values: list[int]) -> None:
        contents.append(values)
        stack.append(len(contents) - 1)

    try:
        for code, argument, _ in pickletools.genops(pickled):
            name = code.name
            if name == "MARK":
                marks.append(len(stack))
            elif name in ("BINPUT", "LONG_BINPUT"):
                # torch makes room for all places below, 64 GiB for a few bytes. Its writer counts them.
                if (place := int(argument or 0)) > len(memo):
                    raise ValueError(f"a pickle keeps a value at place {place}")
                memo[place] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[int(argument or 0)])
            elif name in _INTO or name in ("APPENDS", "SETITEMS"):
                values = take(_INTO.get(name))
                contents[stack[-1]] += values
            elif name == "TUPLE" or name in _POPPED:
                push(take(_POPPED.get(name)))
            elif name not in _IDLE:
                # torch parses the names of types by recursion.
                if name == "BINUNICODE" and str(argument).count("[") > MAX_CODE_NESTING:
                    raise ValueError(f"a text with more than {MAX_CODE_NESTING} brackets")
                push([])
    except (IndexError, KeyError) as error:
        raise ValueError(f"a pickle takes what is not there: {error}") from None
    return _find_longest_path(contents, stack[-1], most_parts) if stack else 0


def _find_longest_path(contents: list[list[int]], root: int, most_parts: int) -> int:
    """Return how many containers are in each other below a value. Raises ``ValueError`` where one holds itself, and
    where those that share what they hold double often: torch walks through a constant as if nothing was shared."""
    depths, is_open, todo = dict[int, int](), set[int](), [root]
    largest = len(contents) + MAX_SHARED_VALUES
    sizes = dict[int, int]()
    while todo:
        value = todo[-1]
        # It may have been put there for each that holds it.
        if value in depths:
            todo.pop()
            continue
        missing = [inner for inner in contents[value] if inner not in depths]
        if missing and value not in is_open:
            is_open.add(value)
            if not is_open.isdisjoint(missing):
                raise ValueError("a container of a pickle holds itself")
            todo += missing
            continue
        if missing:
            raise ValueError("a container of a pickle holds itself")
        depths[value] = max((depths[inner] + 1 for inner in contents[value]), default=0)
        sizes[value] = 1 + sum(sizes[inner] for inner in contents[value])
        if sizes[value] > largest:
            raise ValueError(f"a pickle of more than {largest} values if none were shared")
        if value != root and sizes[value] > most_parts:
            raise ValueError(f"a value of {sizes[value]} parts in a pickle")
        is_open.discard(value)
        todo.pop()
    return depths[root]


def measure_code_depth(code: bytes) -> int:
    """Return how deeply brackets and blocks of TorchScript's code are nested; those in texts count, too."""
    depth = deepest = 0
    for byte in code.translate(None, _NO_BRACKETS):
        depth = max(0, depth + (1 if byte in b"([{" else -1))
        deepest = max(deepest, depth)
    indents = (len(line) - len(line.lstrip(b" \t")) for line in code.splitlines())
    return max(deepest, max(indents, default=0) // 2)


_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"([{)]}")
