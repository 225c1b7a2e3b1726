"""Checks before a model runs as the reference: in eval mode, with all of its parameters, in Python."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from exporter.common.errors import CaptureError, WarmupError
from exporter.model.function_model import FunctionModule
from exporter.model.source import Source


def check_eval_mode(source: Source) -> None:
    """Check that every submodule is in eval mode."""
    if isinstance(source.parameter_module, FunctionModule):
        return
    training = [name or "the model itself" for name, m in source.parameter_module.named_modules() if m.training]
    if training:
        what = f"model {source.name!r} is in train mode although eval() was called"
        where = "submodule " + ", ".join(training[:5]) + _describe_override(source)
        expected = "training = False everywhere: dropout and batch statistics off"
        mend = "do not override train() or eval(), and do not call train() in the factory's hooks"
        raise WarmupError(what, check="train mode", where=where, got="training = True", expected=expected, mend=mend)


def _describe_override(source: Source) -> str:
    classes = dict.fromkeys(type(m) for m in source.parameter_module.modules() if type(m).train is not nn.Module.train)
    codes = [getattr(cls.train, "__code__", None) for cls in classes]
    return "".join(f", by train() at {c.co_filename}:{c.co_firstlineno}" for c in codes if c)


def _describe_constructor(source: Source, name: str) -> str:
    code = getattr(type(source.parameter_module.get_submodule(name.rpartition(".")[0])).__init__, "__code__", None)
    return f", created at {code.co_filename}:{code.co_firstlineno}" if code else ""


def check_capturable(source: Source) -> None:
    """Check for lazy layers without parameters and for layers that are already compiled: neither can be captured."""
    for name, module in source.parameter_module.named_modules():
        tensors = (*module._parameters.values(), *module._buffers.values())
        if any(t is not None and is_lazy(t) for t in tensors):
            what = f"model {source.name!r} has a lazy layer that has not run yet"
            where = f"submodule {name!r}" + _describe_constructor(source, name)
            mend = "call the model once in the factory before returning it"
            raise WarmupError(what, check="lazy layer", where=where, expected="parameters with shapes", mend=mend)
        if isinstance(module, torch.jit.ScriptModule):
            what, check = f"model {source.name!r} contains a module that is already TorchScript", "TorchScript module"
            where, got = f"submodule {name!r}", type(module).__name__
            mend = "return the module before torch.jit.script or torch.jit.trace; a file of it alone: torchferry adopt"
            raise CaptureError(what, check=check, where=where, got=got, expected="modules in Python", mend=mend)
