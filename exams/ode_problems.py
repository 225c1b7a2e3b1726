"""Stiff initial value problems with published solutions: right-hand sides in torch.

F. Mazzia, C. Magherini, Test Set for Initial Value Problem Solvers, release 2.4, 2008; E. Hairer, G. Wanner, Solving
Ordinary Differential Equations II, 1996, sections IV.1 and IV.10. Solutions are those of the test set, at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

State = torch.Tensor


@dataclass(frozen=True)
class OdeProblem:
    """The rate of a state of shape ``(batch, n)``, the state at time 0, the end, and the published state there.

    ``floor`` is the absolute tolerance divided by the relative one, for states that become small."""

    rate: Callable[[State], State]
    start: tuple[float, ...]
    end: float
    solution: tuple[float, ...]
    floor: float = 1e-4


def give_robertson_rate(y: State) -> State:
    """Return the rate of Robertson's chemical reaction (ROBER)."""
    a, b, c = y.unbind(-1)
    slow, fast = 0.04 * a - 1e4 * b * c, 3e7 * b * b
    return torch.stack([-slow, slow - fast, fast], -1)


def give_hires_rate(y: State) -> State:
    """Return the rate of the high irradiance responses of plants (HIRES)."""
    a, b, c, d, e, f, g, h = y.unbind(-1)
    bound = 280.0 * f * h
    return torch.stack(
        [
            -1.71 * a + 0.43 * b + 8.32 * c + 0.0007,
            1.71 * a - 8.75 * b,
            -10.03 * c + 0.43 * d + 0.035 * e,
            8.32 * b + 1.71 * c - 1.12 * d,
            -1.745 * e + 0.43 * f + 0.43 * g,
            -bound + 0.69 * d + 1.71 * e - 0.43 * f + 0.69 * g,
            bound - 1.81 * g,
            -bound + 1.81 * g,
        ],
        -1,
    )


def give_van_der_pol_rate(y: State) -> State:
    """Return the rate of van der Pol's oscillator with a stiffness of 1e6 (VDPOL)."""
    position, speed = y.unbind(-1)
    return torch.stack([speed, ((1.0 - position * position) * speed - position) / 1e-6], -1)


def give_oregonator_rate(y: State) -> State:
    """Return the rate of the Belousov-Zhabotinsky reaction (OREGO)."""
    a, b, c = y.unbind(-1)
    first = 77.27 * (b + a * (1.0 - 8.375e-6 * a - b))
    return torch.stack([first, (c - (1.0 + a) * b) / 77.27, 0.161 * (a - c)], -1)


PROBLEMS = {
    "ROBER": OdeProblem(
        give_robertson_rate,
        (1.0, 0.0, 0.0),
        1e11,
        (0.2083340149701255e-7, 0.8333360770334713e-13, 0.9999999791665050),
        1e-13,
    ),
    "HIRES": OdeProblem(
        give_hires_rate,
        (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0057),
        321.8122,
        (
            0.7371312573325668e-3,
            0.1442485726316185e-3,
            0.5888729740967575e-4,
            0.1175651343283149e-2,
            0.2386356198831331e-2,
            0.6238968252742796e-2,
            0.2849998395185769e-2,
            0.2850001604814231e-2,
        ),
    ),
    "VDPOL": OdeProblem(give_van_der_pol_rate, (2.0, 0.0), 2.0, (0.1706167732170483e1, -0.8928097010247975)),
    "OREGO": OdeProblem(
        give_oregonator_rate,
        (1.0, 2.0, 3.0),
        360.0,
        (0.1000814870318523e1, 0.1228178521549917e4, 0.1320554942846706e3),
    ),
}
