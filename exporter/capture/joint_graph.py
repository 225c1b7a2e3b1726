"""A joint graph: the forward pass, the backward pass and the hooks of a model that takes gradients itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from exporter.capture.fx_tracing import FxProgram, trace_to_fx
from exporter.capture.origin_tracking import get_user_line
from exporter.model.compiled_model import list_compiled
from exporter.model.eager.evaluation import call_model, expand_constants, normalize_outputs, preserve_grads
from exporter.model.source import Inputs, Source


def trace_joint_graph(source: Source, inputs: Inputs, constant: Sequence[bool] = ()) -> FxProgram:
    """Trace the forward pass, inner backward passes and hooks as one graph that returns all outputs.

    ``constant`` marks the outputs without a batch, which are expanded to it. Call it under ``eager_context``; raises
    ``CaptureError``."""

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = normalize_outputs(call_model(source, tensors), source)
        return tuple(v.detach() for v in expand_constants(outputs, constant, tensors).values())

    # The autograd engine leaves tensors without data in .grad.
    with preserve_grads(source):
        # TorchScript's interpreter asks for numbers of elements as numbers.
        has_open_sizes = source.has_dynamic_size or not list_compiled(source.parameter_module)
        return trace_to_fx(run, inputs, model=source.parameter_module, has_open_sizes=has_open_sizes)


def list_program_constants(source: Source, program: FxProgram) -> list[tuple[str, str, torch.Tensor]]:
    """List tensors the function made or found, not the model's own: (no submodule, line that uses it, value)."""
    model_pointers = {t.data_ptr() for t in (*source.parameter_module.parameters(), *source.parameter_module.buffers())}
    constants = []
    for node in program.graph.graph.nodes:
        if node.op == "get_attr" and program.constants[str(node.target)].data_ptr() not in model_pointers:
            where = next((line for user in node.users if (line := get_user_line(user))), "")
            constants.append(("", where, program.constants[str(node.target)]))
    return constants
