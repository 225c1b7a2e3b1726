"""The registry of lowering rules: what writes each operator of torch down as scalar expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Takes the ``OperatorCall``; returns what the operator returns, of expressions.
Rule = Callable[[Any], Any]
RULES: dict[str, Rule] = {}


def lowers(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators by their names without overload: ``@lowers("div")``.

    Raises:
        ValueError: an operator has a rule already.
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"aten::{name} has two lowering rules")
            RULES[name] = rule
        return rule

    return register
