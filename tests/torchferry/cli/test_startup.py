"""What a command does while it imports torch."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from torchferry.cli.startup import pause_collection
with pause_collection():
    assert not gc.isenabled()
    import torch
assert gc.isenabled()
frozen = gc.get_freeze_count()
assert frozen > 100_000, frozen
# There is nothing to pause any more, and nothing more is kept for ever.
with pause_collection():
    assert gc.isenabled()
assert gc.get_freeze_count() == frozen
"""


def test_the_collector_rests_during_the_import_of_torch():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
