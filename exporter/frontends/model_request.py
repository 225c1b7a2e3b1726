"""What a user asks for where a model is: a text, and what goes with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AdoptedFile:
    """A file of another origin: TorchScript, or a program of torch.export, which runs code of its own if it is
    ``is_trusted`` only."""

    path: Path
    is_trusted: bool = False


@dataclass(frozen=True)
class ModelRequest:
    """The ``text`` is a path of an input file, or names a factory.

    An input file is read with ``overrides``, as ``NAME=VALUE`` for what it leaves open and ``PATH:=VALUE`` for what it
    has, after the Python files or modules ``extensions``, which register types of the user's own. ``drivers`` are those
    whose models are meant, and whose inputs are recorded; if empty, all. ``dtype`` is that of all floating numbers."""

    text: str
    overrides: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    dtype: str = ""

    @property
    def file_options(self) -> tuple[str, ...]:
        """Return what is asked for that only an input file has."""
        return (*self.overrides, *self.extensions, *self.drivers, *filter(None, [self.dtype]))
