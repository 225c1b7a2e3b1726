"""What a model must be before it can run as the reference: in eval mode, with all of its parameters, in Python."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from exporter.common.errors import CaptureError, WarmupError
from exporter.model.function_model import Function
from exporter.model.source import Source


def refuse_training(source: Source) -> None:
    if isinstance(source.named, Function):
        return
    training = [name or "the model itself" for name, m in source.named.named_modules() if m.training]
    if training:
        raise WarmupError(
            f"model {source.name!r} is in train mode although eval() was called",
            check="train mode",
            where="submodule " + ", ".join(training[:5]) + _overridden(source),
            got="training = True",
            expected="training = False everywhere: dropout and batch statistics off",
            mend="do not override train() or eval(), and do not call train() in the factory's hooks",
        )


def _overridden(source: Source) -> str:
    kinds = dict.fromkeys(type(m) for _, m in source.named.named_modules() if type(m).train is not nn.Module.train)
    codes = [getattr(kind.train, "__code__", None) for kind in kinds]
    return "".join(f", by train() at {c.co_filename}:{c.co_firstlineno}" for c in codes if c)


def _made_at(source: Source, name: str) -> str:
    code = getattr(type(source.named.get_submodule(name.rpartition(".")[0])).__init__, "__code__", None)
    return f", made at {code.co_filename}:{code.co_firstlineno}" if code else ""


def refuse_unready(source: Source) -> None:
    """A lazy layer without parameters yet, and layers that are compiled already, cannot be captured."""
    for name, module in source.named.named_modules():
        tensors = (*module._parameters.values(), *module._buffers.values())
        if any(t is not None and is_lazy(t) for t in tensors):
            raise WarmupError(
                f"model {source.name!r} has a lazy layer that has not run yet",
                check="lazy layer",
                where=f"submodule {name!r}" + _made_at(source, name),
                expected="parameters with shapes",
                mend="call the model once in the factory before returning it",
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                f"model {source.name!r} holds a module that is TorchScript already",
                check="TorchScript module",
                where=f"submodule {name!r}",
                got=type(module).__name__,
                expected="modules in Python",
                mend="return the module before torch.jit.script or torch.jit.trace",
            )
