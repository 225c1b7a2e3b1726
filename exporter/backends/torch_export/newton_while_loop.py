"""Newton's method without anything that follows the data but one loop: ``exporter.newton``'s, element for element.

Where that one leaves elements out that have converged, here they stay as they are until the last one has; each takes
the same steps, stops by the same rule and has the same status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._higher_order_ops.while_loop import while_loop_op

from exporter.model.implicit.newton_solver import CONVERGED, NOT_CONVERGED, NOT_FINITE, SINGULAR

Tensors = tuple[torch.Tensor, ...]
# Of ``(u, held, constants)``: all that they read is given to them.
Residual = Callable[[torch.Tensor, Sequence[torch.Tensor], Sequence[torch.Tensor]], torch.Tensor]
Jacobian = Callable[[torch.Tensor, Sequence[torch.Tensor], Sequence[torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Loop:
    """``constants`` are the tensors that residual and Jacobian read, and the settings, which stand there at
    ``settings``. Without ``searches`` every step is a whole one."""

    residual: Residual
    jacobian: Jacobian
    constants: Tensors
    settings: Mapping[str, int]
    strong_wolfe: bool
    searches: bool
    fails_by_nan: bool
    solve_ex: Callable[..., Any] = torch.linalg.solve_ex

    def solve(self, u: torch.Tensor, held: Sequence[torch.Tensor], tangents: bool) -> Tensors:
        """What ``Newton.forward`` gives: ``u``, ``dr/du``, iterations, norm of the residual, status, factor."""
        count = len(held)

        def going_on(*given: torch.Tensor) -> torch.Tensor:
            return given[_STATE.index("active")].any()

        def step(*given: torch.Tensor) -> Tensors:
            state: dict[str, torch.Tensor] = dict(zip(_STATE, given[: len(_STATE)], strict=True))
            rest = given[len(_STATE) :]
            return self._step(state, rest[:count], rest[count:])

        matrix, residual = self.jacobian(u, held, self.constants)
        first = _norm(residual)
        counts = torch.zeros_like(first, dtype=torch.int64)
        state: dict[str, torch.Tensor] = {
            "u": u.clone(),
            "matrix": matrix.clone(),
            "residual": residual.clone(),
            "first": first,
            "norm": first.clone(),
            "iterations": counts,
            "status": counts.clone(),
            "active": torch.ones_like(counts, dtype=torch.bool),
            "count": torch.zeros((), dtype=torch.int64, device=u.device),
        }
        rest = (*held, *self.constants)
        found = dict(zip(_STATE, _loop(going_on, step, tuple(state[n] for n in _STATE), rest), strict=True))
        factor = torch.ones_like(found["norm"])
        if self.fails_by_nan:
            factor = torch.where(found["status"] == CONVERGED, factor, float("nan"))
        matrix = found["matrix"]
        matrix = self._at_solution(found["u"], held, matrix) if tangents else matrix[:0]
        return found["u"], matrix, found["iterations"], found["norm"], found["status"], factor

    def _step(
        self,
        state: Mapping[str, torch.Tensor],
        held: Sequence[torch.Tensor],
        constants: Tensors,
    ) -> Tensors:
        settings = self._set(constants)
        u, matrix, residual = state["u"], state["matrix"], state["residual"]
        first, active, count = state["first"], state["active"], state["count"]
        norm = _norm(residual)
        step, info = self.solve_ex(matrix, -residual)
        finite = torch.isfinite(norm)
        good = (norm < settings["abs_tol"]) | (norm == 0)
        good = good | ((norm / first < settings["rel_tol"]) & (count > 0))
        singular = (info != 0) | ~torch.isfinite(step).all(-1)
        good = good & finite & ~singular
        ended = active & (good | ~finite | singular | (count >= settings["max_its"]))
        tried = u + step
        reached = _norm(self.residual(tried, held, constants))
        closer = ended & good & (reached <= norm)
        said = torch.where(singular, SINGULAR, NOT_CONVERGED)
        said = torch.where(finite, said, NOT_FINITE)
        said = torch.where(good, CONVERGED, said)
        left = active & ~ended
        following = self._searched(u, step, residual, held, constants) if self.searches else tried
        following = torch.where(left.unsqueeze(-1), following, u)
        other, rest = self.jacobian(following, held, constants)
        found = {
            "u": torch.where(closer.unsqueeze(-1), tried, following),
            "matrix": torch.where(left.unsqueeze(-1).unsqueeze(-1), other, matrix),
            "residual": torch.where(left.unsqueeze(-1), rest, residual),
            "first": first.clone(),
            "norm": torch.where(ended, torch.where(closer, reached, norm), state["norm"]),
            "iterations": torch.where(ended, count, state["iterations"]),
            "status": torch.where(ended, said, state["status"]),
            "active": left,
            "count": count + 1,
        }
        return tuple(found[name] for name in _STATE)

    def _searched(
        self,
        u: torch.Tensor,
        step: torch.Tensor,
        residual: torch.Tensor,
        held: Sequence[torch.Tensor],
        constants: Tensors,
    ) -> torch.Tensor:
        """The line search of ``Newton.stepped``, on all elements together: its loop ends when all have decreased, and
        each goes on with what the others have left it."""
        before = (residual * residual).sum(-1)
        along = (residual * step).sum(-1)
        wolfe = self.strong_wolfe

        def going_on(
            alpha: torch.Tensor, tried: torch.Tensor, going: torch.Tensor, *rest: torch.Tensor
        ) -> torch.Tensor:
            return going.any()

        def trial(
            alpha: torch.Tensor, tried: torch.Tensor, going: torch.Tensor, count: torch.Tensor, *rest: torch.Tensor
        ) -> Tensors:
            u, step, before, along, *given = rest
            settings = self._set(given[len(held) :])
            decrease, least = settings["decrease"], settings["abs_tol"] ** 2
            at = u + alpha.unsqueeze(-1) * step
            after = self.residual(at, given[: len(held)], given[len(held) :])
            reached = (after * after).sum(-1)
            bound = (1.0 - decrease * alpha) * before if wolfe else before + 2.0 * decrease * alpha * along
            stop = (reached <= bound) | (reached <= least)
            following = torch.where(stop, alpha, alpha / settings["cutback"])
            more = ~stop & (count + 1 < settings["trials"])
            return following, at, more, count + 1

        carried = (
            torch.ones_like(before),
            u + step,
            torch.ones_like(before, dtype=torch.bool),
            torch.zeros((), dtype=torch.int64, device=u.device),
        )
        rest = (u, step, before, along, *held, *constants)
        return _loop(going_on, trial, carried, rest)[1]

    def _set(self, constants: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: constants[at] for name, at in self.settings.items()}

    def _at_solution(self, u: torch.Tensor, held: Sequence[torch.Tensor], before: torch.Tensor) -> torch.Tensor:
        matrix = self.jacobian(u, held, self.constants)[0]
        tried, info = self.solve_ex(matrix, torch.ones_like(u))
        good = (info == 0) & torch.isfinite(tried).all(-1)
        return torch.where(good.unsqueeze(-1).unsqueeze(-1), matrix, before)


_loop: Any = while_loop_op
_STATE: tuple[str, ...] = ("u", "matrix", "residual", "first", "norm", "iterations", "status", "active", "count")


def _norm(residual: torch.Tensor) -> torch.Tensor:
    return (residual * residual).sum(-1).sqrt()
