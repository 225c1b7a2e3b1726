"""What a user asks for where a model is: a text, and what goes with it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelRequest:
    """The ``text`` is a path of an input file, or names a factory.

    An input file is read with ``overrides``, as ``NAME=VALUE`` for what it leaves open and ``PATH:=VALUE`` for what it
    has, after the Python files or modules ``extensions``, which register types of the user's own."""

    text: str
    overrides: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
