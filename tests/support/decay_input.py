"""A NEML2 input file with an implicit update, x_rate = -x by backward Euler, and the driver of a history."""

from __future__ import annotations

from pathlib import Path

from exporter.frontends.neml2 import input_file

MODELS = Path(input_file.__file__).with_name("abi_probe.i")
DRIVER = """
[Tensors]
  [times]
    type = Python
    expr = 'Scalar(torch.linspace(0.0, {end}, {points}).reshape({points}, 1))'
  []
[]
[Drivers]
  [driver]
    type = TransientDriver
    model = 'model'
    prescribed_time = 'times'
    ic_Scalar_names = 'x'
    ic_Scalar_values = '1'
  []
[]
"""


def format_decay(end: float, points: int) -> str:
    """The text of a file whose driver takes ``points - 1`` steps from time 0 to ``end``."""
    return MODELS.read_text() + DRIVER.format(end=end, points=points)
