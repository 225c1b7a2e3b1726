"""Units of variables and parameters in the contract only: ``--unit 'stress=MPa'``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from exporter.archive.contract import Contract, Finding
from exporter.archive.contract_text import check_unit
from exporter.archive.variable_rules import VariableRule, apply_rules
from exporter.common.errors import UsageError
from exporter.common.units import is_known

CHECK = "units"


def parse_unit_rule(text: str) -> VariableRule:
    """Parse ``NAME=UNIT``. Raises ``UsageError``."""
    pattern, equals, unit = text.rpartition("=")
    if not (equals and pattern and unit.strip()):
        expected, mend = "NAME=UNIT, as 'stress=MPa' or '*strain=1'", "1 is the unit of what has no dimension"
        raise UsageError("a unit is not understood", where="--unit", got=text, expected=expected, mend=mend)
    check_unit(unit.strip(), pattern)
    return VariableRule(pattern, unit.strip(), f"--unit {pattern}={unit.strip()}")


def assign_units(contract: Contract, rules: Sequence[VariableRule]) -> Contract:
    """Return the contract with the units that rules give, and a finding for each unit that is compared as text alone.

    A unit of the model's author, or of a file of metadata, stays where no rule says another. Raises ``UsageError`` for
    a rule that matches nothing, and for two units of one name."""
    contract = apply_rules(contract, "unit", rules)
    return dataclasses.replace(contract, findings=(*contract.findings, *_find_unknown(contract)))


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
