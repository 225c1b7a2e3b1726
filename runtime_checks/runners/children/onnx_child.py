"""The process of ``OnnxRuntimeRunner``: standard library, NumPy, onnx and onnxruntime; no torch and no torchferry.

Its argument is a JSON file that names the container's models, a file of calls and the result files: outputs, and the
evidence of isolation and of the soundness of the models."""

import importlib
import importlib.machinery
import json
import resource
import sys
import warnings


class PackageFinder:
    """A meta path finder: some packages from their folders, every other name refused by an error."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        """Return the spec of an allowed module, None for a standard one. Raise ``ModuleNotFoundError`` for others."""
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names:
            return None
        if top in self.packages:
            places = path if path is not None else [self.packages[top]]
            return importlib.machinery.PathFinder.find_spec(name, places, target)
        raise ModuleNotFoundError(f"{name!r} cannot be imported: this process has onnxruntime and NumPy", name=name)


def try_imports(names):
    """Try to import each name; return ``imported`` or the error by name."""
    outcome = {}
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            outcome[name] = f"{type(error).__name__}: {error}"
        else:
            outcome[name] = "imported"
    return outcome


def find_foreign_modules(packages):
    """Return the loaded modules that are neither standard nor of an allowed package."""
    allowed = {*sys.stdlib_module_names, *packages, "__main__"}
    foreign = []
    for name, module in sys.modules.items():
        if name.partition(".")[0] not in allowed and getattr(module, "__file__", None) not in (None, __file__):
            foreign.append(name)
    return sorted(foreign)


def restore_strides(value, strides):
    """Return the value with the strides, in elements, that the caller's tensor had."""
    import numpy

    extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, strides, strict=True)) if value.size else 0
    memory = numpy.zeros(max(extent, 1), value.dtype)
    steps = [s * value.itemsize for s in strides]
    view = numpy.lib.stride_tricks.as_strided(memory, value.shape, steps)
    if value.size:
        # An expanded dimension is one element.
        once = tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)
        view[once] = value[once]
    return view


def describe_model_errors(path):
    """Return the error of the standard's checker, with shapes and types of all values inferred; empty if none."""
    import onnx

    try:
        onnx.checker.check_model(path, full_check=True)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return ""


def find_origin(path, text):
    """Return the origin of the node that an error names."""
    import onnx

    def iterate_nodes(graph):
        for node in graph.node:
            yield node
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    yield from iterate_nodes(attribute.g)

    for node in iterate_nodes(onnx.load(path, load_external_data=False).graph):
        if node.name and f"'{node.name}'" in text:
            return next((p.value for p in node.metadata_props if p.key == "torchferry.origin"), "")
    return ""


def describe_session(session):
    """Return the names and types of a session's inputs and initializers, and the names of its outputs."""
    inputs = [*session.get_inputs(), *session.get_overridable_initializers()]
    return [[i.name, i.type] for i in inputs], [o.name for o in session.get_outputs()]


def perform_job(job):
    """Run the calls of a job; write the results and the evidence."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import numpy
    import onnx
    import onnxruntime

    evidence = {
        "refused": try_imports(job["refused"]),
        "onnxruntime": onnxruntime.__version__,
        "providers": onnxruntime.get_available_providers(),
    }
    results = {}
    try:
        checks = {method: describe_model_errors(path) for method, path in job["models"].items()}
        opsets = {m: onnx.load(p, load_external_data=False).opset_import for m, p in job["models"].items()}
        evidence["checker"] = checks
        evidence["opsets"] = {m: {o.domain: o.version for o in versions} for m, versions in opsets.items()}
        sessions = {}
        for method, path in job["models"].items():
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.log_severity_level = 3
            try:
                sessions[method] = onnxruntime.InferenceSession(path, options, providers=job["providers"])
            except Exception as error:
                text = str(error)
                evidence["load_error"] = f"method {method!r}: {text.splitlines()[0]}"
                evidence["load_origin"] = find_origin(path, text)
                raise StopIteration from error
        evidence["used"] = {m: s.get_providers() for m, s in sessions.items()}
        evidence["signatures"] = {m: describe_session(s) for m, s in sessions.items()}
        with numpy.load(job["calls"], allow_pickle=False) as loaded:
            arrays = dict(loaded)
        errors = []
        for number, call in enumerate(job["index"]):
            feed = {
                name: restore_strides(arrays[f"{number}/{i}"], strides)
                for i, (name, strides) in enumerate(zip(call["names"], call["strides"], strict=True))
            }
            feed |= {name: arrays[f"{number}/parameter/{i}"] for i, name in enumerate(call["parameters"])}
            try:
                session = sessions[call["method"]]
                # A method has the parameters that it reads.
                initializers = {i.name for i in session.get_overridable_initializers()}
                feed = {name: value for name, value in feed.items() if name in initializers or name in call["names"]}
                outputs = session.run(None, feed)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
                continue
            errors.append("")
            results.update({f"{number}/{i}": value for i, value in enumerate(outputs)})
        evidence["errors"] = errors
    except StopIteration:
        pass
    evidence["foreign_modules"] = find_foreign_modules(job["packages"])
    numpy.savez(job["results"], **results)
    with open(job["evidence"], "w") as file:
        json.dump(evidence, file)


if __name__ == "__main__":
    with open(sys.argv[1]) as handle:
        request = json.load(handle)
    sys.meta_path.insert(0, PackageFinder(request["packages"]))
    warnings.simplefilter("ignore")
    perform_job(request)
