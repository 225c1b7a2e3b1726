"""NEML2's implicit models, solved by the loop that goes into the file.

Residual, Jacobian, predictor and chain rule are the library's own. Its systems may have their unknowns in groups, which
the library's linear solvers take apart (Schur complements) or iterate on (Krylov methods); here one dense system has
them all, and is solved directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from exporter.contract import Finding
from exporter.errors import UnsupportedError, UsageError
from exporter.implicit import solution
from exporter.newton import LineSearch, LineSearchKind, Newton, OnFailure, Settings
from exporter.parameters import moved

IMPLICIT = "ImplicitUpdate"
# A direct solver, or one that a direct solver stands in for.
LINEAR = ("DenseLU", "SchurComplement", "GMRES", "BiCGStab")
NEWTON = ("Newton", "NewtonWithLineSearch")


def updates(model: nn.Module) -> Iterator[tuple[str, Any]]:
    return ((path, m) for path, m in model.named_modules() if type(m).__name__ == IMPLICIT)


def install(model: nn.Module, on_failure: OnFailure = "nan") -> tuple[Finding, ...]:
    """Every ``ImplicitUpdate`` of ``model`` is solved by a ``Newton`` from here on. Raises ``UnsupportedError`` for
    what the file cannot do, and ``UsageError`` for settings with which nothing converges."""
    found: list[Finding] = []
    for path, update in list(updates(model)):
        found += _Solved(path, update, on_failure).findings
    return tuple(found)


class _Solved:
    """One ``ImplicitUpdate``. The layout of its system is known with the first call."""

    def __init__(self, path: str, update: Any, on_failure: OnFailure) -> None:
        from neml2.es import ModelNonlinearSystem
        from neml2.solvers import DenseLU

        own = update.system
        self.update = update
        self.findings = _checked(path, update)
        self.system = ModelNonlinearSystem(
            own.model,
            unknowns=[own.unknown_names],
            residuals=[own.residual_names],
            structure=["dense"],
            declared_sub_batch_shapes=own.declared_sub_batch_shapes,
        )
        update.system = self.system
        update.input_sensitivity_solver = update.param_sensitivity_solver = DenseLU()
        self.functions: tuple[Any, Any] | None = None
        self.loop = Newton(self.residual, self.jacobian, own.model, 1, _settings(path, update.solver), on_failure)
        update.add_module("newton", self.loop)
        update.__dict__["forward"] = self.forward

    def residual(self, u: torch.Tensor, held: Sequence[torch.Tensor]) -> torch.Tensor:
        return -self._call(0, u, held)[0]

    def jacobian(self, u: torch.Tensor, held: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        matrix, right = self._call(1, u, held)
        return matrix.expand(*u.shape, u.shape[-1]), -right.expand(u.shape)

    def _call(self, which: int, u: torch.Tensor, held: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        assert self.functions is not None
        others = dict(zip(self.loop.names, held[1:], strict=True))
        with moved(self.system.model, others):
            return self.functions[which](u, held[0])

    def forward(self, *inputs: Any, v: Any = None) -> Any:
        """What neml2's own ``forward`` gives, with another solver: ``ImplicitUpdate._try_solve`` up to the solve."""
        from neml2.types import TensorWrapper

        update, system = self.update, self.system
        typed = [
            t if isinstance(t, TensorWrapper) else update.input_spec[name](t)
            for name, t in zip(update.input_spec, inputs, strict=True)
        ]
        state = dict(zip(update.input_spec, typed, strict=True))
        try:
            guess, given = self._prepared(state)
            u = solution(self.loop, _flat(guess), [_flat(given)], self.residual)
            system.set_u_from_group_raws([u if guess.ndim == 2 else u.reshape(guess.shape)])
            solved = system.u().disassemble()
            outputs = tuple(solved[name] for name in update.output_spec)
            if v is None:
                return outputs
            with _NeverRaising():
                return (*outputs, update._output_sensitivities(v))
        finally:
            system._state = {}

    def _prepared(self, state: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """The system's state is set; the first guess and what is given, each ``(*batch, n)``."""
        from neml2.es.implicit import RHS, Jacobian, _vector_to_per_group_raws
        from neml2.models.common.ImplicitUpdate import _conform_to_declared_sub_batch, _resolve_unknown_sbn

        system = self.system
        givens = {name: state[name] for name in system.given_names}
        unknowns = self.update._initial_unknowns(state)
        ranks = {name: value.sub_batch_ndim for name, value in state.items()}
        known, declared = dict(ranks), system.declared_sub_batch_shapes
        for name in system.unknown_names:
            unknowns[name] = _conform_to_declared_sub_batch(name, unknowns[name], declared.get(name))
            known[name] = _resolve_unknown_sbn(name, produced=unknowns[name], input_sbn=ranks, declared=declared)
        u, g = system.to_sparse(unknowns, givens, known)
        widest: tuple[int, ...] = ()
        for name, value in state.items():
            kind = system.model.input_spec.get(name)
            count = value.ndim - kind.BASE_NDIM - known.get(name, 0) if kind is not None else 0
            widest = tuple(value.shape[:count]) if count > len(widest) else widest
        system.initialize(u=u, g=g, dyn_shape=widest)
        (guess,), (given,) = _vector_to_per_group_raws(system.u()), _vector_to_per_group_raws(system.g())
        # Of one shape of batch: an element is solved with what is its own.
        lead = torch.broadcast_tensors(guess[..., :1], given[..., :1])[0].shape[:-1]
        guess = guess.expand(*lead, guess.shape[-1])
        given = given.expand(*lead, given.shape[-1])
        if self.functions is None:
            self.functions = RHS(system), Jacobian(system)
        return guess, given


def _flat(value: torch.Tensor) -> torch.Tensor:
    return value if value.ndim == 2 else value.reshape(-1, value.shape[-1])


class _NeverRaising(TorchFunctionMode):
    """A singular system gives what is not finite, in its own element."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.linalg.solve:
            return torch.linalg.solve_ex(*args, **(kwargs or {}))[0]
        return func(*args, **(kwargs or {}))


def _settings(path: str, solver: Any) -> Settings:
    own = solver._solver_config()
    trials = own["ls_max_iters"] - 1
    kinds: dict[str, LineSearchKind] = {"BACKTRACKING": "backtracking", "STRONG_WOLFE": "strong wolfe"}
    search = LineSearch(kinds[own["ls_type"]], trials, own["ls_cutback"], own["ls_c"]) if trials > 0 else None
    try:
        # The library counts the first guess as an iteration.
        return Settings(own["atol"], own["rtol"], own["miters"] - 1, search)
    except UsageError as error:
        error.details["where"] = f"the solver of {path!r}: {error.details.get('where', '')}"
        raise


def _checked(path: str, update: Any) -> list[Finding]:
    solver = update.solver
    linear = type(solver.linear_solver).__name__
    for kind, known, what in ((type(solver).__name__, NEWTON, "solver"), (linear, LINEAR, "linear solver")):
        if kind not in known:
            raise UnsupportedError(
                f"the {what} {kind!r} cannot be exported",
                where=path,
                got=kind,
                expected=f"one of {', '.join(known)}",
            )
    if update.max_substepping_level > 0 or update.incremental_variables:
        raise UnsupportedError(
            "an implicit update that cuts its step into smaller ones cannot be exported",
            where=path,
            got=f"max_substepping_level = {update.max_substepping_level}",
            expected="one step in a call: neml2's eager mode has no substeps either",
            mend="leave it out, and cut the step in the solver where an element has not converged",
        )
    if linear == "DenseLU" and len(update.system.unknown_groups) == 1 and update.system._structure == ("dense",):
        return []
    return [
        Finding("implicit", f"{path}: {linear} is exported as one dense direct solver", reason="it is the same system")
    ]
