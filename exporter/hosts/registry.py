"""The hosts that kernels are wrapped for, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.archive import kernel_container
from exporter.archive.kernel_container import KernelFiles
from exporter.hosts import array_languages, calculix, casadi, differentiable, fmu, mgis, umat, vumat
from exporter.hosts.small_strain import PointOptions
from exporter.hosts.umat import UmatOptions
from exporter.hosts.wrapping import write_host_folder


@dataclass(frozen=True)
class Host:
    """A program, or an interface of several, that a kernel is wrapped for.

    Attributes:
        name: The host's name on the command line, and the folder's.
        title: The host's name, for people.
        render: Returns the files by name, for a kernel, the host's own options, and its title.
    """

    name: str
    title: str
    render: Callable[[KernelFiles, Any, str], Mapping[str, bytes]]


def _render_kratos(kernel: KernelFiles, options: PointOptions, title: str) -> Mapping[str, bytes]:
    # It gives neither temperature nor field variables.
    conventions = UmatOptions(options, umat.KRATOS_ORDER, times=1, kinds=umat.TIMES)
    return umat.render_umat(kernel, conventions, title, "kratos")


HOSTS: Mapping[str, Host] = {
    host.name: host
    for host in (
        Host("umat", "Abaqus/Standard's UMAT", umat.render_umat),
        Host("vumat", "Abaqus/Explicit's VUMAT", vumat.render_vumat),
        Host("kratos", "Kratos GeoMechanics", _render_kratos),
        Host("calculix", "CalculiX", calculix.render_calculix),
        Host("mgis", "MFront's generic interface (MGIS)", mgis.render_mgis),
        Host("casadi", "CasADi", casadi.render_casadi),
        Host("fmu", "FMI", fmu.render_fmu),
        Host("torch", "torch.library", differentiable.render_torch),
        Host("jax", "JAX", differentiable.render_jax),
        Host("r", "R", array_languages.render_r),
        Host("octave", "Octave", array_languages.render_octave),
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
    files = HOSTS[host].render(kernel, options, HOSTS[host].title)
    return write_host_folder(kernel, files, output or folder / host)
