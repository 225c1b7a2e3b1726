"""Readers of Python under atheris: ``python_readers.py TARGET [libFuzzer's options] [CORPUS]``.

A reader may raise ``TorchferryError``, a guard of programs ``ValueError``, and nothing else."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

# Installed by ``make fuzz`` alone: not every Python has it.
atheris: Any = importlib.import_module("atheris")
ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))
with atheris.instrument_imports(include=["exporter", "runtime_checks"]):
    from exporter.archive import (
        code_check,
        file_signature,
        kernel_container,
        module_objects,
        nesting,
        onnx_container,
        pt_archive,
        sealed_manifest,
        target_machine,
        text_cases,
    )
    from exporter.archive.cases import unpack_cases
    from exporter.archive.contract import contract_from_json
    from exporter.archive.pt_archive import Archive
    from exporter.common import script_loading
    from exporter.common.errors import TorchferryError
    from exporter.saved_code.saved_module import SavedModule
    from runtime_checks.runners.children import package_loading

SEED = pt_archive.read(ROOT / "artifacts" / "robertson.pt")
PLACE = Path(tempfile.mkdtemp(prefix="torchferry-fuzz-"))


class Anything(str):
    """A digest that is equal to every other: who forges a file computes digests and seal again."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


def read_as_anything(archive: zipfile.ZipFile, name: str) -> Anything:
    archive.read(name)
    return Anything()


@contextlib.contextmanager
def accept_all_digests() -> Iterator[None]:
    with (
        mock.patch.object(pt_archive, "_check_seal"),
        mock.patch.object(pt_archive, "_compute_digest", read_as_anything),
        mock.patch.object(sealed_manifest, "_compute_seal", return_value=Anything()),
    ):
        yield


def read_archive(data: bytes) -> None:
    path = PLACE / "fuzz.pt"
    path.write_bytes(data)
    pt_archive.read(path).cases()


def read_kernel(data: bytes) -> None:
    folder = PLACE / "kernel"
    folder.mkdir(exist_ok=True)
    (folder / kernel_container.MANIFEST).write_bytes(data)
    kernel_container.read(folder)


def read_onnx(data: bytes) -> None:
    path = PLACE / "fuzz.onnx"
    path.write_bytes(b"")
    onnx_container.manifest_path(path).write_bytes(data)
    onnx_container.read(path)


def read_signature(data: bytes) -> None:
    path = PLACE / "fuzz.sig"
    path.write_bytes(data)
    file_signature._read_signature(path, path)


def read_program(data: bytes) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr("a/models/forward.json", data)
    package_loading.check_programs(buffer, script_loading.OPERATORS)


class OneRecord(Archive):
    """An archive of which only the record of the module is anybody's."""

    data = b""

    def record(self, name: str) -> bytes:
        return self.data if name == "data.pkl" else super().record(name)


def read_module(data: bytes) -> None:
    archive = OneRecord(**vars(SEED))
    object.__setattr__(archive, "data", data)
    module_objects.read_module_tensors(archive, ["k"])


class OneCode(Archive):
    """An archive of which only the code of the module's own class is anybody's."""

    data = b""

    def read_records(self, names: Collection[str]) -> dict[str, bytes]:
        return {**super().read_records(names), "code/__torch__/torchferry/___torch_mangle_0.py": self.data}


def read_code(data: bytes) -> None:
    archive = OneCode(**vars(SEED))
    object.__setattr__(archive, "data", data)
    module = SavedModule(archive)
    module.read_methods(module.method_names)


def measure_nesting(data: bytes) -> None:
    nesting.measure_code_depth(data)
    nesting.measure_depth(data)


def read_texts(data: bytes) -> None:
    text_cases.unpack_cases(data, SEED.contract, "fuzz")
    text_cases.unpack_parameters(data, SEED.contract, "fuzz")


READERS: dict[str, Callable[[bytes], object]] = {
    "archive": read_archive,
    "contract": lambda data: contract_from_json(data, "fuzz"),
    "cases": lambda data: unpack_cases(data, SEED.contract, "fuzz"),
    "machine": lambda data: target_machine.machine_from_json(data, "fuzz"),
    "texts": read_texts,
    "kernel": read_kernel,
    "onnx": read_onnx,
    "signature": read_signature,
    "program": read_program,
    "module": read_module,
    "code": read_code,
    "nesting": measure_nesting,
    "source": lambda data: code_check.check_code([("code/__torch__/torchferry/___torch_mangle_0.py", data)]),
}
# Other than TorchferryError, and what its message is: callers turn these into one.
ALLOWED = {
    "program": (ValueError, KeyError, AttributeError, SyntaxError, TypeError, RecursionError, zipfile.BadZipFile),
    "nesting": (ValueError,),
    "source": (ValueError,),
}


def read_one(name: str, data: bytes) -> None:
    with contextlib.suppress(TorchferryError, *ALLOWED.get(name, ())):
        READERS[name](data)


if __name__ == "__main__":
    target = sys.argv.pop(1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with accept_all_digests():
        atheris.Setup(sys.argv, lambda data: read_one(target, data))
        atheris.Fuzz()
