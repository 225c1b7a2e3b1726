"""Solvers and statistics: torchdiffeq (https://github.com/rtqichen/torchdiffeq), GPyTorch (https://gpytorch.ai)."""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch
from torch import nn

from exams.laws import explain_inequality
from exams.networks.catalogue import Catalogue, Network, draw_numbers
from exams.samples import Law, Run, Tensors

F = torch.float64


class _Solved(nn.Module):
    """The solution of an ordinary differential equation at some times."""

    times: torch.Tensor

    def __init__(self, rate: nn.Module, end: float, steps: int, method: str) -> None:
        super().__init__()
        self.rate, self.method = rate, method
        self.integrate: Any = importlib.import_module("torchdiffeq").odeint
        self.register_buffer("times", torch.linspace(0, end, steps, dtype=F))

    def forward(self, start: torch.Tensor) -> torch.Tensor:
        return self.integrate(lambda t, y: self.rate(y), start, self.times, method=self.method).movedim(0, 1)


def _make_neural() -> Network:
    rate = nn.Sequential(nn.Linear(2, 8, dtype=F), nn.Tanh(), nn.Linear(8, 2, dtype=F))
    return Network(_Solved(rate, 1.0, 5, "rk4"), draw_numbers(2))


def _make_adaptive() -> Network:
    rate = nn.Sequential(nn.Linear(2, 8, dtype=F), nn.Tanh(), nn.Linear(8, 2, dtype=F))
    return Network(_Solved(rate, 1.0, 5, "dopri5"), draw_numbers(2))


def _turn_once(run: Run, inputs: Tensors) -> str:
    """Return to the start after a period: the error of 80 steps of order four is below 1e-5."""
    (states,) = run(*inputs)
    half = explain_inequality(
        "an oscillator is opposite at half its period", states[:, states.shape[1] // 2], -inputs[0], 1e-5
    )
    return half or explain_inequality("an oscillator returns to its start", states[:, -1], inputs[0], 1e-5)


def _make_oscillator() -> Network:
    rate = nn.Linear(2, 2, bias=False, dtype=F)
    with torch.no_grad():
        rate.weight.copy_(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    laws: dict[str, Law] = {"period": _turn_once}
    return Network(_Solved(rate, 2 * math.pi, 81, "rk4"), draw_numbers(2), laws=laws)


class _Regression(nn.Module):
    """The mean and the variance of a Gaussian process at some points."""

    def __init__(self) -> None:
        super().__init__()
        gpytorch: Any = importlib.import_module("gpytorch")

        class Process(gpytorch.models.ExactGP):
            def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any) -> None:
                super().__init__(x, y, likelihood)
                self.mean_module = gpytorch.means.ConstantMean()
                self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

            def forward(self, x: torch.Tensor) -> Any:
                return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

        x = torch.linspace(0, 1, 9, dtype=F)
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        self.process = Process(x, torch.sin(6 * x), likelihood).double()
        self._settings = (gpytorch.settings.fast_pred_var, gpytorch.settings.trace_mode)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fast, traced = self._settings
        with fast(False), traced():
            result = self.process(x)
            return result.mean, result.variance


def _make_process() -> Network:
    return Network(
        _Regression().eval(), lambda generator, rows: (torch.rand((4, 1), generator=generator, dtype=F),), False
    )


CATALOGUE: Catalogue = {
    "torchdiffeq rk4": _make_neural,
    "torchdiffeq dopri5": _make_adaptive,
    "torchdiffeq oscillator": _make_oscillator,
    "gpytorch ExactGP": _make_process,
}
