"""A host's folder: the kernel's sources, the code that speaks the host's interface, a build file, README, self-test."""

from __future__ import annotations

import builtins
import hashlib
import keyword
from collections.abc import Mapping, Sequence
from math import isfinite, prod
from pathlib import Path
from typing import Any

from exporter import __version__
from exporter.archive import kernel_container
from exporter.archive.kernel_container import KernelFiles
from exporter.common import atomic_files
from exporter.common.c_text import escape_comment, escape_string, to_c_identifiers
from exporter.common.errors import UsageError
from exporter.common.plain_text import escape_markdown, escape_markdown_line
from exporter.common.templating import make_templates

TEMPLATES = make_templates("exporter.hosts")
TEMPLATES.filters["markdown"] = lambda text: escape_markdown(escape_comment(text))
TEMPLATES.filters["markdown_line"] = lambda text: escape_markdown_line(escape_comment(text))
TEMPLATES.filters["product"] = prod
TEMPLATES.filters["zip"] = zip
TEMPLATES.filters["repr"] = repr
TEMPLATES.filters["c_string"] = escape_string
TEMPLATES.filters["r_number"] = "{:.17g}".format


# What a Makefile that torchferry wrote has in it.
MARK = b"written by torchferry"
# Words that no function, argument or variable can be named by in C, Python, R or Octave.
_C_WORDS = (
    "auto break case char const continue default do double else enum extern float for goto if inline int long register "
    "restrict return short signed sizeof static struct switch typedef union unsigned void volatile while main "
    "exp exp2 expm1 log log2 log10 log1p pow sqrt cbrt sin cos tan asin acos atan sinh cosh tanh erf erfc gamma floor "
    "ceil round trunc fabs fmin fmax abs zero nowhere blocks are_finite names_in names_out"
)
_OTHER_WORDS = (
    "function repeat next in TRUE FALSE NULL Inf NaN NA NA_integer_ NA_real_ NA_complex_ NA_character_ "
    "catch classdef elseif end endclassdef endenumeration endevents endfor endfunction endif endmethods endparfor "
    "endproperties endspmd endswitch endwhile end_try_catch end_unwind_protect global otherwise parfor persistent spmd "
    "switch try until unwind_protect unwind_protect_cleanup "
    "parameters derivatives torch jax jnp ctypes prod casadi"
)
_KEYWORDS = frozenset([*keyword.kwlist, *_C_WORDS.split(), *_OTHER_WORDS.split()])
# What the files around a function call by name, which a variable in it does not hide.
_CALLED = frozenset([*(name for name in dir(builtins) if not name.startswith("_")), "list", "lapply", "local"])


def name_for_languages(names: Sequence[str]) -> list[str]:
    """Return different identifiers that are keywords in none of the hosts' languages."""
    unique: list[str] = []
    for name in to_c_identifiers(names):
        candidate = name
        while candidate in _KEYWORDS or candidate.startswith("_") or candidate in unique:
            candidate = f"x{candidate}" if candidate.startswith("_") else f"{candidate}_"
        unique.append(candidate)
    return unique


def name_function(name: str) -> str:
    """Return the name of the function of a kernel in languages whose own functions its files call."""
    return name_for_languages([f"{name}_" if name in _CALLED else name])[0]


def format_number(number: float) -> str:
    """Return a finite number as C reads it, to the bit."""
    if not isfinite(number):
        raise ValueError(f"{number} is not a number that C has a literal for")
    return float(number).hex()


def list_numbers(numbers: Sequence[float]) -> str:
    """Return numbers as the initializer of an array in C, which has at least one."""
    return ", ".join(map(format_number, numbers)) or "0"


def render(template: str, kernel: KernelFiles, context: Mapping[str, Any]) -> bytes:
    """Render a template with what all of them know: the names of the kernel, and the version that writes."""
    # The name of functions that people call: kernel.name itself begins longer names, and may be a keyword.
    function = name_function(kernel.name)
    digest = hashlib.sha256(kernel.contents[kernel_container.MANIFEST]).hexdigest()[:16]
    known = {
        "digest": digest,
        "name": kernel.name,
        "function": function,
        "contract": kernel.contract,
        "version": __version__,
    }
    return TEMPLATES.get_template(template).render(**known, **context).encode()


def render_c_host(
    kernel: KernelFiles, host: str, title: str, context: Mapping[str, Any], rows: Sequence[Any], template: str = ""
) -> dict[str, bytes]:
    """Render the files of a host whose code is one C file: that, its self-test with rows of cases, Makefile and README.

    Args:
        kernel: The kernel's files.
        host: The host's name, in the names of files.
        title: The host's name, for people.
        context: What the templates read.
        rows: The self-test's rows.
        template: The host whose templates are taken; empty for ``host``.
    """
    template = template or host
    source, self_test = f"{kernel.name}_{host}.c", f"test_{kernel.name}_{host}"
    library = f"lib{kernel.name}_{host}.so"
    known = {"host": host, "title": title, "source": source, "self_test": self_test, "library": library, **context}
    return {
        source: render(f"{template}.c.jinja", kernel, known),
        f"{self_test}.c": render(f"test_{template}.c.jinja", kernel, {**known, "rows": rows}),
        "Makefile": render("Makefile.jinja", kernel, known),
        "README.md": render(f"README_{host}.md.jinja", kernel, known),
    }


def write_host_folder(kernel: KernelFiles, files: Mapping[str, bytes], output: Path) -> list[Path]:
    """Write the host's files and the kernel's sources to a folder, all of them or none; return the host's, sorted.

    Raises ``UsageError`` where the folder holds a kernel: its files would be mixed with the host's."""
    if output.is_file() or kernel_container.is_kernel(output):
        what = "the output is a file" if output.is_file() else "the output is a kernel's folder"
        mend = "name another folder with -o"
        raise UsageError(what, where=str(output), expected="a new folder, or one written before", mend=mend)
    makefile = output / "Makefile"
    is_own = makefile.is_file() and MARK in makefile.read_bytes()
    if not is_own and (others := [name for name in sorted(files) if (output / name).exists()]):
        what, expected = "the folder has a file of somebody else's", "a new folder, or one that torchferry wrote"
        raise UsageError(what, where=str(output / others[0]), expected=expected, mend="name another folder with -o")
    contents = {**kernel.sources(), **files}
    with atomic_files.atomic_write_folder(output, "README.md", lambda: contents) as temporary:
        for name, data in contents.items():
            try:
                (temporary / name).write_bytes(data)
            except OSError as error:
                raise atomic_files.make_write_error(output / name, error) from None
    return [output / name for name in sorted(files)]
