"""Newton's method on a batch of independent systems: the one loop that eager mode runs and the file contains.

Every element is solved by itself: it takes its own steps, stops by its own residual, and leaves the remaining work
(the systems that have not converged are compacted). After the last iteration comes one more step with the residual
and Jacobian that are already computed, if it reduces the residual, so that two runs that stop an iteration apart agree
far below the tolerances."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from exporter.common.errors import UsageError
from exporter.model.implicit.owner_tensors import list_batched, read_tensors
from exporter.model.jit_marks import mark

# Status of an element.
CONVERGED, NOT_CONVERGED, SINGULAR, NOT_FINITE = 0, 1, 2, 3
STATUS = {
    CONVERGED: "converged",
    NOT_CONVERGED: "the maximum number of iterations was reached",
    SINGULAR: "the Jacobian is singular",
    NOT_FINITE: "the residual is not finite",
}
# What the solver returns for an element that has not converged.
OnFailure = Literal["nan", "last", "raise"]
ON_FAILURE: tuple[OnFailure, ...] = ("nan", "last", "raise")
LineSearchKind = Literal["backtracking", "strong wolfe"]
# Larger batches are solved slice by slice, so that intermediate values stay in the cache. A GPU starts an operation in
# about the time that it computes one for thousands of rows: its slices are longer, and bound the memory.
SLICE, SLICE_ON_DEVICES = 4_096, 131_072


@dataclass(frozen=True)
class LineSearch:
    """A line search that cuts steps by ``cutback`` until the residual has decreased.

    With ``c`` the constant ``decrease`` and ``alpha`` the fraction of the step ``s``, it has decreased if ``|r|^2 <=
    |r_0|^2 + 2 c alpha r_0 . s`` (``backtracking``), or ``|r|^2 <= (1 - c alpha) |r_0|^2`` (``strong wolfe``): the two
    criteria, and their names, of NEML2's ``NewtonWithLineSearch`` (neml2/csrc/aoti/newton.cpp).

    Attributes:
        kind: The criterion.
        trials: The largest number of trials, of which the last one is taken.
        cutback: What a step is divided by.
        decrease: The constant of the criterion.

    Example:
        ```python
        Settings(line_search=LineSearch("strong wolfe", trials=5))
        ```
    """

    kind: LineSearchKind = "backtracking"
    trials: int = 10
    cutback: float = 2.0
    decrease: float = 1e-3


@dataclass(frozen=True)
class Settings:
    """The settings of a solver.

    An element has converged if ``|r| < abs_tol`` or ``|r| < rel_tol |r_0|``, in the Euclidean norm of its residual.

    Attributes:
        abs_tol: The tolerance of the residual, in its unit.
        rel_tol: The tolerance relative to the residual of the first guess.
        max_its: The largest number of steps.
        line_search: The line search; none takes full steps.

    Example:
        ```python
        Settings(abs_tol=1e-12, rel_tol=0.0, max_its=50)
        ```
    """

    abs_tol: float = 1e-10
    rel_tol: float = 1e-8
    max_its: int = 25
    line_search: LineSearch | None = None

    def __post_init__(self) -> None:
        """Check the settings: ``UsageError`` if no element can converge with them, or if they contradict each other."""
        for name, value in (("abs_tol", self.abs_tol), ("rel_tol", self.rel_tol)):
            if not 0.0 <= value < float("inf"):
                raise _settings_error(name, value, "a number that is not negative")
        if self.abs_tol == 0.0 and self.rel_tol == 0.0:
            raise _settings_error("abs_tol and rel_tol", 0.0, "one that is above zero: no residual is below zero")
        if self.rel_tol >= 1.0:
            raise _settings_error("rel_tol", self.rel_tol, "less than 1: every first guess would do")
        if self.max_its < 1:
            raise _settings_error("max_its", self.max_its, "1 or more")
        search = self.line_search
        if search is not None and search.kind not in ("backtracking", "strong wolfe"):
            raise _settings_error("line search", search.kind, "'backtracking' or 'strong wolfe'")
        if search is not None and (search.trials < 1 or search.cutback <= 1.0 or not 0.0 < search.decrease < 1.0):
            expected = "trials >= 1, cutback > 1, 0 < decrease < 1"
            raise _settings_error("line search", dataclasses.astuple(search), expected)


def _settings_error(name: str, got: object, expected: str) -> UsageError:
    return UsageError("a Newton solver has an invalid setting", where=name, got=str(got), expected=expected)


class NewtonSolver(nn.Module):
    """A solver of ``r(u, args) = 0`` for each element of a batch.

    ``residual(u, args)`` returns ``r`` of shape ``(batch, n)`` for ``u`` of shape ``(batch, n)``; ``jacobian(u, args)``
    returns ``dr/du`` of shape ``(batch, n, n)``, and ``r``. ``args`` is a list of tensors: ``batched_count`` of them
    with the batch, then the parameters of ``owner``, the module of the residual; those by element come first, and are
    among those with the batch. The settings are tensors of the module, which can be set in the file.

    ``forward(u, args)`` takes the first guess, and returns ``u``, ``dr/du`` there, iterations (int64), the norm of the
    residual, status (int64), and a factor that is 1 for converged elements. ``dr/du`` costs one more Jacobian and is
    empty, of shape ``(0, n, n)``, unless ``tangents`` is true. It raises only if ``on_failure`` is ``"raise"``."""

    # The name of the class in files, wherever its source stands.
    _jit_override_qualname = "__torch__.torchferry.NewtonSolver"

    def __init__(
        self,
        residual: Callable[..., torch.Tensor],
        jacobian: Callable[..., tuple[torch.Tensor, torch.Tensor]],
        owner: nn.Module,
        batched_count: int,
        settings: Settings,
        on_failure: OnFailure = "nan",
    ) -> None:
        super().__init__()
        # The residual's module is not a submodule: its parameters are registered elsewhere.
        names = [name for name, _ in owner.named_parameters()]
        self.__dict__ |= {"residual": residual, "jacobian": jacobian, "owner": owner, "names": names}
        self.batched = batched_count
        self.slice, self.slice_on_devices = SLICE, SLICE_ON_DEVICES
        search = settings.line_search or LineSearch(trials=0)
        self.strong_wolfe = search.kind == "strong wolfe"
        self.set_failure_policy(on_failure)
        values = vars(settings) | vars(search)
        for name in ("abs_tol", "rel_tol", "max_its", "trials", "cutback", "decrease"):
            dtype = torch.int64 if isinstance(values[name], int) else torch.float64
            self.register_parameter(name, nn.Parameter(torch.tensor(values[name], dtype=dtype), requires_grad=False))
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

    def collect_args(self, batch_args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return ``batch_args`` and the owner's current parameters; those by element may be among ``batch_args``."""
        given_count = self.batched - len(list_batched(self.owner, self.names))
        return [*batch_args, *read_tensors(self.owner, self.names[len(batch_args) - given_count :])]

    def give_batch(self, names: Sequence[str]) -> None:
        """Have these parameters of the owner among the tensors with the batch."""
        self.names = [*names, *(name for name in self.names if name not in names)]
        self.batched += len(names)

    def __getstate__(self) -> dict[str, Any]:
        # A forward that is patched in this process is not sent to another.
        return {name: value for name, value in self.__dict__.items() if name != "forward"}

    def infer_shapes(
        self, u: torch.Tensor, args: list[torch.Tensor], tangents: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """Run one step, for tensors without data, and return outputs of the shapes that ``forward`` returns."""
        matrix, residual = self.jacobian(u, args)
        norm = residual.norm(dim=-1)
        counts = torch.zeros_like(norm, dtype=torch.int64)
        step = torch.linalg.solve_ex(matrix, -residual)[0]
        return u + step, matrix if tangents else matrix[:0], counts, norm, counts.clone(), torch.ones_like(norm)

    def read_settings(self) -> dict[str, float]:
        """Return the current settings by name."""
        return {name: value.item() for name, value in self.named_parameters()}

    def get_failure_policy(self) -> OnFailure:
        """Return the policy for elements that do not converge."""
        return "nan" if self.fails_by_nan else "raise" if self.fails_by_raising else "last"

    def set_failure_policy(self, on_failure: OnFailure) -> None:
        """Set the policy for elements that do not converge. Raises ``UsageError`` for words not in ``ON_FAILURE``."""
        if on_failure not in ON_FAILURE:
            what = "unknown policy for elements that do not converge"
            raise UsageError(what, where="--on-failure", got=on_failure, expected=", ".join(ON_FAILURE))
        self.fails_by_nan, self.fails_by_raising = on_failure == "nan", on_failure == "raise"

    def forward(
        self, u: torch.Tensor, args: list[torch.Tensor], tangents: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        batch_size = u.size(0)
        size = self.slice if u.is_cpu else self.slice_on_devices
        if batch_size <= size:
            result = self.solve(u, args, tangents)
        else:
            parts = [self.solve(u[:size], self.part(args, 0, size), tangents)]
            for start in range(size, batch_size, size):
                stop = min(start + size, batch_size)
                parts.append(self.solve(u[start:stop], self.part(args, start, stop), tangents))
            result = (
                torch.cat([p[0] for p in parts]),
                torch.cat([p[1] for p in parts]),
                torch.cat([p[2] for p in parts]),
                torch.cat([p[3] for p in parts]),
                torch.cat([p[4] for p in parts]),
            )
        status = result[4]
        factor = torch.ones_like(result[3])
        if self.fails_by_nan:
            factor = torch.where(status == 0, factor, float("nan"))
        if self.fails_by_raising:
            failed = int((status != 0).sum())
            if failed > 0:
                raise RuntimeError(f"Newton's method did not converge for {failed} of {batch_size} elements")
        return result[0], result[1], result[2], result[3], status, factor

    def part(self, args: list[torch.Tensor], start: int, stop: int) -> list[torch.Tensor]:
        """Return the tensors of the elements from ``start`` to ``stop``."""
        return [t[start:stop] if i < self.batched else t for i, t in enumerate(args)]

    def solve(
        self, u: torch.Tensor, args: list[torch.Tensor], tangents: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return ``u``, ``dr/du``, iterations, norm of the residual, status."""
        abs_tol, rel_tol, max_its = float(self.abs_tol), float(self.rel_tol), int(self.max_its)
        solution, all_args = u.clone(), args
        matrix, residual = self.jacobian(u, args)
        solution_matrix = matrix.clone() if tangents else matrix[:0]
        first = (residual * residual).sum(-1).sqrt()
        solution_norm = first.clone()
        iterations = torch.zeros_like(first, dtype=torch.int64)
        status = torch.zeros_like(iterations)
        # The positions in the batch of the systems that are still to be solved.
        positions = torch.arange(u.size(0), device=u.device)
        count = 0
        while positions.numel() > 0:
            norm = (residual * residual).sum(-1).sqrt()
            step, info = torch.linalg.solve_ex(matrix, -residual)
            finite = torch.isfinite(norm)
            good = (norm < abs_tol) | (norm == 0)
            if count > 0:
                good = good | (norm / first < rel_tol)
            singular = (info != 0) | ~torch.isfinite(step).all(-1)
            # A solution without a tangent is rejected: it would be a number in one method and NaN in another.
            good = good & finite & ~singular
            ended = good | ~finite | singular
            if count >= max_its:
                ended = torch.ones_like(ended)
            if bool(ended.any()):
                ended_positions = positions[ended]
                last, least = u[ended], norm[ended]
                trial = last + step[ended]
                trial_residual = self.residual(trial, [t[ended] if i < self.batched else t for i, t in enumerate(args)])
                trial_norm = (trial_residual * trial_residual).sum(-1).sqrt()
                # If the Jacobian is nearly singular the last step may lead away.
                closer = good[ended] & (trial_norm <= least)
                last, least = torch.where(closer.unsqueeze(-1), trial, last), torch.where(closer, trial_norm, least)
                solution.index_copy_(0, ended_positions, last)
                solution_norm.index_copy_(0, ended_positions, least)
                if tangents:
                    solution_matrix.index_copy_(0, ended_positions, matrix[ended])
                iterations.index_fill_(0, ended_positions, count)
                failure = torch.where(singular, 2, torch.ones_like(positions))
                failure = torch.where(finite, failure, 3)
                status.index_copy_(0, ended_positions, torch.where(good, 0, failure)[ended])
                active = ~ended
                positions, u, step = positions[active], u[active], step[active]
                residual, first = residual[active], first[active]
                args = [t[active] if i < self.batched else t for i, t in enumerate(args)]
            if positions.numel() > 0:
                u = self.stepped(u, step, residual, args)
                matrix, residual = self.jacobian(u, args)
                count += 1
        if tangents:
            solution_matrix = self.at_solution(solution, all_args, solution_matrix)
        return solution, solution_matrix, iterations, solution_norm, status

    def at_solution(self, u: torch.Tensor, args: list[torch.Tensor], before: torch.Tensor) -> torch.Tensor:
        """Return ``dr/du`` at ``u``; keep ``before``, of the last iterate, where the matrix at ``u`` is singular."""
        matrix = self.jacobian(u, args)[0]
        probe, info = torch.linalg.solve_ex(matrix, torch.ones_like(u))
        good = (info == 0) & torch.isfinite(probe).all(-1)
        return torch.where(good.unsqueeze(-1).unsqueeze(-1), matrix, before)

    def stepped(
        self, u: torch.Tensor, step: torch.Tensor, residual: torch.Tensor, args: list[torch.Tensor]
    ) -> torch.Tensor:
        """Return the next iterate: after the full step, or the fraction of it that the line search accepts."""
        trials = int(self.trials)
        if trials == 0:
            return u + step
        cutback, decrease = float(self.cutback), float(self.decrease)
        least = float(self.abs_tol) ** 2
        before = (residual * residual).sum(-1)
        along = (residual * step).sum(-1)
        alpha = torch.ones_like(before)
        trial = u + step
        for _ in range(trials):
            trial = u + alpha.unsqueeze(-1) * step
            after = self.residual(trial, args)
            trial_norm = (after * after).sum(-1)
            bound = (1.0 - decrease * alpha) * before if self.strong_wolfe else before + 2.0 * decrease * alpha * along
            stop = (trial_norm <= bound) | (trial_norm <= least)
            if bool(stop.all()):
                break
            alpha = torch.where(stop, alpha, alpha / cutback)
        return trial


def find_solvers(module: nn.Module) -> dict[str, NewtonSolver]:
    """Return the solvers of a module by path."""
    return {path: m for path, m in module.named_modules() if isinstance(m, NewtonSolver)}


def list_own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a module by name, without the settings of its solvers."""
    settings = {id(p) for loop in find_solvers(module).values() for p in loop.parameters()}
    return {name: p for name, p in module.named_parameters() if id(p) not in settings}
