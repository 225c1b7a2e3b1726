"""The containers of a model, by name, and by the names of their files."""

from __future__ import annotations

from pathlib import Path

from exporter.archive.kernel_container import is_kernel

# ``program`` is a package of torch.export's programs, ``pt2`` one of code that was compiled of them.
SUFFIXES = {"pt": ".pt", "onnx": ".onnx", "pt2": ".pt2", "program": ".program.pt2"}
# A kernel is a folder of C sources, by any name.
KERNEL = "c"
FORMATS = (*SUFFIXES, KERNEL)


def format_of(path: Path) -> str | None:
    """By the longest suffix that fits, or by what is there; None for a name that says nothing."""
    if is_kernel(path):
        return KERNEL
    fitting = [name for name, suffix in SUFFIXES.items() if path.name.endswith(suffix)]
    return max(fitting, key=lambda name: len(SUFFIXES[name]), default=None)


def named(path: Path, kind: str) -> Path:
    """Of another container of the same model, beside the one at ``path``."""
    known = format_of(path)
    stem = path.name.removesuffix(SUFFIXES.get(known or "", ""))
    return path.with_name(stem + SUFFIXES.get(kind, ""))


def output_path(output: Path | None, name: str, *, several: bool, kind: str = "pt") -> Path:
    """Where the container of the model ``name`` goes: ``output``, a file in it, or a file here."""
    file = name + SUFFIXES.get(kind, "")
    if output is None:
        return Path(file)
    if kind == KERNEL and not several and (is_kernel(output) or not (output.is_dir() and any(output.iterdir()))):
        return output
    folder = several or output.is_dir() or str(output).endswith("/")
    return output / file if folder and not (output.is_file() and not several) else output
