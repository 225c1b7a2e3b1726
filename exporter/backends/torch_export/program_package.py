"""Programs of torch.export in one package, uncompiled: torch loads it on any machine, without a compiler."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import torch

from exporter.backends.torch_export.program import Program, quiet_export
from exporter.common.errors import UnsupportedError, summarize_error
from exporter.common.torch_internals import package_pt2

# Node metadata that names this machine's folders and how we run graphs.
_LOCAL_METADATA = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node", "torch_fn")


def package_programs(programs: Mapping[str, Program]) -> dict[str, bytes]:
    """Return the records of a package; raise ``UnsupportedError`` if torch.export does not write a program."""
    for program in programs.values():
        for module in program.exported.graph_module.modules():
            for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
                for name in _LOCAL_METADATA:
                    node.meta.pop(name, None)
    buffer = io.BytesIO()
    try:
        with quiet_export():
            exported = {name: program.exported for name, program in programs.items()}
            package_pt2(buffer, exported_programs=exported)
    except Exception as error:
        what, mend = "torch.export does not write this program", "use the .pt, or another container"
        raise UnsupportedError(what, check="torch.export", got=summarize_error(error), mend=mend) from error
    with zipfile.ZipFile(buffer) as package_zip:
        folder = package_zip.namelist()[0].partition("/")[0]
        records = {name.removeprefix(f"{folder}/"): package_zip.read(name) for name in package_zip.namelist()}
    records.pop(".data/serialization_id", None)
    return records
