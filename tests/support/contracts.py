"""A contract with something in every field, and files of modules that no stage has seen."""

from __future__ import annotations

from pathlib import Path

import torch

from exporter.archive import pt_archive
from exporter.archive.cases import ReferenceCase
from exporter.archive.contract import (
    DEFAULT_TOLERANCE,
    Batch,
    Contract,
    CreatedWith,
    Envelope,
    Finding,
    MethodSpec,
    Origin,
    ParameterSpec,
    Range,
)
from exporter.archive.tensor_spec import TensorSpec
from exporter.capture.serialization import serialize_module

INPUTS, OUTPUTS = (TensorSpec("a~1"),), (TensorSpec("old_state/a"),)


def contract(inputs=INPUTS, outputs=OUTPUTS, **changes) -> Contract:
    fields = {
        "schema": 1,
        "name": "m",
        "source": Origin("python", "torch", "2.13", "make", "0" * 64, ("planted",)),
        "created_with": CreatedWith("0.1.0", "2.13.0", "3.11"),
        "inputs": tuple(inputs),
        "outputs": tuple(outputs),
        "batch": Batch(1, (0, 1), (0, 1, 2)),
        "methods": {"forward": MethodSpec(tuple(s.name for s in inputs), tuple(s.name for s in outputs))},
        "parameters": (ParameterSpec("E", (), "float64"),),
        "tolerance": DEFAULT_TOLERANCE,
        "devices": ("cpu",),
        "operators": ("aten::add",),
        "findings": (Finding("history", "stopped", reason="a limit"),),
        "envelope": Envelope({"a": Range(-1.0, 2.0)}, ("float64",)),
    }
    return Contract(**{**fields, **changes})


def archived(folder: Path, module: torch.nn.Module) -> Path:
    """A file of a module that takes and returns one vector, written without the stages before it."""
    result = contract(
        [TensorSpec("x")],
        [TensorSpec("y")],
        batch=Batch(1, (0, 1, 4), (0, 1, 2)),
        methods={"forward": MethodSpec(("x",), ("y",))},
    )
    x = torch.linspace(0, 1, 4, dtype=torch.float64)
    scripted = torch.jit.script(module)
    pt_archive.write(
        folder / "m.pt",
        serialize_module(scripted),
        result,
        [ReferenceCase("one", "forward", (x,), scripted(x))],
        "graph",
    )
    return folder / "m.pt"
