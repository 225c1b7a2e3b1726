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

from exporter.archive.contract import Finding, Tolerance
from exporter.common.errors import CaptureError, UnsupportedError, UsageError, first_line
from exporter.common.parameter_swap import moved
from exporter.model.implicit.implicit_update import solution
from exporter.model.implicit.newton_solver import LineSearch, LineSearchKind, Newton, Settings, loops
from exporter.model.implicit.solve_recording import calls
from exporter.model.source import Inputs, Source

IMPLICIT = "ImplicitUpdate"
# A direct solver, or one that a direct solver stands in for.
LINEAR = ("DenseLU", "SchurComplement", "GMRES", "BiCGStab")
NEWTON = ("Newton", "NewtonWithLineSearch")


def updates(model: nn.Module) -> Iterator[tuple[str, Any]]:
    return ((path, m) for path, m in model.named_modules() if type(m).__name__ == IMPLICIT)


def install(model: nn.Module) -> tuple[Finding, ...]:
    """Every ``ImplicitUpdate`` of ``model`` is solved by a ``Newton`` from here on. Raises ``UnsupportedError`` for
    what the file cannot do, and ``UsageError`` for settings with which nothing converges."""
    found: list[Finding] = []
    for path, update in list(updates(model)):
        found += _Solved(path, update).findings
    return tuple(found)


class _Solved:
    """One ``ImplicitUpdate``. The layout of its system is known with the first call."""

    def __init__(self, path: str, update: Any) -> None:
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
        self.loop = Newton(self.residual, self.jacobian, own.model, 1, _settings(path, update.solver))
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


def held_against(source: Source, library: Any, inputs: Inputs) -> tuple[Finding, ...]:
    """The library's own solver, with the same settings, in the same places of ``library``, another copy of the model.

    It stops where the residual is below ``max(abs_tol, rel_tol |r_0|)``, so that its unknowns are off by at most
    ``|A^-1|`` times that, to first order. Raises ``CaptureError`` where they are farther off than twice that.
    """
    theirs: dict[str, list[torch.Tensor]] = {}

    def listen(path: str):
        def hook(module: Any, taken: Any, given: Any) -> None:
            values = given if isinstance(given, tuple) else (given,)
            flat = [v.data.reshape(v.data.shape[0], -1) for v in values]
            theirs.setdefault(path, []).append(torch.cat(flat, -1))

        return hook

    hooks = [update.register_forward_hook(listen(path)) for path, update in updates(library.model)]
    try:
        library(*inputs)
    except Exception as error:
        return (not_held(f"it fails on the recorded inputs: {first_line(error)}"),)
    finally:
        for hook in hooks:
            hook.remove()
    paths = {loop: path.removesuffix(".newton").removesuffix("newton") for path, loop in loops(source.named).items()}
    worst = 0.0
    for loop, (guess, held), (u, matrix, _, _, status, _) in calls(source, inputs):
        other = theirs[paths[loop]].pop(0)
        first = loop.residual(guess, held).norm(dim=-1)
        stops = torch.maximum(loop.abs_tol, loop.rel_tol * first)
        usual = Tolerance().bounds("", "float64")
        rounding = usual.atol * u.abs().amax(0) + usual.rtol * u.abs()
        allowed = 2 * torch.linalg.inv_ex(matrix)[0].abs().sum(-1) * stops[:, None] + rounding
        off = ((u - other).abs() / allowed)[status == 0]
        worst = max(worst, float(off.max()) if off.numel() else 0.0)
        if not worst <= 1.0:
            raise CaptureError(
                f"the implicit update {paths[loop] or 'model'!r} is not solved as neml2 solves it",
                check="solver",
                got=f"unknowns {worst:.3g} times as far apart as the tolerances allow",
                expected="one solution, within the tolerances of the solver",
            )
    rows = inputs[0].shape[0] if inputs else 0
    return (
        Finding(
            "solver",
            f"held against neml2's own Newton solver on {rows} recorded steps",
            reason=f"apart by {worst:.2g} of what its tolerances allow, at most",
        ),
    )


def not_held(why: str) -> Finding:
    return Finding("solver", "not held against neml2's own Newton solver", reason=why, severity="not run")


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
