"""``--inputs FILE``: warmup inputs by variable name, from .pt, .npz or JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from exporter.archive.tensor_spec import FLOATING, TensorSpec, fits_shape
from exporter.common.errors import UsageError, first_line, near

Given = Mapping[str, Any]


def read_inputs(path: Path) -> Given:
    """Values by name: tensors from ``.pt`` and ``.npz``, nested lists of numbers from JSON."""
    if not path.is_file():
        raise UsageError("there is no file of inputs", where=f"--inputs {path}", got="no such file")
    try:
        if path.suffix == ".npz":
            import numpy

            with numpy.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
                values: Any = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        elif path.suffix == ".json":
            values = json.loads(path.read_text())
        elif path.suffix == ".pt":
            values = torch.load(path, weights_only=True)
        else:
            raise UsageError(
                "the file of inputs is of an unknown kind",
                where=f"--inputs {path}",
                got=repr(path.suffix),
                expected=".pt (torch.save of a dict), .npz (numpy.savez) or .json",
            )
    except UsageError:
        raise
    except ImportError as error:
        raise UsageError("numpy is needed to read .npz files", got=str(error), mend="pip install numpy") from None
    except Exception as error:
        raise UsageError(
            "the file of inputs cannot be read",
            where=f"--inputs {path}",
            got=first_line(error),
            expected="a dict of tensors, arrays or nested lists by variable name",
        ) from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise UsageError(
            "the file of inputs holds no dict by variable name",
            where=f"--inputs {path}",
            got=type(values).__name__,
        )
    return values


def ordered(given: Given, names: Sequence[str]) -> dict[str, Any]:
    """``given`` in the order of ``names``; raises ``UsageError`` for missing and extra ones."""
    missing = [name for name in names if name not in given]
    extra = [name for name in given if name not in names]
    if missing or extra:
        raise UsageError(
            "the given inputs are not those of the model",
            got="; ".join(
                text
                for text in (
                    "missing: " + ", ".join(map(repr, missing)) if missing else "",
                    "not an input: " + ", ".join(map(repr, extra)) if extra else "",
                )
                if text
            ),
            expected=near(extra[0], names) if extra else f"all of {', '.join(map(repr, names))}",
        )
    return {name: given[name] for name in names}


def as_tensor(name: str, value: Any, dtype: str) -> torch.Tensor:
    """One given value as a tensor of ``dtype``. Raises ``UsageError`` where that would change its kind."""
    wanted: torch.dtype = getattr(torch, dtype)
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise UsageError(
                f"input {name!r} is a sparse tensor",
                got=str(value.layout),
                expected="a dense tensor: a file takes memory with strides",
                mend="give value.to_dense(), or its indices and values as inputs of their own",
            )
        tensor = value.detach().cpu()
    else:
        # JSON has one kind of number: 1 is as good a float as 1.0
        try:
            tensor = torch.tensor(value, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"input {name!r} is not an array of numbers", got=first_line(error)) from None
        if not wanted.is_floating_point and not wanted.is_complex:
            whole = tensor.to(wanted)
            if not torch.equal(whole.to(torch.float64), tensor):
                raise UsageError(f"input {name!r} has numbers that {dtype} cannot hold", got=str(value)[:80])
        return tensor.to(wanted)
    kinds = [(t.is_floating_point, t.is_complex) for t in (tensor.dtype, wanted)]
    if kinds[0] != kinds[1] or (dtype not in FLOATING and tensor.dtype != wanted):
        raise UsageError(
            f"input {name!r} is of the wrong kind",
            got=str(tensor.dtype).removeprefix("torch."),
            expected=dtype,
            mend=f"convert it: value.to(torch.{dtype})",
        )
    return tensor.to(wanted)


def match_shapes(given: Given, specs: Sequence[TensorSpec], batch_ndim: int) -> tuple[torch.Tensor, ...]:
    """Given values as one call: ``batch_ndim`` equal leading dimensions, then each variable's own shape.

    A value without a batch is repeated over the others' batch.
    """
    values = ordered(given, [spec.name for spec in specs])
    tensors = [as_tensor(spec.name, values[spec.name], spec.dtype) for spec in specs]
    sizes: dict[str, int] = {}
    known: dict[str, int] = {}
    for spec, tensor in zip(specs, tensors, strict=True):
        own = len(spec.shape)
        lead = tuple(tensor.shape[: tensor.ndim - own]) if tensor.ndim >= own else None
        fits = lead is not None and fits_shape(tensor.shape[len(lead) :], spec.shape, known)
        if not fits or len(lead or ()) > batch_ndim:
            raise UsageError(
                f"input {spec.name!r} has the wrong shape",
                got=str(list(tensor.shape)),
                expected=str(["batch"] * batch_ndim + list(spec.shape)).replace("'", "")
                + (f" or {list(spec.shape)}" if batch_ndim else "")
                + "".join(f", {name} = {size}" for name, size in known.items()),
            )
        if lead:
            sizes[spec.name] = lead[0]
    if not batch_ndim:
        return tuple(tensors)
    wide = {size for size in sizes.values() if size != 1}
    if len(wide) > 1:
        raise UsageError(
            "the given inputs have different batch sizes",
            got=", ".join(f"{name!r}: {size}" for name, size in sizes.items()),
            expected="one batch size for all (or 1)",
        )
    size = wide.pop() if wide else 1
    return tuple(t.expand(size, *spec.fixed).clone() for t, spec in zip(tensors, specs, strict=True))
