"""Programs of torch.export in one package, as they are: what torch loads on any machine, without a compiler."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import torch
from torch.export.pt2_archive import _package

from exporter.backends.torch_export.program import Program, quiet_export
from exporter.common.errors import UnsupportedError, first_line

# Of a node: what speaks of this machine's folders and of how we run graphs.
_OURS = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node", "torch_fn")


def packaged(programs: Mapping[str, Program]) -> dict[str, bytes]:
    """The records of a package. Raises ``UnsupportedError`` for a program that torch.export does not write."""
    for one in programs.values():
        for module in one.exported.graph_module.modules():
            for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
                for name in _OURS:
                    node.meta.pop(name, None)
    buffer = io.BytesIO()
    try:
        with quiet_export():
            _package.package_pt2(buffer, exported_programs={name: one.exported for name, one in programs.items()})
    except Exception as error:
        raise UnsupportedError(
            "torch.export does not write this program",
            check="torch.export",
            got=first_line(error),
            mend="use the .pt, or another container",
        ) from error
    with zipfile.ZipFile(buffer) as made:
        folder = made.namelist()[0].partition("/")[0]
        records = {name.removeprefix(f"{folder}/"): made.read(name) for name in made.namelist()}
    records.pop(".data/serialization_id", None)
    return records
