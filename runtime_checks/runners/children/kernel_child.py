"""The process of a kernel: standard library and NumPy, and the kernel's shared object.

Its argument is a JSON file that names the shared object, a file of calls and the result files."""

import json
import os
import runpy
import sys
import types
import warnings


def load_file(path):
    """Load a file that needs nothing else of torchferry, which cannot be imported here."""
    return types.SimpleNamespace(**runpy.run_path(path))


confinement = load_file(os.path.join(os.path.dirname(__file__), "confinement.py"))
isolation = load_file(os.path.join(os.path.dirname(__file__), "isolation.py"))
strided_arrays = load_file(os.path.join(os.path.dirname(__file__), "strided_arrays.py"))


def list_mapped_libraries():
    """Return the names of the libraries in this process; None if the system does not list them."""
    try:
        with open("/proc/self/maps") as file:
            paths = {line.split(maxsplit=5)[-1].strip() for line in file if ".so" in line}
    except OSError:
        return None
    return {path.rpartition("/")[2] for path in paths}


def perform_job(job):
    """Run the calls of a job; write the results and the evidence."""
    has_gpu = job["device"] != "cpu"
    if has_gpu:
        # The library runs on the first device that it sees.
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        index = int(job["device"].partition(":")[2] or 0)
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[index] if visible else str(index)
    confinement.set_limits(job["memory"], job["seconds"], has_gpu)
    in_force = confinement.confine(job["folder"], has_gpu)
    import numpy

    ctypes_library = load_file(job["ctypes_library"])
    described = job["described"]
    evidence = {"confinement": in_force, "refused": isolation.try_imports(job["refused"])}
    results, errors = {}, []
    before = list_mapped_libraries()
    try:
        library = ctypes_library.Library(job["library"], described)
    except (OSError, AttributeError) as error:
        evidence["load_error"] = str(error)
    else:
        after = list_mapped_libraries()
        evidence["libraries"] = sorted(after - before) if before is not None and after is not None else None
        evidence["methods"] = list(library.functions)
        evidence["parameters"] = [[p["name"], p["shape"], p["dtype"]] for p in described["parameters"]]
        with numpy.load(job["calls"], allow_pickle=False) as loaded:
            arrays = dict(loaded)
        for number, call in enumerate(job["index"]):
            strides = call["strides"]
            inputs = [strided_arrays.restore_strides(arrays[f"{number}/{i}"], s) for i, s in enumerate(strides)]
            parameters = {name: arrays[f"{number}/parameter/{i}"] for i, name in enumerate(call["parameters"])}
            try:
                outputs, _ = ctypes_library.call_with_batch(library, call["method"], inputs, parameters)
            except (ValueError, TypeError) as error:
                errors.append(f"{type(error).__name__}: {error}")
                continue
            errors.append("")
            results.update({f"{number}/{i}": value for i, value in enumerate(outputs)})
    evidence["errors"] = errors
    evidence["foreign_modules"] = isolation.find_foreign_modules(job["packages"], __file__)
    numpy.savez(job["results"], **results)
    with open(job["evidence"], "w") as file:
        json.dump(evidence, file)


if __name__ == "__main__":
    with open(sys.argv[1]) as handle:
        request = json.load(handle)
    isolation.guard_imports(request["packages"])
    warnings.simplefilter("ignore")
    perform_job(request)
