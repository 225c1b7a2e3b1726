"""The backend of ONNX: a model for each method, and the contract, the cases and the digests beside them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from exporter.archive import onnx_container
from exporter.archive.contract import Contract
from exporter.archive.formats import FORMATS
from exporter.archive.pt_archive import Archive
from exporter.backends.backend import WriteOptions
from exporter.backends.onnx import export
from exporter.backends.torch_export.archive_programs import export_programs
from exporter.common.atomic_files import atomic_write_folder, check_output_path
from exporter.common.torch_hooks import ignore_deprecations

# A protobuf ends at 2 GiB; tensors of a model beyond this are written beside it.
LARGEST_INSIDE = 2**30


class OnnxBackend:
    """Models for onnxruntime and other runtimes of ONNX."""

    format = FORMATS["onnx"]

    def require(self) -> None:
        """Raise ``MissingRuntimeError`` if the packages of the extra are missing."""
        export.require()

    @contextlib.contextmanager
    def write(self, opened: Archive, output: Path, options: WriteOptions) -> Iterator[tuple[Path, Contract]]:
        """Write the models and the files beside them; see ``Backend.write``."""
        export.check_dtypes(opened.contract)
        export.check_names(opened.contract)
        check_output_path(output)
        output = output.resolve()
        last = onnx_container.manifest_path(output).name
        with atomic_write_folder(output.parent, last, lambda: _list_old_files(output)) as folder, ignore_deprecations():
            yield folder / output.name, write_container(folder / output.name, opened, options.opset)


def write_container(path: Path, opened: Archive, opset: int) -> Contract:
    """Write every file of the container at ``path``."""
    import onnx_ir

    exported = export_programs(opened, export.decomposition_overrides())
    contract, parameters = exported.contract, exported.parameters
    models = {name: export.build_onnx_model(program, contract, opset) for name, program in exported.programs.items()}
    contract = dataclasses.replace(contract, operators=export.list_operators(list(models.values())))
    if refusal := export.probe_empty_batch(models, contract):
        batch = contract.batch
        limits = "; ".join(filter(None, (batch.limits, f"0: {refusal}")))
        sizes = tuple(n for n in batch.sizes if n)
        contract = dataclasses.replace(contract, batch=dataclasses.replace(batch, sizes=sizes, limits=limits))
    paths, methods = [], {}
    for name, model in models.items():
        file = onnx_container.method_path(path, name)
        model.metadata_props[export.CONTRACT] = contract.to_json()
        model.doc_string = "\n".join(contract.metadata.format_lines()) or None
        large = sum(v.const_value.nbytes for v in model.graph.initializers.values()) > LARGEST_INSIDE
        data = onnx_container.data_path(file)
        onnx_ir.save(model, file, external_data=data.name if large else None)
        paths += [file, *([data] if large else [])]
        methods[name] = (file.name, *export.list_names(contract, name))
    onnx_container.cases_path(path).write_bytes(onnx_container.pack_arrays(exported.select_cases(contract), parameters))
    paths.append(onnx_container.cases_path(path))
    onnx_container.manifest_path(path).write_bytes(onnx_container.build_manifest(contract, opset, paths, methods))
    return contract


def _list_old_files(output: Path) -> set[str]:
    """Return the files of the container that is at this path already."""
    try:
        return set(onnx_container.read(output).files)
    except Exception:
        # There is none, or it is incomplete.
        return set()
