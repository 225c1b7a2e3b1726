"""The context that checks work on, and the comparison of a capture with eager mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

import torch
from torch import nn

from exporter.archive.contract import Finding
from exporter.archive.method_names import METHOD
from exporter.common.errors import TorchferryError, summarize_error
from exporter.common.forking import DEFAULT_SECONDS
from exporter.common.tensors import all_close, bitwise_equal, estimate_rounding, is_finite
from exporter.common.torch_internals import optimized_execution
from exporter.model.eager.evaluation import evaluate, get_forward_code
from exporter.model.eager.warmup import Warmup
from exporter.model.source import Inputs, Source
from exporter.soundness.clean_room import CleanRooms
from exporter.soundness.execution_paths import locate_value_divergence
from exporter.soundness.footprint import find_suspect_line
from exporter.soundness.run_recording import canonicalize, find_difference, record_run

# Inputs by label.
Draws = tuple[tuple[str, Inputs], ...]
# Outputs by name, or the model's error.
Outputs = dict[str, torch.Tensor] | str


@dataclass(frozen=True)
class EagerContext:
    """A model in eager mode. ``draws`` are inputs by label, ``other_inputs`` of another batch size where it has any.

    ``room`` runs functions from the state before the first call. ``code_numbers`` are those of the user's code."""

    source: Source
    draws: Draws
    other_inputs: Inputs
    room: CleanRooms
    code_numbers: tuple[float, ...] = ()

    @property
    def inputs(self) -> Inputs:
        """Return the inputs of the first draw."""
        return self.draws[0][1]


@dataclass(frozen=True)
class CaptureContext:
    """A captured model: the method ``forward_batch`` of ``module`` is the trace. ``draws`` are inputs by label.

    ``has_other_gradients``: whether it takes gradients by another formula than eager mode. ``limit``: the seconds that
    a check may take. ``code_numbers`` are those of the user's code."""

    warm: Warmup
    module: torch.jit.ScriptModule
    draws: Draws
    trace_warnings: tuple[tuple[str, str], ...] = ()
    has_other_gradients: bool = False
    limit: float = DEFAULT_SECONDS
    code_numbers: tuple[float, ...] = ()

    @property
    def source(self) -> Source:
        """Return the source of the model."""
        return self.warm.source


def make_refusal(check: str, what: str, where: str, evidence: str, mend: str) -> Finding:
    """Return an unsound finding, which keeps the model from being exported."""
    return Finding(check, what, where, severity="unsound", evidence=evidence, mend=mend)


# Calls that copy values without the tracer's notice.
_UNTRACED_CALLS = r"deepcopy|\.data\b|dlpack|numpy|\bapply_\(|\bmap_\(|storage|torch\.equal|\.get\(|isinstance"


def run_eager(source: Source, inputs: Inputs, *, as_they_are: bool = False) -> Outputs:
    """Return copies of the outputs, or the model's error. The inputs are copied, in contiguous memory."""
    try:
        outputs = evaluate(source, inputs if as_they_are else _copy_contiguous(inputs))
    except TorchferryError as error:
        return error.details.get("got", error.what)
    return {name: value.detach().clone() for name, value in outputs.items()}


def _copy_contiguous(inputs: Inputs) -> Inputs:
    return tuple(t.clone(memory_format=torch.contiguous_format) for t in inputs)


def run_captured(context: CaptureContext, inputs: Inputs, *, as_they_are: bool = False) -> Outputs:
    """Return the outputs of the capture, or its error."""
    copies = inputs if as_they_are else _copy_contiguous(inputs)
    try:
        # Without torch's optimiser: its result is for the checks of the archive.
        with optimized_execution(False):
            values = getattr(context.module, METHOD)(*copies)
    except Exception as error:
        # The last line of a TorchScript error says what happened.
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        return lines[-1] if lines else summarize_error(error)
    return dict(zip((s.name for s in context.warm.output_specs), values, strict=True))


def find_disagreement(
    context: CaptureContext, inputs: Inputs, *, as_they_are: bool = False, expected: Outputs | None = None
) -> str:
    """Describe where eager mode and the capture disagree at these inputs; empty where they agree or both raise.

    ``as_they_are``: in their own memory layout, and without copies. ``expected``: what ``run_eager`` gave for them."""
    if expected is None:
        expected = run_eager(context.source, inputs, as_they_are=as_they_are)
    got = run_captured(context, inputs, as_they_are=as_they_are)
    lenient = context.source.uses_autograd
    if isinstance(expected, str):
        # A backward pass without values cannot raise for them; its outputs must not look like an answer.
        refused = isinstance(got, str) or (lenient and not all(map(is_finite, got.values())))
        return "" if refused else f"eager mode raises {expected}, the capture gives numbers"
    if isinstance(got, str):
        return f"the capture raises {got}, eager mode gives numbers"
    constant = dict(zip(expected, context.warm.constant, strict=True))
    for name, value in expected.items():
        a, b = got[name], value.expand((inputs[0].shape[0], *value.shape)) if constant[name] else value
        if lenient and not all(map(is_finite, inputs)) and torch.equal(a.isfinite(), b.isfinite()):
            # torch has two formulas for some gradients, which differ at NaN and infinity.
            a, b = (torch.where(t.isfinite(), t, 0) for t in (a, b))
        mismatch = describe_mismatch(a, b)
        if mismatch and not (context.has_other_gradients and _differs_by_rounding(context, name, a, b)):
            return f"output {name!r}: the capture gives {mismatch} in eager mode"
    return ""


def _differs_by_rounding(context: CaptureContext, name: str, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether values of an output differ by rounding of numbers as large as the output is at the first draw."""
    usual = run_eager(context.source, context.draws[0][1])
    if isinstance(usual, str) or a.shape != b.shape or not a.is_floating_point():
        return False
    return torch.allclose(a, b, rtol=0.0, atol=estimate_rounding(usual[name]), equal_nan=True)


def describe_mismatch(got: torch.Tensor, expected: torch.Tensor) -> str:
    """Return ``1.0 against 2.0 at [0, 1]``; empty where they agree up to rounding."""
    return "" if all_close(got, expected) else _describe_largest_gap(got, expected)


def _describe_largest_gap(got: torch.Tensor, expected: torch.Tensor) -> str:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{list(got.shape)} {got.dtype} against {list(expected.shape)} {expected.dtype}"
    a, b = got.flatten(), expected.flatten()
    if a.is_floating_point() or a.is_complex():
        gap = torch.where(a.isnan() & b.isnan(), torch.zeros_like(a.abs()), (a - b).abs())
        gap = torch.where(gap.isnan(), torch.full_like(gap, torch.inf), gap)
        flat_index = int(gap.argmax())
    else:
        flat_index = int((a != b).to(torch.int8).argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(flat_index), got.shape)]
    return f"{a[flat_index].item()} against {b[flat_index].item()} at {index}"


def outputs_equal(a: Outputs, b: Outputs) -> bool:
    """Return whether outputs agree bitwise, names and their order included; two failures are equal."""
    return not describe_difference(a, b)


def describe_difference(got: Outputs, expected: Outputs) -> str:
    """Describe the difference between two calls, bitwise; empty where there is none."""
    if isinstance(got, str) or isinstance(expected, str):
        shown = [value if isinstance(value, str) else "numbers" for value in (got, expected)]
        return "" if isinstance(got, str) and isinstance(expected, str) else " against ".join(shown)
    if list(got) != list(expected):
        return f"outputs {', '.join(got)} against {', '.join(expected)}"
    for name, value in got.items():
        if not bitwise_equal(value, expected[name]):
            return f"output {name!r}: {_describe_largest_gap(value, expected[name])}"
    return ""


def alias_inputs(inputs: Inputs) -> Inputs | None:
    """Return inputs of equal shape and dtype as one tensor, the first of them; None where no two are alike."""
    first: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}
    shared = tuple(first.setdefault((t.shape, t.dtype), t.clone()) for t in inputs)
    return shared if len(first) < len(inputs) else None


@dataclass(frozen=True)
class Divergence:
    """The line ``where`` two runs diverge, and ``what`` differs; empty where they do the same. Where one of them was
    not recorded, ``what`` is its error."""

    where: str
    what: str
    is_recorded: bool = True


def locate_divergence(source: Source, first: Inputs, second: Inputs) -> Divergence:
    """Locate where runs at these inputs diverge.

    The line is the one after which a variable that is no tensor differs, else that of the first operation that differs.
    """
    first_run, second_run = record_run(source, first), record_run(source, second)
    if first_run.graph is None or second_run.graph is None:
        failed = first_run if first_run.graph is None else second_run
        return Divergence(failed.failed_at, failed.failure, is_recorded=False)
    where, what = find_difference(canonicalize(first_run), canonicalize(second_run)) or ("", "")
    if not what:
        return Divergence(find_suspect_line(lambda: run_eager(source, first), _UNTRACED_CALLS), "")
    place = locate_value_divergence(lambda: record_run(source, first), lambda: record_run(source, second)) or where
    # A line in a graph's text is not the user's.
    return Divergence("" if place.startswith("<") else place, what)


def find_submodules_at_line(source: Source, where: str) -> Iterator[str]:
    """Yield paths of the submodules whose ``forward``, or another method of whose class, contains this line."""
    file, _, line = where.rpartition(":")
    for path, module in source.parameter_module.named_modules():
        for code in _list_method_codes(module) if line.isdigit() else ():
            lines = [n for _, _, n in code.co_lines() if n] if code.co_filename == file else []
            if lines and min(lines) <= int(line) <= max(lines):
                yield path
                break


def _list_method_codes(module: nn.Module) -> list[CodeType]:
    """List the code of a module's ``forward``, and of the methods of its classes below ``torch.nn.Module``."""
    classes = type(module).__mro__
    own_classes = classes[: classes.index(nn.Module)]
    codes = [get_forward_code(module), *(getattr(v, "__code__", None) for c in own_classes for v in vars(c).values())]
    return [code for code in codes if code is not None]
