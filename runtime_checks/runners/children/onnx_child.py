"""The process of ``onnxruntime``: standard library, NumPy, onnx and onnxruntime, and nothing of torch or torchferry.

Its argument is a JSON file that names the container's models, a file of calls and where results go: outputs, and what
shows the isolation and the soundness of the models.
"""

import importlib
import importlib.machinery
import json
import resource
import sys
import warnings


class Only:
    """A meta path finder: some packages from their folders, every other name refused by an error."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names:
            return None
        if top in self.packages:
            places = path if path is not None else [self.packages[top]]
            return importlib.machinery.PathFinder.find_spec(name, places, target)
        raise ModuleNotFoundError(f"{name!r} cannot be imported: this process has onnxruntime and NumPy", name=name)


def try_imports(names):
    outcome = {}
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            outcome[name] = f"{type(error).__name__}: {error}"
        else:
            outcome[name] = "imported"
    return outcome


def foreign_modules(packages):
    allowed = {*sys.stdlib_module_names, *packages, "__main__"}
    found = []
    for name, module in sys.modules.items():
        if name.partition(".")[0] not in allowed and getattr(module, "__file__", None) not in (None, __file__):
            found.append(name)
    return sorted(found)


def restored(value, strides):
    """With the strides, in elements, that the caller's tensor had."""
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


def examined(path):
    """What the standard's checker says, with shapes and types inferred for every value; empty where it is content."""
    import onnx

    try:
        onnx.checker.check_model(path, full_check=True)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return ""


def origin_of(path, text):
    """Where the node that an error names came from."""
    import onnx

    def nodes(graph):
        for node in graph.node:
            yield node
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    yield from nodes(attribute.g)

    for node in nodes(onnx.load(path, load_external_data=False).graph):
        if node.name and f"'{node.name}'" in text:
            return next((p.value for p in node.metadata_props if p.key == "torchferry.origin"), "")
    return ""


def described(session):
    given = [*session.get_inputs(), *session.get_overridable_initializers()]
    return [[i.name, i.type] for i in given], [o.name for o in session.get_outputs()]


def perform(job):
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
        checks = {method: examined(path) for method, path in job["models"].items()}
        opsets = {m: onnx.load(p, load_external_data=False).opset_import for m, p in job["models"].items()}
        evidence["checker"] = checks
        evidence["opsets"] = {m: {o.domain: o.version for o in found} for m, found in opsets.items()}
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
                evidence["load_origin"] = origin_of(path, text)
                raise StopIteration from error
        evidence["used"] = {m: s.get_providers() for m, s in sessions.items()}
        evidence["signatures"] = {m: described(s) for m, s in sessions.items()}
        with numpy.load(job["calls"], allow_pickle=False) as loaded:
            arrays = dict(loaded)
        errors = []
        for number, call in enumerate(job["index"]):
            feed = {
                name: restored(arrays[f"{number}/{i}"], strides)
                for i, (name, strides) in enumerate(zip(call["names"], call["strides"], strict=True))
            }
            feed |= {name: arrays[f"{number}/parameter/{i}"] for i, name in enumerate(call["parameters"])}
            try:
                session = sessions[call["method"]]
                # A method has the parameters that it reads.
                held = {i.name for i in session.get_overridable_initializers()}
                feed = {name: value for name, value in feed.items() if name in held or name in call["names"]}
                outputs = session.run(None, feed)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
                continue
            errors.append("")
            results.update({f"{number}/{i}": value for i, value in enumerate(outputs)})
        evidence["errors"] = errors
    except StopIteration:
        pass
    evidence["foreign_modules"] = foreign_modules(job["packages"])
    numpy.savez(job["results"], **results)
    with open(job["evidence"], "w") as file:
        json.dump(evidence, file)


if __name__ == "__main__":
    with open(sys.argv[1]) as handle:
        asked = json.load(handle)
    sys.meta_path.insert(0, Only(asked["packages"]))
    warnings.simplefilter("ignore")
    perform(asked)
