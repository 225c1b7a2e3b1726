"""``torch.jit.trace`` of a warmed-up model, with what a trace would freeze made an error.

The model is first traced at several batch sizes under a recorder: a size that Python reads must have one value at
all of them, and a ``TracerWarning`` is an error. The trace that is kept is made without the recorder, so that its
nodes carry the source lines of the model and not ours.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.jit._trace import TracerWarning
from torch.nn.modules.module import register_module_forward_pre_hook

from exporter.capture import boxes, constants
from exporter.capture.entry import forward_source
from exporter.capture.operators import operators, rewrite_operators
from exporter.eager import evaluate, flatten, inference_conditions
from exporter.errors import CaptureError, TorchferryError, first_line
from exporter.reads import Read, ReadRecorder
from exporter.sources.source import Inputs
from exporter.warmup import Warmup

# torch.jit's own deprecation texts (DeprecationWarning up to torch 2.13, FutureWarning from 2.14).
DEPRECATIONS = r"`torch\.jit\.\w+` is (deprecated|not supported in Python 3\.14)"

# More calls of one submodule than this are inlined where they stand.
METHODS = 8


@contextlib.contextmanager
def quiet_deprecations() -> Iterator[None]:
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", DEPRECATIONS, category)
        yield


def capture(warm: Warmup, seed: int) -> tuple[torch.jit.ScriptModule, tuple[str, ...]]:
    """The module to save, and the operators that it calls.

    Raises ``CaptureError`` with file and line for whatever a trace would freeze: a ``TracerWarning``, a size read
    into Python that depends on the batch, a constant of lower precision than the model; ``OperatorError`` for an
    operator of a source library.
    """
    source = warm.source
    generator = torch.Generator().manual_seed(seed)
    with inference_conditions(source), quiet_deprecations():
        draws = [(0, warm.inputs)]
        if source.batch_ndim:
            # Sizes that a comparison is most likely to single out; a model that refuses them gets another one.
            small = [n for n in (1, 2) if n in warm.batch.sizes] or [warm.traced_sizes[1]]
            draws = [(n, warm.sampler.draw(n, generator)) for n in (warm.traced_sizes[0], *small)]
        inlined = called_often(warm)
        vetted = [_vet(warm, inputs, inlined) for _, inputs in draws]
        refuse_batch_reads(source.name, {n: reads for (n, _), (_, reads) in zip(draws, vetted, strict=True)})
        first = vetted[0][0]
        constants.fold_copies(first)
        dtypes = [spec.dtype for spec in source.inputs]
        constants.refuse_lost_precision(first, source.name, dtypes)
        # The same lines warn again; what they read has been judged above.
        warnings.simplefilter("ignore", TracerWarning)
        module = _trace(warm, draws[0][1], constants.distinct_values(first), inlined)
        constants.fold_copies(module)
        constants.lift(module)
        constants.pin_dtypes(module)
        rewrite_operators(module)
        operators(module)
        module.define(forward_source(source.inputs, len(warm.output_specs), bool(source.batch_ndim)))
    return module, operators(module)


def refuse_batch_reads(name: str, reads: Mapping[int, Sequence[Read]]) -> None:
    """Raises ``CaptureError`` where Python read other values at one batch size than at another."""
    (first, expected), *rest = reads.items()
    for size, got in rest:
        if list(got) == list(expected):
            continue
        differ = ((a, b) for a, b in zip(expected, got, strict=False) if a != b)
        last = [*expected, *got][-1]
        a, b = next(differ, (last, last))
        raise CaptureError(
            f"model {name!r} reads the batch size into Python, and a trace would keep the one it saw",
            where=a.where,
            got=f"{a.kind} gave {a.value} at batch {first} and {b.value} at batch {size}",
            expected="one value at every batch size",
            mend="let torch work with the size: x.new_zeros(x.shape[0], 3), x.reshape(x.shape[0], -1); "
            "or torch.where instead of a branch",
        )


def called_often(warm: Warmup) -> set[nn.Module]:
    """Modules that one run calls more than ``METHODS`` times.

    A trace makes a method of every call of a submodule, and torch's search for its name grows with the cube of
    their number: an unrolled iteration over slip systems took minutes for it.
    """
    counts: Counter[nn.Module] = Counter()

    def count(module: nn.Module, _: Any) -> None:
        counts[module] += 1

    hook = register_module_forward_pre_hook(count)
    try:
        evaluate(warm.source, warm.inputs)
    finally:
        hook.remove()
    return {module for module, calls in counts.items() if calls > METHODS}


def _vet(warm: Warmup, inputs: Inputs, inlined: set[nn.Module]) -> tuple[torch.jit.ScriptModule, list[Read]]:
    """A trace at these inputs and what Python read meanwhile; raises for every ``TracerWarning``."""
    recorder = ReadRecorder()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TracerWarning)
        with recorder:
            module = _trace(warm, inputs, {}, inlined)
    for message in caught:
        if issubclass(message.category, TracerWarning):
            raise CaptureError(
                f"tracing model {warm.source.name!r} would freeze a value",
                where=f"{message.filename}:{message.lineno}",
                got="TracerWarning: " + str(message.message).split(". ")[0],
                expected="no TracerWarning",
                mend="compute with tensors there; make constants in __init__",
            )
        warnings.warn_explicit(message.message, message.category, message.filename, message.lineno)
    return module, recorder.reads


def _trace(
    warm: Warmup,
    inputs: Inputs,
    buffers: Mapping[str, Sequence[torch.Tensor]],
    inlined: set[nn.Module],
) -> torch.jit.ScriptModule:
    source = warm.source

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = tuple(flatten(source.module(*tensors), source).values())
        if not any(warm.constant):
            return outputs
        size = tensors[0].shape[0]
        return tuple(
            value.expand((size, *value.shape)) if constant else value
            for value, constant in zip(outputs, warm.constant, strict=True)
        )

    root = boxes.build(source.named, run, buffers, inlined)
    clones = tuple(t.clone() for t in inputs)
    try:
        module = torch.jit.trace_module(root, {boxes.METHOD: clones}, check_trace=False, _store_inputs=False)
    except TorchferryError:
        raise
    except Exception as error:
        raise CaptureError(
            f"model {source.name!r} cannot be traced",
            where=_line_of(str(error)),
            got=first_line(error),
            expected="a forward that torch.jit.trace can follow",
            mend="custom autograd functions and Python objects cannot be traced: write the operation with torch's own",
        ) from error
    assert isinstance(module, torch.jit.ScriptModule)
    return module


def _line_of(text: str) -> str:
    match = re.search(r"^(\S+\.py)\((\d+)\)", text, re.MULTILINE)
    return f"{match[1]}:{match[2]}" if match else ""
