"""The text of a module's graphs, one section a method, as it stands in the archive."""

from __future__ import annotations

import re

import torch

from exporter.capture.boxes import METHOD

# Where a node came from and how often a class was met: neither is part of what is computed.
_SOURCES = re.compile(r" # \S+:\d+:\d+$|___torch_mangle_\d+\.", re.MULTILINE)


def graph_text(module: torch.jit.ScriptModule) -> str:
    """One section a method of the top module, values renumbered, without source paths.

    Calls of submodules are inlined; calls between the top module's own methods are not, so that the traced graph
    stands by itself.
    """
    sections = []
    for method in sorted(module._c._method_names()):
        graph = module._c._get_method(method).graph.copy()
        if method == METHOD:
            torch._C._jit_pass_inline(graph)
        torch._C._jit_pass_canonicalize(graph)
        sections.append(f"# {method}\n{_SOURCES.sub('', graph.str(False))}")
    return "\n".join(sections)
