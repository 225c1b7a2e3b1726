"""Stored reference cases: inputs of a method, and the outputs of eager mode for them."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exporter.archive.contract import Contract, MethodSpec
from exporter.archive.packed_tensors import load_tensors
from exporter.archive.tensor_spec import fits_shape, name_dtype
from exporter.common.errors import ArchiveError

if TYPE_CHECKING:
    import torch

_CASE_KEY = re.compile(r".+/.+/(in|out)/\d+", re.DOTALL)
# Prefixes of the names of cases of extreme magnitude.
EXTREME_PREFIXES = ("small_", "large_")


@dataclass(frozen=True)
class ReferenceCase:
    """Inputs of one method and the outputs of eager mode, in the contract's order."""

    name: str
    method: str
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]

    @property
    def is_extreme(self) -> bool:
        """Return whether the inputs are of extreme magnitude: beside them, rounding of ordinary rows is not seen."""
        return self.name.startswith(EXTREME_PREFIXES)


Cases = Sequence[ReferenceCase]


def list_tensors(cases: Cases) -> dict[str, torch.Tensor]:
    """Return the tensors by ``"<case>/<method>/in/<i>"`` and ``".../out/<i>"``."""
    sides = [(c, side, vs) for c in cases for side, vs in (("in", c.inputs), ("out", c.outputs))]
    return {f"{c.name}/{c.method}/{side}/{i}": v.detach() for c, side, vs in sides for i, v in enumerate(vs)}


def pack_cases(cases: Cases) -> bytes:
    """Serialize the tensors of ``list_tensors`` with ``torch.save``, as contiguous copies."""
    import torch

    tensors = {k: v.clone(memory_format=torch.contiguous_format) for k, v in list_tensors(cases).items()}
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()


def unpack_cases(data: bytes, contract: Contract, where: str) -> tuple[ReferenceCase, ...]:
    """Read serialized cases and check them against the contract. Raises ``ArchiveError``."""
    return cases_from_tensors(load_tensors(data, "the stored cases", where), contract, where)


def cases_from_tensors(tensors: Any, contract: Contract, where: str) -> tuple[ReferenceCase, ...]:
    """Build cases from tensors by name; raise ``ArchiveError`` for invalid names or a misfit with the contract."""
    import torch

    is_valid = isinstance(tensors, dict) and all(isinstance(v, torch.Tensor) for v in tensors.values())
    is_valid = is_valid and all(_CASE_KEY.fullmatch(str(k)) for k in tensors)
    if not is_valid:
        what = "the stored cases are not tensors by name"
        expected = 'a dict of "<case>/<method>/in/<i>" and ".../out/<i>" to tensors'
        raise ArchiveError(what, where=where, expected=expected)
    groups: dict[tuple[str, str], dict[tuple[str, int], torch.Tensor]] = {}
    for key, value in tensors.items():
        case, method, side, index = key.rsplit("/", 3)
        groups.setdefault((case, method), {})[(side, int(index))] = value
    cases = []
    for (name, method), values in groups.items():
        spec = contract.methods.get(method)
        counts = {"in": len(spec.inputs), "out": len(spec.outputs)} if spec else {}
        if spec is None or set(values) != {(side, i) for side, count in counts.items() for i in range(count)}:
            raise ArchiveError(
                f"case {name!r} does not fit the contract",
                where=where,
                got=f"method {method!r} with {sorted(values)}",
                expected="one tensor for each input and output of a method of the contract",
            )
        inputs = tuple(values["in", i] for i in range(len(spec.inputs)))
        outputs = tuple(values["out", i] for i in range(len(spec.outputs)))
        _check_case(contract, f"{where}, case {name!r}", spec, inputs, outputs)
        cases.append(ReferenceCase(name, method, inputs, outputs))
    missing = [method for method in contract.methods if method not in {case.method for case in cases}]
    if cases and missing:
        raise ArchiveError(f"method {missing[0]!r} has no cases", where=where, mend="export the model again")
    if not cases:
        raise ArchiveError("the archive holds no cases", where=where, mend="export the model again")
    return tuple(cases)


def _check_case(
    contract: Contract, where: str, method: MethodSpec, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> None:
    """Raise ``ArchiveError`` if a case's tensors have other shapes or dtypes than the contract says."""
    batches = set()
    sizes: dict[str, int] = {}
    specs = [*map(contract.input_spec, method.inputs), *map(contract.output_spec, method.outputs)]
    for name, value, spec in zip((*method.inputs, *method.outputs), (*inputs, *outputs), specs, strict=True):
        batch_ndim, dtype = value.ndim - len(spec.shape), name_dtype(value)
        fits = batch_ndim == contract.batch.ndim and fits_shape(value.shape[batch_ndim:], spec.shape, sizes)
        if not fits or spec.dtype != dtype:
            raise ArchiveError(
                "a case does not fit the contract",
                where=f"{where}, {name!r}",
                got=f"{list(value.shape)} {dtype}",
                expected=f"{['batch'] * contract.batch.ndim + list(spec.shape)} {spec.dtype}".replace("'", ""),
                mend="export the model again",
            )
        batches.add(tuple(value.shape[:batch_ndim]))
    if len(batches) > 1:
        what = "a case has tensors of different batches"
        raise ArchiveError(what, where=where, got=", ".join(map(str, sorted(batches))))


def supports_case(contract: Contract, case: ReferenceCase) -> bool:
    """Return whether a case has a single batch dimension, of one size, which is what a container accepts."""
    if case.method not in contract.methods:
        return False
    specs = [contract.input_spec(name) for name in contract.methods[case.method].inputs]
    pairs = list(zip(case.inputs, specs, strict=True))
    if contract.batch.ndim == 0:
        # A size that the signature itself has as 0 is not an open one that happens to be 0.
        return 0 in contract.batch.sizes or not any(0 in v.shape and 0 not in s.shape for v, s in pairs)
    batch_shapes = {tuple(v.shape[: v.ndim - len(s.static_shape)]) for v, s in pairs}
    if 0 not in contract.batch.sizes and any(0 in shape for shape in batch_shapes):
        return False
    return len(batch_shapes) == 1 and len(batch_shapes.pop()) == 1
