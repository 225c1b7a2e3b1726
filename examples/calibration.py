"""Three parameters of a viscoplastic bar fitted to tension tests, with the derivatives that the file gives.

    torchferry export examples/calibration.py:make_model -o bar.pt --per-element '*' --derivative 'ep:*' --format pt,c
    python examples/calibration.py bar --curves 10000

Each test is pulled at three rates. One of them is fitted by SciPy's ``least_squares``; all of them by the method of
Levenberg and Marquardt (Marquardt, SIAM J. Appl. Math. 11, 1963), each with a damping of its own, in one batch.

The rate of flow is that of Perzyna (1966): ``((stress - yield_stress - hardening ep) / drag) ** 3`` where that is
positive, with ``stress = modulus (strain - ep)``. Stresses are in MPa, times in seconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

import torchferry

F = torch.float64
MODULUS, EXPONENT = 70_000.0, 3
RATES, STEPS, LARGEST = (1e-4, 1e-2, 1.0), 40, 0.02
NAMES = ("yield_stress", "hardening", "drag")
# Where every fit begins, and what curves are drawn around.
GUESS, CENTRE = numpy.array([100.0, 1_000.0, 50.0]), numpy.array([150.0, 2_500.0, 80.0])


class Flow(nn.Module):
    """The residual of the plastic strain ``ep`` at the end of a step, which Newton's method finds from one side."""

    signature = torchferry.Signature.of({"ep": (), "strain": (), "dt": (), "ep~1": ()}, {"ep_residual": ()})

    def __init__(self) -> None:
        super().__init__()
        self.yield_stress, self.hardening, self.drag = (nn.Parameter(torch.tensor(v, dtype=F)) for v in CENTRE)

    def forward(self, ep: torch.Tensor, strain: torch.Tensor, dt: torch.Tensor, old_ep: torch.Tensor) -> torch.Tensor:
        excess = MODULUS * (strain - ep) - self.yield_stress - self.hardening * ep
        return ep - old_ep - dt * (excess.clamp(min=0) / self.drag) ** EXPONENT


def make_model() -> torchferry.ImplicitUpdate:
    settings = torchferry.Settings(abs_tol=1e-14, rel_tol=1e-12, max_its=100)
    model = torchferry.ImplicitUpdate(Flow(), ["ep"], settings=settings, name="bar")
    strain = LARGEST * torch.rand(32, generator=torch.Generator().manual_seed(0), dtype=F)
    zeros = torch.zeros(32, dtype=F)
    model.__dict__["example_inputs"] = {"strain": strain, "dt": zeros + 0.1, "ep~1": zeros}
    return model


class Bar:
    """Tests of many bars by a kernel: stresses, and their derivatives by the three parameters."""

    def __init__(self, path: Path) -> None:
        self._kernel = torchferry.load(path)
        inputs = self._kernel.contract.methods["jacobian"].inputs
        self._parameters = [next(name for name in inputs if name.endswith(f".{own}")) for own in NAMES]

    def pull(self, values: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Pull bars of parameters ``(bars, 3)``; return stresses ``(bars, n)`` and derivatives ``(bars, n, 3)``."""
        bars = len(values)
        by_rate = {name: values[:, None, k] for k, name in enumerate(self._parameters)}
        ep, total = numpy.zeros((bars, len(RATES))), numpy.zeros((bars, len(RATES), 3))
        dt = LARGEST / STEPS / numpy.array(RATES)[None]
        stresses, slopes = [], []
        for step in range(1, STEPS + 1):
            strain = numpy.full_like(ep, LARGEST * step / STEPS)
            result = self._kernel.call("jacobian", {"strain": strain, "dt": dt, "ep~1": ep, **by_rate})
            # The plastic strain of the step before depends on the parameters too.
            direct = numpy.stack([result[f"d ep / d {name}"] for name in self._parameters], -1)
            total = direct + result["d ep / d ep~1"][..., None] * total
            ep = result["ep"]
            stresses.append(MODULUS * (strain - ep))
            slopes.append(-MODULUS * total)
        return numpy.concatenate(stresses, 1), numpy.concatenate(slopes, 1)


def fit_one(bar: Bar, measured: numpy.ndarray) -> numpy.ndarray:
    """Fit one test by SciPy."""
    import scipy.optimize

    # Its stubs know the names of ``jac`` alone.
    least_squares: Any = scipy.optimize.least_squares

    def derive(parameters: numpy.ndarray) -> Any:
        return bar.pull(parameters[None])[1][0]

    result = least_squares(
        lambda p: bar.pull(p[None])[0][0] - measured,
        GUESS,
        jac=derive,
        x_scale=GUESS,
        bounds=(GUESS * 1e-3, GUESS * 1e3),
        xtol=1e-12,
        ftol=1e-12,
    )
    return result.x


def fit_all(bar: Bar, measured: numpy.ndarray, iterations: int = 60) -> numpy.ndarray:
    """Fit all tests at once."""
    values = numpy.tile(GUESS, (len(measured), 1))
    damping = numpy.full(len(measured), 1e-3)
    stresses, slopes = bar.pull(values)
    for _ in range(iterations):
        # In units of the guess the parameters are of one size.
        scaled, errors = slopes * GUESS, stresses - measured
        normal = numpy.einsum("bni,bnj->bij", scaled, scaled)
        diagonal = numpy.einsum("bii->bi", normal)
        left = normal + damping[:, None, None] * numpy.eye(3) * diagonal[:, None, :]
        step = numpy.linalg.solve(left, -numpy.einsum("bni,bn->bi", scaled, errors)[..., None])[..., 0]
        trial = numpy.clip(values + step * GUESS, GUESS * 1e-3, GUESS * 1e3)
        new_stresses, new_slopes = bar.pull(trial)
        is_better = ((new_stresses - measured) ** 2).sum(1) <= (errors**2).sum(1)
        is_done = abs(step).max(1) < 1e-10
        values[is_better], stresses[is_better] = trial[is_better], new_stresses[is_better]
        slopes[is_better] = new_slopes[is_better]
        damping = numpy.where(is_better, damping / 5, damping * 4)
        if is_done.all():
            break
    return values


def make_tests(bar: Bar, count: int, noise: float = 0.5) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Make tests of known parameters, with noise in MPa: parameters ``(count, 3)`` and stresses."""
    random = numpy.random.default_rng(0)
    known = CENTRE * random.uniform(0.7, 1.3, (count, 3))
    stresses, _ = bar.pull(known)
    return known, stresses + noise * random.standard_normal(stresses.shape)


def main() -> None:
    """Fit tests and say how near the parameters are to those that the tests were made with."""
    parser = argparse.ArgumentParser(description="Fit a viscoplastic bar to tension tests.")
    parser.add_argument("kernel", type=Path, help="the kernel's folder")
    parser.add_argument("--curves", type=int, default=1000, help="how many tests")
    parser.add_argument("--plot", type=Path, help="a picture of the first test")
    arguments: Any = parser.parse_args()
    bar = Bar(arguments.kernel)
    known, measured = make_tests(bar, arguments.curves)
    single, fitted = fit_one(bar, measured[0]), fit_all(bar, measured)
    for k, name in enumerate(NAMES):
        error = numpy.median(abs(fitted[:, k] / known[:, k] - 1))
        first = f"known {known[0, k]:.2f}, SciPy {single[k]:.2f}, batch {fitted[0, k]:.2f}"
        print(f"{name}: {first}; median error {error:.2%}")
    if arguments.plot:
        draw(bar, measured[0], fitted[0], arguments.plot)


def draw(bar: Bar, measured: numpy.ndarray, values: numpy.ndarray, path: Path) -> None:
    """Draw a test and its fit over the strain."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    strain = numpy.linspace(0, LARGEST, STEPS + 1)[1:]
    fit = bar.pull(values[None])[0][0].reshape(STEPS, len(RATES))
    for k, rate in enumerate(RATES):
        axes.plot(strain, measured.reshape(STEPS, len(RATES))[:, k], ".", color=f"C{k}")
        axes.plot(strain, fit[:, k], "-", color=f"C{k}", label=f"{rate:g} / s")
    axes.set(xlabel="strain", ylabel="stress, MPa")
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
