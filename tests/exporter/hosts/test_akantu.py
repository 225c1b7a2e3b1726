"""Akantu from pip: a material in Python that calls a kernel for all points at once, beside Akantu's own plasticity."""

from __future__ import annotations

import numpy as np
import pytest
from host_environments import NEEDS_OF_KERNELS, need_environment, run_in
from project import ROOT

pytestmark = pytest.mark.thorough

AKANTU = "5.0.7.post1"
SCRIPT = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import torchferry
from akantu_block import solve
print("RESULT " + json.dumps([solve(torchferry.load(sys.argv[2]), 2), solve(None, 2)]), flush=True)
os._exit(0)
"""


def test_a_cycle_is_that_of_akantus_own_law(solid, tmp_path):
    """Loading through yield and back: the kernel's tangent needs a third of the iterations of Akantu's own law."""
    python = need_environment("akantu", f"akantu=={AKANTU}", *NEEDS_OF_KERNELS)
    arguments = [str(ROOT / "examples" / "hosts"), str(solid.with_suffix(""))]
    ((ours, own),) = run_in(python, "-c", SCRIPT, *arguments, folder=tmp_path)
    largest = 0.0
    for mine, theirs in zip(ours, own, strict=True):
        stresses = np.array(theirs["stresses"])
        # Akantu's criterion is what both are solved to.
        assert np.allclose(mine["stresses"], stresses, rtol=0, atol=1e-6 * np.abs(stresses).max())
        assert np.allclose(mine["displacements"], theirs["displacements"], rtol=0, atol=1e-9)
        assert mine["iterations"] <= theirs["iterations"]
        largest = max(largest, np.abs(stresses).max())
    assert largest > 400
    assert np.abs(ours[-1]["stresses"]).max() < 0.9 * largest
    assert sum(step["iterations"] for step in ours) < 0.5 * sum(step["iterations"] for step in own)
