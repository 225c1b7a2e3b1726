"""What the gate looks at, and how a capture is held against eager mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.jit._fuser import optimized_execution

from exporter.archive.method_names import METHOD
from exporter.common.errors import TorchferryError, first_line
from exporter.common.tensors import close, finite, same_bits
from exporter.model.eager.evaluation import evaluate, forward_code
from exporter.model.eager.warmup import Warmup
from exporter.model.source import Inputs, Source
from exporter.soundness.clean_room import CleanRoom
from exporter.soundness.execution_paths import where_plain_values_part
from exporter.soundness.footprint import suspect_line
from exporter.soundness.run_recording import canonical, difference, record

# Inputs by label.
Draws = tuple[tuple[str, Inputs], ...]
# Outputs by name, or what the model raised.
Outputs = dict[str, torch.Tensor] | str


@dataclass(frozen=True)
class Eager:
    """A model in eager mode. ``draws`` are inputs by label, ``other`` of another batch size where it has any.

    ``room`` is from before the first call.
    """

    source: Source
    draws: Draws
    other: Inputs
    room: CleanRoom

    @property
    def inputs(self) -> Inputs:
        return self.draws[0][1]


@dataclass(frozen=True)
class Subject:
    """``module`` is the captured model, its method ``forward_batch`` the trace. ``draws`` are inputs by label."""

    warm: Warmup
    module: torch.jit.ScriptModule
    draws: Draws
    warned: tuple[tuple[str, str], ...] = ()

    @property
    def source(self) -> Source:
        return self.warm.source


# What copies values behind the tracer's back.
_UNSEEN = r"deepcopy|\.data\b|dlpack|numpy|\bapply_\(|\bmap_\(|storage|torch\.equal|\.get\(|isinstance"


def eager(source: Source, inputs: Inputs, *, as_they_are: bool = False) -> Outputs:
    """Copies of the outputs, or what the model raised. The inputs are copied, in contiguous memory."""
    try:
        outputs = evaluate(source, inputs if as_they_are else _contiguous(inputs))
    except TorchferryError as error:
        return error.details.get("got", error.what)
    return {name: value.detach().clone() for name, value in outputs.items()}


def _contiguous(inputs: Inputs) -> Inputs:
    return tuple(t.clone(memory_format=torch.contiguous_format) for t in inputs)


def captured(subject: Subject, inputs: Inputs, *, as_they_are: bool = False) -> Outputs:
    copies = inputs if as_they_are else _contiguous(inputs)
    try:
        # As written: what torch's optimiser makes of it is for the checks of the archive.
        with optimized_execution(False):
            values = getattr(subject.module, METHOD)(*copies)
    except Exception as error:
        return last_line(error)
    return dict(zip((s.name for s in subject.warm.output_specs), values, strict=True))


def last_line(error: Exception) -> str:
    """The part of a TorchScript error that says what happened: its last line."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1] if lines else first_line(error)


def disagreement(subject: Subject, inputs: Inputs, *, as_they_are: bool = False) -> str:
    """What eager mode and the capture do not agree on at these inputs; empty where they agree or both raise.

    ``as_they_are``: in their own layout of memory, and without copies.
    """
    wanted = eager(subject.source, inputs, as_they_are=as_they_are)
    got = captured(subject, inputs, as_they_are=as_they_are)
    lenient = subject.source.differentiates
    if isinstance(wanted, str):
        # A backward pass without values cannot raise for them; what it gives must not look like an answer.
        refused = isinstance(got, str) or (lenient and not all(map(finite, got.values())))
        return "" if refused else f"eager mode raises {wanted}, the capture gives numbers"
    if isinstance(got, str):
        return f"the capture raises {got}, eager mode gives numbers"
    constant = dict(zip(wanted, subject.warm.constant, strict=True))
    for name, value in wanted.items():
        whole = value.expand((inputs[0].shape[0], *value.shape)) if constant[name] else value
        if lenient and not all(map(finite, inputs)):
            # torch has two formulas for some gradients, which part at NaN and infinity.
            here = torch.isfinite(whole) & torch.isfinite(got[name])
            if got[name].shape == whole.shape and torch.equal(torch.isfinite(whole), torch.isfinite(got[name])):
                found = unlike(torch.where(here, got[name], 0), torch.where(here, whole, 0))
            else:
                found = unlike(got[name], whole)
        else:
            found = unlike(got[name], whole)
        if found:
            return f"output {name!r}: the capture gives {found} in eager mode"
    return ""


def unlike(got: torch.Tensor, wanted: torch.Tensor) -> str:
    """``1.0 against 2.0 at [0, 1]``; empty where they agree up to rounding."""
    return "" if close(got, wanted) else _largest_gap(got, wanted)


def _largest_gap(got: torch.Tensor, wanted: torch.Tensor) -> str:
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"{list(got.shape)} {got.dtype} against {list(wanted.shape)} {wanted.dtype}"
    a, b = got.flatten(), wanted.flatten()
    if a.is_floating_point() or a.is_complex():
        gap = torch.where(a.isnan() & b.isnan(), torch.zeros_like(a.abs()), (a - b).abs())
        gap = torch.where(gap.isnan(), torch.full_like(gap, torch.inf), gap)
        at = int(gap.argmax())
    else:
        at = int((a != b).to(torch.int8).argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(at), got.shape)]
    return f"{a[at].item()} against {b[at].item()} at {index}"


def same_outputs(a: Outputs, b: Outputs) -> bool:
    """To the bit, names and their order included; two failures are the same."""
    return not difference_between(a, b)


def difference_between(got: Outputs, wanted: Outputs) -> str:
    """What tells two calls apart, to the bit; empty where nothing does."""
    if isinstance(got, str) or isinstance(wanted, str):
        if isinstance(got, str) and isinstance(wanted, str):
            return ""
        return (
            f"{got if isinstance(got, str) else 'numbers'} against {wanted if isinstance(wanted, str) else 'numbers'}"
        )
    if list(got) != list(wanted):
        return f"outputs {', '.join(got)} against {', '.join(wanted)}"
    for name, value in got.items():
        if not same_bits(value, wanted[name]):
            return f"output {name!r}: {_largest_gap(value, wanted[name])}"
    return ""


def same_as_one(inputs: Inputs) -> Inputs | None:
    """Every input in the tensor of the first one of its shape and dtype; None where no two are alike."""
    first: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}
    shared = tuple(first.setdefault((t.shape, t.dtype), t.clone()) for t in inputs)
    return shared if len(first) < len(inputs) else None


def where_runs_part(source: Source, first: Inputs, second: Inputs) -> tuple[str, str]:
    """``(file:line, what)`` where runs at these inputs part; empty where they do the same.

    The line is the one after which a variable that is no tensor differs, else that of the first operation that differs.
    """
    one, other = record(source, first), record(source, second)
    if one.graph is None or other.graph is None:
        return one.failed_at or other.failed_at, one.failure or other.failure
    where, what = difference(canonical(one), canonical(other)) or ("", "")
    if not what:
        return suspect_line(lambda: eager(source, first), _UNSEEN), ""
    plain = where_plain_values_part(lambda: record(source, first), lambda: record(source, second))
    place = plain or where
    # A line of a graph's own text is none of the user's.
    return "" if place.startswith("<") else place, what


def submodules_of_line(source: Source, where: str) -> Iterator[str]:
    """Paths of the submodules whose ``forward`` holds this line."""
    file, _, line = where.rpartition(":")
    for path, module in source.named.named_modules():
        code = forward_code(module)
        if code is None or code.co_filename != file or not line.isdigit():
            continue
        lines = [n for _, _, n in code.co_lines() if n]
        if lines and min(lines) <= int(line) <= max(lines):
            yield path
