"""The registry of formats of a model's file: name, suffix, the runtimes that run it, how it is read, who writes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.archive import kernel_container, onnx_container, pt_archive
from exporter.archive.kernel_container import is_kernel
from exporter.common.errors import UsageError, suggest_names


@dataclass(frozen=True)
class Format:
    """A format of files: ``runtimes`` that run it, the ``usual`` ones first; without a suffix it is a folder.

    ``backend`` is the folder and class below ``exporter.backends`` that write it from an archive: a text, since who
    reads a file does without the code that writes it."""

    name: str
    suffix: str
    runtimes: tuple[str, ...]
    read: Callable[[Path], Any]
    backend: str = ""
    usual: int = 1


# ``program`` is a package of torch.export programs, ``pt2`` a package of code compiled from them, ``c`` a folder of C
# sources with any name, ``cuda`` one that has sources for GPUs as well.
FORMATS = {
    f.name: f
    for f in (
        Format("pt", ".pt", ("python", "libtorch", "interpreter", "c"), pt_archive.read),
        Format("onnx", ".onnx", ("onnxruntime",), onnx_container.read, "onnx.OnnxBackend"),
        Format("pt2", ".pt2", ("aoti", "libtorch"), pt_archive.read, "torch_export.CompiledBackend"),
        Format("program", ".program.pt2", ("program",), pt_archive.read, "torch_export.ProgramBackend"),
        Format("c", "", ("c",), kernel_container.read, "c_kernel.KernelBackend"),
        Format("cuda", "", ("cuda", "c"), kernel_container.read, "c_kernel.CudaBackend", usual=2),
    )
}
# Kernels: the second has the sources of the first, and those for GPUs.
KERNEL, CUDA = "c", "cuda"
KERNELS = (KERNEL, CUDA)


def infer_format(path: Path) -> str | None:
    """Infer the format from the longest matching suffix, or from what is there; None for an unknown name."""
    if is_kernel(path):
        return CUDA if kernel_container.has_cuda_files(path) else KERNEL
    fitting = [f for f in FORMATS.values() if f.suffix and path.name.endswith(f.suffix)]
    return max(fitting, key=lambda f: len(f.suffix)).name if fitting else None


def path_for_format(path: Path, format_name: str) -> Path:
    """Return the path of another container of the same model, beside the one at ``path``."""
    old_format = infer_format(path)
    stem = path.name.removesuffix(FORMATS[old_format].suffix) if old_format else path.name
    return path.with_name(stem + FORMATS[format_name].suffix)


def choose_output_path(output: Path | None, name: str, *, several: bool, format_name: str = "pt") -> Path:
    """Choose where the container of the model ``name`` goes: ``output``, a file in it, or a file here."""
    file = name + FORMATS[format_name].suffix
    if output is None:
        return Path(file)
    if (
        format_name in KERNELS
        and not several
        and (is_kernel(output) or not (output.is_dir() and any(output.iterdir())))
    ):
        return output
    folder = several or output.is_dir() or str(output).endswith("/")
    return output / file if folder and not (output.is_file() and not several) else output


def count_bytes(path: Path) -> int:
    """Return the bytes of a file, or of the files in a kernel's folder."""
    return sum(f.stat().st_size for f in path.iterdir() if f.is_file()) if path.is_dir() else path.stat().st_size


def resolve_formats(requested: Sequence[str], output: Path | None) -> tuple[str, ...]:
    """Return the requested formats, by name or by the output's suffix; raise ``UsageError`` for unknown ones."""
    names = [n.strip() for text in requested for n in text.split(",") if n.strip()]
    unknown = next((n for n in names if n not in FORMATS), None)
    if unknown is not None:
        raise UsageError(f"there is no format {unknown!r}", where="--format", expected=suggest_names(unknown, FORMATS))
    # A folder for both has what each of them has.
    names = [n for n in names if n != KERNEL or CUDA not in names]
    return tuple(dict.fromkeys(names)) or ((output and infer_format(output)) or "pt",)


def check_suffix(output: Path, formats: Sequence[str]) -> None:
    """Raise ``UsageError`` if the output's suffix belongs to another format."""
    suffix_format = infer_format(output)
    if suffix_format in (None, *KERNELS) and not {*KERNELS}.isdisjoint(formats):
        return
    if suffix_format not in formats and (suffix_format is not None or "pt" not in formats) and not output.is_dir():
        got = (FORMATS[suffix_format].suffix or "a kernel's folder") if suffix_format else output.suffix or "no suffix"
        what = "the output's name does not fit the format"
        expected = " or ".join(FORMATS[name].suffix or "a folder" for name in formats)
        mend = "name the output accordingly, or ask for its format with --format"
        raise UsageError(what, where=str(output), got=got, expected=expected, mend=mend)
