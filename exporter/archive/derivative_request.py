"""Which derivatives a file is to carry: ``OUT:BY`` with globs on both sides, or ``all``."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from exporter.archive.contract import COTANGENT, TANGENT, Finding
from exporter.archive.tensor_spec import FLOATING, TensorSpec
from exporter.common.errors import UsageError, near

Pair = tuple[str, str]
CHECK = "derivatives"


@dataclass(frozen=True)
class Asked:
    """What the user asked for. ``parameters`` are those to stay settable; without any, all that can be.

    ``differentiable``: torch's autograd works through the loaded file; what it must give is in the cases of ``vjp``.
    ``symmetric`` are blocks that are second derivatives of a potential, each ``OUT:IN`` by name.
    """

    blocks: tuple[str, ...] = ()
    jvp: bool = False
    vjp: bool = False
    parameters: tuple[str, ...] = ()
    differentiable: bool = False
    symmetric: tuple[str, ...] = ()

    @property
    def derivatives(self) -> bool:
        return any((self.blocks, self.jvp, self.vjp, self.differentiable, self.symmetric))


@dataclass(frozen=True)
class Wanted:
    """Blocks in the contract's order, by inputs and by parameters, and whether products are wanted.

    ``zeros`` were asked for and are left out: the output does not depend on the input or parameter.
    """

    pairs: tuple[Pair, ...] = ()
    by_parameters: tuple[Pair, ...] = ()
    jvp: bool = False
    vjp: bool = False
    zeros: tuple[Pair, ...] = ()
    symmetric: tuple[Pair, ...] = ()


_KEEP = (
    "keep the graph of the gradient that the model takes: torch.autograd.grad(..., create_graph=True), of the input "
    "itself and not of x.detach()"
)


def wanted(
    asked: Asked,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    parameters: Mapping[str, str],
    reached: Collection[Pair],
    *,
    differentiates: bool = False,
) -> tuple[Wanted, tuple[Finding, ...]]:
    """``parameters`` are dtypes by name, ``reached`` the pairs ``(output, input or parameter)`` that a gradient
    connects; ``differentiates`` says that the model takes gradients itself.

    A glob takes what has a derivative, and says what it leaves out. Raises ``UsageError`` for names that match nothing,
    and for an exact pair that has no derivative: integers, two dtypes, an output that does not depend on the input.
    """
    kinds = {**parameters, **{s.name: s.dtype for s in (*inputs, *outputs)}}
    for name in (s.name for s in (*inputs, *outputs)):
        if name.startswith((TANGENT, COTANGENT)):
            raise UsageError(
                f"variable {name!r} has a name that stands for a derivative",
                expected=f"no name that begins with {TANGENT!r} or {COTANGENT!r}",
                mend="rename it: --rename OLD:NEW",
            )
    outs, ins = [s.name for s in outputs], [s.name for s in inputs]
    chosen: dict[Pair, None] = {}
    left_out: dict[Pair, str] = {}
    for text, exact, output, name in named(asked, ins, outs, list(parameters)):
        why = _without(output, name, kinds, reached)
        if why and exact:
            raise UsageError(
                f"there is no derivative of {output!r} by {name!r}",
                where=f"--derivative {text!r}",
                got=why,
                expected="an output and an input or parameter of one floating dtype that it depends on",
                mend=_KEEP if differentiates else "",
            )
        if why:
            left_out[output, name] = why
        else:
            chosen[output, name] = None
    if asked.blocks and not chosen:
        raise UsageError(
            "no block of the Jacobian is left",
            where=", ".join(f"--derivative {text!r}" for text in asked.blocks),
            got="; ".join(f"{o} by {i}: {why}" for (o, i), why in list(left_out.items())[:5]),
            expected="an output that depends on an input or parameter of floating dtype",
            mend=_KEEP if differentiates else "",
        )
    order = {pair: i for i, pair in enumerate((o, i) for o in outs for i in (*ins, *parameters))}
    pairs = sorted(chosen, key=order.__getitem__)
    found = tuple(Finding(CHECK, f"no block d {output} / d {by}", reason=why) for (output, by), why in left_out.items())
    return (
        Wanted(
            tuple(p for p in pairs if p[1] in ins),
            tuple(p for p in pairs if p[1] not in ins),
            asked.jvp,
            asked.vjp or asked.differentiable,
            tuple(p for p in sorted(left_out, key=order.__getitem__) if _real(p, kinds)),
            _symmetric(asked, pairs, {s.name: s.fixed for s in outputs}, {s.name: s.fixed for s in inputs}),
        ),
        found,
    )


def named(
    asked: Asked, ins: Sequence[str], outs: Sequence[str], parameters: Sequence[str]
) -> list[tuple[str, bool, str, str]]:
    """``(text, whether it is exactly this pair, output, input or parameter)``. Raises ``UsageError`` for a name that
    there is not."""
    found = []
    for text in asked.blocks:
        of, by = ("*", "*") if text == "all" else _split(text, outs, [*ins, *parameters])
        among = ins if text == "all" else [*ins, *parameters]
        for output in _matches(of, outs, text, "output"):
            for name in _matches(by, among, text, "input or parameter"):
                found.append((text, (of, by) == (output, name), output, name))
    return found


def _symmetric(
    asked: Asked, pairs: Sequence[Pair], outs: Mapping[str, tuple[int, ...]], ins: Mapping[str, tuple[int, ...]]
) -> tuple[Pair, ...]:
    """Raises ``UsageError`` for a block that is not in the file, or not square."""
    found = []
    for text in asked.symmetric:
        pair = next((p for p in pairs if ":".join(p) == text), None)
        if pair is None:
            raise UsageError(
                f"there is no block {text!r} to be symmetric",
                where=f"--symmetric {text!r}",
                expected=near(text, [":".join(p) for p in pairs]),
                mend="ask for it: --derivative OUT:IN",
            )
        if pair[1] not in ins or outs[pair[0]] != ins[pair[1]]:
            raise UsageError(
                f"the block {text!r} is not square",
                where=f"--symmetric {text!r}",
                got=f"{list(outs[pair[0]])} by {list(ins.get(pair[1], ()))}",
                expected="an output and an input of one shape",
            )
        found.append(pair)
    return tuple(found)


def _real(pair: Pair, kinds: dict[str, str]) -> bool:
    return kinds[pair[0]] in FLOATING and kinds[pair[0]] == kinds[pair[1]]


def _without(output: str, by: str, kinds: dict[str, str], reached: Collection[Pair]) -> str:
    for name in (output, by):
        if kinds[name] not in FLOATING:
            return f"{name!r} is {kinds[name]}"
    if kinds[output] != kinds[by]:
        # torch gives such a block the precision of the lower one in backward passes, and of the higher one forwards.
        return f"{output!r} is {kinds[output]} and {by!r} {kinds[by]}"
    return "" if (output, by) in reached else f"{output!r} does not depend on {by!r}"


def _split(text: str, outs: Sequence[str], bys: Sequence[str]) -> Pair:
    """At the colon that gives names on both sides: names may hold colons themselves."""
    parts = text.split(":")
    ways = [(":".join(parts[:i]), ":".join(parts[i:])) for i in range(1, len(parts))]
    for of, by in ways:
        if fnmatch.filter(outs, of) or of in outs:
            if by in bys or fnmatch.filter(bys, by):
                return of, by
            if by.count(":") and any(by.partition(":")[0] == name for name in bys):
                raise UsageError(
                    "second derivatives are not exported",
                    where=f"--derivative {text!r}",
                    expected="OUTPUT:INPUT, one input",
                    mend="export the first derivative; of an output that is a gradient already it is the second one",
                )
    if not ways:
        raise UsageError(
            "a derivative is not an output by an input",
            where=f"--derivative {text!r}",
            expected="OUTPUT:INPUT, each a name or a glob, or all",
        )
    return ways[0]


def _matches(pattern: str, names: Sequence[str], text: str, kind: str) -> list[str]:
    # ``a~1`` is a name before it is a pattern, and so is one with brackets.
    found = [pattern] if pattern in names else [n for n in names if fnmatch.fnmatchcase(n, pattern)]
    if not found:
        raise UsageError(
            f"no {kind} matches {pattern!r}", where=f"--derivative {text!r}", expected=near(pattern, names)
        )
    return found


def settable_names(
    globs: Sequence[str], alive: Sequence[str], known: Sequence[str], differentiated: Collection[str] = ()
) -> tuple[str, ...]:
    """Parameters that stay settable: those that match, in the model's order; all that are alive without any glob.

    Those that a block is ``differentiated`` by stay settable, too. Raises ``UsageError`` for a name that matches no
    parameter, or one that is a constant of the capture.
    """
    lost = [name for name in known if name in differentiated and name not in alive]
    if lost:
        raise UsageError(
            f"a block by parameter {lost[0]!r} cannot be given",
            got="a constant in the capture: the model reads it through .data, .item(), NumPy or a cache made of it",
            expected="a parameter that outputs and blocks are computed with",
            mend="leave it out of --derivative, or compute with the parameter itself in forward",
        )
    if not globs:
        return tuple(alive)
    kept: set[str] = set(differentiated)
    for glob in globs:
        matches = [n for n in known if n == glob or fnmatch.fnmatchcase(n, glob)]
        if not matches:
            raise UsageError(
                f"no parameter matches {glob!r}", where=f"--parameter {glob!r}", expected=near(glob, known)
            )
        dead = [n for n in matches if n not in alive]
        if dead and (glob in dead or len(dead) == len(matches)):
            raise UsageError(
                f"parameter {dead[0]!r} cannot stay settable",
                where=f"--parameter {glob!r}",
                got="a constant in the capture: the model reads it through .data, .item(), NumPy or a cache made of it",
                expected=near(dead[0], alive) if alive else "a parameter that the capture reads",
                mend="compute with the parameter itself in forward",
            )
        kept.update(matches)
    return tuple(n for n in alive if n in kept)
