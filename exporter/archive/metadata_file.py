"""The file of ``--meta``: what is said of a model and its variables, as TOML (https://toml.io).

```toml
description = "Creep of a Maxwell element."
authors = ["Jane Doe <jane@example.org>"]
license = "CC-BY-4.0"
references = ["doi:10.1016/0749-6419(89)90015-6"]

[variables."*stress"]
unit = "MPa"
quantity = "Cauchy stress"
description = "stress at the end of the step"
```
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from exporter.archive.contract import Contract
from exporter.archive.contract_text import StrictlyRead, check_label, check_unit, describe_invalid
from exporter.archive.metadata import TEXT_FIELDS, Metadata, TextField
from exporter.archive.variable_rules import VariableRule, apply_rules
from exporter.common.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

# What people write of a model is far shorter.
MAX_BYTES = 2**20


@dataclass(frozen=True)
class _Notes(StrictlyRead):
    """What is said of the variables and parameters that a pattern names."""

    unit: str = ""
    quantity: str = ""
    description: str = ""


@dataclass(frozen=True)
class _Document(StrictlyRead):
    """The whole file."""

    description: str = ""
    authors: Sequence[str] = ()
    license: str = ""
    references: Sequence[str] = ()
    variables: dict[str, _Notes] = field(default_factory=dict)


@dataclass(frozen=True)
class MetadataRules:
    """What a file says: of the model, and of variables and parameters by patterns of their names."""

    metadata: Metadata = field(default_factory=Metadata)
    rules: Mapping[TextField, tuple[VariableRule, ...]] = field(default_factory=dict)


def read_metadata(source: Path | Mapping[str, Any]) -> MetadataRules:
    """Read the file of ``--meta``, or a dict of the same keys.

    Raises ``UsageError`` for what is no TOML, has other keys or types, or texts that do not show as they are."""
    where = "meta" if isinstance(source, Mapping) else str(source)
    raw = source if isinstance(source, Mapping) else _parse(source)
    try:
        document = _ADAPTER.validate_json(_dump(raw, where))
    except ValidationError as error:
        what = "the metadata are not understood"
        expected = f"{', '.join(_KEYS[:-1])}, and variables.NAME with {', '.join(TEXT_FIELDS)}"
        mend = "correct this key: texts in quotes, lists of texts in brackets"
        raise UsageError(what, where=where, got=describe_invalid(error), expected=expected, mend=mend) from None
    try:
        return _check(document, where)
    except UsageError as error:
        got, expected = error.details.get("got", ""), error.details.get("expected", "")
        place, mend = error.details.get("where", where), error.details.get("mend", "correct it")
        raise UsageError(error.what, where=place, got=got, expected=expected, mend=mend) from None


def assign_metadata(contract: Contract, rules: MetadataRules) -> Contract:
    """Return the contract with what a file says of the model and its variables; what it leaves out stays as it is.

    Raises ``UsageError`` for a pattern that matches nothing."""
    contract = dataclasses.replace(contract, metadata=rules.metadata.fill_in(contract.metadata))
    for name, of_field in rules.rules.items():
        contract = apply_rules(contract, name, of_field)
    return contract


def _parse(path: Path) -> Mapping[str, Any]:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            mend = "keep what is said of a model short, and name what is longer in its references"
            got, expected = f"{size} bytes", f"at most {MAX_BYTES}"
            raise UsageError(
                "the file of metadata is too large", where=str(path), got=got, expected=expected, mend=mend
            )
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        what, mend = "the file of metadata cannot be read", "name a file in TOML after --meta"
        raise UsageError(what, where=str(path), got=str(error.strerror or error), mend=mend) from None
    except (ValueError, RecursionError) as error:
        got = "tables nested too deeply" if isinstance(error, RecursionError) else str(error)
        what, expected = "the metadata are not TOML", 'lines like: license = "CC-BY-4.0"'
        raise UsageError(what, where=str(path), got=got, expected=expected, mend="correct this place") from None


def _dump(raw: Mapping[str, Any], where: str) -> str:
    """Return the keys and values as JSON. Raises ``UsageError`` for tables in each other without end."""
    try:
        return json.dumps(raw, default=_mark_foreign)
    except RecursionError:
        what, expected = "the metadata are not understood", "variables.NAME, and nothing in it but texts"
        raise UsageError(
            what, where=where, got="tables nested too deeply", expected=expected, mend="correct it"
        ) from None


def _mark_foreign(value: Any) -> dict[str, str]:
    """Return what no text and no list is taken for: TOML has dates, and a dict may hold anything."""
    return {type(value).__name__: str(value)}


def _check(document: _Document, where: str) -> MetadataRules:
    """Return what the file says, with every text checked."""
    metadata = Metadata(document.description, tuple(document.authors), document.license, tuple(document.references))
    rules: dict[TextField, list[VariableRule]] = {}
    for pattern, notes in document.variables.items():
        place = f"{where}: variables.{pattern}"
        check_unit(notes.unit, pattern)
        check_label(notes.quantity, f"the quantity of {pattern!r}")
        check_label(notes.description, f"the description of {pattern!r}")
        if notes == _Notes():
            what, expected = f"nothing is said of {pattern!r}", ", ".join(TEXT_FIELDS)
            raise UsageError(what, where=place, expected=expected, mend="leave the table out, or say something")
        for name in TEXT_FIELDS:
            if text := getattr(notes, name):
                rules.setdefault(name, []).append(VariableRule(pattern, text, place))
    return MetadataRules(metadata, {name: tuple(of_field) for name, of_field in rules.items()})


_ADAPTER = TypeAdapter(_Document)
_KEYS = tuple(f.name for f in dataclasses.fields(_Document))
