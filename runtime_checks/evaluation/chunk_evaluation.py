"""The evaluation of one chunk, in whatever process it runs: its inputs are read, its outputs written and digested."""

from __future__ import annotations

import dataclasses
import importlib.util
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from exporter import __version__
from exporter.common.errors import OutputError, RunError, TorchferryError, UsageError, summarize_error
from exporter.common.result_log import digest_files
from runtime_checks.evaluation.binding import STATUS, Binding, BoundInput, bind
from runtime_checks.evaluation.chunks import Chunk, Grid, find_number, find_place, plan_grid
from runtime_checks.evaluation.data_set import UNITS, DataSet, check_whole_numbers
from runtime_checks.evaluation.data_sets import open_data_set
from runtime_checks.evaluation.evaluator import Evaluator, FileRequest
from runtime_checks.evaluation.result_stores import Layout, ResultStore, StoredVariable, make_store, select_variables
from runtime_checks.evaluation.summaries import Summary

if TYPE_CHECKING:
    import numpy


@dataclass(frozen=True)
class DataRequest:
    """What a method is evaluated over.

    Attributes:
        path: The data set, if there is one.
        names: Pairs of an input and the variable that it is called there.
        studies: Pairs of an input or a parameter, and the values that are combined with all elements.
        keep: Variables that go to the result too.
        elements: At most so many elements has a chunk; by default it is chosen.
    """

    path: Path | None = None
    names: tuple[tuple[str, str], ...] = ()
    studies: tuple[tuple[str, tuple[float, ...]], ...] = ()
    keep: tuple[str, ...] = ()
    elements: int | None = None


@dataclass(frozen=True)
class Job:
    """An evaluation as each process gets it: the file, the data, a ``folder`` for results of a kind of ``suffix``.

    ``file_digest`` is that of the file, which each process holds its file against; ``data_digest`` tells states of the
    data apart for processes that live on."""

    file: FileRequest
    data: DataRequest
    folder: Path
    suffix: str
    file_digest: str
    data_digest: str


@dataclass(frozen=True)
class ChunkRecord:
    """What is known of a chunk that was written: a digest of each variable, and the summary."""

    index: int
    digests: Mapping[str, int]
    summary: Summary


class OpenJob:
    """A job whose file and data are open. Threads that compute each have one."""

    def __init__(self, job: Job) -> None:
        """Open the file and the data, and bind them.

        Raises ``RunError`` if the file is another one than when the evaluation was planned, and the errors of
        ``Evaluator``, ``bind`` and ``make_store``."""
        import numpy

        self.job = job
        if digest_files([], [job.file.path]) != job.file_digest:
            what, mend = "the file is another one than when the evaluation began", "give the command again"
            raise RunError(what, where=str(job.file.path), expected=f"sha256 {job.file_digest}", mend=mend)
        self.evaluator = Evaluator(job.file)
        self.data: DataSet | None = open_data_set(job.data.path) if job.data.path is not None else None
        studies = {name: numpy.array(values, dtype=numpy.float64) for name, values in job.data.studies}
        self.binding = bind(
            self.evaluator.contract, job.file.method, self.data, dict(job.data.names), studies, job.data.keep
        )
        self.grid = _plan(self.binding, self.evaluator, job.data.elements)
        # What is said of the results does not depend on who evaluates them.
        contract, file = self.evaluator.contract, job.file
        source = f"torchferry {__version__}: {file.method} of {file.path.name}, graphs {contract.graph}"
        self.layout = _lay_out(self.binding, self.grid, (("title", contract.name), ("source", source)))
        self.store: ResultStore = make_store(job.suffix, job.folder, self.layout)

    def evaluate(self, chunk: Chunk) -> ChunkRecord:
        """Evaluate a chunk and write it. Raises ``TorchferryError``, with the chunk."""
        import numpy

        inputs = [self.read_input(bound, chunk) for bound in self.binding.inputs]
        for name, values in self.binding.parameters.items():
            self.evaluator.set_parameter(name, float(values[chunk.slices[name].start]))
        try:
            outputs, statuses, summary = self.evaluator.evaluate(inputs)
        except TorchferryError as error:
            raise RunError(error.what, where=chunk.describe(), **_without_place(error)) from None
        except Exception as error:
            # Torch's own of an archive is none that others have.
            what = "the file fails on these elements"
            raise RunError(what, where=chunk.describe(), got=summarize_error(error)) from error
        variables = {v.name: v for v in self.layout.variables}
        arrays = {
            output.name: value.reshape((*chunk.shape, *output.shape))
            for output, value in zip(self.binding.outputs, outputs, strict=True)
        }
        arrays[STATUS] = statuses.reshape(chunk.shape)
        for kept in self.binding.kept:
            assert self.data is not None
            value = self.data.read(kept, chunk.select(kept.dims))
            order = [kept.dims.index(dim) for dim in variables[kept.name].dims]
            arrays[kept.name] = numpy.asarray(value.transpose(order), dtype=kept.dtype)
        for name, values in list_studies(self.binding).items():
            arrays[name] = values[chunk.slices[name]]
        try:
            self.store.write(chunk, arrays)
        except OSError as error:
            raise make_results_error(self.job.folder, error) from None
        digests = digest_arrays({v.name: arrays[v.name] for v in select_variables(self.layout, chunk)})
        return ChunkRecord(chunk.index, digests, self._place_failures(summary, chunk))

    def is_written(self, chunk: Chunk, record: ChunkRecord) -> bool:
        """Return whether a chunk still is as it was written."""
        try:
            arrays = self.store.read(chunk)
        except Exception:
            # Whatever is wrong with it: it is written again.
            return False
        names = [v.name for v in select_variables(self.layout, chunk)]
        return digest_arrays({name: arrays[name] for name in names}) == record.digests

    def read_input(self, bound: BoundInput, chunk: Chunk) -> numpy.ndarray:
        """Read an input as an array ``(elements, *event)`` of its dtype."""
        import numpy

        if bound.variable is None:
            assert bound.values is not None
            value = bound.values[chunk.slices[bound.dims[0]]]
        else:
            assert self.data is not None
            value = self.data.read(bound.variable, chunk.select(bound.dims))
            check_whole_numbers(value, bound.variable.name, bound.spec.dtype, f"{self.data.where}, {chunk.describe()}")
        return numpy.require(chunk.spread(value, bound.batch_dims), bound.spec.dtype, ["C", "A", "W"])

    def _place_failures(self, summary: Summary, chunk: Chunk) -> Summary:
        """Give failed elements their numbers among all."""
        places = (
            [p + a for p, a in zip(find_place(n, chunk.shape), chunk.start, strict=True)] for n in summary.failures
        )
        return dataclasses.replace(summary, failures=tuple(find_number(place, self.grid.sizes) for place in places))


def evaluate_chunk(task: tuple[int, ChunkRecord | None], job: Job) -> tuple[ChunkRecord, bool]:
    """Evaluate a chunk, unless its record says that it is written, and it still is; a task of a pool.

    Args:
        task: The number of the chunk, and its record if there is one.
        job: The evaluation.

    Returns:
        The record of the chunk, and whether it was evaluated now.
    """
    index, record = task
    opened = open_job(job)
    chunk = opened.grid.chunk(index)
    if record is not None and opened.is_written(chunk, record):
        return record, False
    return opened.evaluate(chunk), True


_LOCAL = threading.local()
_OPENING = threading.Lock()


def open_job(job: Job) -> OpenJob:
    """Open a job in this thread, once."""
    opened: OpenJob | None = getattr(_LOCAL, "opened", None)
    if opened is None or opened.job != job:
        use_one_thread()
        # Torch reads programs into globals of its own.
        with _OPENING:
            opened = _LOCAL.opened = OpenJob(job)
    return opened


def close_job() -> None:
    """Close what is open in this thread: files of data may then be written again."""
    opened: OpenJob | None = getattr(_LOCAL, "opened", None)
    if opened is not None and opened.data is not None:
        opened.data.close()
    _LOCAL.opened = None


def use_one_thread() -> None:
    """Let torch and codecs compute in this thread alone: as many chunks are computed at once as there are cores."""
    torch.set_num_threads(1)
    if importlib.util.find_spec("numcodecs") is not None:
        blosc: Any = importlib.import_module("numcodecs.blosc")
        blosc.use_threads = False


def digest_arrays(arrays: Mapping[str, numpy.ndarray]) -> dict[str, int]:
    """Return the CRC-32 of each array's bytes."""
    import numpy

    return {name: zlib.crc32(numpy.ascontiguousarray(value).data) for name, value in arrays.items()}


def read_elements(opened: OpenJob, numbers: Sequence[int]) -> dict[str, torch.Tensor]:
    """Read the inputs of some elements, by their numbers; each chunk is read once."""
    import numpy

    rows: dict[str, list[numpy.ndarray]] = {bound.spec.name: [] for bound in opened.binding.inputs}
    last, arrays = None, {}
    for number in sorted(numbers):
        place = find_place(number, opened.grid.sizes)
        chunk = opened.grid.find_chunk(place)
        if chunk != last:
            arrays = {bound.spec.name: opened.read_input(bound, chunk) for bound in opened.binding.inputs}
            last = chunk
        row = find_number([p - a for p, a in zip(place, chunk.start, strict=True)], chunk.shape)
        for name, value in arrays.items():
            rows[name].append(value[row])
    return {name: torch.from_numpy(numpy.stack(values)) for name, values in rows.items()}


def read_parameters(opened: OpenJob, numbers: Sequence[int]) -> dict[str, torch.Tensor]:
    """Return the values of varied parameters of some elements, each of its own shape."""
    specs = {spec.name: spec for spec in opened.evaluator.contract.parameters}
    places = [find_place(number, opened.grid.sizes) for number in sorted(numbers)]
    values = {}
    for name, all_values in opened.binding.parameters.items():
        axis, spec = opened.grid.dims.index(name), specs[name]
        own = torch.from_numpy(all_values[[place[axis] for place in places]]).to(getattr(torch, spec.dtype))
        values[name] = own.reshape(-1, *spec.shape)
    return values


def make_results_error(folder: Path, error: OSError) -> OutputError:
    """Return the error for results that cannot be written."""
    what, got = "the results cannot be written", error.strerror or str(error)
    mend = "free disk space, and give the same command again: finished chunks are kept"
    return OutputError(what, where=str(folder), got=got, expected="a writable folder, with free space", mend=mend)


def _plan(binding: Binding, evaluator: Evaluator, elements: int | None) -> Grid:
    if elements is not None and elements < 1:
        raise UsageError("a chunk has elements", where="--chunk", got=str(elements), expected="1 or more")
    return plan_grid(binding.sizes, binding.stored, binding.element_bytes, tuple(binding.parameters), elements)


def _lay_out(binding: Binding, grid: Grid, attributes: tuple[tuple[str, str], ...]) -> Layout:
    """Lay out the results: what says where elements are, the outputs, and the status of each element."""
    sizes = dict(zip(grid.dims, grid.sizes, strict=True))
    variables = []
    for name, values in list_studies(binding).items():
        unit = ((UNITS, binding.study_units[name]),) if name in binding.study_units else ()
        variables.append(StoredVariable(name, (name,), values.shape, str(values.dtype), unit))
    for kept in binding.kept:
        dims = tuple(dim for dim in grid.dims if dim in kept.dims)
        shape = tuple(sizes[dim] for dim in dims)
        variables.append(StoredVariable(kept.name, dims, shape, kept.dtype, kept.attributes))
    for output in binding.outputs:
        shape = (*grid.sizes, *output.shape)
        dims = (*grid.dims, *output.dims)
        variables.append(StoredVariable(output.name, dims, shape, output.dtype, output.attributes))
    meaning = (("long_name", "0: converged, -1: no number, others as newton_info says"),)
    variables.append(StoredVariable(STATUS, grid.dims, grid.sizes, "int8", meaning))
    return Layout(grid, tuple(variables), attributes)


def list_studies(binding: Binding) -> dict[str, numpy.ndarray]:
    """Return the values of what is varied, parameters first."""
    inputs = {bound.dims[0]: bound.values for bound in binding.inputs if bound.values is not None}
    return {**binding.parameters, **inputs}


def _without_place(error: TorchferryError) -> dict[str, str]:
    return {key: value for key, value in error.details.items() if key != "where"}
