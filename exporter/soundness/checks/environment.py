"""The world outside the model: clocks, environment, host, files, torch's global settings, Python's random numbers.

What the user's code asks of it is answered otherwise, one question at a time; where an output changes or the run
fails, a trace would have frozen the answer. A clock or a setting that only reaches a log is sound.
"""

from __future__ import annotations

import builtins
import contextlib
import datetime
import getpass
import io
import logging
import os
import pathlib
import platform
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from exporter.archive.contract import Finding
from exporter.model.eager.evaluation import inference_conditions
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import Eager, eager, same_outputs
from exporter.soundness.footprint import STDLIB, Footprint, is_users

CHECK = "outside world"
# What happens while Python imports, warns or logs is not the model's doing.
_PLUMBING = ("importlib", "linecache", "warnings", "traceback", "logging", "tokenize", "inspect")


@dataclass(frozen=True)
class Question:
    """``owner.name`` is asked; ``answers`` make other results of the true one."""

    kind: str
    owner: Any
    name: str
    answers: tuple[Callable[[Any], Any], ...]


def _raise(error: Exception) -> Callable[[Any], Any]:
    def answer(_: Any) -> Any:
        raise error

    return answer


def _questions() -> list[Question]:
    def later(value: float) -> float:
        return value + 98_765_432.1

    def much_later(value: float) -> float:
        return value + 9_876_543_210.1

    found = [
        *(
            Question("a clock", time, n, (later, much_later, lambda _: 0.0))
            for n in ("time", "perf_counter", "monotonic", "process_time")
        ),
        *(
            Question("a clock", time, n, (lambda v: v + 98_765_432_100_000_000,))
            for n in ("time_ns", "perf_counter_ns", "monotonic_ns")
        ),
        *(
            Question("a clock", time, n, (lambda _: time.struct_time((1999, 12, 31, 23, 59, 59, 4, 365, 0)),))
            for n in ("localtime", "gmtime")
        ),
        Question("a clock", time, "strftime", (lambda _: "1999-12-31",)),
        Question("the environment", os._Environ, "__getitem__", (lambda _: "1", lambda _: "0", _raise(KeyError("?")))),
        Question("the environment", os._Environ, "__contains__", (lambda v: not v,)),
        Question("a clock", time, "ctime", (lambda _: "Fri Dec 31 23:59:59 1999",)),
        Question("the environment", os._Environ, "__len__", (lambda v: v + 1000,)),
        Question("the environment", os._Environ, "__iter__", (lambda _: iter(()),)),
        Question("the host", sys, "getrecursionlimit", (lambda v: v + 1000,)),
        Question("a file", os, "stat", (_raise(OSError("no such file")),)),
        Question("a file", os, "scandir", (_raise(OSError("no such folder")),)),
        Question("the host", os, "getpid", (lambda v: v + 4242,)),
        Question("the host", os, "getcwd", (lambda _: "/elsewhere",)),
        Question("the host", os, "cpu_count", (lambda _: 4097,)),
        Question("the host", os, "uname", (lambda _: os.uname_result(("Else", "elsewhere", "0", "0", "none")),)),
        Question("the host", socket, "gethostname", (lambda _: "elsewhere",)),
        Question("the host", platform, "node", (lambda _: "elsewhere",)),
        Question("the host", platform, "system", (lambda _: "Elsewhere",)),
        Question("the host", platform, "machine", (lambda _: "elsewhere",)),
        Question("the host", getpass, "getuser", (lambda _: "nobody-else",)),
        Question("a file", builtins, "open", (_raise(OSError("no such file")),)),
        Question("a file", io, "open", (_raise(OSError("no such file")),)),
        Question("for a module", builtins, "__import__", (_raise(ImportError("no such module")),)),
        Question("a file", os, "listdir", (lambda _: [],)),
        *(Question("a file", os.path, n, (lambda v: not v,)) for n in ("exists", "isfile", "isdir")),
        *(Question("a file", pathlib.Path, n, (lambda v: not v,)) for n in ("exists", "is_file", "is_dir")),
        Question("a file", os.path, "getmtime", (later,)),
        *(Question("random numbers", random, n, (lambda _: 0.0, lambda _: 1 - 2**-53)) for n in ("random", "uniform")),
        Question("a setting of torch", torch, "is_grad_enabled", (lambda v: not v,)),
        Question("a setting of torch", torch, "is_inference_mode_enabled", (lambda v: not v,)),
        Question("a setting of torch", torch, "get_num_threads", (lambda v: v + 7,)),
        Question(
            "a setting of torch",
            torch,
            "get_default_dtype",
            (lambda v: torch.float64 if v == torch.float32 else torch.float32,),
        ),
        *(
            Question("a setting of torch", torch, n, (lambda v: not v,))
            for n in (
                "are_deterministic_algorithms_enabled",
                "is_anomaly_enabled",
                "is_deterministic_algorithms_warn_only_enabled",
            )
        ),
        Question("a setting of torch", torch, "get_float32_matmul_precision", (lambda _: "medium", lambda _: "high")),
        Question("a setting of torch", torch, "get_default_device", (lambda _: torch.device("meta"),)),
        Question("a setting of torch", torch.distributed, "is_initialized", (lambda v: not v,)),
        Question("a setting of logging", logging.Logger, "isEnabledFor", (lambda v: not v,)),
        Question("a setting of torch", torch.cuda, "is_available", (lambda v: not v,)),
        Question("a setting of torch", torch.cuda, "device_count", (lambda v: v + 1,)),
        Question("a setting of torch", torch.jit, "is_tracing", (lambda v: not v,)),
        Question("a setting of torch", torch.jit, "is_scripting", (lambda v: not v,)),
        Question("a setting of torch", torch.compiler, "is_compiling", (lambda v: not v,)),
        Question("a setting of torch", torch, "is_autocast_enabled", (lambda v: not v,)),
    ]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found += [
            Question("random numbers", numpy.random, n, (lambda v: v * 0.0, lambda v: v * 0.0 + 0.999999))
            for n in ("rand", "random", "random_sample", "uniform")
        ]
    # Some builds of torch lack some of them.
    return [q for q in found if hasattr(q.owner, q.name)]


def check(eager_mode: Eager) -> list[Finding]:
    return eager_mode.room(_check, eager_mode.inputs)


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    with inference_conditions(source):
        with Footprint() as footprint:
            eager(source, inputs)
        namespaces = {id(space): space for space in footprint.codes.values()}.values()
        questions = _questions()
        asked: dict[int, str] = {}
        with contextlib.ExitStack() as stack:
            for i, question in enumerate(questions):
                stack.enter_context(_answering(question, namespaces, lambda v: v, asked, i))
            stack.enter_context(_clock_classes(namespaces, None, asked))
            first = eager(source, inputs)
            again = eager(source, inputs)
        found = []
        for i, where in asked.items():
            kind = questions[i].kind if i >= 0 else "a clock"
            # An answer that changes by itself, and shows, needs no other answer.
            effect = "" if same_outputs(first, again) else "equal calls give different outputs"
            for answer in questions[i].answers if i >= 0 else (lambda v: v,):
                if effect:
                    break
                with (
                    _answering(questions[i], namespaces, answer, {}, i)
                    if i >= 0
                    else _clock_classes(namespaces, datetime.datetime(1999, 12, 31, 23, 59, 59), {})
                ):
                    other = eager(source, inputs)
                # A model that cannot do without a module does not mean something else without it.
                if not same_outputs(other, first) and not (kind == "for a module" and isinstance(other, str)):
                    effect = f"the model raises {other}" if isinstance(other, str) else "outputs change"
            name = f"{questions[i].owner.__name__}.{questions[i].name}" if i >= 0 else "datetime"
            what = f"the model asks {kind}: {name}"
            if effect:
                evidence = f"with another answer {effect}" if effect.startswith(("the", "out")) else effect
                found.append(_unsound(what, where, evidence))
            else:
                found.append(Finding(CHECK, what, where, reason="no output depends on the answer"))
        return sorted(found, key=lambda f: f.severity != "unsound")


def _unsound(what: str, where: str, evidence: str) -> Finding:
    return Finding(
        CHECK,
        what,
        where,
        severity="unsound",
        evidence=evidence,
        mend="ask in __init__, or make what was asked an input of the model",
    )


@contextlib.contextmanager
def _answering(
    question: Question,
    namespaces: Any,
    answer: Callable[[Any], Any],
    asked: dict[int, str],
    index: int,
) -> Iterator[None]:
    """The question put through, its result changed where the user's code asked."""
    original = getattr(question.owner, question.name)
    own = question.name in vars(question.owner)

    def ask(*args: Any, **kwargs: Any) -> Any:
        where = _asker()
        if not where or (question.name == "open" and not _reads(args, kwargs)):
            return original(*args, **kwargs)
        asked.setdefault(index, where)
        try:
            value = original(*args, **kwargs)
        except KeyError:
            # A variable that is not set; another answer is that it is.
            value = answer("")
            if value == "":
                raise
            return value
        return answer(value)

    replaced = [(space, name) for space in namespaces for name, value in list(space.items()) if value is original]
    setattr(question.owner, question.name, ask)
    for space, name in replaced:
        space[name] = ask
    try:
        yield
    finally:
        if own:
            setattr(question.owner, question.name, original)
        else:
            delattr(question.owner, question.name)
        for space, name in replaced:
            space[name] = original


@contextlib.contextmanager
def _clock_classes(namespaces: Any, now: datetime.datetime | None, asked: dict[int, str]) -> Iterator[None]:
    """``datetime.now()`` and its kin, which are methods of classes that cannot be changed."""

    class Date(datetime.date):
        @classmethod
        def today(cls) -> Any:
            _note(asked)
            return now.date() if now else datetime_date.today()

    class Datetime(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            _note(asked)
            return now.replace(tzinfo=tz) if now else datetime_datetime.now(tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.now()

        @classmethod
        def today(cls) -> Any:
            return cls.now()

    datetime_datetime, datetime_date = datetime.datetime, datetime.date
    replaced = [
        (space, name, value)
        for space in namespaces
        for name, value in list(space.items())
        if value is datetime_datetime or value is datetime_date
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


def _note(asked: dict[int, str]) -> None:
    where = _asker()
    if where:
        asked.setdefault(-1, where)


def _asker() -> str:
    """``file:line`` where the user's code asked, through the standard library at most; empty where torch did."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__:
            if is_users(name):
                return f"{name}:{frame.f_lineno}"
            inner = name.startswith("<frozen") or (name.startswith(STDLIB) and "site-packages" not in name)
            if not inner or any(part in name for part in _PLUMBING):
                return ""
        frame = frame.f_back
    return ""


def _reads(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    mode = kwargs.get("mode", args[1] if len(args) > 1 else "r")
    return isinstance(mode, str) and not set(mode) & set("wax+")
