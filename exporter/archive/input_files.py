"""Files for ``--inputs FILE``: warmup inputs by variable name, from .pt, .npz or JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from exporter.archive.tensor_spec import FLOATING, TensorSpec, fits_shape, name_dtype
from exporter.common.errors import UsageError, suggest_names, summarize_error

InputValues = Mapping[str, Any]


def read_inputs(path: Path, option: str = "--inputs") -> InputValues:
    """Read values by name: tensors from ``.pt`` and ``.npz``, nested lists of numbers from JSON.

    ``option`` is where the user named the file."""
    if not path.is_file():
        what, expected = "the input file does not exist", "a .pt, .npz or .json file of values by variable name"
        raise UsageError(what, where=f"{option} {path}", got="no such file", expected=expected)
    if path.suffix not in (".pt", ".npz", ".json"):
        expected = ".pt (torch.save of a dict), .npz (numpy.savez) or .json"
        what = "the input file has an unknown format"
        raise UsageError(what, where=f"{option} {path}", got=repr(path.suffix), expected=expected)
    try:
        if path.suffix == ".npz":
            import numpy

            with numpy.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
                values: Any = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        elif path.suffix == ".json":
            values = json.loads(path.read_text())
        else:
            values = torch.load(path, weights_only=True)
    except ImportError as error:
        raise UsageError("numpy is needed to read .npz files", got=str(error), mend="pip install numpy") from None
    except Exception as error:
        what = "the input file cannot be read"
        expected = "a dict of tensors, arrays or nested lists by variable name"
        raise UsageError(what, where=f"{option} {path}", got=summarize_error(error), expected=expected) from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        what = "the input file does not contain a dict by variable name"
        mend = "save {name: value} for each input of the model"
        raise UsageError(what, where=f"{option} {path}", got=type(values).__name__, mend=mend)
    return values


def order_inputs(inputs: InputValues, names: Sequence[str], mend: str = "") -> dict[str, Any]:
    """Return ``inputs`` in the order of ``names``; raise ``UsageError`` for missing and extra ones."""
    missing = [name for name in names if name not in inputs]
    extra = [name for name in inputs if name not in names]
    if missing or extra:
        sides = (("missing", missing), ("not an input", extra))
        got = "; ".join(f"{side}: {', '.join(map(repr, listed))}" for side, listed in sides if listed)
        expected = suggest_names(extra[0], names) if extra else f"all of {', '.join(map(repr, names))}"
        raise UsageError("the inputs do not match those of the model", got=got, expected=expected, mend=mend)
    return {name: inputs[name] for name in names}


def to_tensor(name: str, value: Any, dtype: str) -> torch.Tensor:
    """Convert an input to a tensor of ``dtype``. Raises ``UsageError`` if that would change its class of dtype."""
    target_dtype: torch.dtype = getattr(torch, dtype)
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            expected = "a dense tensor: exported models accept strided memory only"
            mend = "pass value.to_dense(), or its indices and values as separate inputs"
            raise UsageError(f"input {name!r} is a sparse tensor", got=str(value.layout), expected=expected, mend=mend)
        tensor = value.detach().cpu()
    else:
        # JSON has one number type: 1 is a valid float, like 1.0
        try:
            tensor = torch.tensor(value, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            what, expected = f"input {name!r} is not an array of numbers", "numbers, in lists of one length each"
            raise UsageError(what, got=summarize_error(error), expected=expected) from None
        if not target_dtype.is_floating_point and not target_dtype.is_complex:
            rounded = tensor.to(target_dtype)
            if not torch.equal(rounded.to(torch.float64), tensor):
                what, expected = f"input {name!r} has numbers that {dtype} cannot hold", f"values of {dtype}"
                raise UsageError(what, got=str(value)[:80], expected=expected)
        return tensor.to(target_dtype)
    dtype_classes = [(t.is_floating_point, t.is_complex) for t in (tensor.dtype, target_dtype)]
    if dtype_classes[0] != dtype_classes[1] or (dtype not in FLOATING and tensor.dtype != target_dtype):
        what = f"input {name!r} has the wrong dtype"
        got = name_dtype(tensor)
        raise UsageError(what, got=got, expected=dtype, mend=f"convert it: value.to(torch.{dtype})")
    return tensor.to(target_dtype)


def align_inputs(inputs: InputValues, specs: Sequence[TensorSpec], batch_ndim: int) -> tuple[torch.Tensor, ...]:
    """Convert input values to one call: ``batch_ndim`` equal leading dimensions, then each variable's event shape.

    A value without a batch is repeated over the batch of the others."""
    values = order_inputs(inputs, [spec.name for spec in specs])
    tensors = [to_tensor(spec.name, values[spec.name], spec.dtype) for spec in specs]
    batch_sizes: dict[str, int] = {}
    dynamic_sizes: dict[str, int] = {}
    for spec, tensor in zip(specs, tensors, strict=True):
        event_ndim = len(spec.shape)
        batch_shape = tuple(tensor.shape[: tensor.ndim - event_ndim]) if tensor.ndim >= event_ndim else None
        fits = batch_shape is not None and fits_shape(tensor.shape[len(batch_shape) :], spec.shape, dynamic_sizes)
        if not fits or len(batch_shape or ()) > batch_ndim:
            raise UsageError(
                f"input {spec.name!r} has the wrong shape",
                got=str(list(tensor.shape)),
                expected=str(["batch"] * batch_ndim + list(spec.shape)).replace("'", "")
                + (f" or {list(spec.shape)}" if batch_ndim else "")
                + "".join(f", {name} = {size}" for name, size in dynamic_sizes.items()),
            )
        if batch_shape:
            batch_sizes[spec.name] = batch_shape[0]
    if not batch_ndim:
        return tuple(tensors)
    wide = {size for size in batch_sizes.values() if size != 1}
    if len(wide) > 1:
        got = ", ".join(f"{name!r}: {size}" for name, size in batch_sizes.items())
        raise UsageError("the inputs have different batch sizes", got=got, expected="one batch size for all (or 1)")
    size = wide.pop() if wide else 1
    return tuple(t.expand(size, *spec.static_shape).clone() for t, spec in zip(tensors, specs, strict=True))
