"""CUDA sources of a model: the C kernel's functions, of one element, called by a thread of a GPU for each element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exporter.archive import kernel_container
from exporter.backends.c_kernel.frame_layout import TEMPLATES
from exporter.common.errors import UnsupportedError

# Threads of a block, and blocks beside each other on a multiprocessor: 128 registers for each thread. Measured on an
# H200 for Newton loops of seven unknowns: 0.63 of the time with 255 registers at 1,000,000 elements, 0.9 at 100,000,
# 1.04 at 1,000.
THREADS, RESIDENT = 128, 4
# Bytes of a kernel's arguments, on every GPU and by every compiler (CUDA C++ Programming Guide, "Function Parameters").
ARGUMENTS = 4096
# Bytes that a thread may have beyond its registers (CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability"), less what the compiler puts there.
LOCAL = 2**19 - 2**14


def render_cuda_sources(context: Mapping[str, Any]) -> dict[str, str]:
    """Render the sources by file name, from the context of the C sources, whose header of lanes they include.

    Raises ``UnsupportedError`` for a method that no kernel of a GPU can take."""
    for method in context["methods"]:
        _place_strides(method)
        _check_limits(method, context["lanes"])
    names = kernel_container.list_cuda_files(context["name"])
    templates = dict(zip(names, ("model.cu", "model_cuda.h", "model_host.cu"), strict=True))
    return {
        n: TEMPLATES.get_template(f"{t}.jinja").render(context, threads=THREADS, resident=RESIDENT)
        for n, t in templates.items()
    }


def _place_strides(method: dict[str, Any]) -> None:
    """Give each variable the place of its strides, and the method the number of all."""
    place = 0
    for variable in (*method["inputs"], *method["outputs"]):
        variable["stride"] = place
        place += 1 + len(variable["shape"])
    method["strides"] = place
    method["has_uniform"] = method["emitted"].has_uniform


def _check_limits(method: Mapping[str, Any], lanes: int) -> None:
    pointers = len(method["inputs"]) + len(method["outputs"])
    # The count, the statuses and the uniform values are three more.
    size = 8 * max(3 + pointers + method["strides"], len(method["parameters"]) + 1)
    if size > ARGUMENTS:
        expected = f"at most {ARGUMENTS}, which is what a kernel of a GPU takes"
        raise _make_error(method, f"{size} bytes of pointers and strides", expected)
    if (frame := method["frame"] // lanes) > LOCAL:
        expected = f"at most {LOCAL}, which is what a thread may have"
        raise _make_error(method, f"{frame} bytes for each element", expected)


def _make_error(method: Mapping[str, Any], got: str, expected: str) -> UnsupportedError:
    what, mend = "the model is too big for a GPU's kernel", "write the kernel in C alone, with c in place of cuda"
    where = f"method {method['method']!r}"
    return UnsupportedError(what, check="kernel", where=where, got=got, expected=expected, mend=mend)
