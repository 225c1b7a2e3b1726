"""Who does many tasks: threads or processes of this machine, or those of Dask, SLURM and MPI.

Each is an executor of ``concurrent.futures``; nothing here distributes anything itself."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from typing import Any

from exporter.common.errors import MissingRuntimeError, UsageError, summarize_error
from exporter.common.optional_packages import import_package
from exporter.common.task_pools import make_pool_factory

THREADS, PROCESSES, SLURM, MPI = "threads", "processes", "slurm", "mpi"
# An extra of torchferry; that of MPI is called as its scheduler.
DASK = "dask"
EXPECTED = "threads, processes, threads:N, processes:N, slurm:N, mpi, or the address of a scheduler of Dask: tcp://..."
_LOCAL = re.compile(r"(threads|processes|slurm)(?::([0-9]{1,6}))?")
_ADDRESS = re.compile(r"(tcp|tls|ucx|ws|wss|inproc)://.+")
MakePool = Callable[[], Executor]
# While one reads or writes, another computes.
THREADS_PER_CORE = 2


def check_scheduler(scheduler: str) -> None:
    """Raise ``UsageError`` for a text that names no scheduler."""
    count = (match := _LOCAL.fullmatch(scheduler)) and match[2]
    is_known = match or scheduler == MPI or _ADDRESS.fullmatch(scheduler)
    if not is_known or (count is not None and not int(count)):
        raise UsageError("there is no such scheduler", where="--scheduler", got=scheduler, expected=EXPECTED)


def is_of_this_process(scheduler: str) -> bool:
    """Return whether tasks are done in the process that asks."""
    return scheduler.startswith(THREADS)


@contextlib.contextmanager
def open_pools(scheduler: str, jobs: int, prepare: Callable[[], Any] | None = None) -> Iterator[MakePool | None]:
    """Yield what makes a pool of workers; None in a process of MPI that has been a worker, and is done.

    Args:
        scheduler: A text as ``EXPECTED`` lists them.
        jobs: The number of cores, for so many workers unless the scheduler says it.
        prepare: What each process of this machine does first, a function of a module.

    Raises:
        UsageError: There is no such scheduler, or it does not answer.
        MissingRuntimeError: A package is missing.
    """
    check_scheduler(scheduler)
    kind, _, count = scheduler.partition(":")
    if kind == THREADS:
        yield lambda: ThreadPoolExecutor(int(count or jobs * THREADS_PER_CORE))
    elif kind == PROCESSES:
        yield make_pool_factory(int(count or jobs), prepare)
    elif kind == MPI:
        futures = import_package("mpi4py.futures", "--scheduler", MPI)
        try:
            with futures.MPICommExecutor() as executor:
                # The pool is that of all ranks: whoever is done with it leaves it open.
                yield None if executor is None else lambda: _Borrowed(executor)
        finally:
            # A command ends without what C registers for the end of a process.
            import_package("mpi4py.MPI", "--scheduler", MPI).Finalize()
    else:
        with _connect(scheduler, int(count or jobs) if kind == SLURM else 0) as client:
            distributed = import_package("distributed", "--scheduler", DASK)
            deaths = (distributed.KilledWorker, distributed.comm.CommClosedError)
            yield lambda: _Borrowed(client.get_executor(), deaths)


class _Borrowed(Executor):
    """An executor that is not shut down by those who use it: what they have not waited for is cancelled.

    ``deaths`` are the errors by which it says that a worker has died."""

    def __init__(self, executor: Any, deaths: tuple[type[Exception], ...] = ()) -> None:
        self._executor, self._deaths = executor, deaths
        # Nobody need divide tasks among its workers, which are as many as it finds.
        self._max_workers = sys.maxsize
        self._futures: list[Any] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Let the executor run a function."""
        future: Any = self._executor.submit(fn, *args, **kwargs)
        self._futures.append(future)
        if not self._deaths:
            return future
        result: Future[Any] = Future()
        future.add_done_callback(lambda done: self._pass_on(done, result))
        return result

    def _pass_on(self, done: Any, result: Future[Any]) -> None:
        error = CancelledError() if done.cancelled() else done.exception()
        if error is None:
            result.set_result(done.result())
        else:
            result.set_exception(BrokenExecutor(str(error)) if isinstance(error, self._deaths) else error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel what has not begun."""
        for future in self._futures if cancel_futures else ():
            future.cancel()
        self._futures.clear()


@contextlib.contextmanager
def _connect(scheduler: str, workers: int) -> Iterator[Any]:
    """Yield a client of Dask: of the scheduler at an address, or of ``workers`` that SLURM is asked for."""
    distributed = import_package("distributed", "--scheduler", DASK)
    with contextlib.ExitStack() as stack:
        address: Any = scheduler
        if workers:
            # Queue, memory and so on stand in the configuration of dask-jobqueue.
            jobqueue = import_package("dask_jobqueue", "--scheduler", DASK)
            try:
                address = stack.enter_context(jobqueue.SLURMCluster())
                address.scale(jobs=workers)
            except Exception as error:
                what, expected = "SLURM gives no workers", "sbatch, and a configuration of dask-jobqueue"
                got, where = summarize_error(error), "--scheduler slurm"
                mend = "see jobqueue.dask.org, configuration"
                raise MissingRuntimeError(what, where=where, got=got, expected=expected, mend=mend) from None
        try:
            yield stack.enter_context(distributed.Client(address))
        except OSError as error:
            what, expected = "the scheduler does not answer", "the address that dask scheduler has printed"
            raise UsageError(what, where=scheduler, got=summarize_error(error), expected=expected) from None
