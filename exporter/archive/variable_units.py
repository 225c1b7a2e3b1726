"""Units of variables and parameters in the contract only: ``--unit 'stress=MPa'``."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exporter.archive.contract import Contract, Finding
from exporter.archive.contract_text import check_unit
from exporter.common.errors import UsageError, suggest_names
from exporter.common.units import is_known

CHECK = "units"


@dataclass(frozen=True)
class UnitRule:
    """A rule that variables and parameters of a name, or those that a glob matches, have a unit."""

    pattern: str
    unit: str

    @classmethod
    def parse(cls, text: str) -> UnitRule:
        """Parse ``NAME=UNIT``. Raises ``UsageError``."""
        pattern, equals, unit = text.rpartition("=")
        if not (equals and pattern and unit.strip()):
            expected, mend = "NAME=UNIT, as 'stress=MPa' or '*strain=1'", "1 is the unit of what has no dimension"
            raise UsageError("a unit is not understood", where="--unit", got=text, expected=expected, mend=mend)
        check_unit(unit.strip(), pattern)
        return cls(pattern, unit.strip())


def assign_units(contract: Contract, rules: Sequence[UnitRule]) -> Contract:
    """Return the contract with the units that rules give, and a finding for each unit that is compared as text alone.

    A name in full goes before globs, and among globs the first that matches; a unit of the model's author stays where
    no rule says another.

    Raises ``UsageError`` for a rule that matches nothing, and for two units of one name."""
    roles = {"inputs": contract.inputs, "outputs": contract.outputs, "parameters": contract.parameters}
    units = _choose_units(rules, list(dict.fromkeys(spec.name for specs in roles.values() for spec in specs)))
    assigned: dict[str, Any] = {
        role: tuple(dataclasses.replace(spec, unit=units.get(spec.name, spec.unit)) for spec in specs)
        for role, specs in roles.items()
    }
    contract = dataclasses.replace(contract, **assigned)
    return dataclasses.replace(contract, findings=(*contract.findings, *_find_unknown(contract)))


def _choose_units(rules: Sequence[UnitRule], names: Collection[str]) -> Mapping[str, str]:
    """Return units by name."""
    exact, by_glob = dict[str, str](), dict[str, str]()
    for rule in rules:
        if rule.pattern in names and exact.setdefault(rule.pattern, rule.unit) != rule.unit:
            what, got = f"{rule.pattern!r} has two units", f"{exact[rule.pattern]} and {rule.unit}"
            where, mend = f"--unit {rule.pattern}={rule.unit}", "leave one of them out"
            raise UsageError(what, where=where, got=got, expected="one", mend=mend)
    for rule in rules:
        if rule.pattern in names:
            continue
        where = f"--unit {rule.pattern}={rule.unit}"
        matches = fnmatch.filter(names, rule.pattern)
        if not matches:
            what, mend = "a unit matches no variable and no parameter", "name one that the contract has"
            raise UsageError(what, where=where, expected=suggest_names(rule.pattern, names), mend=mend)
        if {*matches} <= by_glob.keys() | exact.keys():
            what, mend = "a unit has no effect: others took all of its names", "drop it, or put it first"
            raise UsageError(what, where=where, got=", ".join(map(repr, matches)), mend=mend)
        for name in matches:
            by_glob.setdefault(name, rule.unit)
    return by_glob | exact


def _find_unknown(contract: Contract) -> tuple[Finding, ...]:
    names = dict[str, list[str]]()
    for spec in (*contract.inputs, *contract.outputs, *contract.parameters):
        if spec.unit:
            names.setdefault(spec.unit, []).append(spec.name)
    return tuple(
        Finding(CHECK, f"{unit} of {', '.join(owners)}", reason="it is not read as a unit: it fits the same text alone")
        for unit, owners in names.items()
        if not is_known(unit)
    )
