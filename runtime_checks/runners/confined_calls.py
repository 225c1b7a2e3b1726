"""Calls of functions that let torch read or run a stranger's file: in a confined process of their own.

It is forked from this one. What it answers is read as data: a process that the file took over says nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import gc
import io
import os
import pickle
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from exporter.common import errors
from exporter.common.errors import ArchiveError, TorchferryError
from exporter.common.forking import WEEK, ForkedCall, ForkFailedError, ForkKilledError, tell_parent
from exporter.common.plain_text import escape_unsafe
from exporter.common.temporary_folders import forget_temporary_paths, remove_temporary_paths, temporary_folder
from exporter.common.torch_internals import move_compiler_files
from runtime_checks.cache import cache_folder, make_private_folder
from runtime_checks.runners.children.confinement import confine, set_limits
from runtime_checks.runners.subprocesses import MEMORY_LIMIT, TIME_LIMIT, check_limits, make_early_end_error

_Result = TypeVar("_Result")
_OWN_PACKAGES = ("exporter", "runtime_checks", "torchferry")
_PLAIN_NAMES = {
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("builtins", "complex"),
    ("collections", "OrderedDict"),
    *(("pathlib", f"{system}Path") for system in ("", "Posix", "Windows")),
}
# What our errors have besides their texts.
_KEPT = ("findings", "report")
# Of an answer.
_MOST_BYTES = 2**28
# Seconds that a process has to remove its temporary files.
_PATIENCE = 3.0
# This process, or one that it was forked from, is confined.
_is_confined = False


class ConfinementWarning(UserWarning):
    """The system does not offer a part of what confines the process that reads a file."""


@dataclass(frozen=True)
class Confinement:
    """What a process may do that reads ``path``: write the files ``outputs``, which may be None, within ``time_limit``
    seconds of computing and ``memory_limit`` GiB; start ``programs``, or with None compilers, whose results go to the
    cache; with ``has_devices`` use those of the system."""

    path: Path
    outputs: Sequence[Path | None] = ()
    time_limit: float = TIME_LIMIT
    memory_limit: float = MEMORY_LIMIT
    programs: Sequence[str] | None = ()
    has_devices: bool = False

    def check(self) -> None:
        """Raise ``UsageError`` for limits that are none."""
        check_limits(self.time_limit, self.memory_limit * 2**30)

    def list_folders(self) -> tuple[list[str], str]:
        """List the folders that the process may write to, and name that of its temporary files, if not its own."""
        outputs = [str(_find_folder(path)) for path in self.outputs if path is not None]
        # What is written beside an output lies beside its link.
        outputs += [str(path.absolute().parent) for path in self.outputs if path is not None and path.is_symlink()]
        temporary_files = ""
        if self.programs is None:
            # Where there is no cache, what needs one says so.
            with contextlib.suppress(TorchferryError):
                # Among its temporary files torch keeps what it compiles for all models.
                temporary_files = str(make_private_folder("temporary"))
                outputs.append(str(cache_folder()))
        return outputs, temporary_files

    def make_end_error(self, code: int) -> TorchferryError:
        """Make the error of a process that ended early, with an exit code that is negative for a signal."""
        return make_early_end_error(self.path, code, "", self.time_limit, self.memory_limit * 2**30)

    @contextlib.contextmanager
    def explain_memory(self) -> Iterator[None]:
        """Raise ``ArchiveError`` where the block needs more memory than there is."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            # Torch has no exception of its own for it.
            if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
                raise
            what, expected = "the file needs more memory than it may take", f"{self.memory_limit:g} GiB"
            where, mend = str(self.path), "raise --memory-limit"
            raise ArchiveError(what, where=where, expected=expected, mend=mend) from None


def make_preparation(confinement: Confinement, folder: Path, tell: Callable[[str], Any]) -> Callable[[], None]:
    """Make what confines a process from its start: a function that can be sent there.

    ``folder`` is for its temporary files, and those of others; ``tell`` hears what is not in force. Raises
    ``UsageError`` for limits that are none."""
    confinement.check()
    return functools.partial(_confine_this_process, confinement, str(folder), *confinement.list_folders(), tell)


def _confine_this_process(
    confinement: Confinement, folder: str, outputs: Sequence[str], temporary_files: str, tell: Callable[[str], Any]
) -> None:
    global _is_confined  # noqa: PLW0603
    report = confine(folder, confinement.has_devices, confinement.programs, outputs)
    set_limits(_count_own_memory() + confinement.memory_limit * 2**30, confinement.time_limit, confinement.has_devices)
    tempfile.tempdir = temporary_files or folder
    # The process that this one was forked from may have chosen another place, for all that it compiles.
    move_compiler_files(Path(tempfile.tempdir) / "inductor")
    _is_confined = True
    for text in report["missing"]:
        tell(f"confinement: not in force: {text}")


def _count_own_memory() -> int:
    """Count the bytes of addresses that this process has from the one that it was forked from."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def is_confined() -> bool:
    """Return whether this process is confined, or one that it was forked from."""
    return _is_confined


def call_confined(
    function: Callable[[], _Result],
    confinement: Confinement,
    hear: Callable[[Any], Any] = lambda value: None,
) -> _Result:
    """Return the result of a function in a confined process, or raise the ``TorchferryError`` that it raised.

    The result holds values of Python and of our own dataclasses; ``hear`` is called with what the function tells by
    ``tell_parent``. Within a confined process the function is called as it is. Raises ``RunError`` if the process is
    ended by a signal. Warns of what the system does not offer (``ConfinementWarning``)."""
    if _is_confined:
        return function()
    missing = list[str]()

    def hear_warnings(value: Any) -> None:
        if isinstance(value, _Missing):
            missing.append(value.text)
        else:
            hear(value)

    with temporary_folder() as folder:
        prepare = make_preparation(confinement, folder, lambda text: tell_parent(_Missing(text)))
        has_no_gpu = torch.cuda.is_initialized() and not confinement.has_devices
        call = functools.partial(_run, function, prepare, confinement, has_no_gpu)
        result = _ConfinedCall(confinement, call).wait(hear=hear_warnings)
    for text in missing:
        warnings.warn(escape_unsafe(text), ConfinementWarning, stacklevel=3)
    if isinstance(result, _Raised):
        raise result.make_error()
    return result


@dataclass(frozen=True)
class _Missing:
    text: str


@dataclass(frozen=True)
class _Raised:
    """An error as data: libraries change how exceptions are pickled."""

    class_name: str
    what: str
    details: dict[str, str]
    attributes: dict[str, Any]

    def make_error(self) -> TorchferryError:
        error_type = getattr(errors, self.class_name, None)
        if not (isinstance(error_type, type) and issubclass(error_type, TorchferryError)):
            error_type = TorchferryError
        error = error_type(self.what, **self.details)
        vars(error).update(self.attributes)
        return error


def _run(
    function: Callable[[], _Result], prepare: Callable[[], None], confinement: Confinement, has_no_gpu: bool
) -> _Result | _Raised:
    # It computes for long, as this process would.
    gc.enable()
    # An interrupt of a terminal is the parent's, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forget_temporary_paths()
    signal.signal(signal.SIGTERM, _end_tidily)
    if has_no_gpu:
        # CUDA, which the parent uses, does not survive a fork.
        torch.cuda.is_available, torch.cuda.device_count = (lambda: False), (lambda: 0)
    prepare()
    try:
        with confinement.explain_memory():
            return function()
    except TorchferryError as error:
        # Libraries add attributes of their own.
        attributes = {name: value for name, value in vars(error).items() if name in _KEPT}
        return _Raised(type(error).__name__, error.what, error.details, attributes)


def _end_tidily(number: int, frame: object) -> None:
    remove_temporary_paths()
    os._exit(1)


class _ConfinedCall(ForkedCall):
    def __init__(self, confinement: Confinement, function: Callable[..., Any], *args: Any) -> None:
        self._confinement = confinement
        super().__init__(function, *args)

    def wait(self, seconds: float = WEEK, hear: Callable[[Any], Any] = lambda value: None) -> Any:
        try:
            return super().wait(seconds, hear)
        except ForkKilledError:
            raise self._confinement.make_end_error(self.code) from None
        except ForkFailedError as error:
            raise RuntimeError(f"in a confined process: {error}") from None

    _most_bytes = _MOST_BYTES

    def _load(self, answer: bytes) -> Any:
        return _AnswerReader(io.BytesIO(answer)).load()

    def _ask_to_end(self, pid: int) -> None:
        if not hasattr(os, "waitid"):
            # What it leaves the next process removes.
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + _PATIENCE
        # It stays a zombie, whose end is still to be heard.
        while time.monotonic() < until and not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.01)


# Python's own class in Python, of which a step can be replaced.
_Unpickler: Any = vars(pickle)["_Unpickler"]


class _AnswerReader(_Unpickler):
    """Reads values of Python and of our own classes of data: nothing else that a pickle names is looked up, and nothing
    is changed but new objects of those classes."""

    dispatch: ClassVar[dict[int, Any]] = dict(_Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN_NAMES:
            return super().find_class(module, name)
        if module.partition(".")[0] in _OWN_PACKAGES and "." not in name:
            value = super().find_class(module, name)
            is_of_data = isinstance(value, type) and (dataclasses.is_dataclass(value) or issubclass(value, enum.Enum))
            if is_of_data and value.__module__ == module:
                return value
        raise pickle.UnpicklingError(f"the answer of a confined process names {module}.{name}")

    def load_build(self) -> None:
        target = self.stack[-2]
        if isinstance(target, (type, enum.Enum)) or not dataclasses.is_dataclass(target):
            raise pickle.UnpicklingError("the answer of a confined process changes what is no new object")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build


def _find_folder(path: Path) -> Path:
    """Return the folder that a file is written into, or the first around it that exists. A link's target is written."""
    with contextlib.suppress(OSError, RuntimeError):
        path = path.resolve()
    # A kernel is a folder itself.
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
