"""Calls with the arguments and results of the model's own call, by the structures in the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exporter.archive.contract import Contract
from exporter.archive.value_structure import build_value, list_parts, take_apart
from exporter.common.errors import UsageError, suggest_names


def bind_arguments(contract: Contract, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of ``forward`` by name, from the arguments of the model's own call.

    An input that is in none of its arguments, such as a parameter of each element, is an argument of its own. Raises
    ``UsageError`` for arguments that are missing, unknown, given twice, or of another structure."""
    inputs = contract.methods["forward"].inputs
    parts = list_parts(contract.arguments) if contract.arguments else {}
    inside = {node.name for part in parts.values() for node in part if node.kind == "variable"}
    names = dict.fromkeys([*parts, *(name for name in inputs if name not in inside)])
    positional = list(names)[: contract.positional if parts else len(names)]
    if len(arguments) > len(positional):
        what, got = "too many arguments are given by position", str(len(arguments))
        expected = f"{len(positional)}: {', '.join(positional)}" if positional else "none"
        raise UsageError(what, got=got, expected=expected, mend="give the others by name")
    by_name = dict(zip(positional, arguments, strict=False))
    for name, value in keywords.items():
        if name in by_name or name not in names:
            what = f"argument {name!r} is given twice" if name in by_name else f"there is no argument {name!r}"
            expected, mend = suggest_names(name, list(names)), "pass each argument of the model's own call once"
            raise UsageError(what, expected=expected, mend=mend)
        by_name[name] = value
    bound: dict[str, Any] = {}
    for name in names:
        part = parts.get(name)
        if name in by_name:
            bound |= take_apart(part, by_name[name], name) if part else {name: by_name[name]}
        elif part is None or any(node.kind == "variable" for node in part):
            what, mend = f"argument {name!r} is missing", "pass what the model itself takes"
            raise UsageError(what, got=", ".join(by_name) or "none", expected=", ".join(names), mend=mend)
    return bound


def build_results(contract: Contract, outputs: Mapping[str, Any]) -> Any:
    """Return what the model's own call returns, from the outputs of ``forward`` by name."""
    if contract.results:
        return build_value(contract.results, outputs)
    values = tuple(outputs[spec.name] for spec in contract.outputs)
    return values[0] if len(values) == 1 else values
