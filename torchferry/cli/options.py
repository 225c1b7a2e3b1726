"""Arguments and options that several commands take, each with one text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

SourceArgument = Annotated[
    str, Argument(help="model.i, path/to/file.py:factory or package.module:factory", metavar="SOURCE")
]
OverridesArgument = Annotated[
    list[str] | None,
    Argument(
        help="Of an input file: NAME=VALUE for what it leaves open, PATH:=VALUE for a value that it has.",
        metavar="[OVERRIDE]...",
        show_default=False,
    ),
]
DriverOption = Annotated[
    list[str] | None,
    Option("--driver", help="A driver: the model that it drives, with its inputs alone; may be repeated."),
]
DtypeOption = Annotated[
    str, Option("--dtype", help="Precision of a model of an input file: float64 or float32.", show_default="float64")
]
LoadOption = Annotated[
    list[str] | None, Option("--load", help="A Python file or module that registers types of NEML2; may be repeated.")
]
ArchiveArgument = Annotated[Path, Argument(help="An archive.", metavar="ARCHIVE")]
ModelOption = Annotated[list[str] | None, Option(help="A model of the input file; give it again for several.")]
InputsOption = Annotated[Path | None, Option(help="Warmup inputs by variable name: .pt, .npz or .json.")]
PerElementOption = Annotated[
    list[str] | None,
    Option("--per-element", help="A parameter of which each element has its own value: an input of its name (globs)."),
]
BatchOption = Annotated[
    str,
    Option(help="Whether a model without a signature has a batch: yes, no, or auto, as its inputs and outputs say."),
]
SizesOption = Annotated[
    str,
    Option(help="Sizes of whole shapes without a signature: open, fixed, or auto, as trying them shows."),
]
SeedOption = Annotated[int, Option(help="Seed of all random draws.")]
AllowOption = Annotated[
    list[str] | None, Option(help="CHECK:REASON lets a finding of the soundness gate pass; every report shows it.")
]
ThoroughOption = Annotated[
    bool,
    Option("--thorough", help="Run large batches and all draws whatever they cost; else a report names the rest."),
]
BudgetOption = Annotated[
    float | None, Option(help="About how many seconds large batches may take on one core, in all checks. Default: 1.5.")
]
JobsOption = Annotated[
    int | None,
    Option("--jobs", "-j", help="How many checks run at the same time. Default: as many as there are cores."),
]
DerivativeOption = Annotated[
    list[str] | None, Option(help="OUT:IN block of the Jacobian, OUT:IN,IN block of the Hessian; globs; or all.")
]
RenameOption = Annotated[
    list[str] | None, Option(help="OLD:NEW names of variables in the contract; * matches any text.")
]
UnitOption = Annotated[
    list[str] | None, Option(help="NAME=UNIT of variables and parameters in the contract; globs. 1: no dimension.")
]
MetaOption = Annotated[
    Path | None, Option("--meta", help="A file in TOML: description, authors, license, references; units by variable.")
]
JvpOption = Annotated[bool, Option("--jvp", help="Add the method jvp: Jacobian times vector.")]
VjpOption = Annotated[bool, Option("--vjp", help="Add the method vjp: vector times Jacobian.")]
ParameterOption = Annotated[
    list[str] | None, Option(help="A parameter that stays settable (globs). Default: all that can.")
]
TimingsOption = Annotated[bool, Option("--timings", help="Print the seconds of each stage.")]
OpsetOption = Annotated[int, Option(help="ONNX's version of operators.")]
ReduceOption = Annotated[str, Option(help="For a kernel: all, or none for Newton loops that solve for every unknown.")]
RuntimeOption = Annotated[str, Option(help="Where it is verified: python, libtorch, interpreter, or several.")]
DeviceOption = Annotated[str, Option(help="On what: cpu, cuda, cuda:1, or several.")]
TimeLimitOption = Annotated[float, Option(help="Seconds for each process that runs it.")]
MemoryLimitOption = Annotated[float, Option(help="GiB for the process that verifies.")]
AllowNativeOption = Annotated[
    bool,
    Option("--allow-native", help="Run native code (.pt2, kernels) that was not made here: you trust who made it."),
]
JsonOption = Annotated[bool, Option("--json", help="Print the result for machines.")]


def choose_trust(allow_native: bool) -> str:
    """Return what of a file may run: graphs of operators, or native code too."""
    return "native" if allow_native else "graphs"
