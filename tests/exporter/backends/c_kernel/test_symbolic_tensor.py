"""Tables of rules: a name has one rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from exporter.backends.c_kernel.rules.derivatives import DERIVATIVES
from exporter.backends.c_kernel.symbolic_tensor import RULES, RuleTable


def test_a_second_rule_for_a_name_is_refused_and_changes_nothing():
    table: RuleTable[Callable[..., Any]] = RuleTable({"exp": abs})
    with pytest.raises(ValueError, match="exp has two rules"):
        table.register("log", "exp")(max)
    assert table == {"exp": abs}
    assert table.register("log")(max) is max
    assert table == {"exp": abs, "log": max}


def test_operators_and_derivatives_are_such_tables():
    assert isinstance(RULES, RuleTable)
    assert isinstance(DERIVATIVES, RuleTable)
