"""Models that solve a nonlinear system at every call: ``ImplicitUpdate``, and the parts that all such models share.

The solution ``u`` of ``r(u, g) = 0`` is found by Newton's method, which is one operation to the code that captures or
differentiates the model. Its derivatives follow from the implicit function theorem, ``du/dg = -(dr/du)^-1 dr/dg``: the
solution is returned as ``u + (dr/du)^-1 (r - r(u, g))``, where all but the last ``r(u, g)`` are constants, so that the
value is ``u`` and the derivative that of one Newton step (Simo and Hughes, Computational Inelasticity, 1998, sec. 3.6;
Blondel et al., Efficient and Modular Implicit Differentiation, 2022, eq. 2)."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from exporter.archive.tensor_spec import FLOATING, Signature, TensorSpec
from exporter.common.errors import UsageError, suggest_names
from exporter.common.torch_hooks import swap_parameters
from exporter.model.argument_binding import BoundForward
from exporter.model.implicit.newton_solver import NewtonSolver, OnFailure, Settings, find_solvers
from exporter.model.source import Source
from exporter.model.unit_agreement import merge_units


@dataclass(frozen=True)
class SolveInfo:
    """The record of one solve, by element: iterations (int64), norm of the residual, status (int64)."""

    loop: NewtonSolver
    iterations: torch.Tensor
    residual_norm: torch.Tensor
    status: torch.Tensor


_SOLVE_LISTENER: ContextVar[list[SolveInfo] | None] = ContextVar("torchferry_newton_info", default=None)


@contextlib.contextmanager
def record_solves() -> Iterator[list[SolveInfo]]:
    """Collect the records of all solves that run inside this context, in order."""
    infos: list[SolveInfo] = []
    token = _SOLVE_LISTENER.set(infos)
    try:
        yield infos
    finally:
        _SOLVE_LISTENER.reset(token)


def collect_newton_info(source: Source, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return iterations, residual norm and status of one run; several solves are stacked in the last dimension."""
    with record_solves() as infos:
        source.module(*inputs)
    return stack_infos(source, infos)


def stack_infos(source: Source, infos: Sequence[SolveInfo]) -> tuple[torch.Tensor, ...]:
    """Return iterations, residual norm and status of all solves of a run."""
    order = list(find_solvers(source.parameter_module).values())
    ordered = sorted(infos, key=lambda info: order.index(info.loop))
    parts = zip(*((i.iterations, i.residual_norm.double(), i.status) for i in ordered), strict=True)
    return tuple(part[0] if len(part) == 1 else torch.stack(part, -1) for part in parts)


Tensors = Sequence[torch.Tensor]
Residual = Callable[[torch.Tensor, Tensors], torch.Tensor]


def solve_implicit(loop: NewtonSolver, guess: torch.Tensor, batch_args: Tensors, residual: Residual) -> torch.Tensor:
    """Return ``u`` of shape ``(batch, n)``, with derivatives by ``batch_args`` and by the parameters of the residual;
    NaN for elements that do not converge if ``loop`` is set to that."""
    args = loop.collect_args(batch_args)
    tangents = torch.is_grad_enabled() and any(t.requires_grad for t in args)
    u, matrix, iterations, norm, status, factor = loop(guess.detach(), [t.detach() for t in args], tangents)
    listening = _SOLVE_LISTENER.get()
    if listening is not None:
        listening.append(SolveInfo(loop, iterations, norm, status))
    if tangents:
        residual_value = residual(u.detach(), args)
        u = u.detach() + torch.linalg.solve_ex(matrix.detach(), residual_value.detach() - residual_value)[0]
    return u * factor.detach().unsqueeze(-1)


class ImplicitUpdate(nn.Module):
    """A solver for the unknowns that make residuals zero, for each element of a batch by itself.

    The update takes the other inputs (and the guesses), and returns the unknowns. The first guess of ``x`` is what
    ``predictor`` returns under that name, else the previous value ``x~1`` if that is among the inputs, else an input
    ``x`` of the update.

    Args:
        residual: A module with a ``signature`` (or a ``Part``): it takes the unknowns and other inputs, and returns a
            residual for every unknown, of its shape.
        unknowns: Names, for which the residual of ``x`` is ``x_residual``, or a mapping from unknown to residual.
        predictor: A module that returns first guesses.
        settings: Tolerances, the limit of steps and the line search.
        on_failure: What an element becomes that does not converge: NaN (``"nan"``), its last iterate (``"last"``), or
            an error for the whole batch (``"raise"``).
        name: The update's name in a composition.

    Raises:
        UsageError: The residual does not take an unknown, an unknown has no residual or one of another shape, or no
            element converges with the settings.

    Example:
        ```python
        ImplicitUpdate(Residual(), ["plastic_strain"], settings=Settings(abs_tol=1e-12))
        ```
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
        signature = _require_signature(residual, "residual")
        pairs = dict(unknowns) if isinstance(unknowns, Mapping) else {n: f"{n}_residual" for n in unknowns}
        self._unknowns = _match_unknowns(pairs, signature)
        self._residuals = list(pairs.values())
        self._output_names = [s.name for s in signature.outputs]
        self._input_names = [s.name for s in signature.inputs]
        self._given_names = [n for n in self._input_names if n not in pairs]
        predictor_signature = _require_signature(predictor, "predictor") if predictor is not None else Signature((), ())
        self._predictor_outputs = [s.name for s in predictor_signature.outputs]
        self._predictor_inputs = [s.name for s in predictor_signature.inputs]
        specs = {s.name: s for s in signature.inputs}
        for spec in predictor_signature.inputs:
            unit = merge_units(specs.get(spec.name, spec), spec, ("residual", "predictor"))
            specs[spec.name] = dataclasses.replace(spec, unit=unit)
        self._guess_names = {n: n if n in self._predictor_outputs or f"{n}~1" not in specs else f"{n}~1" for n in pairs}
        offered = specs | {s.name: s for s in predictor_signature.outputs}
        for unknown, spec in self._unknowns.items():
            guess = offered[self._guess_names[unknown]]
            if (guess.shape, guess.dtype) != (spec.shape, spec.dtype):
                what = f"the first guess of {unknown!r} has another shape or dtype"
                where = f"variable {guess.name!r}"
                mend = "a predictor that returns the unknown in its own shape"
                raise UsageError(what, where=where, got=guess.describe(), expected=spec.describe(), mend=mend)
            self._unknowns[unknown] = dataclasses.replace(spec, unit=_merge_unknown_units(spec, guess, specs))
        guesses = [self._guess_names[n] for n in pairs if n not in self._predictor_outputs]
        inputs = dict.fromkeys([*self._given_names, *guesses, *self._predictor_inputs])
        self.signature = Signature(tuple(specs[n] for n in inputs), tuple(self._unknowns.values()))
        self.residual = residual
        self.predictor = predictor
        predict = predictor and BoundForward(predictor, self._predictor_inputs, name)
        self._calls = (BoundForward(residual, self._input_names, name), predict)
        parts, count = (self.residuals, self.jacobian, residual), len(self._given_names)
        self.newton = NewtonSolver(*parts, count, settings or Settings(), on_failure)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch_shapes = [t.shape[: t.ndim - len(s.shape)] for s, t in zip(self.signature.inputs, inputs, strict=True)]
        # A capture has one batch dimension, whose size is symbolic.
        numbers = all(type(size) is int for batch_shape in batch_shapes for size in batch_shape)
        if any(len(batch_shape) != 1 for batch_shape in batch_shapes) or (numbers and len(set(batch_shapes)) > 1):
            batch_shape = torch.broadcast_shapes(*batch_shapes)
            pairs = zip(self.signature.inputs, inputs, strict=True)
            flat = [t.expand((*batch_shape, *s.static_shape)).reshape((-1, *s.static_shape)) for s, t in pairs]
            return tuple(v.reshape((*batch_shape, *v.shape[1:])) for v in self.forward(*flat))
        values = dict(zip((s.name for s in self.signature.inputs), inputs, strict=True))
        guess = {n: values[guess_name] for n, guess_name in self._guess_names.items() if guess_name in values}
        if self._calls[1]:
            result = self._calls[1](*(values[n] for n in self._predictor_inputs))
            predictions = _name_outputs(result, self._predictor_outputs)
            guess |= {n: predictions[n] for n in self._unknowns if n in predictions}
        batch_args = [values[n] for n in self._given_names]
        u = solve_implicit(self.newton, _flatten([guess[n] for n in self._unknowns]), batch_args, self.residuals)
        return tuple(self._split(u).values())

    def residuals(self, u: torch.Tensor, args: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the residuals ``(batch, n)`` in the order of the unknowns. ``args``: other inputs, then parameters."""
        count = len(self._given_names)
        values = dict(zip(self._given_names, args[:count], strict=True)) | self._split(u)
        parameters = dict(zip(self.newton.names, args[count:], strict=True))
        with swap_parameters(self.residual, parameters):
            outputs = _name_outputs(self._calls[0](*(values[n] for n in self._input_names)), self._output_names)
        return _flatten([outputs[n] for n in self._residuals])

    def jacobian(self, u: torch.Tensor, args: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``(batch, n, n)`` and the residual, by one backward pass of a batch repeated for every row."""
        batch_size, n = u.shape
        count = self.newton.batched
        with torch.enable_grad():
            tall = _repeat(u.detach(), n).requires_grad_(True)
            batch_args = [_repeat(t.detach(), n) for t in args[:count]]
            residual = self.residuals(tall, [*batch_args, *(t.detach() for t in args[count:])])
            identity = torch.eye(n, dtype=u.dtype, device=u.device).unsqueeze(1)
            seeds = identity.expand(n, batch_size, n).reshape(n * batch_size, n)
            (matrix,) = torch.autograd.grad(residual, tall, seeds, allow_unused=True, materialize_grads=True)
        return matrix.reshape(n, batch_size, n).movedim(0, 1).contiguous().detach(), residual[:batch_size].detach()

    def _split(self, u: torch.Tensor) -> dict[str, torch.Tensor]:
        offset, unknowns = 0, {}
        for name, spec in self._unknowns.items():
            size = math.prod(spec.static_shape)
            unknowns[name] = u[:, offset : offset + size].reshape(-1, *spec.static_shape)
            offset += size
        return unknowns


def _flatten(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([v.reshape(v.shape[0], math.prod(v.shape[1:])) for v in values], -1)


def _repeat(value: torch.Tensor, times: int) -> torch.Tensor:
    return value.expand(times, *value.shape).reshape(times * value.shape[0], *value.shape[1:])


def _name_outputs(result: Any, names: Sequence[str]) -> dict[str, torch.Tensor]:
    if isinstance(result, Mapping):
        missing = [name for name in names if name not in result]
        if missing:
            what = f"a module of an implicit update returns no {missing[0]!r}"
            raise UsageError(what, got=f"a dict of {', '.join(map(str, result))}", expected=", ".join(names))
        return dict(result)
    values = result if isinstance(result, (tuple, list)) else (result,)
    return dict(zip(names, values, strict=True))


def _require_signature(module: nn.Module, what: str) -> Signature:
    signature = getattr(module, "signature", None)
    if not isinstance(signature, Signature) or not signature.outputs or not signature.batch_ndim:
        raise UsageError(
            f"the {what} of an implicit update declares no variables",
            got=f"signature = {signature!r}",
            expected="an attribute `signature` with inputs and outputs of one element of a batch",
            mend="wrap it: Part(module, inputs={'x': (3,)}, outputs={'x_residual': (3,)})",
        )
    return signature


def _merge_unknown_units(spec: TensorSpec, guess: TensorSpec, inputs: dict[str, TensorSpec]) -> str:
    """Return the unit of an unknown, its first guess and its previous value, which gets it among the ``inputs``."""
    before = f"{spec.name}~1"
    unit = spec.unit
    for other in (guess, inputs.get(before, spec)):
        merged = dataclasses.replace(spec, unit=unit)
        owner = "predictor" if other.name == spec.name else other.name
        unit = merge_units(merged, dataclasses.replace(other, name=spec.name), ("residual", owner))
    for name in {before, spec.name} & inputs.keys():
        inputs[name] = dataclasses.replace(inputs[name], unit=inputs[name].unit or unit)
    return unit


def _match_unknowns(pairs: Mapping[str, str], signature: Signature) -> dict[str, TensorSpec]:
    """Return the unknowns' specs; raise ``UsageError`` unless the system has one residual for each unknown."""
    inputs, outputs = ({s.name: s for s in side} for side in (signature.inputs, signature.outputs))
    if not pairs:
        raise UsageError("an implicit update has no unknowns", expected=f"some of {', '.join(inputs)}")
    for unknown, residual in pairs.items():
        if unknown not in inputs:
            what = f"the residual does not take the unknown {unknown!r}"
            raise UsageError(what, expected=suggest_names(unknown, inputs))
        if residual not in outputs:
            what, got = f"the unknown {unknown!r} has no residual", f"the residual module returns {', '.join(outputs)}"
            mend = "name the residual of each unknown: unknowns={'x': 'name of its residual'}"
            raise UsageError(what, got=got, expected=f"an output {residual!r}", mend=mend)
        spec, other = inputs[unknown], outputs[residual]
        if (spec.shape, spec.dtype) != (other.shape, other.dtype) or spec.dtype not in FLOATING:
            what = f"the residual {residual!r} is not one equation for each component of {unknown!r}"
            expected = "one shape and one floating dtype: a square system"
            raise UsageError(what, got=f"{other.describe()}, and {spec.describe()}", expected=expected)
    unused = [n for n in outputs if n not in pairs.values()]
    if unused or len(set(pairs.values())) < len(pairs):
        got = f"unknowns {', '.join(pairs)}; residuals {', '.join(outputs)}"
        expected = "one residual for each unknown, and no other output"
        mend = "compute other outputs in a module after the update: ComposedModel([update, module])"
        raise UsageError("the system is not square", got=got, expected=expected, mend=mend)
    if len({inputs[n].dtype for n in pairs}) > 1:
        got, mend = ", ".join(inputs[n].describe() for n in pairs), "declare all unknowns with one dtype"
        raise UsageError("the unknowns have several dtypes", got=got, expected="one dtype", mend=mend)
    return {n: inputs[n] for n in pairs}
