"""The process of a kernel: standard library and NumPy, and the kernel's shared object.

Its argument is a JSON file that names the shared object, a file of calls and where results go.
"""

import json
import resource
import runpy
import sys
import types
import warnings


def module(name, path):
    """A file of torchferry's that needs nothing of it."""
    return types.SimpleNamespace(**runpy.run_path(path, run_name=name))


def mapped():
    """Libraries in this process."""
    try:
        with open("/proc/self/maps") as file:
            paths = {line.split(maxsplit=5)[-1].strip() for line in file if ".so" in line}
    except OSError:
        return None
    return {path.rpartition("/")[2] for path in paths}


def perform(job, own):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import numpy

    kernel_calls = module("kernel_calls", job["modules"]["kernel_calls"])
    described = job["described"]
    evidence = {"refused": own.try_imports(job["refused"])}
    results, errors = {}, []
    before = mapped()
    try:
        library = kernel_calls.Library(job["library"], described)
    except (OSError, AttributeError) as error:
        evidence["load_error"] = str(error)
    else:
        after = mapped()
        evidence["libraries"] = sorted(after - before) if before is not None and after is not None else None
        evidence["methods"] = list(library.functions)
        evidence["parameters"] = [[p["name"], p["shape"], p["dtype"]] for p in described["parameters"]]
        with numpy.load(job["calls"], allow_pickle=False) as loaded:
            arrays = dict(loaded)
        for number, call in enumerate(job["index"]):
            inputs = [own.restored(arrays[f"{number}/{i}"], strides) for i, strides in enumerate(call["strides"])]
            held = {name: arrays[f"{number}/parameter/{i}"] for i, name in enumerate(call["parameters"])}
            try:
                outputs, _ = kernel_calls.flattened_call(library, call["method"], inputs, held)
            except (ValueError, TypeError) as error:
                errors.append(f"{type(error).__name__}: {error}")
                continue
            errors.append("")
            results.update({f"{number}/{i}": value for i, value in enumerate(outputs)})
    evidence["errors"] = errors
    evidence["foreign_modules"] = own.foreign_modules({**job["packages"], "onnx_child": "", "kernel_calls": ""})
    numpy.savez(job["results"], **results)
    with open(job["evidence"], "w") as file:
        json.dump(evidence, file)


if __name__ == "__main__":
    with open(sys.argv[1]) as handle:
        asked = json.load(handle)
    shared = module("onnx_child", asked["modules"]["onnx_child"])
    sys.meta_path.insert(0, shared.Only(asked["packages"]))
    warnings.simplefilter("ignore")
    perform(asked, shared)
