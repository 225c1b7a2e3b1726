"""What we use of torch and torch does not document, in one place: names, and what differs between its versions.

A version of torch that changes one of them fails in the test of this file, and is mended here. What other files see are
plain names; those whose modules take long to import are imported at their first use."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import _get_sequence_nr
from torch._ops import OpOverload as OpOverload
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from exporter.common.errors import MissingRuntimeError

if TYPE_CHECKING:
    from torch._decomp import decomposition_table as decomposition_table
    from torch._decomp import get_decompositions as get_decompositions
    from torch._higher_order_ops.while_loop import while_loop_op as while_loop_op
    from torch._inductor import aoti_compile_and_package as aoti_compile_and_package
    from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch.export.pt2_archive._package import package_pt2 as package_pt2
    from torch.jit._fuser import optimized_execution as optimized_execution
    from torch.jit._trace import TracerWarning as TracerWarning
    from torch.utils._sympy.symbol import SymT as SymT
    from torch.utils._sympy.symbol import symbol_is_type as symbol_is_type

# Not all of it is in torch's stubs.
_compiler: Any = torch._C

# Modules by name: a logger, a patch and the operators of a package are found by it.
DYNAMO, INDUCTOR, FAKE_TENSORS = "torch._dynamo", "torch._inductor", "torch._subclasses.fake_tensor"
CONTROL_FLOW, ARTIFACTS = "torch._higher_order_ops.", "torch.compiler._cache"
_LATE = {
    "decomposition_table": ("torch._decomp", "decomposition_table"),
    "get_decompositions": ("torch._decomp", "get_decompositions"),
    "while_loop_op": (f"{CONTROL_FLOW}while_loop", "while_loop_op"),
    "aoti_compile_and_package": (INDUCTOR, "aoti_compile_and_package"),
    "inductor_config": (f"{INDUCTOR}.config", ""),
    "DataDependentOutputException": (FAKE_TENSORS, "DataDependentOutputException"),
    "FakeTensorMode": (FAKE_TENSORS, "FakeTensorMode"),
    "package_pt2": ("torch.export.pt2_archive._package", "package_pt2"),
    "SymT": ("torch.utils._sympy.symbol", "SymT"),
    "symbol_is_type": ("torch.utils._sympy.symbol", "symbol_is_type"),
}


class _Missing:
    """What a torch without TorchScript lacks. Any use of it raises ``MissingRuntimeError``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: object, **__: object) -> Any:
        raise _make_missing_error(f"no {self._name}")

    def __getattr__(self, name: str) -> Any:
        return self(name)


def _make_missing_error(got: str) -> MissingRuntimeError:
    what, expected = "this torch has no TorchScript", "a torch with torch.jit, such as 2.13"
    mend = "archives load, evaluate, convert and verify (--runtime interpreter) here; make and compare them there"
    return MissingRuntimeError(what, got=got, expected=expected, mend=mend)


def _find(name: str) -> Any:
    """Return what torch's compiler of TorchScript calls so."""
    return getattr(_compiler, name, _Missing(f"torch._C.{name}"))


def _import_jit(name: str) -> Any:
    try:
        return importlib.import_module(f"torch.jit.{name}")
    except ImportError:
        return _Missing(f"torch.jit.{name}")


_trace, _pickle, _fuser = map(_import_jit, ("_trace", "_pickle", "_fuser"))
# PyTorch has deprecated it.
HAS_TORCH_SCRIPT = not isinstance(_trace, _Missing) and hasattr(_compiler, "import_ir_module")
if not TYPE_CHECKING:
    TracerWarning = _trace.TracerWarning if HAS_TORCH_SCRIPT else Warning
    optimized_execution = _fuser.optimized_execution if HAS_TORCH_SCRIPT else contextlib.nullcontext

# Traces; none is made without TorchScript.
get_tracing_state = _find("_get_tracing_state") if HAS_TORCH_SCRIPT else lambda: None
set_tracing_state = _find("_set_tracing_state") if HAS_TORCH_SCRIPT else lambda state: None
get_value_trace = _find("_get_value_trace")
record_graph = _find("_create_graph_by_tracing")

# Graphs of TorchScript: their types, and torch's passes, which change a graph in place.
TensorType, TupleType = _find("TensorType"), _find("TupleType")
IntType, DeviceObjType = _find("IntType"), _find("DeviceObjType")
parse_schema = _find("parse_schema")
inline_calls = _find("_jit_pass_inline")
remove_dead_code = _find("_jit_pass_dce")
merge_subexpressions = _find("_jit_pass_cse")
propagate_constants = _find("_jit_pass_constant_propagation")
pool_constants = _find("_jit_pass_constant_pooling")
propagate_shapes = _find("_jit_pass_complete_shape_analysis")
remove_expands = _find("_jit_pass_remove_expands")
canonicalize_operators = _find("_jit_pass_canonicalize_graph_fuser_ops")
simplify_peepholes = _find("_jit_pass_peephole")
unroll_loops = _find("_jit_pass_loop_unrolling")
rewrite_pattern = _find("_jit_pass_custom_pattern_based_rewrite_graph")
lower_graph = _find("_jit_pass_lower_graph")

# Modules and functions of TorchScript, and its executor.
ModuleDict = _find("ModuleDict")
freeze_module = _find("_freeze_module")
create_function = _find("_create_function_from_graph")
get_last_optimized_graph = _find("_last_executed_optimized_graph")
set_profiling_executor = _find("_jit_set_profiling_executor")
set_profiling_mode = _find("_jit_set_profiling_mode")
get_profiled_runs = _find("_jit_get_num_profiled_runs")
set_profiled_runs = _find("_jit_set_num_profiled_runs")
# The fuser of its executor (NNC), which torch keeps from the CPU where it is built without LLVM.
has_llvm = _find("_llvm_enabled")
can_fuse_on_cpu, allow_cpu_fusion = _find("_jit_can_fuse_on_cpu"), _find("_jit_override_can_fuse_on_cpu")
is_fusing, set_fusing = _find("_jit_texpr_fuser_enabled"), _find("_jit_set_texpr_fuser_enabled")
requires_llvm, set_requires_llvm = _find("_jit_get_te_must_use_llvm_cpu"), _find("_jit_set_te_must_use_llvm_cpu")
has_fusion_fallback, set_fusion_fallback = (
    _find("_jit_texpr_fallback_allowed"),
    _find("_jit_texpr_set_fallback_allowed"),
)
make_integer_list = _pickle.build_intlist if HAS_TORCH_SCRIPT else _pickle

# Tensors, dispatch and autograd.
pytree = _pytree
make_wrapper_tensor = torch.Tensor._make_wrapper_subclass  # pyright: ignore[reportAttributeAccessIssue]
parse_target = _compiler._nn._parse_to
disable_current_modes = _disable_current_modes
get_current_dispatch_mode = _get_current_dispatch_mode
count_dispatch_modes = _compiler._len_torch_dispatch_stack
has_dispatch_kernel = _compiler._dispatch_has_kernel_for_dispatch_key
DisableTorchDispatch = _compiler._DisableTorchDispatch
get_functorch_level = _compiler._functorch.peek_interpreter_stack
get_sequence_number = _get_sequence_nr
get_autograd_node = _compiler._current_autograd_node
# The derivative of ``clamp`` by its first argument where that equals a bound, which is a number, or a tensor.
_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
CLAMP_SHARES = (0.0, 0.5) if _VERSION >= (2, 14) else (1.0, 1.0)
# All backward passes go through one function of torch's autograd engine, which stands under this name in two modules.
ENGINE_ENTRY = "_engine_run_backward"


def require_torch_script() -> None:
    """Raise ``MissingRuntimeError`` if this torch has no TorchScript."""
    if not HAS_TORCH_SCRIPT:
        raise _make_missing_error(f"torch {torch.__version__}")


def get_traced_paths() -> Any:
    """Return the path of each module that is being traced, by module; None where nothing is traced."""
    return _trace._trace_module_map


def get_compiler_artifacts() -> dict[str, Any]:
    """Return the kinds of artifacts that parts of torch's compiler have registered, as torch keeps them."""
    module: Any = sys.modules.get(ARTIFACTS)
    return {} if module is None else module.CacheArtifactFactory._artifact_types


def move_compiler_files(folder: Path) -> None:
    """Let torch's compiler write into a folder, where it has been imported before, too."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    # Headers are compiled for all caches. Their place was found when the module was imported.
    module: Any = sys.modules.get(f"{INDUCTOR}.codecache")
    if module is not None:
        headers = folder / "precompiled_headers"
        module._HEADER_DIR, module._HEADER_LOCK_DIR = str(headers), str(headers / "locks")


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module_name, attribute = _LATE[name]
    module = importlib.import_module(module_name)
    return getattr(module, attribute) if attribute else module
