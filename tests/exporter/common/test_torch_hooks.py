"""Modes that see torch's calls."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, torch
from torch.utils._python_dispatch import TorchDispatchMode
from exporter.common.torch_hooks import DispatchHook

class Counter({base}):
    count = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        Counter.count += 1
        return func(*args, **(kwargs or {{}}))

with Counter():
    torch.ones(3) + 1
assert Counter.count == 2
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize(("base", "is_imported"), [("DispatchHook", False), ("TorchDispatchMode", True)])
def test_a_dispatch_hook_does_not_import_the_compiler(base, is_imported):
    """The control is torch's own mode, which imports it at the first operator."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(base=base)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(is_imported), done.stderr
