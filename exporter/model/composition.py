"""Torch modules wired by variable name: an output of one module is the input of another."""

from __future__ import annotations

import dataclasses
import graphlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn

from exporter.archive.metadata import TEXT_FIELDS
from exporter.archive.tensor_spec import Signature, TensorSpec
from exporter.common.errors import UsageError, suggest_names
from exporter.common.torch_internals import get_tracing_state
from exporter.model.argument_binding import BoundForward
from exporter.model.implicit.implicit_update import ImplicitUpdate
from exporter.model.jit_marks import mark, mark_either
from exporter.model.unit_agreement import merge_units

__all__ = ["ComposedModel", "ImplicitUpdate", "Part"]


class Part(nn.Module):
    """A module with names for its inputs and outputs, for modules that do not declare a ``signature`` themselves.

    Args:
        module: The module; it is called with the inputs in the order of ``inputs``.
        inputs: Shapes of one element by name, without the batch dimension.
        outputs: Shapes of one element by name.
        name: The label in messages; by default the module's class.
        dtype: The dtype of variables that are given by their shape.
        jit: ``"script"`` compiles the module from its source instead of tracing it, for control flow on data.

    Example:
        ```python
        Part(nn.Linear(3, 2), inputs={"x": (3,)}, outputs={"y": (2,)}, name="layer", dtype="float32")
        ```
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Mapping[str, Sequence[int] | TensorSpec],
        outputs: Mapping[str, Sequence[int] | TensorSpec],
        name: str = "",
        dtype: str = "float64",
        jit: Literal["script", "trace"] = "trace",
    ) -> None:
        super().__init__()
        mark(module, jit=jit)
        self.label = name or type(module).__name__
        self.module = module
        self._call = BoundForward(module, list(inputs), self.label)
        self.signature = Signature.of(inputs, outputs, dtype=dtype)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self._call(*inputs)


class ComposedModel(nn.Module):
    """A model composed of modules by variable name, evaluated in the order of their dependencies.

    Variables that no module provides are the inputs, in the order of their first use; variables that no module
    consumes, and ``additional_outputs``, are the outputs. The order of ``modules`` does not affect the result.
    Evaluation order: the topological sort of the standard library's ``graphlib``.

    Args:
        modules: Modules that carry a ``signature``, or are wrapped in a ``Part``.
        name: The model's name.
        additional_outputs: Variables that are outputs although a module consumes them.
        jit: By module name, which modules are compiled from their source (``"script"``) instead of traced. ``False``
            treats each module by itself: it is compiled if TorchScript can read its source, and traced otherwise, so
            that one module that cannot be traced does not cost the rest.

    Raises:
        UsageError: A cycle, two producers of one name, or a shape or dtype that does not fit; modules and variable are
            named.

    Example:
        ```python
        ComposedModel([Elasticity(), Hardening()], name="material", additional_outputs=["elastic_strain"])
        ```
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        *,
        name: str = "composed",
        additional_outputs: Sequence[str] = (),
        jit: Mapping[str, Literal["script", "trace"]] | Literal[False] | None = None,
    ) -> None:
        super().__init__()
        self.label = name
        labels = _make_labels(modules)
        if jit is False:
            for module in modules:
                mark_either(module.module if isinstance(module, Part) else module)
        for label, how in (jit or {}).items():
            if label not in labels:
                what = f"jit names a module {label!r} that is not in the composition"
                raise UsageError(what, expected=suggest_names(label, labels))
            target = modules[labels.index(label)]
            mark(target.module if isinstance(target, Part) else target, jit=how)
        signatures = {label: _require_signature(m, label) for label, m in zip(labels, modules, strict=True)}
        producer = _find_producers(signatures)
        self._order = _sort_modules(signatures, producer)
        self._calls: dict[str, BoundForward] = {}
        for label, module in zip(labels, modules, strict=True):
            # Every ``nn.Module`` has some attributes already: ``double``.
            is_taken = hasattr(nn.Module, label) or label in ("label", "signature")
            self.add_module(f"{label}_" if is_taken else label, module)
            self._calls[label] = BoundForward(module, [s.name for s in signatures[label].inputs], label)
        self._declared_outputs = {label: signatures[label].outputs for label in labels}
        self._input_names = {label: [s.name for s in signatures[label].inputs] for label in labels}
        self._output_names = {label: [s.name for s in signatures[label].outputs] for label in labels}
        variables = _merge_variables(signatures)
        consumed = {name for label in labels for name in self._input_names[label]}
        inputs = [n for n in dict.fromkeys(x for la in self._order for x in self._input_names[la]) if n not in producer]
        for extra in additional_outputs:
            if extra not in producer:
                what = f"additional output {extra!r} of {name!r} is produced by no module"
                raise UsageError(what, expected=suggest_names(extra, producer))
        produced = itertools.chain.from_iterable(self._output_names[label] for label in self._order)
        outputs = [n for n in produced if n not in consumed or n in additional_outputs]
        self.signature = Signature(tuple(variables[n] for n in inputs), tuple(variables[n] for n in outputs))

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values: dict[str, Any] = dict(zip((s.name for s in self.signature.inputs), inputs, strict=True))
        for label in self._order:
            result = self._calls[label](*(values[n] for n in self._input_names[label]))
            if isinstance(result, Mapping):
                result = tuple(result[n] for n in self._output_names[label])
            elif isinstance(result, torch.Tensor):
                result = (result,)
            if len(result) != len(self._output_names[label]):
                what = f"module {label!r} does not return the outputs that it declares"
                raise UsageError(what, got=f"{len(result)}", expected=", ".join(self._output_names[label]))
            if get_tracing_state() is None:
                _check_outputs(label, self._declared_outputs[label], result)
            values.update(zip(self._output_names[label], result, strict=True))
        return tuple(values[s.name] for s in self.signature.outputs)

    def extra_repr(self) -> str:
        sides = (self.signature.inputs, self.signature.outputs)
        inputs, outputs = ("; ".join(s.describe() for s in side) for side in sides)
        order = " -> ".join(self._order)
        return f"Name: {self.label}\nInputs: {inputs}\nOutputs: {outputs}\nOrder of evaluation: {order}"


def _make_labels(modules: Sequence[nn.Module]) -> list[str]:
    """Return a name for each module, for messages and printing: its label or class, made unique with a number."""
    labels: list[str] = []
    for module in modules:
        base = str(getattr(module, "label", type(module).__name__)).replace(".", "_")
        unique, i = base, 2
        while unique in labels:
            unique, i = f"{base}_{i}", i + 1
        labels.append(unique)
    return labels


def _check_outputs(label: str, declared: Sequence[TensorSpec], values: Sequence[torch.Tensor]) -> None:
    """Check that a module returns the outputs it declares: broadcasting would hide a mistake until later."""
    for spec, value in zip(declared, values, strict=True):
        event_shape, dtype = tuple(value.shape[max(0, value.ndim - len(spec.shape)) :]), str(value.dtype)
        if event_shape != spec.shape or dtype != f"torch.{spec.dtype}":
            what = f"module {label!r} does not give the {spec.name!r} that it declares"
            got = f"shape {list(value.shape)} {dtype.removeprefix('torch.')}"
            expected = f"[*batch{''.join(f', {d}' for d in spec.shape)}] {spec.dtype}"
            raise UsageError(what, got=got, expected=expected, mend="correct its signature, or the module")


def _require_signature(module: nn.Module, label: str) -> Signature:
    signature = getattr(module, "signature", None)
    if not isinstance(signature, Signature) or not signature.outputs:
        what, expected = f"module {label!r} declares no variables", "an attribute `signature` with inputs and outputs"
        mend = "wrap it: Part(module, inputs={'x': (3,)}, outputs={'y': ()})"
        raise UsageError(what, got=f"signature = {signature!r}", expected=expected, mend=mend)
    if not signature.batch_ndim:
        what = f"module {label!r} has whole shapes, and modules are composed over a batch of independent elements"
        mend = "call the modules from one whose signature has the whole shapes"
        raise UsageError(what, got=f"batch_ndim={signature.batch_ndim}", expected="batch_ndim=1", mend=mend)
    return signature


def _find_producers(signatures: Mapping[str, Signature]) -> dict[str, str]:
    producer: dict[str, str] = {}
    for label, signature in signatures.items():
        for spec in signature.outputs:
            if spec.name in producer:
                what, mend = f"variable {spec.name!r} has two producers", "rename the output of one of them"
                where = f"modules {producer[spec.name]!r} and {label!r}"
                raise UsageError(what, where=where, expected="one module for each variable", mend=mend)
            producer[spec.name] = label
    return producer


def _sort_modules(signatures: Mapping[str, Signature], producer: Mapping[str, str]) -> list[str]:
    # Sorted, so that the order of the list does not affect the graph.
    inputs = {label: [s.name for s in signatures[label].inputs] for label in sorted(signatures)}
    needs = {label: sorted({producer[n] for n in names if n in producer}) for label, names in inputs.items()}
    try:
        return list(graphlib.TopologicalSorter(needs).static_order())
    except graphlib.CycleError as error:
        cycle: list[str] = error.args[1]
        # graphlib lists each node before the one that needs it
        links = [
            f"{giver!r} gives {name!r} to {taker!r}"
            for giver, taker in itertools.pairwise(cycle)
            for name in sorted({s.name for s in signatures[giver].outputs} & {s.name for s in signatures[taker].inputs})
        ]
        expected = "an order in which every input is known before it is used"
        mend = "break the cycle: take one of these variables from the previous step (a~1)"
        raise UsageError("the modules form a cycle", where=", ".join(links), expected=expected, mend=mend) from None


def _merge_variables(signatures: Mapping[str, Signature]) -> dict[str, TensorSpec]:
    variables: dict[str, tuple[str, TensorSpec]] = {}
    for label, signature in signatures.items():
        for spec in (*signature.outputs, *signature.inputs):
            first_label, first = variables.setdefault(spec.name, (label, spec))
            if (spec.shape, spec.dtype) != (first.shape, first.dtype):
                what = f"variable {spec.name!r} does not fit between two modules"
                got = f"{list(spec.shape)} {spec.dtype} in {label!r}"
                expected = f"{list(first.shape)} {first.dtype} as in {first_label!r}"
                raise UsageError(what, where=f"modules {first_label!r} and {label!r}", got=got, expected=expected)
            if first.type == "Tensor" and spec.type != "Tensor":
                variables[spec.name] = (first_label, dataclasses.replace(first, type=spec.type))
    texts = _merge_texts(signatures)
    return {name: dataclasses.replace(spec, **texts[name]) for name, (_, spec) in variables.items()}


def _merge_texts(signatures: Mapping[str, Signature]) -> dict[str, dict[str, str]]:
    """Return what is said of variables, by field: by who gives one, else by the first label that says something.

    So the order of the modules does not matter. Raises ``UsageError`` where the units of two modules differ."""
    first: dict[str, tuple[str, TensorSpec]] = {}
    texts: dict[str, dict[str, str]] = {}
    outputs = [(label, spec) for label in sorted(signatures) for spec in signatures[label].outputs]
    inputs = [(label, spec) for label in sorted(signatures) for spec in signatures[label].inputs]
    for label, spec in (*outputs, *inputs):
        if spec.unit:
            first_label, first_spec = first.setdefault(spec.name, (label, spec))
            merge_units(first_spec, spec, (first_label, label))
        first_texts = texts.setdefault(spec.name, dict.fromkeys(TEXT_FIELDS, ""))
        texts[spec.name] = {name: text or getattr(spec, name) for name, text in first_texts.items()}
    return texts
