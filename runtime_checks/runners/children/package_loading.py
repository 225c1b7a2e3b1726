"""Packages of compiled code and of programs, loaded without running what a stranger's file holds.

``torch_child.py`` runs it by its path, engines import it. It needs the standard library and torch."""

import functools
import io
import json
import re
import zipfile

# Records of a package that hold the bytes of tensors; those of other names torch unpickles.
TENSORS = re.compile(r"(weight|tensor)_\d+$")


def count_nodes(block):
    """Count the nodes of a block and of its inner blocks."""
    count = 0
    for node in block.nodes():
        count += 1 + sum(map(count_nodes, node.blocks()))
    return count


def count_graph_nodes(module):
    """Count the nodes of all methods of a module."""
    graphs = (child._c._get_method(name).graph for child in module.modules() for name in child._c._method_names())
    return sum(map(count_nodes, graphs))


def load_compiled_calls(archive, methods):
    """Load the compiled methods of a package as callables by name."""
    import torch

    loader = getattr(torch._C, "_aoti").AOTIModelPackageLoader  # noqa: B009
    return {m: loader(archive, m, False, 1, -1).boxed_run for m in methods}


def load_program_calls(archive, methods):
    """Load the programs of a package as callables by name."""
    from torch.export.pt2_archive._package import load_pt2

    check_no_pickles(archive)
    programs = load_pt2(archive).exported_programs
    return {m: functools.partial(call_module, programs[m].module()) for m in methods}


def check_no_pickles(archive):
    """Raise ``ValueError`` for a record that is a pickle, which torch would run; torchferry writes tensors there."""
    import torch

    with zipfile.ZipFile(archive) as file:
        for name in file.namelist():
            _, _, record = name.partition("/")
            if record.startswith("data/sample_inputs/"):
                torch.load(io.BytesIO(file.read(name)), weights_only=True)
            elif record.startswith(("data/weights/", "data/constants/")):
                if name.endswith("_config.json"):
                    entries = json.loads(file.read(name)).get("config", {}).values()
                    has_pickle = any(e.get("use_pickle") or not TENSORS.match(e["path_name"]) for e in entries)
                else:
                    # Without a configuration torch reads NAME.pt, whole.
                    has_pickle = record.endswith(".pt")
                if has_pickle:
                    raise ValueError(f"record {name} is or names a pickle, which torchferry does not write")


def call_module(module, inputs):
    """Call a module with a list of inputs."""
    return module(*inputs)
