"""Check of the environment: clocks, variables, host, files, torch's global settings, Python's random numbers.

Each query of the user's code gets another answer, one at a time; where an output changes or the run fails, a trace
would have frozen the answer. A clock or a setting that only reaches a log is sound."""

from __future__ import annotations

import builtins
import contextlib
import datetime
import functools
import getpass
import importlib.util
import io
import logging
import multiprocessing
import os
import pathlib
import platform
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from exporter.archive.contract import Finding
from exporter.common.torch_internals import HAS_TORCH_SCRIPT
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import EagerContext, Outputs, make_refusal, outputs_equal, run_eager
from exporter.soundness.footprint import STDLIB, Footprint, is_user_file

CHECK = "outside world"
_MEND = "ask in __init__, or make the answer an input of the model"
# Queries while Python imports, warns or logs are not the model's.
_IGNORED_MODULES = ("importlib", "linecache", "warnings", "traceback", "logging", "tokenize", "inspect")


@dataclass(frozen=True)
class EnvironmentProbe:
    """A function ``owner.name`` that code may query; ``answers`` make other results of the true one."""

    topic: str
    owner: Any
    name: str
    answers: tuple[Callable[[Any], Any], ...]


def _make_raiser(error: Exception) -> Callable[[Any], Any]:
    def answer(_: Any) -> Any:
        raise error

    return answer


def _flip(value: Any) -> bool:
    return not value


def _shift_years(value: float) -> float:
    return value + 98_765_432.1


def _say_elsewhere(_: Any) -> str:
    return "elsewhere"


# Of a text that a variable of the environment may be compared with; and seconds in which such texts are tried.
LONGEST_TEXT, SECONDS = 64, 1.0
_VARIABLES = "the environment"
_NO_FILE = (_make_raiser(OSError("no such file")),)
_OTHER_TIMES = (_shift_years, lambda v: v + 9_876_543_210.1, lambda _: 0.0)
_TORCH = "a setting of torch"
# What is asked about, its owner, the names of the functions, and the answers to try in their place.
_PROBES: tuple[tuple[str, Any, str, tuple[Callable[[Any], Any], ...]], ...] = (
    ("a clock", time, "time perf_counter monotonic process_time", _OTHER_TIMES),
    ("a clock", time, "time_ns perf_counter_ns monotonic_ns", (lambda v: v + 98_765_432_100_000_000,)),
    ("a clock", time, "localtime gmtime", (lambda _: time.struct_time((1999, 12, 31, 23, 59, 59, 4, 365, 0)),)),
    ("a clock", time, "strftime", (lambda _: "1999-12-31",)),
    (_VARIABLES, os._Environ, "__getitem__", (lambda _: "1", lambda _: "0", _make_raiser(KeyError("?")))),
    (_VARIABLES, os._Environ, "__contains__", (_flip,)),
    ("a clock", time, "ctime", (lambda _: "Fri Dec 31 23:59:59 1999",)),
    (_VARIABLES, os._Environ, "__len__", (lambda v: v + 1000,)),
    (_VARIABLES, os._Environ, "__iter__", (lambda _: iter(()),)),
    ("the host", sys, "getrecursionlimit", (lambda v: v + 1000,)),
    ("a file", os, "stat", _NO_FILE),
    ("a file", os, "scandir", (_make_raiser(OSError("no such folder")),)),
    ("the host", os, "getpid", (lambda v: v + 4242,)),
    ("the host", os, "getcwd", (lambda _: "/elsewhere",)),
    ("the host", os, "cpu_count", (lambda _: 4097,)),
    ("the host", os, "uname", (lambda _: os.uname_result(("Else", "elsewhere", "0", "0", "none")),)),
    ("the host", socket, "gethostname", (_say_elsewhere,)),
    ("the host", platform, "node", (_say_elsewhere,)),
    ("the host", platform, "system", (lambda _: "Elsewhere",)),
    ("the host", platform, "machine", (_say_elsewhere,)),
    ("the host", getpass, "getuser", (lambda _: "nobody-else",)),
    ("a file", builtins, "open", _NO_FILE),
    ("a file", io, "open", _NO_FILE),
    ("for a module", builtins, "__import__", (_make_raiser(ImportError("no such module")),)),
    (
        "for a module",
        importlib.util,
        "find_spec",
        (lambda v: None if v else importlib.util.spec_from_loader("m", None),),
    ),
    ("the host", os, "sched_getaffinity", (lambda _: {*range(4097)},)),
    ("the host", multiprocessing, "parent_process", (lambda v: None if v else multiprocessing.current_process(),)),
    ("a file", os, "listdir", (lambda _: [],)),
    ("a file", os.path, "exists isfile isdir", (_flip,)),
    ("a file", pathlib.Path, "exists is_file is_dir", (_flip,)),
    ("a file", os.path, "getmtime", (_shift_years,)),
    ("random numbers", random, "random uniform", (lambda _: 0.0, lambda _: 1 - 2**-53)),
    (_TORCH, torch, "is_grad_enabled is_inference_mode_enabled", (_flip,)),
    (_TORCH, torch, "get_num_threads", (lambda v: v + 7,)),
    (_TORCH, torch, "get_default_dtype", (lambda v: torch.float64 if v == torch.float32 else torch.float32,)),
    (_TORCH, torch, "are_deterministic_algorithms_enabled is_anomaly_enabled", (_flip,)),
    (_TORCH, torch, "is_deterministic_algorithms_warn_only_enabled", (_flip,)),
    (_TORCH, torch, "get_float32_matmul_precision", (lambda _: "medium", lambda _: "high")),
    (_TORCH, torch, "get_default_device", (lambda _: torch.device("meta"),)),
    (_TORCH, torch.distributed, "is_initialized", (_flip,)),
    ("a setting of logging", logging.Logger, "isEnabledFor", (_flip,)),
    (_TORCH, torch.cuda, "is_available", (_flip,)),
    (_TORCH, torch.cuda, "device_count", (lambda v: v + 1,)),
    *([(_TORCH, torch.jit, "is_tracing is_scripting", (_flip,))] if HAS_TORCH_SCRIPT else []),
    (_TORCH, torch, "is_autocast_enabled", (_flip,)),
)


def _list_environment_probes() -> list[EnvironmentProbe]:
    table = list(_PROBES)
    if (numpy := sys.modules.get("numpy")) is not None:
        answers = (lambda v: v * 0.0, lambda v: v * 0.0 + 0.999999)
        table.append(("random numbers", numpy.random, "rand random random_sample uniform", answers))
    # Some builds of torch lack some functions.
    rows = [(what, owner, name, answers) for what, owner, names, answers in table for name in names.split()]
    return [EnvironmentProbe(*row) for row in rows if hasattr(row[1], row[2])]


def check(context: EagerContext) -> list[Finding]:
    """Check that outputs do not depend on the environment."""
    return context.room(_check, context.inputs)


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    with Footprint() as footprint:
        run_eager(source, inputs)
    namespaces = _list_namespaces(footprint)
    probes = _list_environment_probes()
    queries, (first, again) = _record_queries(source, inputs, probes, namespaces)
    findings = []
    for i, where in queries.items():
        topic = probes[i].topic if i >= 0 else "a clock"
        # An answer that changes by itself, with an effect, needs no other answer.
        effect = "" if outputs_equal(first, again) else "equal calls give different outputs"
        for answer in _list_answers(probes[i], where, source, footprint) if i >= 0 else (lambda v: v,):
            if effect:
                break
            other_clock = _replace_clock_classes(namespaces, datetime.datetime(1999, 12, 31, 23, 59, 59), {})
            with _intercept(probes[i], namespaces, answer, {}, i) if i >= 0 else other_clock:
                outputs = run_eager(source, inputs)
            # A model that needs a module does not compute something else without it.
            if not outputs_equal(outputs, first) and not (topic == "for a module" and isinstance(outputs, str)):
                effect = f"the model raises {outputs}" if isinstance(outputs, str) else "outputs change"
        name = f"{probes[i].owner.__name__}.{probes[i].name}" if i >= 0 else "datetime"
        what = f"the model asks {topic}: {name}"
        if effect:
            evidence = f"with another answer {effect}" if effect.startswith(("the", "out")) else effect
            findings.append(make_refusal(CHECK, what, where, evidence, _MEND))
        else:
            findings.append(Finding(CHECK, what, where, reason="no output depends on the answer"))
    return sorted(findings, key=lambda f: f.severity != "unsound")


def _list_answers(
    probe: EnvironmentProbe, where: str, source: Source, footprint: Footprint
) -> Iterator[Callable[[Any], Any]]:
    """Yield the answers to try: of a variable also the texts that it may be compared with, for some time.

    Those are in the code that asks, in the globals and attributes that the code reads, and in the rest of the code."""
    yield from probe.answers
    if (probe.topic, probe.name) != (_VARIABLES, "__getitem__"):
        return
    file, _, line = where.rpartition(":")
    asking = {c for c in footprint.codes if c.co_filename == file and int(line) in {n for _, _, n in c.co_lines()}}
    state = [leaf.value for leaf in footprint.read_state(source.parameter_module).values()]
    constants = [*(c for code in asking for c in code.co_consts), *state]
    constants += [c for code in footprint.codes if code not in asking for c in code.co_consts]
    flat = (text for c in constants for text in (c if isinstance(c, (tuple, frozenset, dict)) else (c,)))
    texts = (text for text in flat if isinstance(text, str) and len(text) <= LONGEST_TEXT)
    end = time.perf_counter() + SECONDS
    for text in dict.fromkeys(texts):
        if time.perf_counter() > end:
            return
        yield functools.partial(_give_text, text)


def _give_text(text: str, _: Any) -> str:
    return text


def asks_environment(source: Source, inputs: Inputs, footprint: Footprint) -> bool:
    """Return whether calls ask the environment for anything; the check has nothing to do without."""
    return bool(_record_queries(source, inputs, _list_environment_probes(), _list_namespaces(footprint))[0])


def _list_namespaces(footprint: Footprint) -> list[dict[str, Any]]:
    return list({id(space): space for space in footprint.codes.values()}.values())


def _record_queries(
    source: Source, inputs: Inputs, probes: Sequence[EnvironmentProbe], namespaces: Sequence[dict[str, Any]]
) -> tuple[dict[int, str], tuple[Outputs, Outputs]]:
    """Return the lines that ask, by the index of the probe (-1 for classes of clocks), and the outputs of two calls."""
    queries: dict[int, str] = {}
    with contextlib.ExitStack() as stack:
        for i, probe in enumerate(probes):
            stack.enter_context(_intercept(probe, namespaces, lambda v: v, queries, i))
        stack.enter_context(_replace_clock_classes(namespaces, None, queries))
        return queries, (run_eager(source, inputs), run_eager(source, inputs))


@contextlib.contextmanager
def _intercept(
    probe: EnvironmentProbe, namespaces: Any, answer: Callable[[Any], Any], queries: dict[int, str], index: int
) -> Iterator[None]:
    """Intercept the probed function and change its result where the user's code called it."""
    original = getattr(probe.owner, probe.name)
    is_own = probe.name in vars(probe.owner)

    def ask(*args: Any, **kwargs: Any) -> Any:
        where = _find_asking_line()
        if not where or (probe.name == "open" and not _opens_for_reading(args, kwargs)):
            return original(*args, **kwargs)
        queries.setdefault(index, where)
        try:
            value = original(*args, **kwargs)
        except KeyError:
            # A variable that is not set: the other answer sets it.
            if (value := answer("")) == "":
                raise
            return value
        return answer(value)

    replaced = [(space, name) for space in namespaces for name, value in list(space.items()) if value is original]
    setattr(probe.owner, probe.name, ask)
    for space, name in replaced:
        space[name] = ask
    try:
        yield
    finally:
        if is_own:
            setattr(probe.owner, probe.name, original)
        else:
            delattr(probe.owner, probe.name)
        for space, name in replaced:
            space[name] = original


@contextlib.contextmanager
def _replace_clock_classes(namespaces: Any, now: datetime.datetime | None, queries: dict[int, str]) -> Iterator[None]:
    """Replace ``datetime.now()`` and the like, which are methods of classes that cannot be changed."""

    class Date(datetime.date):
        @classmethod
        def today(cls) -> Any:
            _record_clock_query(queries)
            return now.date() if now else datetime_date.today()

    class Datetime(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            _record_clock_query(queries)
            return now.replace(tzinfo=tz) if now else datetime_datetime.now(tz)

        utcnow = today = now

    datetime_datetime, datetime_date = datetime.datetime, datetime.date
    classes = (datetime_datetime, datetime_date)
    replaced = [
        (space, name, value)
        for space in namespaces
        for name, value in list(space.items())
        if any(value is original for original in classes)
    ]
    setattr(datetime, "datetime", Datetime)  # noqa: B010
    setattr(datetime, "date", Date)  # noqa: B010
    for space, name, value in replaced:
        space[name] = Datetime if value is datetime_datetime else Date
    try:
        yield
    finally:
        setattr(datetime, "datetime", datetime_datetime)  # noqa: B010
        setattr(datetime, "date", datetime_date)  # noqa: B010
        for space, name, value in replaced:
            space[name] = value


def _record_clock_query(queries: dict[int, str]) -> None:
    if where := _find_asking_line():
        queries.setdefault(-1, where)


def _find_asking_line() -> str:
    """Return ``file:line`` where the user's code asked, through the standard library at most; empty where torch did."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__:
            if is_user_file(name):
                return f"{name}:{frame.f_lineno}"
            inner = name.startswith("<frozen") or (name.startswith(STDLIB) and "site-packages" not in name)
            if not inner or any(part in name for part in _IGNORED_MODULES):
                return ""
        frame = frame.f_back
    return ""


def _opens_for_reading(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    mode = kwargs.get("mode", args[1] if len(args) > 1 else "r")
    return isinstance(mode, str) and not set(mode) & set("wax+")
