"""The stored cases: inputs of a method, and what eager mode gave for them."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exporter.archive.contract import Contract, MethodSpec
from exporter.archive.tensor_spec import fits_shape
from exporter.common.errors import ArchiveError

if TYPE_CHECKING:
    import torch

_CASE_KEY = re.compile(r".+/.+/(in|out)/\d+", re.DOTALL)
# How the names of cases of extreme magnitudes begin.
EXTREMES = ("small_", "large_")


@dataclass(frozen=True)
class Case:
    """Inputs of one method and the outputs that eager mode gave, in the contract's order."""

    name: str
    method: str
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]


def pack_cases(cases: Sequence[Case]) -> bytes:
    """``torch.save`` of ``"<case>/<method>/in/<i>"`` and ``".../out/<i>"`` to contiguous tensors of their own."""
    import torch

    tensors: dict[str, torch.Tensor] = {}
    for case in cases:
        for side, values in (("in", case.inputs), ("out", case.outputs)):
            for i, value in enumerate(values):
                tensors[f"{case.name}/{case.method}/{side}/{i}"] = value.detach().clone(
                    memory_format=torch.contiguous_format
                )
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()


def unpack_cases(data: bytes, contract: Contract, where: str) -> tuple[Case, ...]:
    import torch

    try:
        tensors = torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:
        raise ArchiveError("the stored cases cannot be read", where=where, got=str(error)) from None
    return cases_of(tensors, contract, where)


def cases_of(tensors: Any, contract: Contract, where: str) -> tuple[Case, ...]:
    """Raises ``ArchiveError`` for tensors by other names than those of cases, and that do not fit the contract."""
    import torch

    named = isinstance(tensors, dict) and all(
        isinstance(v, torch.Tensor) and _CASE_KEY.fullmatch(str(k)) for k, v in tensors.items()
    )
    if not named:
        raise ArchiveError(
            "the stored cases are not tensors by name",
            where=where,
            expected='a dict of "<case>/<method>/in/<i>" and ".../out/<i>" to tensors',
        )
    found: dict[tuple[str, str], dict[tuple[str, int], torch.Tensor]] = {}
    for key, value in tensors.items():
        case, method, side, index = key.rsplit("/", 3)
        found.setdefault((case, method), {})[(side, int(index))] = value
    cases = []
    for (name, method), values in found.items():
        spec = contract.methods.get(method)
        expected = (
            {("in", i) for i in range(len(spec.inputs))} | {("out", i) for i in range(len(spec.outputs))}
            if spec
            else set()
        )
        if spec is None or set(values) != expected:
            raise ArchiveError(
                f"case {name!r} does not fit the contract",
                where=where,
                got=f"method {method!r} with {sorted(values)}",
                expected="one tensor for each input and output of a method of the contract",
            )
        inputs = tuple(values["in", i] for i in range(len(spec.inputs)))
        outputs = tuple(values["out", i] for i in range(len(spec.outputs)))
        _refuse_misfits(contract, f"{where}, case {name!r}", spec, inputs, outputs)
        cases.append(Case(name, method, inputs, outputs))
    without = [method for method in contract.methods if method not in {case.method for case in cases}]
    if cases and without:
        raise ArchiveError(f"method {without[0]!r} has no cases", where=where, mend="export the model again")
    if not cases:
        raise ArchiveError("the archive holds no cases", where=where, mend="export the model again")
    return tuple(cases)


def _refuse_misfits(
    contract: Contract, where: str, method: MethodSpec, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> None:
    """Raises ``ArchiveError`` where a case's tensors have other shapes or dtypes than the contract says."""
    batches = set()
    sizes: dict[str, int] = {}
    taken = [contract.taken(name) for name in method.inputs]
    returned = [contract.returned(name) for name in method.outputs]
    for names, values, known in ((method.inputs, inputs, taken), (method.outputs, outputs, returned)):
        for name, value, spec in zip(names, values, known, strict=True):
            lead = value.ndim - len(spec.shape)
            got = f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
            if (
                lead != contract.batch.ndim
                or not fits_shape(value.shape[lead:], spec.shape, sizes)
                or f"torch.{spec.dtype}" != str(value.dtype)
            ):
                raise ArchiveError(
                    "a case does not fit the contract",
                    where=f"{where}, {name!r}",
                    got=got,
                    expected=f"{['batch'] * contract.batch.ndim + list(spec.shape)} {spec.dtype}".replace("'", ""),
                    mend="export the model again",
                )
            batches.add(tuple(value.shape[:lead]))
    if len(batches) > 1:
        raise ArchiveError(
            "a case has tensors of different batches", where=where, got=", ".join(map(str, sorted(batches)))
        )


def admits(contract: Contract, case: Case) -> bool:
    """Whether a case has the one batch dimension, of one size, that a container takes."""
    if 0 not in contract.batch.sizes and any(v.numel() == 0 for v in case.inputs):
        return False
    if contract.batch.ndim == 0:
        return case.method in contract.methods
    shapes = [contract.taken(name).fixed for name in contract.methods[case.method].inputs]
    leads = {tuple(v.shape[: v.ndim - len(s)]) for v, s in zip(case.inputs, shapes, strict=True)}
    return len(leads) == 1 and len(leads.pop()) == 1
