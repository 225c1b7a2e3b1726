"""Elements that did not converge: their inputs in a file, and their Newton iterations one by one.

A replay file has pairs of a name and a tensor, as ``torch.save`` writes them: ``"inputs/NAME"`` of a shape
``(elements, *event)``, ``"parameters/NAME"`` likewise, where elements have values of their own, ``"elements"``, their
places in the batch, and ``"step"`` of the path. In C++ ``torchferry_verify`` writes the same."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from exporter.archive.contract import Contract
from exporter.archive.tensor_spec import TensorSpec, name_dtype
from exporter.common.atomic_files import atomic_write_path
from exporter.common.errors import UsageError, suggest_names, summarize_error
from runtime_checks.model import Model

INPUTS, PARAMETERS, ELEMENTS, STEP = "inputs", "parameters", "elements", "step"
NORM, STATUS, INFO = "residual_norm", "status", "newton_info"
# The status of an element that has used up its iterations, as files give it.
NOT_CONVERGED = 1
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Failures:
    """Elements that failed.

    Attributes:
        inputs: Their inputs by name, each ``(elements, *event)``.
        parameters: The parameters that had values of their own, likewise.
    """

    inputs: Tensors
    parameters: Tensors = field(default_factory=dict)


class FailureRecorder:
    """The inputs of elements that have no numbers, of the first step with some; with no ``path`` nothing is kept."""

    def __init__(self, path: Path | None, contract: Contract) -> None:
        self.path, self.contract = path, contract
        self.inputs: dict[str, torch.Tensor] = {}
        self.places, self.step = torch.empty(0, dtype=torch.int64), 0

    def look(self, step: int, inputs: Tensors, outputs: Tensors) -> None:
        """Keep the inputs of elements with NaN in some output, if these are the first."""
        if self.path is None or self.inputs:
            return
        shapes = {s.name: s.static_shape for s in self.contract.outputs}
        values = [_flatten_batch(v, shapes[n]) for n, v in outputs.items() if n in shapes]
        rows = [value.isnan().reshape(len(value), -1).any(1) for value in values]
        # An output without a batch is none of an element's.
        count = max(map(len, rows))
        places = torch.stack([row for row in rows if len(row) == count]).any(0).nonzero().flatten()
        if places.numel():
            self.inputs = {
                s.name: _flatten_batch(inputs[s.name], s.static_shape)[places].contiguous()
                for s in self.contract.inputs
            }
            self.places, self.step = places, step

    def write(self) -> None:
        """Write what was kept."""
        if self.path is not None and self.inputs:
            write_failures(self.path, Failures(self.inputs), self.places, self.step)


def write_failures(path: Path, failures: Failures, elements: torch.Tensor, step: int) -> None:
    """Write a replay file.

    Args:
        path: The file.
        failures: What failed.
        elements: The places of the elements in their batch.
        step: The step of a path, 0 where there is none.
    """
    tensors = {f"{INPUTS}/{name}": value for name, value in failures.inputs.items()}
    tensors |= {f"{PARAMETERS}/{name}": value for name, value in failures.parameters.items()}
    tensors |= {ELEMENTS: elements, STEP: torch.tensor(step)}
    with atomic_write_path(path) as temporary_path:
        torch.save(tuple(tensors.items()), temporary_path)


def _flatten_batch(value: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a variable with one batch dimension."""
    return value.cpu().reshape(-1, *shape)


def read_failures(path: Path, contract: Contract) -> Failures:
    """Read a replay file. Raises ``UsageError`` if it is none of this archive."""
    if not path.is_file():
        raise UsageError("there is no replay file", where=str(path), expected="a .pt file that --failures wrote")
    try:
        content = dict(torch.load(path, weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError, TypeError, ValueError) as error:
        what, expected = "the replay file does not load", "a .pt file that --failures wrote"
        raise UsageError(what, where=str(path), got=summarize_error(error), expected=expected) from None
    own = {name.partition("/")[2] for name in content if str(name).startswith(f"{PARAMETERS}/")}
    specs = {p.name: TensorSpec(p.name, p.shape, p.dtype) for p in contract.parameters}
    if unknown := sorted(own - specs.keys()):
        what, where = f"the archive has no parameter {unknown[0]!r}", f"{path}, {PARAMETERS}/{unknown[0]}"
        raise UsageError(what, where=where, expected=suggest_names(unknown[0], specs))
    failures = Failures(
        {spec.name: _find_values(content, INPUTS, spec, path) for spec in contract.inputs},
        {name: _find_values(content, PARAMETERS, specs[name], path) for name in sorted(own)},
    )
    counts = {name: len(value) for name, value in (*failures.inputs.items(), *failures.parameters.items())}
    if len({*counts.values()}) != 1 or 0 in counts.values():
        what, expected = "the replay file has no one number of elements", "as many, and at least 1, for each name"
        raise UsageError(what, where=str(path), got=str(counts), expected=expected)
    return failures


def _find_values(content: Mapping[str, Any], kind: str, spec: TensorSpec, path: Path) -> torch.Tensor:
    """Return the values of an input or a parameter. Raises ``UsageError`` if they are missing, or fit no element."""
    value, got = content.get(f"{kind}/{spec.name}"), "no tensor"
    if isinstance(value, torch.Tensor):
        if value.ndim > 0 and tuple(value.shape[1:]) == spec.static_shape and name_dtype(value) == spec.dtype:
            return value
        got = f"{list(value.shape)} {value.dtype}"
    what = f"the replay file has no {kind.removesuffix('s')} {spec.name!r} of this archive"
    raise UsageError(what, where=f"{path}, {kind}/{spec.name}", got=got, expected=f"elements of {spec.describe()}")


def replay_iterations(model: Model, failures: Failures) -> dict[str, torch.Tensor]:
    """Run elements with 0, 1, 2, ... iterations; return outputs, norms of the residual and status of each.

    Elements that have the same parameters run together. Values are ``(iterations, elements, *event)``; of elements that
    end before others the last ones are repeated. Outputs are those of the last iterate, whether it has converged or
    not. Raises ``UsageError`` for an archive without a Newton solver, or whose limit of iterations cannot be set."""
    parameters = failures.parameters
    groups: dict[tuple[str, ...], list[int]] = {}
    for place in range(len(next(iter(failures.inputs.values())))):
        groups.setdefault(tuple(str(value[place].tolist()) for value in parameters.values()), []).append(place)
    known = dict(model.module.named_parameters())
    before = {name: known[name].detach().clone() for name in parameters if name in known}
    parts: list[tuple[list[int], dict[str, torch.Tensor]]] = []
    try:
        for places in groups.values():
            for name, values in parameters.items():
                model.set_parameter(name, values[places[0]])
            parts.append((places, _replay_alike(model, {n: v[places] for n, v in failures.inputs.items()})))
    finally:
        for name, value in before.items():
            model.set_parameter(name, value)
    return {name: _merge_elements([(places, values[name]) for places, values in parts]) for name in parts[0][1]}


def _merge_elements(parts: Sequence[tuple[list[int], torch.Tensor]]) -> torch.Tensor:
    """Return the values of all elements from those of some at their places."""
    steps, count = max(len(values) for _, values in parts), sum(len(places) for places, _ in parts)
    merged = parts[0][1].new_empty((steps, count, *parts[0][1].shape[2:]))
    for places, values in parts:
        merged[:, places] = torch.cat([values, values[-1:].expand(steps - len(values), *values.shape[1:])])
    return merged


def _replay_alike(model: Model, inputs: Tensors) -> dict[str, torch.Tensor]:
    """Run elements with 0, 1, 2, ... iterations, with the parameters that the model has."""
    solvers, parameters = model.contract.solvers, dict(model.module.named_parameters())
    names = [f"{solver.path}.max_its" for solver in solvers]
    if missing := [name for name in names if name not in parameters] or ([] if solvers else ["a solver"]):
        what, expected = (
            "there are no iterations to replay",
            "an archive of an implicit model, whose max_its can be set",
        )
        raise UsageError(what, got=f"no {missing[0]}", expected=expected)
    loops: list[Any] = [functools.reduce(getattr, solver.path.split("."), model.module) for solver in solvers]
    limits = [int(parameters[name]) for name in names]
    policies = [(loop.fails_by_nan, loop.fails_by_raising) for loop in loops]
    steps: list[dict[str, torch.Tensor]] = []
    try:
        for loop in loops:
            loop.fails_by_nan = loop.fails_by_raising = False
        for count in range(max(limits) + 1):
            for name, limit in zip(names, limits, strict=True):
                model.set_parameter(name, torch.tensor(min(count, limit)))
            info = model.call_from_anywhere(INFO, inputs)
            steps.append(model.call_from_anywhere("forward", inputs) | {NORM: info[NORM], STATUS: info[STATUS]})
            if not bool((info[STATUS] == NOT_CONVERGED).any()):
                # All have ended: further iterations would show the same.
                break
    finally:
        for loop, name, limit, policy in zip(loops, names, limits, policies, strict=True):
            model.set_parameter(name, torch.tensor(limit))
            loop.fails_by_nan, loop.fails_by_raising = policy
    return {name: torch.stack([values[name] for values in steps]) for name in steps[0]}
