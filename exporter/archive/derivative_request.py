"""Derivative requests: ``OUT:IN`` with globs on both sides, ``OUT:IN,IN`` for second derivatives, or ``all``."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from exporter.archive.contract import COTANGENT, TANGENT, Finding, block_name
from exporter.archive.tensor_spec import FLOATING, TensorSpec
from exporter.common.errors import UsageError, suggest_names

Pair = tuple[str, str]
CHECK = "derivatives"


@dataclass(frozen=True)
class DerivativeRequest:
    """The derivatives that the user asked for. ``parameters`` are those to stay settable; if empty, all that can be.

    ``differentiable``: torch's autograd works through the loaded file; the cases of ``vjp`` hold its gradients.
    ``symmetric`` are blocks that are second derivatives of a potential, each ``OUT:IN`` by name."""

    blocks: tuple[str, ...] = ()
    jvp: bool = False
    vjp: bool = False
    parameters: tuple[str, ...] = ()
    differentiable: bool = False
    symmetric: tuple[str, ...] = ()

    @property
    def has_derivatives(self) -> bool:
        """Return whether any derivative is requested."""
        return any((self.blocks, self.jvp, self.vjp, self.differentiable, self.symmetric))


@dataclass(frozen=True)
class SecondDerivative:
    """A request of ``text``: of the gradient of ``output`` by the input ``wrt`` the block by ``other``, an input, a
    parameter or a glob. ``is_exact``: output and input were asked for by their names."""

    text: str
    output: str
    wrt: str
    other: str
    is_exact: bool


@dataclass(frozen=True)
class ResolvedDerivatives:
    """Blocks in the contract's order, with respect to inputs and to parameters, and whether products are requested.

    ``zeros`` were requested and are omitted: the output does not depend on the input or parameter."""

    pairs: tuple[Pair, ...] = ()
    parameter_pairs: tuple[Pair, ...] = ()
    jvp: bool = False
    vjp: bool = False
    zeros: tuple[Pair, ...] = ()
    symmetric: tuple[Pair, ...] = ()


_KEEP = (
    "keep the graph of the gradient that the model computes: torch.autograd.grad(..., create_graph=True), for the "
    "input itself and not for x.detach()"
)
_CONSTANT = "a constant in the capture: the model reads it through .data, .item(), NumPy or a cache made of it"


def resolve_derivatives(
    request: DerivativeRequest,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    parameters: Mapping[str, str],
    nonzero_pairs: Collection[Pair],
    *,
    uses_autograd: bool = False,
) -> tuple[ResolvedDerivatives, tuple[Finding, ...]]:
    """Resolve a request to blocks and products, with findings for what is omitted.

    ``parameters`` are dtypes by name, ``nonzero_pairs`` the pairs ``(output, input or parameter)`` that a gradient
    connects; ``uses_autograd`` says that the model takes gradients itself.

    A glob selects pairs that have a derivative, and reports the others. Raises ``UsageError`` for names that match
    nothing, and for an exact pair that has no derivative: integers, two dtypes, an output independent of the input."""
    dtypes = {**parameters, **{s.name: s.dtype for s in (*inputs, *outputs)}}
    outs, ins = [s.name for s in outputs], [s.name for s in inputs]
    reserved = [name for name in (*ins, *outs) if name.startswith((TANGENT, COTANGENT))]
    if reserved:
        what = f"the name of variable {reserved[0]!r} is reserved for derivatives"
        expected = f"a name that does not begin with {TANGENT!r} or {COTANGENT!r}"
        raise UsageError(what, expected=expected, mend="rename it: --rename OLD:NEW")
    selected, omitted = {}, {}
    for text, exact, output, name in validate_names(request, ins, outs, list(parameters)):
        why = _explain_missing(output, name, dtypes, nonzero_pairs)
        if why and exact:
            what, mend = f"{output!r} has no derivative with respect to {name!r}", _KEEP if uses_autograd else ""
            expected = "an output and an input or parameter of one floating dtype that it depends on"
            raise UsageError(what, where=f"--derivative {text!r}", got=why, expected=expected, mend=mend)
        if why:
            omitted[output, name] = why
        else:
            selected[output, name] = None
    if request.blocks and not selected:
        what, where = "no block of the Jacobian is left", ", ".join(f"--derivative {text!r}" for text in request.blocks)
        got = "; ".join(f"{o} by {i}: {why}" for (o, i), why in list(omitted.items())[:5])
        expected = "an output that depends on an input or parameter of floating dtype"
        raise UsageError(what, where=where, got=got, expected=expected, mend=_KEEP if uses_autograd else "")
    order = {pair: i for i, pair in enumerate((o, i) for o in outs for i in (*ins, *parameters))}
    pairs = sorted(selected, key=order.__getitem__)
    findings = tuple(Finding(CHECK, f"no block {block_name(*p)}", reason=why) for p, why in omitted.items())
    resolved = ResolvedDerivatives(
        tuple(p for p in pairs if p[1] in ins),
        tuple(p for p in pairs if p[1] not in ins),
        request.jvp,
        request.vjp or request.differentiable,
        tuple(p for p in sorted(omitted, key=order.__getitem__) if _is_real(p, dtypes)),
        _resolve_symmetric_pairs(request, pairs, outputs, inputs),
    )
    return resolved, findings


def validate_names(
    request: DerivativeRequest, ins: Sequence[str], outs: Sequence[str], parameters: Sequence[str]
) -> list[tuple[str, bool, str, str]]:
    """Match the globs of a request against the names; raises ``UsageError`` for a name that does not exist.

    Returns ``(text, whether it is exactly this pair, output, input or parameter)`` for each match."""
    matches = []
    for text in request.blocks:
        output_pattern, wrt_pattern = ("*", "*") if text == "all" else _split_pair(text, outs, [*ins, *parameters])
        candidates = ins if text == "all" else [*ins, *parameters]
        for output in _match_names(output_pattern, outs, text, "output"):
            for name in _match_names(wrt_pattern, candidates, text, "input or parameter"):
                matches.append((text, (output_pattern, wrt_pattern) == (output, name), output, name))
    return matches


def _resolve_symmetric_pairs(
    request: DerivativeRequest, pairs: Sequence[Pair], outputs: Sequence[TensorSpec], inputs: Sequence[TensorSpec]
) -> tuple[Pair, ...]:
    """Return the symmetric blocks; raises ``UsageError`` for a block that is not in the file, or not square."""
    symmetric_pairs = []
    outs, ins = ({s.name: s.static_shape for s in specs} for specs in (outputs, inputs))
    for text in request.symmetric:
        pair = next((p for p in pairs if ":".join(p) == text), None)
        if pair is None:
            what, mend = f"the file has no block {text!r} that could be symmetric", "request it: --derivative OUT:IN"
            expected = suggest_names(text, [":".join(p) for p in pairs])
            raise UsageError(what, where=f"--symmetric {text!r}", expected=expected, mend=mend)
        if pair[1] not in ins or outs[pair[0]] != ins[pair[1]]:
            what, got = f"the block {text!r} is not square", f"{list(outs[pair[0]])} by {list(ins.get(pair[1], ()))}"
            expected = "an output and an input of the same shape"
            raise UsageError(what, where=f"--symmetric {text!r}", got=got, expected=expected)
        symmetric_pairs.append(pair)
    return tuple(symmetric_pairs)


def _is_real(pair: Pair, dtypes: dict[str, str]) -> bool:
    return dtypes[pair[0]] in FLOATING and dtypes[pair[0]] == dtypes[pair[1]]


def _explain_missing(output: str, wrt: str, dtypes: dict[str, str], nonzero_pairs: Collection[Pair]) -> str:
    for name in (output, wrt):
        if dtypes[name] not in FLOATING:
            return f"{name!r} is {dtypes[name]}"
    if dtypes[output] != dtypes[wrt]:
        # torch gives such a block the lower precision in backward passes, and the higher one in forward mode.
        return f"{output!r} is {dtypes[output]} and {wrt!r} {dtypes[wrt]}"
    return "" if (output, wrt) in nonzero_pairs else f"{output!r} does not depend on {wrt!r}"


def _split_pair(text: str, outs: Sequence[str], wrt_names: Sequence[str]) -> Pair:
    """Split at the colon with names on both sides: names may contain colons themselves."""
    parts = text.split(":")
    splits = [(":".join(parts[:i]), ":".join(parts[i:])) for i in range(1, len(parts))]
    for output, wrt in splits:
        if fnmatch.filter(outs, output) or output in outs:
            if wrt in wrt_names or fnmatch.filter(wrt_names, wrt):
                return output, wrt
            if wrt.count(":") and any(wrt.partition(":")[0] == name for name in wrt_names):
                what, expected = "a second derivative is written in another way", "OUTPUT:INPUT,INPUT"
                mend = f"--derivative '{output}:{wrt.replace(':', ',')}'"
                raise UsageError(what, where=f"--derivative {text!r}", expected=expected, mend=mend)
    if not splits:
        what = "a derivative needs an output and an input"
        raise UsageError(what, where=f"--derivative {text!r}", expected="OUTPUT:INPUT, each a name or a glob, or all")
    return splits[0]


def name_gradient(output: str, wrt: str) -> str:
    """Return the name of a gradient that is an output of the model."""
    return f"d_{output}_d_{wrt}"


def find_second_derivatives(
    request: DerivativeRequest, ins: Sequence[str], outs: Sequence[str], parameters: Sequence[str]
) -> list[SecondDerivative]:
    """Match the second derivatives of a request, ``OUT:IN,IN``, against the names. The last may be a parameter.

    Raises ``UsageError`` for a name that does not exist."""
    wanted = []
    for text in request.blocks:
        if (parts := _split_second(text, outs, ins, [*ins, *parameters])) is None:
            continue
        output_pattern, wrt_pattern, other = parts
        _match_names(other, [*ins, *parameters], text, "input or parameter")
        for output in _match_names(output_pattern, outs, text, "output"):
            for wrt in _match_names(wrt_pattern, ins, text, "input"):
                is_exact = (output_pattern, wrt_pattern) == (output, wrt)
                wanted.append(SecondDerivative(text, output, wrt, other, is_exact))
    return wanted


def _split_second(
    text: str, outs: Sequence[str], ins: Sequence[str], wrt_names: Sequence[str]
) -> tuple[str, str, str] | None:
    """Split at a colon and a comma with names on all sides, else at the first ones; None for another request."""

    def matches(pattern: str, names: Sequence[str]) -> bool:
        return pattern in names or bool(fnmatch.filter(names, pattern))

    colons = [i for i, character in enumerate(text) if character == ":"]
    if any(matches(text[:i], outs) and matches(text[i + 1 :], wrt_names) for i in colons):
        return None
    commas = [i for i, character in enumerate(text) if character == ","]
    splits = [(text[:i], text[i + 1 : j], text[j + 1 :]) for i in colons for j in commas if i < j]
    whole = (s for s in splits if matches(s[0], outs) and matches(s[1], ins) and matches(s[2], wrt_names))
    return next(whole, splits[0] if splits else None)


def _match_names(pattern: str, names: Sequence[str], text: str, role: str) -> list[str]:
    # ``a~1`` is a name before it is a pattern, and so is one with brackets.
    matches = [pattern] if pattern in names else [n for n in names if fnmatch.fnmatchcase(n, pattern)]
    if not matches:
        what = f"no {role} matches {pattern!r}"
        raise UsageError(what, where=f"--derivative {text!r}", expected=suggest_names(pattern, names))
    return matches


def resolve_settable_parameters(
    globs: Sequence[str], alive: Sequence[str], names: Sequence[str], differentiated: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the parameters that stay settable: those that match, in the model's order; without globs, all alive ones.

    Parameters in ``differentiated``, those of requested blocks, stay settable, too. Raises ``UsageError`` for a name
    that matches no parameter, or one that is a constant of the capture."""
    unavailable = [name for name in names if name in differentiated and name not in alive]
    if unavailable:
        what = f"a block with respect to parameter {unavailable[0]!r} cannot be computed"
        mend = "leave it out of --derivative, or compute with the parameter itself in forward"
        expected = "a parameter that outputs and blocks are computed with"
        raise UsageError(what, got=_CONSTANT, expected=expected, mend=mend)
    if not globs:
        return tuple(alive)
    selected: set[str] = set(differentiated)
    for glob in globs:
        matches = [n for n in names if n == glob or fnmatch.fnmatchcase(n, glob)]
        if not matches:
            what = f"no parameter matches {glob!r}"
            raise UsageError(what, where=f"--parameter {glob!r}", expected=suggest_names(glob, names))
        dead = [n for n in matches if n not in alive]
        if dead and (glob in dead or len(dead) == len(matches)):
            what, mend = f"parameter {dead[0]!r} cannot stay settable", "compute with the parameter itself in forward"
            expected = suggest_names(dead[0], alive) if alive else "a parameter that the capture reads"
            raise UsageError(what, where=f"--parameter {glob!r}", got=_CONSTANT, expected=expected, mend=mend)
        selected.update(matches)
    return tuple(n for n in alive if n in selected)
