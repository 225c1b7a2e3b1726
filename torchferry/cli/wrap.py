"""``torchferry wrap`` and its hosts, and ``torchferry umat``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from torchferry.cli.output import out

app = typer.Typer(
    help="Write what calls a kernel from another program: sources, a Makefile, a README and a self-test.",
    no_args_is_help=True,
)
Folder = Annotated[Path, Argument(help="A kernel's folder.", metavar="FOLDER")]
Output = Annotated[
    Path | None, Option("--output", "-o", help="The folder to write. Default: one of the host's name in FOLDER.")
]
Stress = Annotated[str, Option(help="The output that is the stress.")]
Strain = Annotated[str, Option(help="The input that is the strain at the end of a step.")]
Energy = Annotated[str, Option(help="The output that is the elastic energy of a unit of volume.", metavar="OUTPUT")]
Fields = Annotated[
    list[str] | None,
    Option("--field", help="An input that is the host's next field variable. Repeatable.", metavar="INPUT"),
]
ShearOrder = Annotated[str, Option(help="The order of the shear components behind the direct ones.")]
Times = Annotated[int, Option(help="How many numbers TIME has; the last is the time at the start of the increment.")]


def _wrap(host: str, folder: Path, output: Path | None, options: Any) -> None:
    from exporter.hosts.registry import wrap_kernel

    for path in wrap_kernel(host, folder, output, options):
        out.print(f"wrote {path}", soft_wrap=True)


def _name_variables(stress: str, strain: str, energy: str = "", fields: list[str] | None = None) -> Any:
    from exporter.hosts.small_strain import PointOptions

    return PointOptions(stress, strain, energy, tuple(fields or ()))


@app.command("umat")
def umat(
    folder: Folder,
    output: Output = None,
    stress: Stress = "stress",
    strain: Strain = "strain",
    energy: Energy = "",
    fields: Fields = None,
    shear_order: ShearOrder = "xy,xz,yz",
    times: Times = 2,
) -> None:
    """Wrap a small-strain model as UMAT: Abaqus/Standard and the programs that took over its interface.

    The kernel needs the block of its stress by its strain, in Mandel notation. Outputs that come back as inputs
    (ep and ep~1) are state variables; parameters are the material's properties.

    Examples:

      torchferry export examples/return_map.py:make_model --derivative stress:strain --format c -o model

      torchferry wrap umat model && make -C model/umat test
    """
    from exporter.hosts.umat import UmatOptions

    point = _name_variables(stress, strain, energy, fields)
    _wrap("umat", folder, output, UmatOptions(point, tuple(shear_order.replace(" ", "").split(",")), times))


@app.command("vumat")
def vumat(
    folder: Folder,
    output: Output = None,
    stress: Stress = "stress",
    strain: Strain = "strain",
    energy: Energy = "",
    fields: Fields = None,
) -> None:
    """Wrap a small-strain model as VUMAT, which takes blocks of points: Abaqus/Explicit. It needs no tangent.

    Example:

      torchferry wrap vumat model && make -C model/vumat test
    """
    _wrap("vumat", folder, output, _name_variables(stress, strain, energy, fields))


@app.command("kratos")
def kratos(folder: Folder, output: Output = None, stress: Stress = "stress", strain: Strain = "strain") -> None:
    """Wrap a small-strain model for Kratos' GeoMechanicsApplication: a UMAT with Kratos' order of shears and its TIME.

    Example:

      torchferry wrap kratos model && make -C model/kratos test
    """
    _wrap("kratos", folder, output, _name_variables(stress, strain))


@app.command("calculix")
def calculix(
    folder: Folder,
    output: Output = None,
    stress: Stress = "stress",
    strain: Strain = "strain",
    library: Annotated[str, Option(help="The library's name: letters and digits. Default: the model's.")] = "",
) -> None:
    """Wrap a small-strain model for CalculiX, which loads libraries of its users: a material of its own interface.

    A step without a result is cut back by CalculiX itself, which its interface for UMATs cannot do.

    Example:

      torchferry wrap calculix model --library STEEL && make -C model/calculix test
    """
    from exporter.hosts.calculix import CalculixOptions

    _wrap("calculix", folder, output, CalculixOptions(_name_variables(stress, strain), library))


@app.command("mgis")
def mgis(
    folder: Folder, output: Output = None, stress: Stress = "stress", strain: Strain = "strain", energy: Energy = ""
) -> None:
    """Wrap a small-strain model as a behaviour of MFront's generic interface, which MGIS loads.

    Numbers that are neither state nor property are external state variables; bounds are the values that were checked.

    Example:

      torchferry wrap mgis model && make -C model/mgis test
    """
    _wrap("mgis", folder, output, _name_variables(stress, strain, energy))


@app.command("fmu")
def fmu(
    folder: Folder,
    output: Output = None,
    version: Annotated[str, Option("--fmi", help="The version of the standard: 3.0 or 2.0.")] = "3.0",
    rates: Annotated[
        list[str] | None,
        Option(
            "--rate", help="STATE:RATE, an input and the output that is its rate. Repeatable.", metavar="STATE:RATE"
        ),
    ] = None,
) -> None:
    """Wrap a model as an FMU of FMI 3.0 or 2.0, with no runtime inside.

    Rates are for model exchange, and for co-simulation with an integrator that uses the exported Jacobian. A model
    with values of the step before (ep and ep~1) is for co-simulation: each step is one call.

    Examples:

      torchferry export examples/solvers/robertson.py:make_model --derivative rate:y --format c -o kernel

      torchferry wrap fmu kernel --rate y:rate && make -C kernel/fmu
    """
    from exporter.common.errors import UsageError
    from exporter.hosts.fmu import FmuOptions

    pairs = [pair.split(":") for pair in rates or ()]
    if wrong := [pair for pair in pairs if len(pair) != 2]:
        what, got = "a rate is named with its state", ":".join(wrong[0])
        raise UsageError(what, where="--rate", got=got, expected="STATE:RATE, for example y:rate")
    _wrap("fmu", folder, output, FmuOptions(version, tuple((state, rate) for state, rate in pairs)))


@app.command("torch")
def torch(folder: Folder, output: Output = None) -> None:
    """Wrap any model as an operator of torch, which autograd and torch.compile go through.

    Its backward pass is the exported Jacobian. Parameters of which the kernel has derivatives are arguments.

    Examples:

      torchferry export examples/return_map.py:make_model --derivative all --format c -o kernel

      torchferry wrap torch kernel && make -C kernel/torch test
    """
    _wrap("torch", folder, output, None)


@app.command("jax")
def jax(folder: Folder, output: Output = None) -> None:
    """Wrap any model as a function of JAX (jax.ffi), for jit, vmap, jvp and grad.

    Its derivative is the exported Jacobian. Parameters of which the kernel has derivatives are arguments.

    Example:

      torchferry wrap jax kernel && make -C kernel/jax test
    """
    _wrap("jax", folder, output, None)


@app.command("r")
def r(folder: Folder, output: Output = None) -> None:
    """Wrap any model as a function of R, by .Call: R's torch is not needed.

    Example:

      torchferry wrap r model && make -C model/r test
    """
    _wrap("r", folder, output, None)


@app.command("octave")
def octave(folder: Folder, output: Output = None) -> None:
    """Wrap any model as a MEX function of Octave or MATLAB.

    Example:

      torchferry wrap octave model && make -C model/octave test
    """
    _wrap("octave", folder, output, None)


@app.command("casadi")
def casadi(folder: Folder, output: Output = None) -> None:
    """Wrap any model as an external function of CasADi, with its Jacobian where the kernel has all of its blocks.

    Parameters of which the kernel has derivatives become inputs of the function, after the model's own.

    Examples:

      torchferry export examples/solvers/robertson.py:make_model --derivative all --format c -o kernel

      torchferry wrap casadi kernel && make -C kernel/casadi test
    """
    _wrap("casadi", folder, output, None)
