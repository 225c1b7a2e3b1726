"""Whose reads of sizes they are: the user's code may decide by them, the source library's own has no thresholds."""

from __future__ import annotations

import types

import pytest
from torch import nn

from exporter.soundness.checks.batch_sizes import _find_user_reads

pytestmark = pytest.mark.usefixtures("neml2")


class UserLaw(nn.Module):
    pass


def find_user_reads(module: nn.Module, *places: str) -> list[str]:
    origin = types.SimpleNamespace(library="neml2")
    source = types.SimpleNamespace(origin=origin, parameter_module=module)
    return _find_user_reads(source, [(where, "int()") for where in places])  # pyright: ignore[reportArgumentType]


def test_reads_in_the_library_count_where_a_module_is_the_user_s():
    import neml2

    theirs, own = f"{neml2.__file__}:3", f"{__file__}:7"
    assert find_user_reads(nn.Linear(2, 2), theirs, own) == [own]
    assert find_user_reads(nn.Linear(2, 2), theirs) == []
    assert find_user_reads(nn.Sequential(UserLaw()), theirs) == [theirs]
