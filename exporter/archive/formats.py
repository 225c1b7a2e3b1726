"""Container formats of a model, by name and by file name."""

from __future__ import annotations

from pathlib import Path

from exporter.archive.kernel_container import is_kernel

# ``program`` is a package of torch.export programs, ``pt2`` a package of code compiled from them.
SUFFIXES = {"pt": ".pt", "onnx": ".onnx", "pt2": ".pt2", "program": ".program.pt2"}
# A kernel is a folder of C sources, with any name.
KERNEL = "c"
FORMATS = (*SUFFIXES, KERNEL)


def infer_format(path: Path) -> str | None:
    """Infer the format from the longest matching suffix, or from what is there; None for an unknown name."""
    if is_kernel(path):
        return KERNEL
    fitting = [name for name, suffix in SUFFIXES.items() if path.name.endswith(suffix)]
    return max(fitting, key=lambda name: len(SUFFIXES[name]), default=None)


def path_for_format(path: Path, format_name: str) -> Path:
    """Return the path of another container of the same model, beside the one at ``path``."""
    old_format = infer_format(path)
    stem = path.name.removesuffix(SUFFIXES.get(old_format or "", ""))
    return path.with_name(stem + SUFFIXES.get(format_name, ""))


def choose_output_path(output: Path | None, name: str, *, several: bool, format_name: str = "pt") -> Path:
    """Choose where the container of the model ``name`` goes: ``output``, a file in it, or a file here."""
    file = name + SUFFIXES.get(format_name, "")
    if output is None:
        return Path(file)
    if format_name == KERNEL and not several and (is_kernel(output) or not (output.is_dir() and any(output.iterdir()))):
        return output
    folder = several or output.is_dir() or str(output).endswith("/")
    return output / file if folder and not (output.is_file() and not several) else output
