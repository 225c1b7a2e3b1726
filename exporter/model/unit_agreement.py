"""Agreement of modules on the unit of a variable that they share."""

from __future__ import annotations

from exporter.archive.tensor_spec import TensorSpec
from exporter.common.errors import UsageError
from exporter.common.units import find_conversion


def merge_units(first: TensorSpec, spec: TensorSpec, owners: tuple[str, str]) -> str:
    """Return the unit of a variable that two modules declare: that of the first which says one.

    Raises ``UsageError``, which names the ``owners`` of both, if their units differ."""
    conversion = find_conversion(spec.unit, first.unit) if spec.unit and first.unit else None
    if spec.unit and first.unit and (conversion is None or not conversion.is_identity):
        what = f"variable {spec.name!r} has two units"
        got, expected = f"{spec.unit} in {owners[1]!r}", f"{first.unit} as in {owners[0]!r}"
        mend = "convert it in one of the modules, or in a module between them"
        where = f"modules {owners[0]!r} and {owners[1]!r}"
        raise UsageError(what, where=where, got=got, expected=expected, mend=mend)
    return first.unit or spec.unit
