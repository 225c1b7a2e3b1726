"""Cases of a kernel as text, ``cases.txt``, which C reads too: floats are written as C writes them with ``%a``.

A head, the parameters, the cases, ``end``. ``parameter DTYPE COUNT NAME``, ``case ROWS METHOD NAME``, ``in DTYPE
COUNT`` and ``out DTYPE COUNT RTOL ATOL FLOOR`` have their numbers in the lines that follow; names are
percent-encoded."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from exporter.archive.cases import Cases, ReferenceCase, cases_from_tensors
from exporter.archive.contract import Bounds, Contract
from exporter.archive.tensor_spec import name_dtype
from exporter.common.errors import ArchiveError, summarize_error

if TYPE_CHECKING:
    import torch

HEAD = "torchferry cases 1"
_NUMBERS_PER_LINE = 8


@dataclass(frozen=True)
class Numbers:
    """The numbers of one variable, row by row, and of an output its tolerances."""

    dtype: str
    values: tuple[float | int, ...]
    bounds: Bounds = field(default=Bounds(0.0, 0.0))


@dataclass(frozen=True)
class CaseNumbers:
    """One case as plain numbers: inputs and outputs of ``rows`` elements, in the contract's order."""

    name: str
    method: str
    rows: int
    inputs: tuple[Numbers, ...]
    outputs: tuple[Numbers, ...]


@dataclass(frozen=True)
class StoredNumbers:
    """All numbers of the file: the parameters by name, and the cases."""

    parameters: Mapping[str, Numbers]
    cases: tuple[CaseNumbers, ...]


def pack_cases(contract: Contract, cases: Cases, parameters: Mapping[str, torch.Tensor]) -> bytes:
    """Serialize the parameters and the cases."""
    lines = [HEAD]
    for name, value in parameters.items():
        lines += [f"parameter {name_dtype(value)} {value.numel()} {_quote(name)}", *_format_numbers(value)]
    for case in cases:
        spec = contract.methods[case.method]
        value = (case.inputs or case.outputs)[0]
        first = contract.input_spec(spec.inputs[0]) if case.inputs else contract.output_spec(spec.outputs[0])
        count = prod(first.static_shape)
        rows = (value.numel() // count if count else value.shape[0]) if contract.batch.ndim else 1
        lines.append(f"case {rows} {case.method} {_quote(case.name)}")
        for value in case.inputs:
            lines += [f"in {name_dtype(value)} {value.numel()}", *_format_numbers(value)]
        for output, value in zip(spec.outputs, case.outputs, strict=True):
            bounds = contract.tolerance.bounds(output, name_dtype(value))
            bounds_text = " ".join(number.hex() for number in map(float, (bounds.rtol, bounds.atol, bounds.floor)))
            lines += [f"out {name_dtype(value)} {value.numel()} {bounds_text}", *_format_numbers(value)]
    return "\n".join([*lines, "end", ""]).encode()


def _quote(name: str) -> str:
    return urllib.parse.quote(name, safe="~/:")


def _format_numbers(value: torch.Tensor) -> Iterator[str]:
    values = value.detach().cpu().reshape(-1).tolist()
    texts = [v.hex() if isinstance(v, float) else str(int(v)) for v in values]
    for i in range(0, len(texts), _NUMBERS_PER_LINE):
        yield " ".join(texts[i : i + _NUMBERS_PER_LINE])


def parse_cases(data: bytes, contract: Contract, where: str) -> StoredNumbers:
    """Parse the text, and hold the counts of numbers against the contract. Raises ``ArchiveError``."""
    try:
        return _parse(data.decode(errors="replace").splitlines(), contract)
    except (ValueError, IndexError, KeyError, StopIteration, OverflowError) as error:
        raise ArchiveError("the cases cannot be read", where=where, got=summarize_error(error)) from None


def _parse(text: Sequence[str], contract: Contract) -> StoredNumbers:
    lines = iter(text)
    parameters: dict[str, Numbers] = {}
    cases: list[tuple[list[str], list[Numbers], list[Numbers]]] = []
    if next(lines) != HEAD:
        raise ValueError(f"the first line is not {HEAD!r}")
    while (words := next(lines).split(" "))[0] != "end":
        if words[0] == "case":
            cases.append((words, [], []))
            continue
        side, dtype, count = words[0], words[1], int(words[2])
        numbers: list[float | int] = []
        while len(numbers) < count:
            numbers += [float.fromhex(w) if "float" in dtype else int(w) for w in next(lines).split(" ")]
        if side == "parameter":
            parameters[urllib.parse.unquote(words[3])] = Numbers(dtype, tuple(numbers))
        elif side == "in":
            cases[-1][1].append(Numbers(dtype, tuple(numbers)))
        elif side == "out":
            bounds = Bounds(*map(float.fromhex, words[3:6]))
            cases[-1][2].append(Numbers(dtype, tuple(numbers), bounds))
        else:
            raise ValueError(f"a line begins with {side!r}")
    read = tuple(
        CaseNumbers(urllib.parse.unquote(head[3]), head[2], int(head[1]), tuple(inputs), tuple(outputs))
        for head, inputs, outputs in cases
    )
    for case in read:
        _check_counts(case, contract)
    return StoredNumbers(parameters, read)


def _check_counts(case: CaseNumbers, contract: Contract) -> None:
    method = contract.methods[case.method]
    rows = case.rows if contract.batch.ndim else 1
    specs = (*map(contract.input_spec, method.inputs), *map(contract.output_spec, method.outputs))
    variables = (*case.inputs, *case.outputs)
    if (len(case.inputs), len(case.outputs)) != (len(method.inputs), len(method.outputs)):
        raise ValueError(f"the case {case.name!r} has {len(case.inputs)} inputs and {len(case.outputs)} outputs")
    for spec, variable in zip(specs, variables, strict=True):
        count = rows * prod(spec.static_shape)
        if (len(variable.values), variable.dtype) != (count, spec.dtype):
            got = f"{len(variable.values)} numbers of {variable.dtype}"
            raise ValueError(f"the case {case.name!r} has {got} for {spec.name!r}, not {count} of {spec.dtype}")


def unpack_parameters(data: bytes, contract: Contract, where: str) -> dict[str, torch.Tensor]:
    """Read the parameters as tensors of the contract's shapes. Raises ``ArchiveError``."""
    stored = parse_cases(data, contract, where).parameters
    shapes = {p.name: p.shape for p in contract.parameters}
    try:
        return {name: _make_tensor(numbers, shapes[name]) for name, numbers in stored.items()}
    except (KeyError, RuntimeError, AttributeError, TypeError) as error:
        raise ArchiveError("the parameters cannot be read", where=where, got=summarize_error(error)) from None


def unpack_cases(data: bytes, contract: Contract, where: str) -> tuple[ReferenceCase, ...]:
    """Read the cases as tensors. Raises ``ArchiveError``."""
    tensors: dict[str, torch.Tensor] = {}
    try:
        for case in parse_cases(data, contract, where).cases:
            method = contract.methods[case.method]
            batch_shape = (case.rows,) if contract.batch.ndim else ()
            sides = {
                "in": (map(contract.input_spec, method.inputs), case.inputs),
                "out": (map(contract.output_spec, method.outputs), case.outputs),
            }
            for side, (specs, variables) in sides.items():
                for i, (spec, numbers) in enumerate(zip(specs, variables, strict=True)):
                    shape = (*batch_shape, *spec.static_shape)
                    tensors[f"{case.name}/{case.method}/{side}/{i}"] = _make_tensor(numbers, shape)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise ArchiveError("the cases cannot be read", where=where, got=summarize_error(error)) from None
    return cases_from_tensors(tensors, contract, where)


def _make_tensor(numbers: Numbers, shape: Sequence[int]) -> torch.Tensor:
    import torch

    return torch.tensor(numbers.values, dtype=getattr(torch, numbers.dtype)).reshape(tuple(shape))
