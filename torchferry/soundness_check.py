"""The soundness gate alone, and the listing of a model: nothing is written."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from exporter.archive.contract import Finding
from exporter.archive.input_files import InputValues, read_inputs
from exporter.capture.autograd_detection import detect_inner_autograd
from exporter.common.stopwatch import Stopwatch, Watch, ignore_step
from exporter.frontends import resolve
from exporter.frontends.model_request import ModelRequest
from exporter.frontends.neml2 import input_file
from exporter.model.eager.batch_choice import ShapeChoice
from exporter.model.eager.warmup import measure_cost, run_first, warm_up
from exporter.model.source import Listing, keep_all
from exporter.soundness import gate
from exporter.soundness.checked_capture import (
    CaptureOptions,
    checked_capture,
    derive_seed,
    summarize_model,
)
from torchferry.sources import load_model, resolve_sources, run_with_sizes


@dataclass(frozen=True)
class Checked:
    """A model that passed the soundness gate, with the findings about it.

    Attributes:
        name: The model's name.
        findings: What the checks noted, each with its reason.
        checks: The checks that ran.
        not_run: The checks that could not run.
        seconds: Seconds of the gate and the capture.
    """

    name: str
    findings: tuple[Finding, ...]
    checks: tuple[str, ...]
    not_run: tuple[str, ...]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return dataclasses.asdict(self) | {"sound": True}


def check(
    source: ModelRequest | nn.Module | Callable[..., Any],
    *,
    models: Sequence[str] = (),
    inputs: Path | InputValues | None = None,
    per_element: Sequence[str] = (),
    shapes: ShapeChoice | None = None,
    options: CaptureOptions,
    watch: Watch = ignore_step,
) -> list[Checked]:
    """Run the soundness gate alone for the models that ``export`` would export, and raise the same errors."""
    reports = []
    # The user's own module is put back into its previous mode.
    modes = {m: m.training for m in source.modules()} if isinstance(source, nn.Module) else {}
    seed = derive_seed(options.seed, "per element")
    for load in resolve_sources(source, models, inputs, per_element, shapes or ShapeChoice(), seed):
        clock = Stopwatch(watch)
        take_back = keep_all
        try:
            model_source = load()
            take_back = model_source.take_back
            marked_source = detect_inner_autograd(model_source, derive_seed(options.seed, "warmup"))
            warm, _, findings = run_with_sizes(
                marked_source, functools.partial(checked_capture, options=options, clock=clock)
            )
        finally:
            take_back()
            for module, training in modes.items():
                module.training = training
        findings = (*warm.source.findings, *findings)
        not_run = tuple(f.check for f in findings if f.severity == "not run")
        ran = tuple(name for name in gate.RUNS if name not in not_run)
        reports.append(Checked(marked_source.name, findings, ran, not_run, round(sum(clock.seconds.values()), 3)))
    return reports


def show(
    source: ModelRequest, *, models: Sequence[str] = (), inputs: Path | None = None, shapes: ShapeChoice | None = None
) -> list[Listing]:
    """Return name, inputs and outputs of the chosen models; of all models of an input file if none is chosen.

    An input file is only read. A Python model is run, as its outputs need not be declared."""
    if resolve.is_python(source):
        (name,) = resolve.choose_models(source, models)
        seed = derive_seed(0, "warmup")
        load = functools.partial(resolve.load, source, name, read_inputs(inputs) if inputs else None)
        model_source = detect_inner_autograd(load_model(load, shapes or ShapeChoice(), seed), seed)
        more_seed = derive_seed(0, "more warmup")
        return [summarize_model(warm_up(measure_cost(run_first(model_source, seed), more_seed), more_seed))]
    return [input_file.build_listing(source, name) for name in models or input_file.list_model_names(source)]
