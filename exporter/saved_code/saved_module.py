"""A TorchScript module as the records of its file have it: methods, attributes and tensors, without ``torch.jit``."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from exporter.saved_code.literals import TYPES, has_type, make_device
from exporter.saved_code.script_types import DEVICE, TENSOR, ScriptType
from exporter.saved_code.tensors import TensorTable, format_literal


class SavedModule:
    """The module of an archive. Nothing of the file is run by making one.

    Raises ``ArchiveError`` for records that are damaged or not of the form that torch writes."""

    def __init__(self, archive: Archive, device: str | torch.device = "cpu") -> None:
        self._path, self._archive = str(archive.path), archive
        self._code = read_code(archive)
        self._root = read_objects(archive, "data.pkl")
        if not isinstance(self._root, SavedObject):
            raise ArchiveError("the record of the module has no module", where=f"{archive.path}, record data.pkl")
        self._interpreters: dict[str, EagerInterpreter] = {}
        self._constants = _FileConstants(archive)
        memory = SavedMemory(archive, "data")
        # By ``id`` of what the record has, which the root keeps alive: a tensor may have several paths.
        self._tensors: dict[int, torch.Tensor] = {}
        parameters: dict[str, torch.Tensor] = {}
        buffers: dict[str, torch.Tensor] = {}
        for path, name, owner, saved in _list_tensors(self._root):
            value = memory.read_tensor(saved)
            is_number = value.is_floating_point() or value.is_complex()
            self._tensors[id(saved)] = value.requires_grad_(saved.requires_grad and is_number)
            code_class = self._code.classes.get(owner.class_name)
            for names, tensors in (
                ((code_class.parameters, parameters), (code_class.buffers, buffers)) if code_class else ()
            ):
                if name in names:
                    tensors[path] = value
        self.method_names: Collection[str] = frozenset(self._find_class(self._root.class_name).methods)
        self.named_parameters: Mapping[str, torch.Tensor] = parameters
        self.named_buffers: Mapping[str, torch.Tensor] = buffers
        self.to(device)

    def to(self, device: str | torch.device) -> None:
        """Move all tensors in place; those of one storage share it there too."""
        storages: dict[int, torch.UntypedStorage] = {}
        self._constants.device = device
        for value in (*self._tensors.values(), *self._constants.list_tensors()):
            if value.device == torch.device(device):
                continue
            storage = value.untyped_storage()
            if storage.data_ptr() not in storages:
                numbers = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
                storages[storage.data_ptr()] = numbers.to(device).untyped_storage()
            there = torch.empty(0, dtype=value.dtype, device=device)
            moved = storages[storage.data_ptr()]
            value.data = there.set_(moved, value.storage_offset(), value.shape, value.stride())

    def get_value(self, path: str) -> Any:
        """Return an attribute that is no module: a tensor, a number, a text, or a list or dict of them."""
        value = find_attribute(self._root, path)
        if isinstance(value, SavedTensor):
            return self.get_tensor(path)
        return make_device(value.name).value if isinstance(value, SavedDevice) else value

    def get_tensor(self, path: str) -> torch.Tensor:
        """Return the tensor at a dotted name: the same one each time."""
        return self._tensors[id(find_attribute(self._root, path))]

    def run(self, method: str, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Run a method, operator by operator, on the tensors of this module. Raises what torch's operators raise."""
        if method not in self._interpreters:
            self.prepare([method])
        return self._interpreters[method].run(method, inputs)

    def prepare(self, methods: Collection[str]) -> None:
        """Read methods that will be run. Raises the errors of ``read_methods``."""
        saved = self.read_methods(methods)
        self._interpreters |= dict.fromkeys(methods, EagerInterpreter(saved, saved.tensors))

    @with_deep_recursion
    def read_methods(self, methods: Collection[str], apart: Collection[str] = ()) -> SavedGraphs:
        """Read these methods, ``forward`` or ``newton.residual.forward``, and those that they call.

        The submodules at the paths ``apart`` are not inlined: a call of one is a node ``APART``. Raises
        ``UnsupportedError``, with record and line, for code that ``torch.jit`` alone reads."""
        table = TensorTable(self.get_tensor, frozenset(self.named_parameters))
        get_constant = functools.partial(self._constants.get, table)
        contents = ModuleContents(self._code, functools.partial(self._get_attribute, table), get_constant)
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
            return Value(make_device(value.name), DEVICE)
        script_type = self._find_class(owner.class_name).attributes.get(name)
        if script_type is None or not has_type(value, script_type):
            raise NotReadError(f"the attribute {path}")
        return Value(Literal(format_literal(value), value, is_shared=True), script_type)


class _FileConstants:
    """Constants that the code names ``CONSTANTS.c0``, ``CONSTANTS.c1``..."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.device: str | torch.device = "cpu"
        self._memory = SavedMemory(archive, "constants")
        self._tensors: dict[int, torch.Tensor] = {}

    @functools.cached_property
    def _constants(self) -> Sequence[Any]:
        saved = read_objects(self._archive, "constants.pkl")
        return saved if isinstance(saved, (tuple, list)) else ()

    def list_tensors(self) -> Sequence[torch.Tensor]:
        return list(self._tensors.values())

    def get(self, table: TensorTable, number: int) -> Value:
        value = self._constants[number] if 0 <= number < len(self._constants) else SavedObject()
        if type(value) in TYPES:
            return Value(Literal(format_literal(value), value), TYPES[type(value)])
        if not isinstance(value, SavedTensor):
            raise NotReadError(f"the constant CONSTANTS.c{number}")
        if number not in self._tensors:
            self._tensors[number] = self._memory.read_tensor(value).to(self.device)
        return Value(table.add(self._tensors[number]), TENSOR)


def _list_tensors(root: SavedObject) -> Iterator[tuple[str, str, SavedObject, SavedTensor]]:
    """Yield each tensor once, with its path, its name and the object that it is in; a module's own come first."""
    seen: set[int] = set()
    stack: list[tuple[str, SavedObject]] = [("", root)]
    while stack:
        path, owner = stack.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        children = []
        for name, value in owner.attributes.items():
            if isinstance(value, SavedObject):
                children.append((f"{path}{name}.", value))
            elif isinstance(value, SavedTensor) and id(value) not in seen:
                seen.add(id(value))
                yield f"{path}{name}", str(name), owner, value
        stack += reversed(children)
