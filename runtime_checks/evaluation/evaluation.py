"""The evaluation of a file over a data set: all chunks by some workers, resumed where it was cut off.

Results grow in a folder beside the output, ``OUTPUT.unfinished``, with a line for each chunk that is written. They go
to their place when all are."""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from exporter import __version__
from exporter.common import task_pools
from exporter.common.atomic_files import check_output_path
from exporter.common.errors import OutputError, RunError, UsageError
from exporter.common.result_log import ResultLog, digest_files, read_digest
from exporter.common.schedulers import MakePool
from runtime_checks.evaluation.chunk_evaluation import (
    ChunkRecord,
    DataRequest,
    Job,
    OpenJob,
    close_job,
    evaluate_chunk,
    list_studies,
    make_results_error,
    open_job,
    read_elements,
    read_parameters,
)
from runtime_checks.evaluation.data_sets import digest_data
from runtime_checks.evaluation.evaluator import FileRequest
from runtime_checks.evaluation.summaries import Summary
from runtime_checks.failure_replay import Failures, write_failures

UNFINISHED, LOG, STORE, LOCK = ".unfinished", "chunks.jsonl", "store", "lock"
# How often a chunk is tried again alone whose worker has died.
TRIES = 2
_RECORDS = TypeAdapter(ChunkRecord)


@dataclass(frozen=True)
class Evaluated:
    """The result of an evaluation: the path, how many chunks were evaluated now and how many were kept, the summary,
    and the inputs whose units were not compared, since the data say none."""

    path: Path
    evaluated: int
    kept: int
    summary: Summary
    unchecked_units: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        chunks = {"evaluated": self.evaluated, "kept": self.kept}
        report = {"path": str(self.path), "chunks": chunks, "summary": self.summary.as_dict()}
        return report | ({"unchecked_units": list(self.unchecked_units)} if self.unchecked_units else {})


@dataclass(frozen=True)
class Progress:
    """How far an evaluation is: chunks that are ``done`` of a ``total``, of which some were ``kept``."""

    done: int
    total: int
    kept: int
    stage: str = "evaluate"


class Evaluation:
    """An evaluation that was planned: names, shapes and dtypes fit, and nothing has run yet.

    Attributes:
        output: Where the results go.
        chunks: The number of chunks.
        elements: The number of elements.
        finished: The number of chunks that are written.
        studied: What is varied, by its names in the results.
        shapes: The own shapes of outputs and of what is varied, by name.
    """

    def __init__(self, file: FileRequest, data: DataRequest, output: Path) -> None:
        """Plan an evaluation.

        Raises:
            UsageError: The data do not fit the file, or the output is there already.
            ArchiveError: The file is damaged.
            MissingRuntimeError: A package is missing.
        """
        # Workers may be elsewhere, in other folders.
        key = file.public_key.absolute() if file.public_key is not None else None
        file = dataclasses.replace(file, path=file.path.absolute(), public_key=key)
        data = dataclasses.replace(data, path=data.path.absolute()) if data.path is not None else data
        output = self.output = output.absolute()
        self._folder = output.with_name(output.name + UNFINISHED)
        self._check_output()
        file_digest = digest_files([], [file.path])
        data_digest = digest_data(data.path) if data.path is not None else ""
        self._job = Job(file, data, self._folder / STORE, output.suffix, file_digest, data_digest)
        self._opened: OpenJob = open_job(self._job)
        self.chunks, self.elements = len(self._opened.grid), self._opened.grid.elements
        self.finished = 0
        self.studied = tuple(list_studies(self._opened.binding))
        self.shapes = {output.name: output.shape for output in self._opened.binding.outputs}
        self.shapes |= dict.fromkeys(self.studied, ())

    def run(
        self,
        make_pool: MakePool,
        *,
        failures: Path | None = None,
        watch: Callable[[Progress], Any] = lambda progress: None,
    ) -> Evaluated:
        """Evaluate all chunks.

        Args:
            make_pool: Makes a pool of workers.
            failures: Where the inputs of the first elements that fail go, for ``torchferry run --replay``.
            watch: Called with how far it is.

        Returns:
            What was evaluated.

        Raises:
            UsageError: The folder of results is of another evaluation, or another process is at it.
            OutputError: Results cannot be written; finished chunks are kept.
            RunError: The file fails on a chunk, or the worker of a chunk has died again and again.
        """
        if failures is not None:
            self._check_failures(failures)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self._folder / LOCK, timeout=0):
                result = self._run(make_pool, failures, watch)
                shutil.rmtree(self._folder, ignore_errors=True)
        except Timeout:
            what, mend = "another process is at this evaluation", "wait for it, or name another output"
            raise UsageError(what, where=str(self._folder), expected="one process", mend=mend) from None
        except OSError as error:
            raise make_results_error(self._folder, error) from None
        finally:
            close_job()
        return result

    def _check_output(self) -> None:
        """Raise ``OutputError`` if the output is there."""
        if self.output.exists() or self.output.is_symlink():
            what, mend = "the output is there already", "remove it, or name another one with -o"
            raise OutputError(what, where=str(self.output), expected="the name of a new file or folder", mend=mend)

    def _check_failures(self, path: Path) -> None:
        """Raise ``OutputError`` if failures cannot go to a path, or would replace what is read."""
        check_output_path(path)
        inputs = (self._job.file.path, self._job.data.path, self.output)
        if any(other is not None and path.resolve() == other.resolve() for other in inputs):
            what, mend = "the failures would replace a file of this evaluation", "name another file"
            raise OutputError(what, where=f"--failures {path}", expected="a file of its own", mend=mend)

    def _run(self, make_pool: MakePool, failures: Path | None, watch: Callable[[Progress], Any]) -> Evaluated:
        log = self._open_log()
        known = {record.index: record for record in self._read_records(log)}
        if known and self._job.folder.exists():
            self._opened.store.resume()
        else:
            known = {}
            self._opened.store.create()
        records: dict[int, ChunkRecord] = {}
        kept = 0
        for record, is_new in self._evaluate_all(make_pool, known):
            records[record.index] = record
            kept += not is_new
            if is_new:
                log.add(_RECORDS.dump_python(record, mode="json"))
            self.finished = len(records)
            watch(Progress(self.finished, self.chunks, kept))
        total = Summary()
        for index in range(self.chunks):
            total += records[index].summary
        if failures is not None and total.failures:
            self._write_failures(failures, total)
        self._check_output()
        self._opened.store.finish(
            self.output, lambda index: watch(Progress(index + 1, self.chunks, kept, f"write {self.output.name}"))
        )
        unchecked = self._opened.binding.unchecked_units
        return Evaluated(self.output, self.chunks - kept, kept, total, unchecked)

    def _evaluate_all(self, make_pool: MakePool, known: dict[int, ChunkRecord]) -> Iterator[tuple[ChunkRecord, bool]]:
        """Yield the record of each chunk as it is finished, and whether it was evaluated now."""
        tasks = [(index, known.get(index)) for index in range(self.chunks)]
        function = functools.partial(evaluate_chunk, job=self._job)
        for (index, _), result in task_pools.run_tasks(tasks, function, make_pool, self.chunks, TRIES):
            if isinstance(result, BrokenExecutor):
                what = f"the worker of a chunk has died, and died again {TRIES} times"
                where, got = self._opened.grid.chunk(index).describe(), str(result)
                mend = "give workers more memory, or make chunks smaller: --chunk; finished chunks are kept"
                raise RunError(what, where=where, got=got, mend=mend)
            yield result

    def _open_log(self) -> ResultLog:
        """Open the log of this evaluation. Raises ``UsageError`` if what is there is of another one."""
        texts = [__version__, torch.__version__, repr(self._job), repr(self._opened.grid)]
        digest, path = digest_files(texts, []), self._folder / LOG
        before = read_digest(path)
        if before not in ("", digest):
            what = "there are unfinished results of another evaluation: the file, the data, an option or torch differs"
            mend = "remove the folder to begin anew, or name another output"
            raise UsageError(what, where=str(self._folder), expected="results of this evaluation", mend=mend)
        return ResultLog(path, digest)

    def _read_records(self, log: ResultLog) -> Iterator[ChunkRecord]:
        for values in log.results:
            try:
                record = _RECORDS.validate_python(values)
            except ValidationError:
                continue
            if 0 <= record.index < self.chunks:
                yield record

    def _write_failures(self, path: Path, summary: Summary) -> None:
        """Write the inputs of elements that failed, and what was varied of their parameters."""
        numbers = sorted(summary.failures)
        failures = Failures(read_elements(self._opened, numbers), read_parameters(self._opened, numbers))
        write_failures(path, failures, torch.tensor(numbers), 0)
