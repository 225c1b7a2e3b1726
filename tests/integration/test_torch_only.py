"""An environment in which only torch is installed loads an archive with plain ``torch.jit.load``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

CODE = """
import importlib.util, json, sys, warnings
warnings.simplefilter("ignore")
import torch
module = torch.jit.load(sys.argv[1])
inputs, expected = torch.load(sys.argv[2])
outputs = module(*inputs)
print(json.dumps({
    "equal": all(torch.equal(a, b) for a, b in zip(outputs, expected)),
    "installed": [n for n in ("neml2", "numpy", "pydantic", "exporter", "torchferry") if importlib.util.find_spec(n)],
}))
"""


def needed(distribution: str, result: dict[str, metadata.Distribution]) -> dict[str, metadata.Distribution]:
    """torch's distribution and those that it requires here."""
    if distribution in result:
        return result
    try:
        result[distribution] = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return result
    for requirement in result[distribution].requires or []:
        if "extra ==" not in requirement:
            needed(re.split(r"[\s;<>=!~\[(]", requirement, maxsplit=1)[0], result)
    return result


@pytest.fixture
def torch_only(tmp_path: Path) -> Path:
    """A venv whose site-packages hold links to torch and what torch requires, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    site = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    for distribution in needed("torch", {}).values():
        tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            target = Path(str(distribution.locate_file(top)))
            if target.exists() and not (site / top).exists():
                (site / top).symlink_to(target)
    return tmp_path / "venv" / "bin" / "python"


def test_plain_torch_loads_it(torch_only, eq_path, tmp_path):
    inputs = [torch.rand(11, dtype=torch.float64) for _ in range(8)]
    a, a1, t, t1, b, b1, c, c1 = inputs
    expected = [(x - x1) / (t - t1) for x, x1 in ((a, a1), (b, b1), (c, c1))]
    torch.save((inputs, expected), tmp_path / "numbers.pt")
    done = subprocess.run(
        [torch_only, "-I", "-c", CODE, eq_path, tmp_path / "numbers.pt"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"equal": True, "installed": []}
