"""The process of ``OnnxRuntimeRunner``: standard library, NumPy, onnx and onnxruntime; no torch and no torchferry.

Its argument is a JSON file that names the container's models, a file of calls and the result files: outputs, and the
evidence of isolation and of the soundness of the models."""

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
    confinement.set_limits(job["memory"], job["seconds"], job["devices"])
    in_force = confinement.confine(job["folder"], job["devices"])
    import numpy
    import onnx
    import onnxruntime

    evidence = {
        "confinement": in_force,
        "refused": isolation.try_imports(job["refused"]),
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
            named = enumerate(zip(call["names"], call["strides"], strict=True))
            feed = {n: strided_arrays.restore_strides(arrays[f"{number}/{i}"], s) for i, (n, s) in named}
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
