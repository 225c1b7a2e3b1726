"""A file loaded to be evaluated over many elements, slice by slice."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from exporter.archive.contract import Contract
from exporter.archive.identity_signature import Signer
from exporter.archive.kernel_container import is_kernel
from exporter.common.errors import UsageError
from runtime_checks.engines.selection import ENGINES, KERNEL, TORCHSCRIPT
from runtime_checks.evaluation.summaries import FAILURES, NO_NUMBER, Summary, measure_extent
from runtime_checks.failure_replay import INFO, STATUS
from runtime_checks.kernels.numpy_kernel import Kernel
from runtime_checks.model import load
from runtime_checks.native_code import GRAPHS

if TYPE_CHECKING:
    import numpy

# Elements of one call: what a graph computes on the way for so many fits into the cache of a core.
SLICE = 16_384


@dataclass(frozen=True)
class FileRequest:
    """A method of a file, and what runs it, as ``torchferry.load`` takes it."""

    path: Path
    method: str = "forward"
    engine: str = TORCHSCRIPT
    trust: str = GRAPHS
    public_key: Signer | None = None


class Evaluator:
    """A method of a loaded file, for arrays of elements."""

    def __init__(self, request: FileRequest) -> None:
        """Load the file. Raises the errors of ``torchferry.load``."""
        self._method = request.method
        if request.engine not in ENGINES:
            what, expected = "there is no such engine for an evaluation", ", ".join(ENGINES)
            raise UsageError(what, where="--engine", got=request.engine, expected=expected)
        if is_kernel(request.path):
            if request.engine not in (TORCHSCRIPT, KERNEL):
                mend = "leave the engine out, or name the archive"
                what, got = "a kernel's folder is no archive", f"engine {request.engine}"
                raise UsageError(what, where=str(request.path), got=got, expected="a kernel", mend=mend)
            self._model: Any = Kernel(request.path, request.trust, request.public_key)
        else:
            self._model = load(request.path, engine=request.engine, trust=request.trust, public_key=request.public_key)
        self.contract: Contract = self._model.contract

    def set_parameter(self, name: str, value: float) -> None:
        """Set a parameter of one number for what is evaluated next."""
        spec = next(spec for spec in self.contract.parameters if spec.name == name)
        self._model.set_parameter(name, torch.full(spec.shape, value, dtype=getattr(torch, spec.dtype)))

    def evaluate(self, inputs: Sequence[numpy.ndarray]) -> tuple[list[numpy.ndarray], numpy.ndarray, Summary]:
        """Evaluate elements.

        Args:
            inputs: Arrays ``(elements, *event)`` in the method's order, of the contract's dtypes.

        Returns:
            Arrays of the outputs, in the method's order; the status of each element, of 8 bits; and a summary, in which
            elements are numbered from 0.
        """
        count = len(inputs[0]) if inputs else 1
        # A kernel goes through its elements block by block itself.
        slice_size = count if isinstance(self._model, Kernel) else SLICE
        step = max(slice_size, 1) if self.contract.batch.ndim else 1
        parts, all_statuses, total = [], [], Summary()
        for start in range(0, count, step):
            outputs, statuses = self._evaluate_slice([value[start : start + step] for value in inputs])
            total += self._summarize(inputs, outputs, statuses, start)
            parts.append(outputs)
            all_statuses.append(statuses.to(torch.int8))
        return [_join([part[k] for part in parts]) for k in range(len(parts[0]))], _join(all_statuses), total

    def _evaluate_slice(self, values: Sequence[numpy.ndarray]) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return outputs, and the status of each element."""
        names = self.contract.methods[self._method].inputs
        is_batched = bool(self.contract.batch.ndim)
        arrays = dict(zip(names, values if is_batched else [value[0] for value in values], strict=True))
        by_name = self._call(self._method, arrays)
        outputs = [value if is_batched else value[None] for value in by_name.values()]
        count = len(values[0]) if values else 1
        statuses = self._find_statuses(arrays, outputs, count)
        return outputs, statuses

    def _call(self, method: str, arrays: Mapping[str, numpy.ndarray]) -> dict[str, torch.Tensor]:
        if isinstance(self._model, Kernel):
            return {n: torch.from_numpy(v) for n, v in self._model.call(method, arrays).items()}
        needs_grad = self.contract.methods[method].needs_grad
        with contextlib.nullcontext() if needs_grad else torch.no_grad():
            outputs = self._model.call(method, {n: torch.from_numpy(value) for n, value in arrays.items()})
        return {name: value.detach() for name, value in outputs.items()}

    def _find_statuses(
        self, arrays: Mapping[str, numpy.ndarray], outputs: Sequence[torch.Tensor], count: int
    ) -> torch.Tensor:
        """Find the status of each element: 0, or what its solver says, or that it has no numbers."""
        are_nan = torch.zeros(count, dtype=torch.bool)
        for value in outputs:
            # A sum with NaN is NaN: most slices have none, and are not looked at again.
            if (value.is_floating_point() or value.is_complex()) and bool(value.sum().isnan()):
                are_nan |= value.isnan().reshape(count, -1).any(1)
        statuses = torch.where(are_nan, NO_NUMBER, 0)
        if isinstance(self._model, Kernel):
            own = torch.from_numpy(self._model.status).reshape(-1)[:count].long()
            return torch.where(own != 0, own, statuses)
        solvers = self.contract.solvers
        info = self.contract.methods.get(INFO)
        if info is None or not solvers or not self.contract.batch.ndim or not set(info.inputs) <= arrays.keys():
            return statuses
        # Where an element that has failed shows it by NaN, only those are solved again to hear why.
        asked = are_nan if all(s.on_failure == "nan" for s in solvers) else torch.ones_like(are_nan)
        if bool(asked.any()):
            reported = self._call(INFO, {name: arrays[name][asked.numpy()] for name in info.inputs})[STATUS]
            own = reported.reshape(len(reported), -1).amax(1).long()
            statuses[asked] = torch.where(own != 0, own, statuses[asked])
        return statuses

    def _summarize(
        self,
        inputs: Sequence[numpy.ndarray],
        outputs: Sequence[torch.Tensor],
        statuses: torch.Tensor,
        start: int,
    ) -> Summary:
        spec, count = self.contract.methods[self._method], len(statuses)
        bounds = self.contract.envelope.values
        values = {n: torch.from_numpy(v[start : start + count]) for n, v in zip(spec.inputs, inputs, strict=True)}
        failures = statuses.nonzero().flatten()
        codes, counts = torch.unique(statuses[failures], return_counts=True)
        by_code = {0: count - len(failures), **dict(zip(codes.tolist(), counts.tolist(), strict=True))}
        return Summary(
            count,
            {code: number for code, number in by_code.items() if number},
            {name: measure_extent(value, bounds.get(name)) for name, value in values.items()},
            {name: measure_extent(value) for name, value in zip(spec.output_names, outputs, strict=True)},
            tuple((failures[:FAILURES] + start).tolist()),
        )


def _join(parts: Sequence[torch.Tensor]) -> numpy.ndarray:
    value = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
    return (value.float() if value.dtype == torch.bfloat16 else value).contiguous().numpy()
