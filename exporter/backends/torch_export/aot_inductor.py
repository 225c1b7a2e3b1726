"""Programs compiled for this machine by AOTInductor: one package with a model for each method."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exporter.backends.torch_export.program import ORIGIN, Program, quiet_export, quiet_logs
from exporter.common import torch_internals
from exporter.common.errors import MissingRuntimeError, UnsupportedError, summarize_error
from exporter.common.temporary_folders import temporary_folder
from exporter.common.torch_internals import INDUCTOR

# Fixed records of a package, as torch's loader reads it (torch/csrc/inductor/aoti_package/model_package_loader.cpp).
_FRAME = {"archive_format": b"pt2", "archive_version": b"0", "byteorder": b"little", ".data/version": b"3\n"}
# One loop over the batch with as many threads as the host gives it at run time, and no unsafe rounding.
_SETTINGS = {"cpp.dynamic_threads": True, "cpp.enable_unsafe_math_opt_flag": False}


def require() -> None:
    """Raise ``MissingRuntimeError`` if there is no C++ compiler."""
    setting: Any = torch_internals.inductor_config.cpp.cxx
    compiler = setting[1] if isinstance(setting, (tuple, list)) else setting
    if not (shutil.which(str(compiler)) or shutil.which("g++") or shutil.which("clang++")):
        what = "a .pt2 is compiled for this machine, and there is no C++ compiler"
        mend = "install g++, or write another format: what loads a .pt2 needs none"
        raise MissingRuntimeError(what, got="neither g++ nor clang++", mend=mend)


# As compilers say it too.
NO_SPACE = os.strerror(errno.ENOSPC)


def compile_programs(programs: Mapping[str, Program]) -> dict[str, bytes]:
    """Return the records of a package; raise ``UnsupportedError`` if AOTInductor rejects a program."""
    records = dict(_FRAME)
    with temporary_folder() as folder:
        for method, program in programs.items():
            package = folder / f"{method}.pt2"
            _compile(program, package)
            with zipfile.ZipFile(package) as package_zip:
                for name in package_zip.namelist():
                    model_path = name.partition("/data/aotinductor/model/")[2]
                    if model_path:
                        # Sources are of no use to a host, and name this machine's folders; by the names of theirs
                        # torch 2.10 finds the metadata.
                        data = b"" if model_path.endswith(".cpp") else package_zip.read(name)
                        records[f"data/aotinductor/{method}/{model_path}"] = data
    return records


def _compile(program: Program, package: Path) -> None:
    settings: dict[str, Any] = dict(_SETTINGS)
    with quiet_export(), quiet_logs(INDUCTOR):
        try:
            torch_internals.aoti_compile_and_package(
                program.exported, package_path=str(package), inductor_configs=settings
            )
        except Exception as error:
            if NO_SPACE in str(error):
                what, mend = "there is no room to compile a .pt2", "free the disk of TORCHFERRY_CACHE and TMPDIR"
                raise MissingRuntimeError(what, where=tempfile.gettempdir(), got=NO_SPACE, mend=mend) from error
            nodes = [node for node in program.exported.graph.nodes if node.name in str(error)]
            places = {node.meta.get("custom", {}).get(ORIGIN, "") for node in nodes}
            what, check = f"AOTInductor does not compile method {program.method!r}", "AOTInductor"
            where, got = "; ".join(sorted(filter(None, places))[:5]), summarize_error(error)
            expected, mend = "operators that torch can compile", "use the .pt, or the ONNX container"
            raise UnsupportedError(what, check=check, where=where, got=got, expected=expected, mend=mend) from error
