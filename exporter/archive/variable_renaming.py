"""Renaming of variables in the contract only, to names that hosts use: ``--rename 'state/*~1:old_state/*'``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from exporter.archive.contract import Contract, MethodSpec, block_name, strip_prefix
from exporter.archive.value_structure import Structure, StructureNode
from exporter.common.errors import UsageError, suggest_names


@dataclass(frozen=True)
class RenameRule:
    """A rule ``old`` to ``new``; each ``*`` of ``old`` matches any text, which fills the ``*`` of ``new`` in order."""

    old: str
    new: str

    @classmethod
    def parse(cls, text: str) -> RenameRule:
        """Parse ``OLD:NEW``. Raises ``UsageError``."""
        old, colon, new = text.partition(":")
        if not colon or not old or not new or ":" in new or new.count("*") > old.count("*"):
            expected = "OLD:NEW with one colon, as 'state/*~1:old_state/*', and no more * in NEW than in OLD"
            raise UsageError("a rename is invalid", where=f"--rename {text!r}", expected=expected)
        return cls(old, new)

    def apply(self, name: str) -> str | None:
        """Return the new name, or None if this rule does not match ``name``."""
        match = re.fullmatch("(.*)".join(map(re.escape, self.old.split("*"))), name, re.DOTALL)
        if match is None:
            return None
        head, *tail = self.new.split("*")
        return head + "".join(text + part for text, part in zip(match.groups(), tail, strict=False))


def rename_variables(contract: Contract, renames: Sequence[RenameRule]) -> Contract:
    """Return the contract under new names; the first rule that matches a variable counts.

    Raises ``UsageError`` for a rule that matches nothing and for one that makes two names equal."""
    if not renames:
        return contract
    new_names = _choose_new_names(renames, dict.fromkeys(s.name for s in (*contract.inputs, *contract.outputs)))

    def map_name(name: str) -> str:
        variable = strip_prefix(name)
        return name.removesuffix(variable) + new_names.get(variable, variable)

    inputs = {s.name for s in contract.inputs}

    def map_block(output: str, wrt: str) -> tuple[str, str]:
        # Parameters keep their names: they are attribute paths in the file.
        return map_name(output), map_name(wrt) if wrt in inputs else wrt

    def map_method(spec: MethodSpec) -> MethodSpec:
        return dataclasses.replace(
            spec,
            inputs=tuple(map(map_name, spec.inputs)),
            symmetric=tuple(map_block(*p) for p in spec.symmetric),
            zeros=tuple(map_block(*p) for p in spec.zeros),
            outputs=tuple(map_name(o) if isinstance(o, str) else map_block(*o) for o in spec.outputs),
        )

    def map_structure(structure: Structure) -> Structure:
        nodes = [(node, map_name(node.name) if node.kind == "variable" else node.name) for node in structure]
        return tuple(dataclasses.replace(node, name=name) for node, name in nodes)

    arguments = contract.arguments or _describe_own_arguments(contract, new_names)
    pairs = (o for spec in contract.methods.values() for o in spec.outputs if not isinstance(o, str))
    blocks = {block_name(*p): block_name(*map_block(*p)) for p in pairs}
    ranges = {map_name(n): r for n, r in contract.envelope.values.items()}
    bounds = {blocks.get(k) or map_name(k): v for k, v in contract.tolerance.outputs.items()}
    return dataclasses.replace(
        contract,
        envelope=dataclasses.replace(contract.envelope, values=ranges),
        inputs=tuple(dataclasses.replace(s, name=map_name(s.name)) for s in contract.inputs),
        outputs=tuple(dataclasses.replace(s, name=map_name(s.name)) for s in contract.outputs),
        methods={name: map_method(spec) for name, spec in contract.methods.items()},
        per_element=tuple(map(map_name, contract.per_element)),
        arguments=map_structure(arguments),
        positional=contract.positional if contract.arguments or not arguments else len(contract.inputs),
        results=map_structure(contract.results),
        tolerance=dataclasses.replace(contract.tolerance, outputs=bounds),
    )


def _describe_own_arguments(contract: Contract, new_names: Mapping[str, str]) -> Structure:
    """Return the arguments of the model's own call, where they were the inputs under the names that these had."""
    names = tuple(spec.name for spec in contract.inputs)
    if contract.source.kind == "neml2" or not any(name in new_names for name in names):
        return ()
    return (StructureNode("dict", keys=names), *(StructureNode("variable", name) for name in names))


def _choose_new_names(renames: Sequence[RenameRule], names: Collection[str]) -> dict[str, str]:
    """Return the new names of the variables that a rule matches, by their old names."""
    new_names: dict[str, str] = {}
    for rename in renames:
        matches = {name: new_name for name in names if (new_name := rename.apply(name)) is not None}
        where = f"--rename {rename.old}:{rename.new}"
        if not matches:
            raise UsageError("a rename matches no variable", where=where, expected=suggest_names(rename.old, names))
        if not any(name not in new_names for name in matches):
            what = "a rename has no effect: earlier renames took all of its variables"
            raise UsageError(what, where=where, got=", ".join(map(repr, matches)), mend="drop it, or put it first")
        for name, new_name in matches.items():
            new_names.setdefault(name, new_name)
    old_names_by_new: dict[str, list[str]] = {}
    for name in names:
        old_names_by_new.setdefault(new_names.get(name, name), []).append(name)
    for new_name, old_names in old_names_by_new.items():
        if len(old_names) > 1:
            where = ", ".join(f"--rename {r.old}:{r.new}" for r in renames)
            got = f"{' and '.join(map(repr, old_names))} would both be {new_name!r}"
            expected = "a different name for every variable"
            raise UsageError("renaming makes two names equal", where=where, got=got, expected=expected)
    return new_names
