"""Models in files of their own, as users write them: loaded, and put through the gate."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import planted_models
from torch import nn

from exporter.archive.contract import Finding
from exporter.archive.tensor_spec import Signature, TensorSpec
from exporter.capture.autograd_detection import detect_inner_autograd
from exporter.common.stopwatch import Stopwatch
from exporter.frontends import python_factory
from exporter.model.source import Source
from exporter.soundness.checked_capture import CaptureOptions, checked_capture
from exporter.soundness.gate import Allowance


def load(path: Path) -> ModuleType:
    name = f"specimen_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    # Anew, so that no state of another test is left.
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def source_of(path: Path, kind: str) -> Source:
    specimen = load(path)
    model: nn.Module = getattr(specimen, kind)()
    examples = specimen.examples()
    if getattr(model, "WHOLE", False):
        specs = (TensorSpec(n, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in examples.items())
        model.signature = Signature(tuple(specs), (), 0)  # pyright: ignore[reportArgumentType]
    return python_factory.source_from_module(model, path.stem, examples, str(path))


def model_of(function) -> nn.Module:
    return planted_models.Model(function)


def source_for(model: nn.Module) -> Source:
    return python_factory.source_from_module(model, "m", None, "here")


def findings_of(source: Source, *allowed: str) -> tuple[Finding, ...]:
    """What the gate says of a model that it lets pass; else its error is raised."""
    source = detect_inner_autograd(source, 0)
    return checked_capture(
        source, CaptureOptions(allowances=tuple(map(Allowance.parse, allowed)), jobs=2), Stopwatch()
    )[2]
