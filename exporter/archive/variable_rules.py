"""Rules that give texts to variables and parameters by their names: units, quantities, descriptions."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exporter.archive.contract import Contract
from exporter.archive.metadata import TextField
from exporter.common.errors import UsageError, suggest_names


@dataclass(frozen=True)
class VariableRule:
    """A rule that variables and parameters of a name, or those that a glob matches, have a text.

    ``where`` is the place that says so: an option, a field of a file."""

    pattern: str
    text: str
    where: str


def apply_rules(contract: Contract, field: TextField, rules: Sequence[VariableRule]) -> Contract:
    """Return the contract with the texts that rules give to one field of its variables and parameters.

    A name in full goes before globs, and among globs the first that matches; what no rule names stays as it is.

    Raises ``UsageError`` for a rule that matches nothing, and for two texts of one name."""
    roles = {"inputs": contract.inputs, "outputs": contract.outputs, "parameters": contract.parameters}
    names = list(dict.fromkeys(spec.name for specs in roles.values() for spec in specs))
    texts = _choose_texts(rules, names, field)
    changed: dict[str, Any] = {
        role: tuple(dataclasses.replace(s, **{field: texts[s.name]}) if s.name in texts else s for s in specs)
        for role, specs in roles.items()
    }
    return dataclasses.replace(contract, **changed)


def _choose_texts(rules: Sequence[VariableRule], names: Collection[str], field: TextField) -> Mapping[str, str]:
    """Return texts by name."""
    exact, by_glob = dict[str, str](), dict[str, str]()
    known = frozenset(names)
    for rule in rules:
        if rule.pattern in known and exact.setdefault(rule.pattern, rule.text) != rule.text:
            what, got = f"{rule.pattern!r} has two {_PLURALS[field]}", f"{exact[rule.pattern]} and {rule.text}"
            raise UsageError(what, where=rule.where, got=got, expected="one", mend="leave one of them out")
    for rule in rules:
        if rule.pattern in known:
            continue
        matches = fnmatch.filter(names, rule.pattern)
        if not matches:
            what, mend = f"a {field} matches no variable and no parameter", "name one that the contract has"
            raise UsageError(what, where=rule.where, expected=suggest_names(rule.pattern, names), mend=mend)
        if {*matches} <= by_glob.keys() | exact.keys():
            what, mend = f"a {field} has no effect: others took all of its names", "drop it, or put it first"
            raise UsageError(what, where=rule.where, got=", ".join(map(repr, matches)), mend=mend)
        for name in matches:
            by_glob.setdefault(name, rule.text)
    return by_glob | exact


_PLURALS: Mapping[TextField, str] = {"unit": "units", "quantity": "quantities", "description": "descriptions"}
