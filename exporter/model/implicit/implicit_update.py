"""Models that solve a nonlinear system at every call: ``ImplicitUpdate``, and what every such model shares.

The solution ``u`` of ``r(u, g) = 0`` is found by Newton's method, which is one operation to whatever captures or
differentiates the model. Its derivatives are those of the implicit function theorem, ``du/dg = -(dr/du)^-1 dr/dg``: the
solution is returned as ``u + (dr/du)^-1 (r - r(u, g))``, where all but the last ``r(u, g)`` are constants, so that the
value is ``u`` and the derivative that of one Newton step (Simo and Hughes, Computational Inelasticity, 1998, sec. 3.6;
Blondel et al., Efficient and Modular Implicit Differentiation, 2022, eq. 2).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from exporter.archive.tensor_spec import FLOATING, Signature, TensorSpec
from exporter.common.errors import UsageError, near
from exporter.common.parameter_swap import moved
from exporter.model.argument_binding import Bound
from exporter.model.implicit.newton_solver import Newton, OnFailure, Settings, loops
from exporter.model.source import Source


@dataclass(frozen=True)
class Info:
    """Of one solve, by element: iterations (int64), the norm of the residual, status (int64)."""

    loop: Newton
    iterations: torch.Tensor
    residual_norm: torch.Tensor
    status: torch.Tensor


_LISTENING: ContextVar[list[Info] | None] = ContextVar("torchferry_newton_info", default=None)


@contextlib.contextmanager
def solves() -> Iterator[list[Info]]:
    """What the solves that are run while this lasts say of themselves, in their order."""
    found: list[Info] = []
    token = _LISTENING.set(found)
    try:
        yield found
    finally:
        _LISTENING.reset(token)


def newton_info(source: Source, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Iterations, norm of the residual and status of one run; several solves stand in the last dimension."""
    with solves() as told:
        source.module(*inputs)
    order = list(loops(source.named).values())
    found = sorted(told, key=lambda info: order.index(info.loop))
    parts = zip(*((i.iterations, i.residual_norm.double(), i.status) for i in found), strict=True)
    return tuple(of[0] if len(of) == 1 else torch.stack(of, -1) for of in parts)


Residual = Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor]


def solution(loop: Newton, guess: torch.Tensor, given: Sequence[torch.Tensor], residual: Residual) -> torch.Tensor:
    """``u`` of shape ``(batch, n)``, with derivatives by what is given and by the parameters of the residual; NaN where
    ``loop`` is told to say so."""
    held = loop.held(given)
    tangents = torch.is_grad_enabled() and any(t.requires_grad for t in held)
    u, matrix, iterations, norm, status, factor = loop(guess.detach(), [t.detach() for t in held], tangents)
    listening = _LISTENING.get()
    if listening is not None:
        listening.append(Info(loop, iterations, norm, status))
    if tangents:
        rest = residual(u.detach(), held)
        u = u.detach() + torch.linalg.solve_ex(matrix.detach(), rest.detach() - rest)[0]
    return u * factor.detach().unsqueeze(-1)


class ImplicitUpdate(nn.Module):
    """Unknowns that make residuals zero, each element of a batch for itself.

    ``residual`` has a ``signature`` (or is wrapped in a ``Part``): it takes the unknowns and what is given, and returns
    a residual for every unknown, of its shape. ``unknowns`` are names, for which the residual of ``x`` is
    ``x_residual``, or a mapping from unknown to residual. The first guess of ``x`` is what ``predictor`` returns under
    that name, else the previous value ``x~1`` where that is among the inputs, else an input ``x`` of the update.

    The update takes what is given (and the guesses), and returns the unknowns. An element that does not converge is NaN
    (``on_failure="nan"``), its last iterate (``"last"``), or an error (``"raise"``).

    Raises ``UsageError`` for unknowns that the residual does not take, that have no residual, or whose residual has
    another shape, and for settings with which nothing converges.
    """

    def __init__(
        self,
        residual: nn.Module,
        unknowns: Sequence[str] | Mapping[str, str],
        *,
        predictor: nn.Module | None = None,
        settings: Settings | None = None,
        on_failure: OnFailure = "nan",
        name: str = "update",
    ) -> None:
        super().__init__()
        self.label = name
        signature = _signature(residual, "residual")
        pairs = dict(unknowns) if isinstance(unknowns, Mapping) else {n: f"{n}_residual" for n in unknowns}
        self._unknowns = _paired(pairs, signature)
        self._residuals = list(pairs.values())
        self._returned = [s.name for s in signature.outputs]
        self._taken = [s.name for s in signature.inputs]
        self._given = [n for n in self._taken if n not in pairs]
        foreseen = _signature(predictor, "predictor") if predictor is not None else Signature((), ())
        self._predicted = [s.name for s in foreseen.outputs]
        self._foresees = [s.name for s in foreseen.inputs]
        known = {s.name: s for s in (*signature.inputs, *foreseen.inputs)}
        self._first = {n: n if n in self._predicted or f"{n}~1" not in known else f"{n}~1" for n in pairs}
        _refuse_other_guesses(self._unknowns, self._first, known | {s.name: s for s in foreseen.outputs})
        guesses = [self._first[n] for n in pairs if n not in self._predicted]
        inputs = dict.fromkeys([*self._given, *guesses, *self._foresees])
        self.signature = Signature(tuple(known[n] for n in inputs), tuple(self._unknowns.values()))
        self.residual = residual
        self.predictor = predictor
        self._calls = Bound(residual, self._taken, name), predictor and Bound(predictor, self._foresees, name)
        self.newton = Newton(
            self.residuals, self.jacobian, residual, len(self._given), settings or Settings(), on_failure
        )

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leads = [t.shape[: t.ndim - len(s.shape)] for s, t in zip(self.signature.inputs, inputs, strict=True)]
        # A capture has one batch, whose size is not a number to it.
        numbers = all(type(size) is int for lead in leads for size in lead)
        if any(len(lead) != 1 for lead in leads) or (numbers and len(set(leads)) > 1):
            return self._of_any_batch(inputs, torch.broadcast_shapes(*leads))
        values = dict(zip((s.name for s in self.signature.inputs), inputs, strict=True))
        guess = {n: values[first] for n, first in self._first.items() if first in values}
        if self._calls[1]:
            found = _named(self._calls[1](*(values[n] for n in self._foresees)), self._predicted)
            guess |= {n: found[n] for n in self._unknowns if n in found}
        given = [values[n] for n in self._given]
        u = solution(self.newton, _flat([guess[n] for n in self._unknowns]), given, self.residuals)
        return tuple(self._split(u).values())

    def _of_any_batch(self, inputs: Sequence[torch.Tensor], lead: Sequence[int]) -> tuple[torch.Tensor, ...]:
        whole = zip(self.signature.inputs, inputs, strict=True)
        flat = [t.expand((*lead, *s.fixed)).reshape((-1, *s.fixed)) for s, t in whole]
        return tuple(v.reshape((*lead, *v.shape[1:])) for v in self.forward(*flat))

    def residuals(self, u: torch.Tensor, held: Sequence[torch.Tensor]) -> torch.Tensor:
        """``(batch, n)``, in the order of the unknowns. ``held``: what is given, then the residual's parameters."""
        count = len(self._given)
        values = dict(zip(self._given, held[:count], strict=True)) | self._split(u)
        others = dict(zip(self.newton.names, held[count:], strict=True))
        with moved(self.residual, others):
            found = _named(self._calls[0](*(values[n] for n in self._taken)), self._returned)
        return _flat([found[n] for n in self._residuals])

    def jacobian(self, u: torch.Tensor, held: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """``(batch, n, n)``, and the residual: one backward pass of a batch that is repeated for every row."""
        rows, n = u.shape
        count = len(self._given)
        with torch.enable_grad():
            tall = _repeated(u.detach(), n).requires_grad_(True)
            given = [_repeated(t.detach(), n) for t in held[:count]]
            found = self.residuals(tall, [*given, *(t.detach() for t in held[count:])])
            seeds = torch.eye(n, dtype=u.dtype, device=u.device).unsqueeze(1).expand(n, rows, n).reshape(n * rows, n)
            (matrix,) = torch.autograd.grad(found, tall, seeds, allow_unused=True, materialize_grads=True)
        return matrix.reshape(n, rows, n).movedim(0, 1).contiguous().detach(), found[:rows].detach()

    def _split(self, u: torch.Tensor) -> dict[str, torch.Tensor]:
        at, found = 0, {}
        for name, spec in self._unknowns.items():
            size = math.prod(spec.fixed)
            found[name] = u[:, at : at + size].reshape(-1, *spec.fixed)
            at += size
        return found


def _refuse_other_guesses(
    unknowns: Mapping[str, TensorSpec], first: Mapping[str, str], known: Mapping[str, TensorSpec]
) -> None:
    for name, spec in unknowns.items():
        guess = known[first[name]]
        if (guess.shape, guess.dtype) != (spec.shape, spec.dtype):
            raise UsageError(
                f"the first guess of {name!r} has another shape or dtype",
                where=f"variable {guess.name!r}",
                got=guess.describe(),
                expected=spec.describe(),
                mend="a predictor that returns the unknown in its own shape",
            )


def _flat(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([v.reshape(v.shape[0], math.prod(v.shape[1:])) for v in values], -1)


def _repeated(value: torch.Tensor, times: int) -> torch.Tensor:
    return value.expand(times, *value.shape).reshape(times * value.shape[0], *value.shape[1:])


def _named(result: Any, names: Sequence[str]) -> dict[str, torch.Tensor]:
    if isinstance(result, Mapping):
        missing = [name for name in names if name not in result]
        if missing:
            raise UsageError(
                f"a module of an implicit update returns no {missing[0]!r}",
                got=f"a dict of {', '.join(map(str, result))}",
                expected=", ".join(names),
            )
        return dict(result)
    values = result if isinstance(result, (tuple, list)) else (result,)
    return dict(zip(names, values, strict=True))


def _signature(module: nn.Module, what: str) -> Signature:
    signature = getattr(module, "signature", None)
    if not isinstance(signature, Signature) or not signature.outputs or not signature.batch_ndim:
        raise UsageError(
            f"the {what} of an implicit update declares no variables",
            got=f"signature = {signature!r}",
            expected="an attribute `signature` with inputs and outputs of one element of a batch",
            mend="wrap it: Part(module, inputs={'x': (3,)}, outputs={'x_residual': (3,)})",
        )
    return signature


def _paired(pairs: Mapping[str, str], signature: Signature) -> dict[str, TensorSpec]:
    """The unknowns; raises ``UsageError`` where the system is not one residual for each of them."""
    taken, returned = ({s.name: s for s in side} for side in (signature.inputs, signature.outputs))
    if not pairs:
        raise UsageError("an implicit update has no unknowns", expected=f"some of {', '.join(taken)}")
    for unknown, residual in pairs.items():
        if unknown not in taken:
            raise UsageError(f"the residual does not take the unknown {unknown!r}", expected=near(unknown, taken))
        if residual not in returned:
            raise UsageError(
                f"the unknown {unknown!r} has no residual",
                got=f"the residual module returns {', '.join(returned)}",
                expected=f"an output {residual!r}",
                mend="name the residual of each unknown: unknowns={'x': 'name of its residual'}",
            )
        of, by = taken[unknown], returned[residual]
        if (of.shape, of.dtype) != (by.shape, by.dtype) or of.dtype not in FLOATING:
            raise UsageError(
                f"the residual {residual!r} is not one equation for each component of {unknown!r}",
                got=f"{by.describe()}, and {of.describe()}",
                expected="one shape and one floating dtype: a square system",
            )
    unused = [n for n in returned if n not in pairs.values()]
    if unused or len(set(pairs.values())) < len(pairs):
        raise UsageError(
            "the system is not square",
            got=f"unknowns {', '.join(pairs)}; residuals {', '.join(returned)}",
            expected="one residual for each unknown, and no other output",
            mend="compute other outputs in a module behind the update: ComposedModel([update, module])",
        )
    if len({taken[n].dtype for n in pairs}) > 1:
        raise UsageError("the unknowns have several dtypes", got=", ".join(taken[n].describe() for n in pairs))
    return {n: taken[n] for n in pairs}
