"""State that a model's code can reach, in objects of the user's own classes."""

from __future__ import annotations

import array
import collections
import functools
import gc
import types
import weakref
from collections import OrderedDict, deque, namedtuple

import pytest
import torch
from torch import nn

from exporter.frontends import python_factory
from exporter.model.eager.evaluation import eager_context
from exporter.soundness.check_context import run_eager
from exporter.soundness.footprint import Footprint, iter_leaves, runs_user_code
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


def test_a_class_of_the_users_on_one_of_the_library_has_all_its_state():
    class Settings(collections.UserDict):
        def __init__(self):
            super().__init__(depth=1)
            self.calls = 0

    leaves = dict(iter_leaves("s", Settings(), None, 5, set()))
    assert {"s.calls", "s.data['depth']"} <= {*leaves}


def test_weak_keys_have_labels_that_are_the_same_in_every_process():
    class Key:
        pass

    key, memory = Key(), weakref.WeakKeyDictionary()
    memory[key] = 3
    assert [*dict(iter_leaves("w", memory, None, 5, set()))] == ["w[0]"]


def test_containers_of_the_library_have_leaves():
    values = {"a": array.array("l", [4]), "p": functools.partial(print, [1]), "u": collections.UserList([2])}
    leaves = {label: leaf.value for n, v in values.items() for label, leaf in iter_leaves(n, v, None, 5, set())}
    assert leaves["a[0]"] == 4
    assert leaves["p argument 0[0]"] == 1
    assert leaves["u[0]"] == 2


def make_scaled(factor):
    def scale(x, offset=0.5):
        return x * factor + offset

    return scale


class Scaled(nn.Module):
    """Two functions of one code, each with its own closure."""

    def forward(self, x):
        return make_scaled(3.0)(KEPT(x))


KEPT = make_scaled(2.0)


def test_memory_is_searched_once_for_a_footprint_and_its_parts(monkeypatch):
    searches, search_memory = [], gc.get_referrers
    monkeypatch.setattr(gc, "get_referrers", lambda *objects: searches.append(objects) or search_memory(*objects))
    source = python_factory.source_from_module(Scaled(), "m", {"x": X}, "here")
    with eager_context(source), Footprint() as footprint:
        run_eager(source, (X,))
    whole, own = footprint.read_fingerprints(source.parameter_module), footprint.without_libraries()
    assert own.read_fingerprints(source.parameter_module).items() <= whole.items()
    assert own.codes.keys() <= footprint.codes.keys()
    label = "closure 'factor' of make_scaled.<locals>.scale"
    assert own.read_fingerprints(source.parameter_module)[label] == "2.0"
    assert whole["default argument 0 of make_scaled.<locals>.scale"] == "0.5"
    assert len(searches) == 1


def add_offset(x, offset=0.5):
    return x + offset


class Copied(nn.Module):
    """Functions of one code, with other globals and other defaults."""

    def __init__(self) -> None:
        super().__init__()
        self.functions = [types.FunctionType(add_offset.__code__, {"number": k}, "copied", (k,)) for k in (2.5, 3.5)]

    def forward(self, x):
        for function in self.functions:
            x = function(add_offset(x))
        return x


def test_functions_of_one_code_with_other_globals_are_found():
    source = python_factory.source_from_module(Copied(), "m", {"x": X}, "here")
    with eager_context(source), Footprint() as footprint:
        run_eager(source, (X,))
    state = footprint.read_fingerprints(source.parameter_module)
    defaults = {value for label, value in state.items() if label.startswith("default argument 0 of")}
    assert {"0.5", "2.5", "3.5"} <= defaults
