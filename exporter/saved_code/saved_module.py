"""A TorchScript module as the records of its file have it: methods, attributes and tensors, without ``torch.jit``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from exporter.archive.module_objects import (
    SavedDevice,
    SavedMemory,
    SavedObject,
    SavedTensor,
    find_attribute,
    read_objects,
)
from exporter.archive.pt_archive import Archive
from exporter.common.errors import ArchiveError
from exporter.common.recursion import with_deep_recursion
from exporter.saved_code.code_reader import CodeReader, ModuleContents, ModuleRef, NotReadError, Value
from exporter.saved_code.code_records import CodeClass, read_code
from exporter.saved_code.interpreter import EagerInterpreter
from exporter.saved_code.ir import CALL, Graph, Literal, SavedGraphs, get_callee
from exporter.saved_code.literals import TYPES
from exporter.saved_code.script_types import DEVICE, TENSOR, ScriptType
from exporter.saved_code.tensors import TensorTable, format_literal


class SavedModule:
    """The module of an archive. Nothing of the file is run by making one.

    Raises ``ArchiveError`` for records that are damaged or not of the form that torch writes."""

    def __init__(self, archive: Archive, device: str | torch.device = "cpu") -> None:
        self._path = str(archive.path)
        self._code = read_code(archive)
        self._root = read_objects(archive, "data.pkl")
        if not isinstance(self._root, SavedObject):
            raise ArchiveError("the record of the module has no module", where=f"{archive.path}, record data.pkl")
        self._device = device
        self._archive, self._memory = archive, SavedMemory(archive, "data")
        self._tensors: dict[str, torch.Tensor] = {}
        self._interpreters: dict[str, EagerInterpreter] = {}
        self.method_names: Collection[str] = frozenset(self._find_class(self._root.class_name).methods)
        self.named_parameters = self._read_tensors(lambda code_class: code_class.parameters)
        self.named_buffers = self._read_tensors(lambda code_class: code_class.buffers)

    def _read_tensors(self, select: Callable[[CodeClass], Sequence[str]]) -> dict[str, torch.Tensor]:
        """Return the tensors that classes name as parameters, or as buffers, by their dotted names."""
        names: list[str] = []
        stack: list[tuple[str, SavedObject]] = [("", self._root)]
        while stack:
            path, owner = stack.pop()
            code_class = self._code.classes.get(owner.class_name)
            own = set(select(code_class) if code_class else ())
            for name, value in owner.attributes.items():
                if isinstance(value, SavedObject):
                    stack.append((f"{path}{name}.", value))
                elif isinstance(value, SavedTensor) and name in own:
                    names.append(f"{path}{name}")
        return {name: self.get_tensor(name) for name in names}

    def get_value(self, path: str) -> Any:
        """Return an attribute that is no module: a tensor, a number, a text, or a list or dict of them."""
        value = find_attribute(self._root, path)
        if isinstance(value, SavedTensor):
            return self.get_tensor(path)
        return torch.device(value.name) if isinstance(value, SavedDevice) else value

    def get_tensor(self, path: str) -> torch.Tensor:
        """Return the tensor at a dotted name: the same one each time."""
        if path not in self._tensors:
            saved = find_attribute(self._root, path)
            value = self._memory.read_tensor(saved).to(self._device)
            self._tensors[path] = value.requires_grad_(saved.requires_grad)
        return self._tensors[path]

    def run(self, method: str, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Run a method, operator by operator, on the tensors of this module. Raises what torch's operators raise."""
        if method not in self._interpreters:
            saved = self.read_methods([method])
            self._interpreters[method] = EagerInterpreter(saved, saved.tensors)
        return self._interpreters[method].run(method, inputs)

    @with_deep_recursion
    def read_methods(self, methods: Collection[str], apart: Collection[str] = ()) -> SavedGraphs:
        """Read these methods, ``forward`` or ``newton.residual.forward``, and those that they call.

        The submodules at the paths ``apart`` are not inlined: a call of one is a node ``APART``. Raises
        ``UnsupportedError``, with record and line, for code that ``torch.jit`` alone reads."""
        table = TensorTable(self.get_tensor, frozenset(self.named_parameters))
        constants = _FileConstants(self._archive, table, self._device)
        contents = ModuleContents(self._code, functools.partial(self._get_attribute, table), constants.get)
        graphs: dict[str, Graph] = {}
        pending = list(methods)
        while pending:
            name = pending.pop()
            if name not in graphs:
                graphs[name] = self._read_method(name, contents, apart)
                pending += [get_callee(node) for node in graphs[name] if node.kind == CALL]
        return SavedGraphs(graphs, table.values)

    def _read_method(self, name: str, contents: ModuleContents, apart: Collection[str]) -> Graph:
        path, _, method_name = name.rpartition(".")
        owner = find_attribute(self._root, path)
        methods = self._find_class(owner.class_name).methods if isinstance(owner, SavedObject) else {}
        if method_name not in methods:
            raise ArchiveError(f"the file has no method {name!r}", where=self._path)
        reader = CodeReader(contents, frozenset(apart) - {path})
        return reader.read_method(name, ModuleRef(path, owner.class_name), methods[method_name])

    def _find_class(self, name: str) -> CodeClass:
        if name not in self._code.classes:
            raise ArchiveError(f"the file has no code of its class {name}", where=self._path)
        return self._code.classes[name]

    def _get_attribute(self, table: TensorTable, owner: ModuleRef, name: str) -> Value:
        path = f"{owner.path}.{name}".lstrip(".")
        value = find_attribute(self._root, path)
        if isinstance(value, SavedObject):
            return Value(ModuleRef(path, value.class_name), ScriptType(value.class_name))
        if isinstance(value, SavedTensor):
            return Value(table.get(path), TENSOR)
        if isinstance(value, SavedDevice):
            return Value(Literal(value.name, torch.device(value.name)), DEVICE)
        script_type = self._find_class(owner.class_name).attributes.get(name)
        if script_type is None or not _is_plain(value):
            raise NotReadError(f"the attribute {path}")
        return Value(Literal(format_literal(value), value), script_type)


class _FileConstants:
    """Tensors that the code names ``CONSTANTS.c0``, ``CONSTANTS.c1``..."""

    def __init__(self, archive: Archive, table: TensorTable, device: str | torch.device) -> None:
        self._archive, self._table, self._device = archive, table, device
        self._memory = SavedMemory(archive, "constants")

    @functools.cached_property
    def _constants(self) -> Sequence[Any]:
        saved = read_objects(self._archive, "constants.pkl")
        return saved if isinstance(saved, (tuple, list)) else ()

    def get(self, number: int) -> Value:
        value = self._constants[number] if 0 <= number < len(self._constants) else SavedObject()
        if type(value) in TYPES:
            return Value(Literal(format_literal(value), value), TYPES[type(value)])
        if not isinstance(value, SavedTensor):
            raise NotReadError(f"the constant CONSTANTS.c{number}")
        return Value(self._table.add(self._memory.read_tensor(value).to(self._device)), TENSOR)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, complex, str))
