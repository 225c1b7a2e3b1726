"""A tree of plain modules that holds a model's tensors, each once, under the names of the contract.

``torch.jit.trace`` of a module that is registered in two places saves two classes of which the graph uses one, so
a parameter that is set by its first name may be a dead copy. Tracing boxes instead gives every tensor one place.
The boxes mirror the submodules, so that the saved graph keeps their structure and names."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import nn

from exporter.archive.method_names import BLOCKS, METHOD, NEWTON_INFO, RESERVED, SOLVED
from exporter.capture.constants import BUFFER
from exporter.common.errors import CaptureError
from exporter.common.torch_internals import get_traced_paths

Run = Callable[..., tuple[torch.Tensor, ...]]


class Box(nn.Module):
    """The tensors of one submodule; the code that computes with them stays in the source's own modules."""

    # The name of the class in files, wherever its source stands: what is moved or renamed here changes no file.
    _jit_override_qualname = "__torch__.torchferry.Module"


class Root(Box):
    """The traced module. ``runs`` and ``scopes`` are kept out of the module tree on purpose."""

    _jit_override_qualname = "__torch__.torchferry.Model"

    def __init__(self, runs: Mapping[str, Run], scopes: Mapping[nn.Module, str]) -> None:
        super().__init__()
        self._outside = (runs, scopes)

    def forward_batch(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the outputs."""
        return self._run(METHOD, inputs)

    def blocks_batch(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the outputs and the Jacobian blocks of the source library's own chain rule."""
        return self._run(BLOCKS, inputs)

    def newton_info_batch(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the status of the Newton solves."""
        return self._run(NEWTON_INFO, inputs)

    def solved_batch(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the results of the Newton solves."""
        return self._run(SOLVED, inputs)

    def _run(self, method: str, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        runs, scopes = self._outside
        # The tracer keeps a submodule's calls together if it knows the submodule's path.
        module_paths = get_traced_paths()
        if module_paths is not None:
            module_paths.update(scopes)
        return runs[method](*inputs)


def build(
    model: nn.Module,
    runs: Mapping[str, Run],
    constants: Mapping[str, Sequence[torch.Tensor]],
    inlined: Collection[nn.Module],
    scripted: Mapping[str, nn.Module],
) -> Root:
    """Build boxes for the submodules of ``model``; ``constants`` (by box path) become buffers.

    Calls of ``inlined`` modules become part of the calling graph; ``scripted`` modules, by path, are inserted as they
    are."""
    scopes: dict[nn.Module, str] = {}
    root = Root(runs, scopes)
    placed_ids: set[int] = set()
    for path, module in model.named_modules():
        box: nn.Module = root
        _check_names(path, module)
        if any(path.startswith(f"{outer}.") for outer in scripted):
            continue
        if path in scripted:
            parent, _, child_name = path.rpartition(".")
            root.get_submodule(parent).add_module(child_name, scripted[path])
            continue
        for part in path.split(".") if path else ():
            if part not in box._modules:
                box.add_module(part, Box())
            box = box.get_submodule(part)
        if path and module not in inlined:
            scopes[module] = f"__module.{path}"
        # A tensor with two names keeps the first, as in named_parameters.
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in placed_ids:
                placed_ids.add(id(parameter))
                box._parameters[name] = parameter
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in placed_ids:
                placed_ids.add(id(buffer))
                box.register_buffer(name, buffer)
        for i, value in enumerate(constants.get(path, ())):
            box.register_buffer(f"{BUFFER}{i}", value.detach().clone())
    return root.eval()


def _check_names(path: str, module: nn.Module) -> None:
    """Check names: TorchScript writes them into source text, and the archive has methods of its own."""
    for name in (*module._parameters, *module._buffers, *module._modules):
        if keyword.iskeyword(name) or not {'"', "\\"}.isdisjoint(name) or (not path and name in RESERVED):
            what = f"{f'{path}.{name}' if path else name!r} cannot be used as a name in a TorchScript file"
            expected = f"no Python keyword, no quote or backslash, and at the top level none of {', '.join(RESERVED)}"
            raise CaptureError(what, check="names", expected=expected, mend="rename the submodule, parameter or buffer")
