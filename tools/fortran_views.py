"""Write the Fortran module of array views, one function for each kind of number and each rank, from its template.

python tools/fortran_views.py    after a change of tools/torchferry_arrays.f90.j2
"""

from __future__ import annotations

from pathlib import Path

import jinja2

TEMPLATE = Path(__file__).with_name("torchferry_arrays.f90.j2")
MODULE = Path(__file__).parents[1] / "runtime_checks" / "native" / "fortran" / "torchferry_arrays.f90"
KINDS = (
    {"name": "r64", "type": "real(real64)", "dtype": "TF_FLOAT64", "width": 8},
    {"name": "r32", "type": "real(real32)", "dtype": "TF_FLOAT32", "width": 4},
    {"name": "i64", "type": "integer(int64)", "dtype": "TF_INT64", "width": 8},
    {"name": "i32", "type": "integer(int32)", "dtype": "TF_INT32", "width": 4},
)
RANKS = range(6)


def render_views(template: str) -> str:
    """Return the module's source."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(template).render(kinds=KINDS, ranks=RANKS) + "\n"


if __name__ == "__main__":
    MODULE.write_text(render_views(TEMPLATE.read_text()))
