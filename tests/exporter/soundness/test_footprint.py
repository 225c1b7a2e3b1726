"""State that a model's code can reach, in objects of the user's own classes."""

from __future__ import annotations

from collections import OrderedDict, deque, namedtuple

import pytest
import torch
from torch import nn

from exporter.capture.custom_functions import find_bound_applies
from exporter.common.forking import run_in_fork
from exporter.frontends import python_factory
from exporter.model.eager.evaluation import eager_context
from exporter.soundness.check_context import run_eager
from exporter.soundness.footprint import Footprint, list_functions, remember_functions, runs_user_code
from exporter.soundness.line_tracing import trace_user_lines

X = torch.ones(3, 2)


class Sizeless(tuple):
    """A tuple for which a length means nothing, as of e3nn's irreps."""

    def __len__(self):
        raise NotImplementedError


class Turned(list):
    def __iter__(self):
        return reversed(list(super().__iter__()))


class Loud(dict):
    def items(self):
        raise NotImplementedError


class Model(nn.Module):
    def __init__(self, kept) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x):
        return x * 2


def read(kept) -> dict[str, str]:
    source = python_factory.source_from_module(Model(kept), "m", {"x": X}, "here")
    with eager_context(source), Footprint() as footprint:
        run_eager(source, (X,))
    return footprint.read_fingerprints(source.parameter_module)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda inner: Sizeless([inner]), None),
        (lambda inner: Turned([inner, 1]), lambda kept: kept.append(2)),
        (lambda inner: Loud(a=inner), lambda kept: kept.update(b=1)),
        (lambda inner: OrderedDict(a=inner), lambda kept: kept.update(b=1)),
        (lambda inner: OrderedDict(a=inner, b=1), lambda kept: kept.move_to_end("a")),
        (lambda inner: deque([inner], maxlen=5), lambda kept: kept.append(2)),
    ],
    ids=["tuple", "list", "dict", "ordered", "order", "deque"],
)
def test_state_behind_containers_of_any_class_is_seen(make, change):
    inner = [1.0]
    kept = make(inner)
    before = read(kept)
    assert read(kept) == before
    inner.append(2.0)
    grown = read(kept)
    assert grown != before
    if change is not None:
        change(kept)
        assert read(kept) != grown


Pair = namedtuple("Pair", "first second")


def test_code_that_namedtuple_writes_is_nobodys():
    """It has no file. What a user compiles has none either, and is the user's."""
    names: dict = {"__name__": "cell"}
    exec(compile("def of_a_cell():\n    return 1\n", "<string>", "exec"), names)
    codes = set()

    def trace_event(frame, kind, arg):
        if runs_user_code(frame):
            codes.add((frame.f_code.co_filename, frame.f_code.co_name))

    with trace_user_lines(trace_event):
        Pair(1, 2)
        names["of_a_cell"]()
    assert {name for file, name in codes if file == "<string>"} == {"of_a_cell"}


def make_counter(start):
    def count(x, steps=[start]):  # noqa: B006
        steps[0] += 1
        return x * steps[0]

    return count


def replace_code(function):
    function.__code__ = make_counter(5).__code__


@pytest.mark.parametrize("is_frozen", [False, True])
def test_functions_that_are_remembered_are_found_as_by_a_search(is_frozen):
    def find(kept, dropped):
        if is_frozen:
            remember_functions(list_functions())
        del dropped
        later = make_counter(3)
        with Footprint() as footprint:
            kept(1), later(1), replaced(1)
        return sorted((f.__defaults__ or ([0],))[0][0] for f in footprint._find_functions())

    def replaced(x, steps=[7]):  # noqa: B006
        return x

    def run():
        functions = [make_counter(1), make_counter(2)]
        replace_code(replaced)
        return find(functions[0], functions.pop())

    # Every one that lives: also what was made since, and what has got other code.
    assert run_in_fork(run) == [2, 4, 8]


def test_an_apply_that_was_taken_before_is_found_in_a_frozen_process():
    def count():
        find_bound_applies()
        remember_functions(list_functions())
        type("Late", (torch.autograd.Function,), {})
        return [name for _, name, method in find_bound_applies() if method.__self__ is Cube]

    assert run_in_fork(count) == ["cube"]


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x**3


cube = Cube.apply
