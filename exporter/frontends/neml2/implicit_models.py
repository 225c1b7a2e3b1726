"""NEML2's implicit models, solved by the loop that goes into the file.

Residual, Jacobian, predictor and chain rule are the library's own. Its systems may have their unknowns in groups, which
the library's linear solvers take apart (Schur complements) or iterate on (Krylov methods); here one dense system has
all of them, and is solved directly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from exporter.archive.contract import DEFAULT_TOLERANCE, Finding
from exporter.common.errors import CaptureError, UnsupportedError, UsageError, summarize_error
from exporter.common.torch_hooks import FunctionHook, swap_parameters
from exporter.frontends.neml2.predictors import compile_when_called, install_descents
from exporter.model.implicit.coordinate_descent import CompileDescent, find_descents
from exporter.model.implicit.implicit_update import solve_implicit
from exporter.model.implicit.newton_solver import LineSearch, LineSearchKind, NewtonSolver, Settings, find_solvers
from exporter.model.implicit.solve_recording import record_solver_calls
from exporter.model.source import Inputs, Source

IMPLICIT = "ImplicitUpdate"
# Direct solvers, and those that a direct solver replaces.
LINEAR = ("DenseLU", "SchurComplement", "GMRES", "BiCGStab")
NEWTON = ("Newton", "NewtonWithLineSearch")


def find_updates(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield every implicit update of a model, with its path."""
    return ((path, m) for path, m in model.named_modules() if type(m).__name__ == IMPLICIT)


def install_solvers(model: nn.Module) -> tuple[Finding, ...]:
    """Replace the solver of every ``ImplicitUpdate`` of ``model`` by a ``NewtonSolver``.

    Raises ``UnsupportedError`` for what the file cannot do, ``UsageError`` for settings with which nothing converges.
    """
    findings: list[Finding] = []
    for path, update in list(find_updates(model)):
        findings += _NewtonUpdate(path, update).findings
        if update.predictor is not None:
            install_descents(update.predictor)
    return tuple(findings)


def compile_predictors(model: nn.Module, compile_descent: CompileDescent) -> None:
    """Compile the loops of all predictors of ``model`` after their first call."""
    for _, update in find_updates(model):
        if update.predictor is not None:
            install_descents(update.predictor)
    for descent in find_descents(model).values():
        compile_when_called(descent, compile_descent)


class _NewtonUpdate:
    """One ``ImplicitUpdate``. The layout of its system is known after the first call."""

    def __init__(self, path: str, update: Any) -> None:
        from neml2.es import ModelNonlinearSystem
        from neml2.solvers import DenseLU

        system = update.system
        self.update = update
        self.findings = _check_update(path, update)
        self.system = ModelNonlinearSystem(
            system.model,
            unknowns=[system.unknown_names],
            residuals=[system.residual_names],
            structure=["dense"],
            declared_sub_batch_shapes=system.declared_sub_batch_shapes,  # pyright: ignore[reportArgumentType]
        )
        update.system = self.system
        update.input_sensitivity_solver = update.param_sensitivity_solver = DenseLU()
        self.functions: tuple[Any, Any] | None = None
        self.loop = NewtonSolver(self.residual, self.jacobian, system.model, 1, _read_settings(path, update.solver))
        update.add_module("newton", self.loop)
        update.__dict__["forward"] = self.forward

    def residual(self, u: torch.Tensor, constants: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the residual, ``(batch, n)``."""
        return -self._evaluate(0, u, constants)[0]

    def jacobian(self, u: torch.Tensor, constants: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the matrix and the residual of the linear system."""
        matrix, right = self._evaluate(1, u, constants)
        return matrix.expand(*u.shape, u.shape[-1]), -right.expand(u.shape)

    def _evaluate(self, which: int, u: torch.Tensor, constants: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        assert self.functions is not None
        others = dict(zip(self.loop.names, constants[1:], strict=True))
        with swap_parameters(self.system.model, others):
            return self.functions[which](u, constants[0])

    def forward(self, *inputs: Any, v: Any = None) -> Any:
        """Return neml2's ``forward``, with another solver: ``ImplicitUpdate._try_solve`` up to the solve."""
        from neml2.types import TensorWrapper

        update, system = self.update, self.system
        wrapped = zip(update.input_spec.items(), inputs, strict=True)
        typed = [t if isinstance(t, TensorWrapper) else wrapper(t) for (_, wrapper), t in wrapped]
        state = dict(zip(update.input_spec, typed, strict=True))
        try:
            guess, given_values = self._prepare(state)
            u = solve_implicit(self.loop, _flatten_batch(guess), [_flatten_batch(given_values)], self.residual)
            system.set_u_from_group_raws([u if guess.ndim == 2 else u.reshape(guess.shape)])
            solved = system.u().disassemble()
            outputs = tuple(solved[name] for name in update.output_spec)
            if v is None:
                return outputs
            with _NonRaisingSolve():
                return (*outputs, update._output_sensitivities(v))
        finally:
            system._state = {}

    def _prepare(self, state: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Set the system's state; return the first guess and the given values, each ``(*batch, n)``."""
        from neml2.es.implicit import RHS, Jacobian, _vector_to_per_group_raws
        from neml2.models.common.ImplicitUpdate import _conform_to_declared_sub_batch, _resolve_unknown_sbn

        system = self.system
        givens = {name: state[name] for name in system.given_names}
        unknowns = self.update._initial_unknowns(state)
        ranks = {name: value.sub_batch_ndim for name, value in state.items()}
        sub_batch_ndims, declared = dict(ranks), system.declared_sub_batch_shapes
        for name in system.unknown_names:
            unknowns[name] = _conform_to_declared_sub_batch(name, unknowns[name], declared.get(name))
            sub_batch_ndims[name] = _resolve_unknown_sbn(
                name, produced=unknowns[name], input_sbn=ranks, declared=declared
            )
        u, g = system.to_sparse(unknowns, givens, sub_batch_ndims)
        widest: tuple[int, ...] = ()
        for name, value in state.items():
            wrapper = system.model.input_spec.get(name)
            count = value.ndim - wrapper.BASE_NDIM - sub_batch_ndims.get(name, 0) if wrapper is not None else 0
            widest = tuple(value.shape[:count]) if count > len(widest) else widest
        system.initialize(u=u, g=g, dyn_shape=widest)
        (guess,), (given_values,) = _vector_to_per_group_raws(system.u()), _vector_to_per_group_raws(system.g())
        # Both get the same batch shape: each element is solved with its own values.
        batch_shape = torch.broadcast_tensors(guess[..., :1], given_values[..., :1])[0].shape[:-1]
        guess = guess.expand(*batch_shape, guess.shape[-1])
        given_values = given_values.expand(*batch_shape, given_values.shape[-1])
        if self.functions is None:
            self.functions = RHS(system), Jacobian(system)
        return guess, given_values


def compare_with_library(
    source: Source, library: nn.Module, run: Callable[..., Any], inputs: Inputs
) -> tuple[Finding, ...]:
    """Compare with the library's own solver, with the same settings, in ``library``, a copy of the model that ``run``
    runs.

    It stops where the residual is below ``max(abs_tol, rel_tol |r_0|)``, so that its unknowns are off by at most
    ``|A^-1|`` times that, to first order. Raises ``CaptureError`` where they are farther off than twice that."""
    library_solutions: dict[str, list[torch.Tensor]] = {}

    def make_hook(path: str):
        def hook(module: Any, arguments: Any, result: Any) -> None:
            values = result if isinstance(result, tuple) else (result,)
            flat = [v.data.reshape(v.data.shape[0], -1) for v in values]
            library_solutions.setdefault(path, []).append(torch.cat(flat, -1))

        return hook

    hooks = [update.register_forward_hook(make_hook(path)) for path, update in find_updates(library)]
    try:
        run(*inputs)
    except Exception as error:
        return (make_not_compared_finding(f"it fails on the recorded inputs: {summarize_error(error)}"),)
    finally:
        for hook in hooks:
            hook.remove()
    solvers = find_solvers(source.parameter_module).items()
    paths = {loop: path.removesuffix(".newton").removesuffix("newton") for path, loop in solvers}
    worst = 0.0
    for loop, (guess, constants), (u, matrix, _, _, status, _) in record_solver_calls(source, inputs):
        library_solution = library_solutions[paths[loop]].pop(0)
        first = loop.residual(guess, constants).norm(dim=-1)
        stops = torch.maximum(loop.abs_tol, loop.rel_tol * first)
        usual = DEFAULT_TOLERANCE.bounds("", "float64")
        rounding = usual.atol * u.abs().amax(0) + usual.rtol * u.abs()
        allowed = 2 * torch.linalg.inv_ex(matrix)[0].abs().sum(-1) * stops[:, None] + rounding
        off = ((u - library_solution).abs() / allowed)[status == 0]
        worst = max(worst, float(off.max()) if off.numel() else 0.0)
        if not worst <= 1.0:
            what = f"the implicit update {paths[loop] or 'model'!r} is not solved as neml2 solves it"
            got = f"unknowns {worst:.3g} times as far apart as the tolerances allow"
            expected = "one solution, within the tolerances of the solver"
            raise CaptureError(what, check="solver", got=got, expected=expected)
    what = f"compared with neml2's own Newton solver on {inputs[0].shape[0] if inputs else 0} recorded steps"
    return (Finding("solver", what, reason=f"apart by {worst:.2g} of what its tolerances allow, at most"),)


def make_not_compared_finding(why: str) -> Finding:
    """Return the finding for a model that was not compared with the library's solver."""
    return Finding("solver", "not compared with neml2's own Newton solver", reason=why, severity="not run")


def _flatten_batch(value: torch.Tensor) -> torch.Tensor:
    return value if value.ndim == 2 else value.reshape(-1, value.shape[-1])


class _NonRaisingSolve(FunctionHook):
    """A mode in which a singular system gives values that are not finite, in its own element."""

    def intercept(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is torch.linalg.solve:
            return torch.linalg.solve_ex(*args, **kwargs)[0]
        return func(*args, **kwargs)


def _read_settings(path: str, solver: Any) -> Settings:
    config = solver._solver_config()
    trials = config["ls_max_iters"] - 1
    kinds: dict[str, LineSearchKind] = {"BACKTRACKING": "backtracking", "STRONG_WOLFE": "strong wolfe"}
    search = LineSearch(kinds[config["ls_type"]], trials, config["ls_cutback"], config["ls_c"]) if trials > 0 else None
    try:
        # The library counts the first guess as an iteration.
        return Settings(config["atol"], config["rtol"], config["miters"] - 1, search)
    except UsageError as error:
        error.details["where"] = f"the solver of {path!r}: {error.details.get('where', '')}"
        raise


def _check_update(path: str, update: Any) -> list[Finding]:
    solver = update.solver
    linear = type(solver.linear_solver).__name__
    for name, supported, what in ((type(solver).__name__, NEWTON, "solver"), (linear, LINEAR, "linear solver")):
        if name not in supported:
            expected = f"one of {', '.join(supported)}"
            raise UnsupportedError(f"the {what} {name!r} cannot be exported", where=path, got=name, expected=expected)
    if update.max_substepping_level > 0 or update.incremental_variables:
        what = "an implicit update with substepping cannot be exported"
        got = f"max_substepping_level = {update.max_substepping_level}"
        expected = "one step in a call: neml2's eager mode has no substeps either"
        mend = "leave it out, and reduce the step in the calling solver where an element has not converged"
        raise UnsupportedError(what, where=path, got=got, expected=expected, mend=mend)
    if linear == "DenseLU" and len(update.system.unknown_groups) == 1 and update.system._structure == ("dense",):
        return []
    what = f"{path}: {linear} is exported as one dense direct solver"
    return [Finding("implicit", what, reason="it is the same system")]
