"""``--rename 'state/*~1:old_state/*'``: the names that hosts know, in the contract only."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from exporter.archive.contract import Contract, MethodSpec, bare, block_name
from exporter.common.errors import UsageError, near


@dataclass(frozen=True)
class Rename:
    """``old`` and ``new``; each ``*`` of ``old`` matches any text, which fills the ``*`` of ``new`` in order."""

    old: str
    new: str

    @classmethod
    def parse(cls, text: str) -> Rename:
        old, colon, new = text.partition(":")
        if not colon or not old or not new or ":" in new or new.count("*") > old.count("*"):
            raise UsageError(
                "a rename is not understood",
                where=f"--rename {text!r}",
                expected="OLD:NEW with one colon, for example 'state/*~1:old_state/*'; no more * in NEW than in OLD",
            )
        return cls(old, new)

    def apply(self, name: str) -> str | None:
        """The new name, or None where this rename does not speak of ``name``."""
        match = re.fullmatch("(.*)".join(map(re.escape, self.old.split("*"))), name, re.DOTALL)
        if match is None:
            return None
        head, *tail = self.new.split("*")
        return head + "".join(text + part for text, part in zip(match.groups(), tail, strict=False))


def renamed(contract: Contract, renames: Sequence[Rename]) -> Contract:
    """The contract under new names; the first rename that fits a variable counts.

    Raises ``UsageError`` for a rename that fits nothing and for one that makes two names equal.
    """
    if not renames:
        return contract
    names = list(dict.fromkeys(s.name for s in (*contract.inputs, *contract.outputs)))
    new: dict[str, str] = {}
    for rename in renames:
        fits = {name: to for name in names if (to := rename.apply(name)) is not None}
        if not fits:
            raise UsageError(
                "a rename matches no variable",
                where=f"--rename {rename.old}:{rename.new}",
                expected=near(rename.old, names),
            )
        if not any(name not in new for name in fits):
            raise UsageError(
                "a rename has nothing left to rename: others before it took its variables",
                where=f"--rename {rename.old}:{rename.new}",
                got=", ".join(map(repr, fits)),
                mend="drop it, or put it first",
            )
        for name, to in fits.items():
            new.setdefault(name, to)
    by_new: dict[str, list[str]] = {}
    for name in names:
        by_new.setdefault(new.get(name, name), []).append(name)
    for to, olds in by_new.items():
        if len(olds) > 1:
            raise UsageError(
                "renaming makes two names equal",
                where=", ".join(f"--rename {r.old}:{r.new}" for r in renames),
                got=f"{' and '.join(map(repr, olds))} would both be {to!r}",
                expected="a name of its own for every variable",
            )

    def name_of(name: str) -> str:
        variable = bare(name)
        return name.removesuffix(variable) + new.get(variable, variable)

    inputs = {s.name for s in contract.inputs}

    def pair(of: str, by: str) -> tuple[str, str]:
        # Parameters keep their names: they are places in the file.
        return name_of(of), name_of(by) if by in inputs else by

    def method(spec: MethodSpec) -> MethodSpec:
        return dataclasses.replace(
            spec,
            inputs=tuple(map(name_of, spec.inputs)),
            symmetric=tuple(pair(*p) for p in spec.symmetric),
            zeros=tuple(pair(*p) for p in spec.zeros),
            outputs=tuple(name_of(o) if isinstance(o, str) else pair(*o) for o in spec.outputs),
        )

    found = (o for spec in contract.methods.values() for o in spec.outputs if not isinstance(o, str))
    blocks = {block_name(*p): block_name(*pair(*p)) for p in found}
    return dataclasses.replace(
        contract,
        envelope=dataclasses.replace(
            contract.envelope, values={name_of(n): r for n, r in contract.envelope.values.items()}
        ),
        inputs=tuple(dataclasses.replace(s, name=name_of(s.name)) for s in contract.inputs),
        outputs=tuple(dataclasses.replace(s, name=name_of(s.name)) for s in contract.outputs),
        methods={name: method(spec) for name, spec in contract.methods.items()},
        tolerance=dataclasses.replace(
            contract.tolerance,
            outputs={blocks.get(k) or name_of(k): v for k, v in contract.tolerance.outputs.items()},
        ),
    )
