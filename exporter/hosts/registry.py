"""The hosts that kernels are wrapped for, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.archive import kernel_container
from exporter.archive.kernel_container import KernelFiles
from exporter.hosts import array_languages, casadi, differentiable, fmu, mgis, umat, vumat
from exporter.hosts.small_strain import PointOptions
from exporter.hosts.umat import UmatOptions
from exporter.hosts.wrapping import write_host_folder


@dataclass(frozen=True)
class Host:
    """A program, or an interface of several, that a kernel is wrapped for.

    Attributes:
        name: The host's name on the command line, and the folder's.
        title: The host's name, for people.
        fits: The models that it takes.
        render: Returns the files by name, for a kernel and the host's own options.
    """

    name: str
    title: str
    fits: str
    render: Callable[[KernelFiles, Any], Mapping[str, bytes]]


_SMALL_STRAIN = "a stress by a strain, six components in Mandel notation, with its tangent"
_EXPLICIT = "a stress by a strain, six components in Mandel notation"
_RATES = "rates of states, a step in time, or a function of inputs, in double precision"
_ANY = "any model in double precision, with all blocks of its Jacobian or none"
_MGIS, _CASADI = "MFront's generic interface (MGIS)", "CasADi"
_FMU, _TORCH, _JAX = "FMI", "torch.library", "JAX"
_R, _MEX = "R", "Octave"
_BATCH = "any model with a batch, in double precision"
_UMAT, _VUMAT, _KRATOS = "Abaqus/Standard's UMAT", "Abaqus/Explicit's VUMAT", "Kratos GeoMechanics"


def _render_kratos(kernel: KernelFiles, options: PointOptions) -> Mapping[str, bytes]:
    # It gives neither temperature nor field variables.
    conventions = UmatOptions(options, umat.KRATOS_ORDER, times=1, kinds=umat.TIMES)
    return umat.render_umat(kernel, conventions, _KRATOS, "kratos")


HOSTS: Mapping[str, Host] = {
    host.name: host
    for host in (
        Host("umat", _UMAT, _SMALL_STRAIN, lambda kernel, options: umat.render_umat(kernel, options, _UMAT)),
        Host("vumat", _VUMAT, _EXPLICIT, lambda kernel, options: vumat.render_vumat(kernel, options, _VUMAT)),
        Host("kratos", _KRATOS, _SMALL_STRAIN, _render_kratos),
        Host("mgis", _MGIS, _SMALL_STRAIN, lambda kernel, options: mgis.render_mgis(kernel, options, _MGIS)),
        Host("fmu", _FMU, _RATES, lambda kernel, options: fmu.render_fmu(kernel, options, _FMU)),
        Host("torch", _TORCH, _BATCH, lambda kernel, options: differentiable.render_torch(kernel, options, _TORCH)),
        Host("jax", _JAX, _BATCH, lambda kernel, options: differentiable.render_jax(kernel, options, _JAX)),
        Host("r", _R, _BATCH, lambda kernel, options: array_languages.render_r(kernel, options, _R)),
        Host("octave", _MEX, _BATCH, lambda kernel, options: array_languages.render_octave(kernel, options, _MEX)),
        Host("casadi", _CASADI, _ANY, lambda kernel, options: casadi.render_casadi(kernel, options, _CASADI)),
    )
}


def wrap_kernel(host: str, folder: Path, output: Path | None, options: Any) -> list[Path]:
    """Wrap a kernel for a host.

    Args:
        host: One of ``HOSTS``.
        folder: The kernel's folder.
        output: The folder to write; None for one of the host's name in the kernel's folder.
        options: The host's own options.

    Returns:
        The files that were written, without the kernel's sources beside them.

    Raises:
        UsageError: The model does not fit the host.
        ArchiveError: The folder contains no kernel, or one that was changed.
        OutputError: The folder cannot be written.
    """
    kernel = kernel_container.read(folder)
    return write_host_folder(kernel, HOSTS[host].render(kernel, options), output or folder / host)
