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


@pytest.mark.thorough
@pytest.mark.parametrize(("base", "is_imported"), [("DispatchHook", False), ("TorchDispatchMode", True)])
def test_a_dispatch_hook_does_not_import_the_compiler(base, is_imported):
    """The control is torch's own mode, which imports it at the first operator."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(base=base)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(is_imported), done.stderr


POSTPONED = """
import contextlib, sys, torch
from exporter.common.torch_hooks import postpone_compiler

with {context}:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        assert (torch.ones(3, device="cuda") * 2).sum().shape == ()
    print("torch._dynamo.convert_frame" in sys.modules)
    with contextlib.suppress(Exception):
        {use}
# Afterwards everything is there.
{use}
import torch._dynamo
assert sys.modules["torch._dynamo"] is torch._dynamo
assert torch._dynamo.disable.__module__.startswith("torch._dynamo")
assert callable(torch._dynamo.optimize)
"""
USES = [
    "torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2))",
    "torch.compiler.disable(recursive=False)(lambda x: x)(1)",
    "import torch._dynamo.external_utils as utils; utils.is_compiling()",
    "import torch._dynamo; torch._dynamo.optimize",
]


@pytest.mark.thorough
@pytest.mark.parametrize("use", USES)
def test_the_compiler_is_there_after_a_time_without_it(use):
    program = POSTPONED.format(context="postpone_compiler()", use=use)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"


@pytest.mark.thorough
def test_without_postponement_the_compiler_is_imported():
    program = POSTPONED.format(context="contextlib.nullcontext()", use="pass")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"
