"""Newton's method on a batch of independent systems: the one loop that eager mode runs and the file holds.

Every element stands alone: it takes its own steps, stops by its own residual, and leaves the work that is still to be
done (the systems that have not converged are compacted). After the last iteration comes one more step with the residual
and Jacobian that are there already, where it leads closer, so that two runs that stop an iteration apart agree far
below the tolerances.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from exporter.common.errors import UsageError
from exporter.model.jit_marks import mark

# Status of an element.
CONVERGED, NOT_CONVERGED, SINGULAR, NOT_FINITE = 0, 1, 2, 3
STATUS = {
    CONVERGED: "converged",
    NOT_CONVERGED: "the maximum number of iterations was reached",
    SINGULAR: "the Jacobian is singular",
    NOT_FINITE: "the residual is not finite",
}
# What the method returns of an element that has not converged.
OnFailure = Literal["nan", "last", "raise"]
ON_FAILURE: tuple[OnFailure, ...] = ("nan", "last", "raise")
LineSearchKind = Literal["backtracking", "strong wolfe"]
# More elements are solved slice by slice, whose intermediate values stay in the cache.
SLICE = 4096


@dataclass(frozen=True)
class LineSearch:
    """Steps are cut back by ``cutback`` until the residual has decreased; ``trials`` parts of a step are tried at most,
    and the last one is taken.

    With ``c`` the constant ``decrease`` and ``alpha`` the part of the step ``s``, it has decreased where ``|r|^2 <=
    |r_0|^2 + 2 c alpha r_0 . s`` (``backtracking``), or ``|r|^2 <= (1 - c alpha) |r_0|^2`` (``strong wolfe``): the two
    criteria, and their names, of NEML2's ``NewtonWithLineSearch`` (neml2/csrc/aoti/newton.cpp)."""

    kind: LineSearchKind = "backtracking"
    trials: int = 10
    cutback: float = 2.0
    decrease: float = 1e-3


@dataclass(frozen=True)
class Settings:
    """An element has converged where ``|r| < abs_tol`` or ``|r| < rel_tol |r_0|``, in the Euclidean norm of its
    residual; it takes ``max_its`` steps at most."""

    abs_tol: float = 1e-10
    rel_tol: float = 1e-8
    max_its: int = 25
    line_search: LineSearch | None = None

    def __post_init__(self) -> None:
        """Raises ``UsageError`` for settings with which no element can converge, or that contradict each other."""
        for name, value in (("abs_tol", self.abs_tol), ("rel_tol", self.rel_tol)):
            if not 0.0 <= value < float("inf"):
                raise _refused(name, value, "a number that is not negative")
        if self.abs_tol == 0.0 and self.rel_tol == 0.0:
            raise _refused("abs_tol and rel_tol", 0.0, "one that is above zero: no residual is below zero")
        if self.rel_tol >= 1.0:
            raise _refused("rel_tol", self.rel_tol, "less than 1: every first guess would do")
        if self.max_its < 1:
            raise _refused("max_its", self.max_its, "1 or more")
        search = self.line_search
        if search is not None and search.kind not in ("backtracking", "strong wolfe"):
            raise _refused("line search", search.kind, "'backtracking' or 'strong wolfe'")
        if search is not None and (search.trials < 1 or search.cutback <= 1.0 or not 0.0 < search.decrease < 1.0):
            raise _refused("line search", dataclasses.astuple(search), "trials >= 1, cutback > 1, 0 < decrease < 1")


def _refused(name: str, got: object, expected: str) -> UsageError:
    return UsageError("a Newton solver cannot be set so", where=name, got=str(got), expected=expected)


class Newton(nn.Module):
    """Solves ``r(u, held) = 0`` for each element of a batch.

    ``residual(u, held)`` gives ``r`` of shape ``(batch, n)`` for ``u`` of shape ``(batch, n)``; ``jacobian(u, held)``
    gives ``dr/du`` of shape ``(batch, n, n)``, and ``r``. ``held`` is a list of tensors: ``given`` ones with the batch,
    then the parameters of ``owner``, the module that computes the residual. The settings are tensors of the module,
    which can be set in the file.

    ``forward(u, held)`` takes the first guess, and gives ``u``, ``dr/du`` there, iterations (int64), the norm of the
    residual, status (int64), and a factor that is 1 for what has converged. ``dr/du`` costs one more Jacobian and is
    empty, of shape ``(0, n, n)``, unless ``tangents`` asks for it. It raises only where ``on_failure`` says so.
    """

    def __init__(
        self,
        residual: Callable[..., torch.Tensor],
        jacobian: Callable[..., tuple[torch.Tensor, torch.Tensor]],
        owner: nn.Module,
        given: int,
        settings: Settings,
        on_failure: OnFailure = "nan",
    ) -> None:
        super().__init__()
        # What computes the residual is not this module's: it has parameters of its own elsewhere.
        names = [name for name, _ in owner.named_parameters()]
        self.__dict__ |= {"residual": residual, "jacobian": jacobian, "owner": owner, "names": names}
        self.batched = given
        self.slice = SLICE
        search = settings.line_search or LineSearch(trials=0)
        self.strong_wolfe = search.kind == "strong wolfe"
        self.fail(on_failure)
        for name, value in {
            "abs_tol": settings.abs_tol,
            "rel_tol": settings.rel_tol,
            "max_its": settings.max_its,
            "trials": search.trials,
            "cutback": search.cutback,
            "decrease": search.decrease,
        }.items():
            kind = torch.int64 if isinstance(value, int) else torch.float64
            self.register_parameter(name, nn.Parameter(torch.tensor(value, dtype=kind), requires_grad=False))
        mark(self, jit="script")

    if TYPE_CHECKING:
        # TorchScript reads the annotations of a class.
        residual: Callable[..., torch.Tensor]
        jacobian: Callable[..., tuple[torch.Tensor, torch.Tensor]]
        owner: nn.Module
        names: list[str]
        abs_tol: torch.Tensor
        rel_tol: torch.Tensor
        max_its: torch.Tensor
        trials: torch.Tensor
        cutback: torch.Tensor
        decrease: torch.Tensor

    def held(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What is given, and the owner's parameters as they are now."""
        parameters = dict(self.owner.named_parameters())
        return [*given, *(parameters[name] for name in self.names)]

    def __getstate__(self) -> dict[str, Any]:
        # What stands in for it here has no place in another process.
        return {name: value for name, value in self.__dict__.items() if name != "forward"}

    def shapes(self, u: torch.Tensor, held: list[torch.Tensor], tangents: bool = False) -> tuple[torch.Tensor, ...]:
        """What ``forward`` gives, for tensors that have no numbers: one step, which needs none."""
        matrix, residual = self.jacobian(u, held)
        norm = residual.norm(dim=-1)
        counts = torch.zeros_like(norm, dtype=torch.int64)
        step = torch.linalg.solve_ex(matrix, -residual)[0]
        return u + step, matrix if tangents else matrix[:0], counts, norm, counts.clone(), torch.ones_like(norm)

    def settings(self) -> dict[str, float]:
        return {name: value.item() for name, value in self.named_parameters()}

    def fails_by(self) -> OnFailure:
        return "nan" if self.fails_by_nan else "raise" if self.fails_by_raising else "last"

    def fail(self, on_failure: OnFailure) -> None:
        """Raises ``UsageError`` for another word than those of ``ON_FAILURE``."""
        if on_failure not in ON_FAILURE:
            raise UsageError(
                "it is not clear what becomes of what does not converge",
                where="--on-failure",
                got=on_failure,
                expected=", ".join(ON_FAILURE),
            )
        self.fails_by_nan, self.fails_by_raising = on_failure == "nan", on_failure == "raise"

    def forward(
        self, u: torch.Tensor, held: list[torch.Tensor], tangents: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        rows = u.size(0)
        if rows <= self.slice:
            found = self.solve(u, held, tangents)
        else:
            parts = [self.solve(u[: self.slice], self.part(held, 0, self.slice), tangents)]
            for start in range(self.slice, rows, self.slice):
                stop = min(start + self.slice, rows)
                parts.append(self.solve(u[start:stop], self.part(held, start, stop), tangents))
            found = (
                torch.cat([p[0] for p in parts]),
                torch.cat([p[1] for p in parts]),
                torch.cat([p[2] for p in parts]),
                torch.cat([p[3] for p in parts]),
                torch.cat([p[4] for p in parts]),
            )
        status = found[4]
        factor = torch.ones_like(found[3])
        if self.fails_by_nan:
            factor = torch.where(status == 0, factor, float("nan"))
        if self.fails_by_raising:
            failed = int((status != 0).sum())
            if failed > 0:
                raise RuntimeError(f"Newton's method did not converge for {failed} of {rows} elements")
        return found[0], found[1], found[2], found[3], status, factor

    def part(self, held: list[torch.Tensor], start: int, stop: int) -> list[torch.Tensor]:
        return [t[start:stop] if i < self.batched else t for i, t in enumerate(held)]

    def solve(
        self, u: torch.Tensor, held: list[torch.Tensor], tangents: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """``u``, ``dr/du``, iterations, norm of the residual, status."""
        abs_tol, rel_tol, max_its = float(self.abs_tol), float(self.rel_tol), int(self.max_its)
        found, of_all = u.clone(), held
        matrix, residual = self.jacobian(u, held)
        found_matrix = matrix.clone() if tangents else matrix[:0]
        first = (residual * residual).sum(-1).sqrt()
        found_norm = first.clone()
        iterations = torch.zeros_like(first, dtype=torch.int64)
        status = torch.zeros_like(iterations)
        # Where the systems that are still to be solved stand in the batch.
        at = torch.arange(u.size(0), device=u.device)
        count = 0
        while at.numel() > 0:
            norm = (residual * residual).sum(-1).sqrt()
            step, info = torch.linalg.solve_ex(matrix, -residual)
            finite = torch.isfinite(norm)
            good = (norm < abs_tol) | (norm == 0)
            if count > 0:
                good = good | (norm / first < rel_tol)
            singular = (info != 0) | ~torch.isfinite(step).all(-1)
            # A solution without a tangent is none: it would be a number in one method and NaN in another.
            good = good & finite & ~singular
            ended = good | ~finite | singular
            if count >= max_its:
                ended = torch.ones_like(ended)
            if bool(ended.any()):
                which = at[ended]
                last, least = u[ended], norm[ended]
                tried = last + step[ended]
                rest = self.residual(tried, [t[ended] if i < self.batched else t for i, t in enumerate(held)])
                reached = (rest * rest).sum(-1).sqrt()
                # Where the Jacobian is nearly singular the last step may lead away.
                closer = good[ended] & (reached <= least)
                last, least = torch.where(closer.unsqueeze(-1), tried, last), torch.where(closer, reached, least)
                found.index_copy_(0, which, last)
                found_norm.index_copy_(0, which, least)
                if tangents:
                    found_matrix.index_copy_(0, which, matrix[ended])
                iterations.index_fill_(0, which, count)
                said = torch.where(singular, 2, torch.ones_like(at))
                said = torch.where(finite, said, 3)
                status.index_copy_(0, which, torch.where(good, 0, said)[ended])
                left = ~ended
                at, u, step, residual, first = at[left], u[left], step[left], residual[left], first[left]
                held = [t[left] if i < self.batched else t for i, t in enumerate(held)]
            if at.numel() > 0:
                u = self.stepped(u, step, residual, held)
                matrix, residual = self.jacobian(u, held)
                count += 1
        if tangents:
            found_matrix = self.at_solution(found, of_all, found_matrix)
        return found, found_matrix, iterations, found_norm, status

    def at_solution(self, u: torch.Tensor, held: list[torch.Tensor], before: torch.Tensor) -> torch.Tensor:
        """``dr/du`` at ``u``; as it was ``before`` the last step where that led to a point that has none."""
        matrix = self.jacobian(u, held)[0]
        tried, info = torch.linalg.solve_ex(matrix, torch.ones_like(u))
        good = (info == 0) & torch.isfinite(tried).all(-1)
        return torch.where(good.unsqueeze(-1).unsqueeze(-1), matrix, before)

    def stepped(
        self, u: torch.Tensor, step: torch.Tensor, residual: torch.Tensor, held: list[torch.Tensor]
    ) -> torch.Tensor:
        """The next iterate: the whole step, or the part of it that the line search settles on."""
        trials = int(self.trials)
        if trials == 0:
            return u + step
        cutback, decrease = float(self.cutback), float(self.decrease)
        least = float(self.abs_tol) ** 2
        before = (residual * residual).sum(-1)
        along = (residual * step).sum(-1)
        alpha = torch.ones_like(before)
        tried = u + step
        for _ in range(trials):
            tried = u + alpha.unsqueeze(-1) * step
            after = self.residual(tried, held)
            reached = (after * after).sum(-1)
            bound = (1.0 - decrease * alpha) * before if self.strong_wolfe else before + 2.0 * decrease * alpha * along
            stop = (reached <= bound) | (reached <= least)
            if bool(stop.all()):
                break
            alpha = torch.where(stop, alpha, alpha / cutback)
        return tried


def loops(module: nn.Module) -> dict[str, Newton]:
    """By path."""
    return {path: m for path, m in module.named_modules() if isinstance(m, Newton)}
