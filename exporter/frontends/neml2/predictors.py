"""NEML2's coordinate descent predictors, with their loops as loops of the file: unrolled, those of a crystal are a
hundred thousand operations. The law of rates, and everything around the loops, is the library's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from exporter.common.torch_hooks import swap_parameters
from exporter.model.implicit.coordinate_descent import CompileDescent, CoordinateDescent

PREDICTOR = "CoordinateDescentPredictor"


def install_descents(predictor: nn.Module) -> list[CoordinateDescent]:
    """Replace the loops of each ``CoordinateDescentPredictor`` in a predictor by a ``CoordinateDescent``."""
    modules = [m for m in predictor.modules() if type(m).__name__ == PREDICTOR and "forward" not in m.__dict__]
    return [_LoopedPredictor(module).descent for module in modules]


def compile_when_called(descent: CoordinateDescent, compile_descent: CompileDescent) -> None:
    """Compile a descent after its first call, for a model that is called many times."""
    import neml2

    forward = descent.forward

    def run_first(*arguments: Any) -> torch.Tensor:
        result = forward(*arguments)
        descent.__dict__["forward"] = forward
        # The library forbids it inside a forward, and so what torch imports for a trace.
        with neml2.allow_autograd(reason="torchferry compiles the loops of a predictor"):
            descent.__dict__["forward"] = compile_descent(descent, (arguments, result))
        return result

    descent.__dict__["forward"] = run_first


class _LoopedPredictor:
    """One predictor. The layout of the law's other inputs is known after the first call."""

    def __init__(self, predictor: Any) -> None:
        self.predictor, self.unrolled_forward = predictor, predictor.forward
        counts = (predictor.sweeps, predictor.bisections, predictor.polish)
        self.descent = CoordinateDescent(self.rate, self.tangent, predictor.rate_law, counts)
        self.types: dict[str, tuple[type, int]] = {}
        predictor.add_module("descent", self.descent)
        predictor.__dict__["forward"] = self.forward

    def forward(self, *inputs: Any, v: Any = None) -> Any:
        """Return the library's ``forward``, with another loop."""
        from neml2.types import Scalar

        predictor = self.predictor
        values = predictor._unpack(inputs)
        coupling, force = values[predictor._A], values[predictor._b]
        others = {name: values[name] for name in predictor._passthrough}
        predictor._check_layout(coupling, force)
        count = predictor._dimension(force)
        by_component = [n for n, t in others.items() if t.sub_batch_ndim == 1 and t.sub_batch_shape[0] == count]
        others = {n: others[n] for n in dict.fromkeys([*by_component, *others])}
        is_stored_once = any("broadcast" in t.sub_batch_state for t in (coupling, force, *others.values()))
        if is_stored_once or any(others[n].BASE_NDIM for n in by_component):
            return self.unrolled_forward(*inputs, v=v)
        self.descent.component_count = len(by_component)
        self.types = {n: (type(t), 0 if n in by_component else t.sub_batch_ndim) for n, t in others.items()}
        args = self.descent.collect_args([t.data for t in others.values()])
        if force.sub_batch_ndim:
            return Scalar(self.descent(coupling.data, force.data, args), sub_batch_ndim=1)
        return Scalar(self.descent(coupling.data[..., None, None], force.data[..., None], args)[..., 0])

    def rate(self, w: torch.Tensor, args: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the rates at these driving forces."""
        with self._swap(args):
            return self.predictor._phi_inv(*self._wrap(w, args)).data

    def tangent(self, w: torch.Tensor, args: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rates and their derivatives, by the library's own chain rule."""
        name = self.predictor.driving_force_input
        with self._swap(args):
            force, others = self._wrap(w, args)
            results = self.predictor.rate_law.jvp({name: force, **others}, {name: force * 0.0 + 1.0})
            (rate,), (slope,) = (values.values() for values in results)
        return rate.data, slope.data

    def _wrap(self, w: torch.Tensor, args: Sequence[torch.Tensor]) -> tuple[Any, dict[str, Any]]:
        from neml2.types import Scalar

        pairs = zip(self.types.items(), args, strict=False)
        return Scalar(w), {name: kind(value, sub_batch_ndim=ndim) for (name, (kind, ndim)), value in pairs}

    def _swap(self, args: Sequence[torch.Tensor]) -> Any:
        parameters = dict(zip(self.descent.names, args[len(self.types) :], strict=True))
        return swap_parameters(self.predictor.rate_law, parameters)
