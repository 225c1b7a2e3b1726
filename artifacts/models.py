"""What the reference archives are made of: sources and options, by the archive's name.

`make artifacts` exports those again that have changed, and writes the table of README.md.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchferry
from exporter.archive import pt_archive

FOLDER = Path(__file__).parent
EXAMPLES = FOLDER.parent / "examples"
# No archive may be larger, in bytes.
LARGEST = 200_000


class Branch(nn.Module):
    """A hardening law whose branch on data stays one: it is compiled from its source."""

    def forward(self, strain: torch.Tensor) -> torch.Tensor:
        softened = strain.clone()
        for i in range(strain.size(0)):
            if bool(strain[i] > 0.02):
                softened[i] = 0.02 + 0.1 * (strain[i] - 0.02)
        return 2.0e5 * softened


class Bar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.law = torchferry.mark(Branch(), jit="script")

    def forward(self, length: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        return self.law(torch.log(length / first))


def bar() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """With a submodule that is compiled, not traced."""
    length = torch.tensor([1.01, 1.0, 1.05], dtype=torch.float64)
    return Bar(), {"length": length, "first": torch.ones_like(length)}


_NAMES = ("state/*~1:old_state/*", "forces/*~1:old_forces/*")
REFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "rates": (f"{EXAMPLES}/rates/model.i", {"models": ["eq"]}),
    "slash": (f"{EXAMPLES}/rates/slash.i", {"models": ["eq"], "renames": _NAMES}),
    "composed": (f"{EXAMPLES}/composed/model.py:make_model", {}),
    "perzyna": (f"{EXAMPLES}/perzyna/model.i", {"models": ["residual"], "derivatives": "stress_residual:stress"}),
    "robertson": (f"{EXAMPLES}/solvers/robertson.py:make_model", {"derivatives": ["rate:y", "rate:k"]}),
    "bar": (f"{__file__}:bar", {}),
    "loss_and_grad": (f"{EXAMPLES}/train_step.py:loss_and_grad", {}),
    "momentum_step": (f"{EXAMPLES}/train_step.py:momentum_step", {}),
    "return_map": (f"{EXAMPLES}/return_map.py:make_model", {"derivatives": "stress:strain"}),
}
# A row of the README that allows another torch another graph: | archive | torch | graph | why |
_ROW = re.compile(r"^\| `(\w+)` \| (\S+) \| `([0-9a-f]{64})` \| .+ \|$", re.MULTILINE)
_TABLE = "| archive | bytes | what | graph | made with |"


def other_torch(text: str, name: str, version: str) -> str:
    """The hash that the graph of ``name`` has with another torch, by the README's row; empty where it has no row."""
    rows = {(row[1], row[2]): row[3] for row in _ROW.finditer(text)}
    return rows.get((name, version.partition("+")[0]), "")


def table() -> str:
    rows = []
    for name in REFERENCES:
        path = FOLDER / f"{name}.pt"
        contract = pt_archive.read(path).contract
        result = contract.created_with
        what = ", ".join(contract.methods)
        environment = f"torchferry {result.torchferry}, torch {result.torch}, Python {result.python}"
        rows.append(f"| `{name}` | {path.stat().st_size} | {what} | `{contract.graph[:16]}` | {environment} |")
    return "\n".join([_TABLE, "| --- | ---: | --- | --- | --- |", *rows])


def written(text: str) -> str:
    """The README with its table as the archives are."""
    head, _, rest = text.partition(_TABLE)
    return f"{head}{table()}\n\n{rest.partition(chr(10) * 2)[2]}"


if __name__ == "__main__":
    readme = FOLDER / "README.md"
    readme.write_text(written(readme.read_text()))
    sys.stdout.write(table() + "\n")
