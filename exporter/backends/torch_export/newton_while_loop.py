"""Newton's method with one loop as its only control flow on data: ``NewtonSolver``'s, element for element.

That one drops elements that have converged; here they stay as they are until the last one has converged; each takes
the same steps, stops by the same rule and has the same status."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from exporter.common.torch_internals import while_loop_op
from exporter.model.implicit.newton_solver import CONVERGED, NOT_CONVERGED, NOT_FINITE, SINGULAR

Tensors = tuple[torch.Tensor, ...]
# Functions of ``(u, fixed, constants)``, which are all that they read.
Residual = Callable[[torch.Tensor, Sequence[torch.Tensor], Sequence[torch.Tensor]], torch.Tensor]
Jacobian = Callable[[torch.Tensor, Sequence[torch.Tensor], Sequence[torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class NewtonLoop:
    """Newton's method in ``while_loop``. ``constants`` are the tensors that residual and Jacobian read, and the
    settings at the positions ``settings``. Without ``has_line_search`` every step is a full one."""

    residual: Residual
    jacobian: Jacobian
    constants: Tensors
    settings: Mapping[str, int]
    strong_wolfe: bool
    has_line_search: bool
    fails_by_nan: bool
    solve_ex: Callable[..., Any] = torch.linalg.solve_ex

    def solve(self, u: torch.Tensor, fixed: Tensors, tangents: bool) -> Tensors:
        """Return what ``NewtonSolver.forward`` does: ``u``, ``dr/du``, iterations, residual norm, status, factor."""
        count = len(fixed)

        def has_active(*state: torch.Tensor) -> torch.Tensor:
            return state[_STATE.index("active")].any()

        def step(*args: torch.Tensor) -> Tensors:
            state: dict[str, torch.Tensor] = dict(zip(_STATE, args[: len(_STATE)], strict=True))
            extra_inputs = args[len(_STATE) :]
            return self._step(state, extra_inputs[:count], extra_inputs[count:])

        matrix, residual = self.jacobian(u, fixed, self.constants)
        first = _compute_norm(residual)
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
        extra_inputs = (*fixed, *self.constants)
        values = _while_loop(has_active, step, tuple(state[n] for n in _STATE), extra_inputs)
        final_state = dict(zip(_STATE, values, strict=True))
        factor = torch.ones_like(final_state["norm"])
        if self.fails_by_nan:
            factor = torch.where(final_state["status"] == CONVERGED, factor, float("nan"))
        matrix = final_state["matrix"]
        matrix = self._compute_solution_jacobian(final_state["u"], fixed, matrix) if tangents else matrix[:0]
        return final_state["u"], matrix, final_state["iterations"], final_state["norm"], final_state["status"], factor

    def _step(self, state: Mapping[str, torch.Tensor], fixed: Tensors, constants: Tensors) -> Tensors:
        settings = self._read_settings(constants)
        u, matrix, residual = state["u"], state["matrix"], state["residual"]
        first, active, count = state["first"], state["active"], state["count"]
        norm = _compute_norm(residual)
        step, info = self.solve_ex(matrix, -residual)
        finite = torch.isfinite(norm)
        has_converged = (norm < settings["abs_tol"]) | (norm == 0)
        has_converged = has_converged | ((norm / first < settings["rel_tol"]) & (count > 0))
        singular = (info != 0) | ~torch.isfinite(step).all(-1)
        has_converged = has_converged & finite & ~singular
        has_ended = active & (has_converged | ~finite | singular | (count >= settings["max_its"]))
        trial_u = u + step
        trial_norm = _compute_norm(self.residual(trial_u, fixed, constants))
        closer = has_ended & has_converged & (trial_norm <= norm)
        new_status = torch.where(singular, SINGULAR, NOT_CONVERGED)
        new_status = torch.where(finite, new_status, NOT_FINITE)
        new_status = torch.where(has_converged, CONVERGED, new_status)
        still_active = active & ~has_ended
        next_u = self._search_line(u, step, residual, fixed, constants) if self.has_line_search else trial_u
        next_u = torch.where(still_active.unsqueeze(-1), next_u, u)
        next_matrix, next_residual = self.jacobian(next_u, fixed, constants)
        new_state = {
            "u": torch.where(closer.unsqueeze(-1), trial_u, next_u),
            "matrix": torch.where(still_active.unsqueeze(-1).unsqueeze(-1), next_matrix, matrix),
            "residual": torch.where(still_active.unsqueeze(-1), next_residual, residual),
            "first": first.clone(),
            "norm": torch.where(has_ended, torch.where(closer, trial_norm, norm), state["norm"]),
            "iterations": torch.where(has_ended, count, state["iterations"]),
            "status": torch.where(has_ended, new_status, state["status"]),
            "active": still_active,
            "count": count + 1,
        }
        return tuple(new_state[name] for name in _STATE)

    def _search_line(
        self, u: torch.Tensor, step: torch.Tensor, residual: torch.Tensor, fixed: Tensors, constants: Tensors
    ) -> torch.Tensor:
        """Run the line search of ``NewtonSolver`` on all elements together: its loop ends when all have decreased, and
        each stops changing once it has."""
        before = (residual * residual).sum(-1)
        along = (residual * step).sum(-1)
        wolfe = self.strong_wolfe

        def has_active(alpha: Any, tried: Any, going: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
            return going.any()

        def try_step(alpha: Any, tried: torch.Tensor, going: torch.Tensor, count: Any, *rest: torch.Tensor) -> Tensors:
            u, step, before, along, *extra = rest
            settings = self._read_settings(extra[len(fixed) :])
            decrease, least = settings["decrease"], settings["abs_tol"] ** 2
            trial_u = u + alpha.unsqueeze(-1) * step
            after = self.residual(trial_u, extra[: len(fixed)], extra[len(fixed) :])
            reached = (after * after).sum(-1)
            bound = (1.0 - decrease * alpha) * before if wolfe else before + 2.0 * decrease * alpha * along
            stop = (reached <= bound) | (reached <= least)
            following = torch.where(stop, alpha, alpha / settings["cutback"])
            more = ~stop & (count + 1 < settings["trials"])
            return following, trial_u, more, count + 1

        count = torch.zeros((), dtype=torch.int64, device=u.device)
        carried = (torch.ones_like(before), u + step, torch.ones_like(before, dtype=torch.bool), count)
        rest = (u, step, before, along, *fixed, *constants)
        return _while_loop(has_active, try_step, carried, rest)[1]

    def _read_settings(self, constants: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: constants[index] for name, index in self.settings.items()}

    def _compute_solution_jacobian(self, u: torch.Tensor, fixed: Tensors, fallback: torch.Tensor) -> torch.Tensor:
        matrix = self.jacobian(u, fixed, self.constants)[0]
        trial_solution, info = self.solve_ex(matrix, torch.ones_like(u))
        is_regular = (info == 0) & torch.isfinite(trial_solution).all(-1)
        return torch.where(is_regular.unsqueeze(-1).unsqueeze(-1), matrix, fallback)


_while_loop: Any = while_loop_op
_STATE: tuple[str, ...] = ("u", "matrix", "residual", "first", "norm", "iterations", "status", "active", "count")


def _compute_norm(residual: torch.Tensor) -> torch.Tensor:
    return (residual * residual).sum(-1).sqrt()
