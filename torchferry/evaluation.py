"""Evaluation over data sets, as Python's users call it: lazily as xarray datasets, or into a file."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from exporter.archive.identity_signature import Identity, make_signer
from exporter.common.errors import RunError, UsageError
from exporter.common.optional_packages import import_package
from exporter.common.schedulers import DASK, MPI, open_pools
from runtime_checks.evaluation.binding import STATUS, bind
from runtime_checks.evaluation.chunk_evaluation import DataRequest
from runtime_checks.evaluation.chunks import plan_grid
from runtime_checks.evaluation.data_set import EXTRA, check_whole_numbers
from runtime_checks.evaluation.evaluation import Evaluated, Evaluation, Progress
from runtime_checks.evaluation.evaluator import Evaluator, FileRequest
from runtime_checks.evaluation.xarray_data import XarrayData
from torchferry.options import choose_jobs

if TYPE_CHECKING:
    import xarray


def evaluate(
    path: str | Path,
    data: xarray.Dataset,
    *,
    method: str = "forward",
    engine: str = "torchscript",
    names: Mapping[str, str] | None = None,
    trust: str = "graphs",
    public_key: str | Path | Identity | None = None,
) -> xarray.Dataset:
    """Evaluate a method of a file over a dataset, lazily: numbers are computed when they are asked for, by Dask.

    Args:
        path: An archive, a package, an ONNX container, or a kernel's folder.
        data: The inputs by name. The dimensions of an input's own come last; all others are those of elements, and
            are broadcast by name. A dataset without Dask's arrays is cut into chunks here. Units are compared where
            the file and an attribute ``units`` say them.
        method: The method: ``"forward"``, ``"jacobian"`` and so on.
        engine: What runs an archive, as in ``load``: ``"torchscript"``, ``"kernel"``, ``"pt2"`` or
            ``"interpreter"``.
        names: The variable of an input, where the dataset has another name for it.
        trust: As in ``load``.
        public_key: As in ``load``.

    Returns:
        A dataset of the outputs, with the dimensions and coordinates of the elements, and the variable ``status``: 0
        for an element that has numbers, -1 where it has none, what ``newton_info`` says where a solver has failed. Its
        attribute ``unchecked_units`` names the inputs whose units the dataset does not say.

    Raises:
        UsageError: A name, a shape, a dtype or a unit does not fit.
        ArchiveError: The file is damaged.
        MissingRuntimeError: xarray or Dask is missing.

    Example:
        ```python
        stresses = torchferry.evaluate("return_map.pt", xarray.open_zarr("strains.zarr"))
        stresses.stress.mean("point").compute()
        ```
    """
    xarray_package = import_package("xarray", "evaluate", EXTRA)
    import_package("dask.array", "evaluate", DASK)
    key = make_signer(public_key)
    request = FileRequest(Path(path).absolute(), method, engine, trust, key.absolute() if key is not None else None)
    evaluator = Evaluator(request)
    binding = bind(evaluator.contract, method, XarrayData(data, "the dataset"), names or {}, {})
    variables = [data[bound.variable.name] for bound in binding.inputs if bound.variable is not None]
    if not any(variable.chunks for variable in variables):
        grid = plan_grid(binding.sizes, binding.stored, binding.element_bytes)
        steps = dict(zip(grid.dims, grid.chunk_sizes, strict=True))
        variables = [v.chunk({dim: steps[str(dim)] for dim in v.dims if dim in steps}) for v in variables]
    variables = [
        variable.chunk(dict.fromkeys(bound.dims[len(bound.batch_dims) :], -1))
        for variable, bound in zip(variables, binding.inputs, strict=True)
    ]
    block = _BlockEvaluator(request, evaluator.contract.graph, tuple(len(b.spec.shape) for b in binding.inputs))
    results = xarray_package.apply_ufunc(
        block,
        *variables,
        input_core_dims=[list(bound.dims[len(bound.batch_dims) :]) for bound in binding.inputs],
        output_core_dims=[*(list(output.dims) for output in binding.outputs), []],
        output_dtypes=[*(output.dtype for output in binding.outputs), "int8"],
        dask="parallelized",
        dask_gufunc_kwargs={
            "output_sizes": {d: n for o in binding.outputs for d, n in zip(o.dims, o.shape, strict=True)}
        },
    )
    # xarray gives them those of an input.
    for values, attributes in zip(results, [*(output.attributes for output in binding.outputs), ()], strict=True):
        values.attrs = dict(attributes)
    named = dict(zip([*(output.name for output in binding.outputs), STATUS], results, strict=True))
    unchecked = binding.unchecked_units
    return xarray_package.Dataset(named, attrs={"unchecked_units": ", ".join(unchecked)} if unchecked else {})


def evaluate_to_file(
    path: str | Path,
    data: str | Path | None,
    output: str | Path,
    *,
    method: str = "forward",
    engine: str = "torchscript",
    names: Mapping[str, str] | None = None,
    vary: Mapping[str, Sequence[float]] | None = None,
    keep: Sequence[str] = (),
    chunk: int | None = None,
    scheduler: str = "threads",
    failures: str | Path | None = None,
    trust: str = "graphs",
    public_key: str | Path | Identity | None = None,
    watch: Callable[[Progress], Any] = lambda progress: None,
) -> Evaluated:
    """Evaluate a method of a file over a data set into another one, as ``torchferry evaluate`` does.

    After an end of any kind the same call goes on where it was.

    Args:
        path: An archive, a package, an ONNX container, or a kernel's folder.
        data: A store of Zarr, a file of NetCDF, or tables of Parquet; None if all inputs are varied.
        output: The results: a path that ends in ``.zarr``, ``.nc`` or ``.parquet``.
        method: The method: ``"forward"``, ``"jacobian"`` and so on.
        engine: What runs an archive, as in ``load``: ``"torchscript"``, ``"kernel"``, ``"pt2"`` or
            ``"interpreter"``.
        names: The variable of an input, where the data set has another name for it.
        vary: Values of inputs and parameters of one number, each combined with all elements.
        keep: Variables that go to the results too; coordinates do anyway.
        chunk: At most so many elements are evaluated at once by a worker; by default about 64 MiB of numbers.
        scheduler: Who evaluates: ``"threads"``, ``"processes"``, ``"threads:4"``, ``"tcp://..."``, ``"slurm:16"``.
        failures: Where the inputs of the first elements that fail go, for ``torchferry run --replay``.
        trust: As in ``load``.
        public_key: As in ``load``.
        watch: Called with how far it is.

    Returns:
        The path, the numbers of chunks, and the summary: extents of all variables, statuses.

    Raises:
        UsageError: The data do not fit, the output is there, or an option is wrong.
        OutputError: The results cannot be written; finished chunks are kept.
        RunError: The file fails on a chunk.
        MissingRuntimeError: A package is missing.

    Example:
        ```python
        result = torchferry.evaluate_to_file("return_map.pt", "strains.zarr", "stresses.zarr")
        print(result.summary.outputs["stress"].high)
        ```
    """
    key = make_signer(public_key)
    studies = tuple((name, tuple(map(float, values))) for name, values in (vary or {}).items())
    request = DataRequest(
        Path(data) if data is not None else None, tuple((names or {}).items()), studies, tuple(keep), chunk
    )
    if scheduler == MPI:
        what, mend = "processes of MPI run a command", "mpirun -n N torchferry evaluate ... --scheduler mpi"
        raise UsageError(what, where="scheduler", got=scheduler, expected="another scheduler", mend=mend)
    before = torch.get_num_threads()
    try:
        evaluation = Evaluation(FileRequest(Path(path), method, engine, trust, key), request, Path(output))
        with open_pools(scheduler, choose_jobs(None)) as make_pool:
            assert make_pool is not None
            return evaluation.run(make_pool, failures=Path(failures) if failures is not None else None, watch=watch)
    finally:
        torch.set_num_threads(before)


_LOCAL = threading.local()


@dataclass(frozen=True)
class _BlockEvaluator:
    """A function of arrays whose leading dimensions broadcast, for whatever process Dask has: it loads the file once.

    ``graph`` is that of the file when the dataset was made; ``ranks`` are the inputs' own numbers of dimensions."""

    request: FileRequest
    graph: str
    ranks: tuple[int, ...]

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        import numpy

        evaluator = self._load()
        shape = numpy.broadcast_shapes(*(a.shape[: a.ndim - r] for a, r in zip(arrays, self.ranks, strict=True)))
        contract = evaluator.contract
        specs = [contract.input_spec(name) for name in contract.methods[self.request.method].inputs]
        for value, spec in zip(arrays, specs, strict=True):
            check_whole_numbers(value, spec.name, spec.dtype, str(self.request.path))
        flat = [
            _make_dense(value, shape, rank, spec.dtype)
            for value, rank, spec in zip(arrays, self.ranks, specs, strict=True)
        ]
        # Dask computes as many blocks at once as there are cores.
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            outputs, statuses, _ = evaluator.evaluate(flat)
        finally:
            torch.set_num_threads(before)
        return (*(value.reshape((*shape, *value.shape[1:])) for value in outputs), statuses.reshape(shape))

    def _load(self) -> Evaluator:
        """Load the file in this thread, once. Raises ``RunError`` if it is another one now."""
        if getattr(_LOCAL, "block", None) != self:
            evaluator = Evaluator(self.request)
            if evaluator.contract.graph != self.graph:
                what, mend = "the file is another one than when the dataset was made", "call evaluate again"
                raise RunError(what, where=str(self.request.path), expected=f"graphs {self.graph}", mend=mend)
            _LOCAL.block, _LOCAL.evaluator = self, evaluator
        return _LOCAL.evaluator


def _make_dense(value: Any, batch: tuple[int, ...], rank: int, dtype: str) -> Any:
    """Return values whose leading dimensions broadcast to ``batch``, and that have ``rank`` of their own, as a dense
    array ``(elements, *event)``."""
    import numpy

    event = value.shape[value.ndim - rank :]
    wide = numpy.broadcast_to(value, (*batch, *event)).reshape(math.prod(batch), *event)
    return numpy.require(wide, dtype, ["C", "A", "W"])
