"""The operators that a file may call, made anew from the schemas of the torch and of the package onnx at hand.

python tools/list_operators.py [--write]

Prints what this torch has and the list does not, and what the list has and this torch does not; ``--write`` adds the
former to ``exporter/common/operators.txt``, to the native library's copy, and those of ONNX's standard to
``exporter/archive/onnx_operators.txt``. An operator is on a list unless it acts on something else than its arguments,
or is an internal that checks nothing: read the new ones before they are written."""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
LIST = ROOT / "exporter" / "common" / "operators.txt"
NATIVE = ROOT / "runtime_checks" / "native" / "src" / "operators.inc"
ONNX_LIST = ROOT / "exporter" / "archive" / "onnx_operators.txt"
# With other results at each call.
_RANDOM = "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli Dropout"
# They name files, print, set the state of a process, start threads, or send messages.
_ACTING = """
    aten::save aten::from_file aten::manual_seed aten::seed aten::initial_seed aten::_print aten::backward
    aten::_backward aten::dist_backward aten::retain_grad aten::set_data aten::record_stream
    aten::_cufft_clear_plan_cache aten::_cufft_set_plan_cache_max_size aten::wait prim::fork prim::TimePoint prim::id
    prim::PythonOp prim::IgnoredPythonOp prim::rpc_async prim::rpc_remote prim::rpc_sync prim::awaitable_nowait
    prim::awaitable_wait prim::Print
"""
# Types of values that stand for something outside of the graph.
_OUTSIDE = re.compile(r"\b(RRef|Future|Await|Stream|Storage)\b|__torch__")
# Torch's own internals, which check nothing: indices and sizes lead out of the memory.
_UNCHECKED = re.compile(
    r"aten::(_reshape_alias|_sparse_\w*unsafe|_nested_|_test_|_foobar|_resize_output|_cudnn|_validate_|_fused_|_foreach_|_amp_)"
)
# Of the graph itself: torch has no schemas of them.
_STRUCTURE = """
    Constant GetAttr SetAttr If Loop ListConstruct ListUnpack TupleConstruct TupleUnpack TupleIndex TupleSlice
    DictConstruct CreateObject CallMethod CallFunction isinstance hasattr unchecked_cast unchecked_unwrap_optional
    NumToTensor Uninitialized RaiseException EnumName EnumValue ModuleContainerIndex dtype device layout shape max
    min abs data type tolist rangelist StringIndex ConstantChunk requires_grad grad name nbytes itemsize index Enter
    Exit BroadcastSizes ReductionSizes AutogradAdd AutogradZero AutogradAnyNonZero AutogradAllNonZero AutogradAllZero
    is_cpu is_cuda is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_nested is_quantized is_sparse is_sparse_csr
    is_vulkan is_xla is_xpu
"""


def list_pure_operators() -> set[str]:
    """List the operators of this torch that compute from their arguments alone."""
    schemas = defaultdict[str, list[str]](list)
    for schema in torch._C._jit_get_all_schemas():
        schemas[schema.name].append(str(schema))
    inside = {name for name, texts in schemas.items() if not any(map(_OUTSIDE.search, texts))}
    aten = {name for name in inside if name.startswith("aten::") and not _UNCHECKED.match(name)}
    return (aten | {f"prim::{name}" for name in _STRUCTURE.split()}) - set(_ACTING.split())


def list_onnx_operators() -> set[str]:
    """List the operators of ONNX's standard, of all versions, that compute from their arguments alone."""
    from onnx import defs

    return {schema.name for schema in defs.get_all_schemas_with_history() if not schema.domain} - set(_RANDOM.split())


def write(names: set[str]) -> None:
    """Write the list, and the native library's copy."""
    text = "\n".join(sorted(names))
    LIST.write_text(f"{text}\n")
    NATIVE.write_text(format_native(text))


def format_native(text: str) -> str:
    """Return the native library's copy of the list."""
    return f'R"(\n{text}\n)"\n'


def main() -> None:
    """Compare the lists with this torch and this onnx."""
    parser = argparse.ArgumentParser(description="Compare the list of operators with the torch at hand.")
    parser.add_argument("--write", action="store_true", help="add what is new")
    arguments = parser.parse_args()
    known = _compare(LIST, list_pure_operators(), f"torch {torch.__version__}")
    known_of_onnx = _compare(ONNX_LIST, list_onnx_operators(), "onnx")
    if arguments.write:
        write(known)
        ONNX_LIST.write_text("\n".join(sorted(known_of_onnx)) + "\n")


def _compare(path: Path, here: set[str], owner: str) -> set[str]:
    """Print how a list differs from what there is here, and return both together."""
    known = set(path.read_text().split()) if path.exists() else set[str]()
    for name in sorted(here - known):
        print(f"new in {owner}: {name}")
    for name in sorted(known - here):
        print(f"not in {owner}: {name}")
    return known | here


if __name__ == "__main__":
    main()
