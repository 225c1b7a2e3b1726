"""The processes of ``isolated_python``: standard library and torch only, so nothing of torchferry is imported here.

The first one imports torch, which takes a second, and nothing else; it forks one for each job, whose memory, modules
and end are its own. Its argument are the packages that may be imported; it reads jobs from standard input, each a line
of JSON, and prints how the process of each ended. That writes to files that the job names: results, what it says before
an early end, and what shows the isolation: what importing the source library gave, the import path, foreign modules
(none).
"""

import functools
import importlib
import importlib.machinery
import json
import os
import re
import select
import signal
import sys
import traceback
import warnings


def standard(name):
    # The data of sysconfig is named after the machine.
    return name in sys.stdlib_module_names or name.startswith("_sysconfigdata_")


# Records of a package that hold the bytes of tensors; those of other names torch unpickles.
TENSORS = re.compile(r"(weight|tensor)_\d+$")


class OnlyTorch:
    """A meta path finder: the standard library, and torch's own packages from their folders. No other name is found."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if standard(top):
            return importlib.machinery.PathFinder.find_spec(name, path, target)
        if top in self.packages:
            places = path if path is not None else [self.packages[top]]
            return importlib.machinery.PathFinder.find_spec(name, places, target)
        return None


def limit(name, value):
    """Lower a limit; where the user's own hard limit is lower still, that one stays."""
    # Not everywhere, and a host that counts nodes has no need of it.
    import resource

    kind = getattr(resource, name)
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def set_limits(job):
    # A GPU's driver maps the memory of the device, and more, into the address space.
    if job["device"] == "cpu":
        limit("RLIMIT_AS", job["memory"])
    limit("RLIMIT_CPU", int(job["seconds"]) + 1)
    limit("RLIMIT_CORE", 0)


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
    allowed = {*packages, "__main__"}
    return sorted(
        name
        for name, module in sys.modules.items()
        if not standard(top := name.partition(".")[0])
        and top not in allowed
        and getattr(module, "__file__", None) not in (None, __file__)
    )


def describe(error):
    """The last line of a TorchScript error is the message; what comes before it is the traceback."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    lines = [line for line in lines if not (".py(" in line and "): " in line)]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


def count_nodes(block):
    count = 0
    for node in block.nodes():
        count += 1 + sum(map(count_nodes, node.blocks()))
    return count


def graph_size(module):
    graphs = (child._c._get_method(name).graph for child in module.modules() for name in child._c._method_names())
    return sum(map(count_nodes, graphs))


def on(device, value):
    """There, in the same memory layout: ``to`` would make it contiguous."""
    import torch

    if device.type == "cpu":
        return value
    once = value[tuple(slice(0, 1) if step == 0 else slice(None) for step in value.stride())]
    there = torch.empty_strided(once.shape, once.stride(), dtype=value.dtype, device=device).copy_(once)
    return there.expand(value.shape)


def put(parameters, values):
    import torch

    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)


def differentiated(run, inputs, seeds, parameters):
    """Outputs, then gradients of the floating inputs and of these parameters, by torch's own autograd."""
    import torch

    given = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    for parameter in parameters:
        parameter.requires_grad_(True)
    with torch.enable_grad():
        outputs = run(*given)
    real = [o for o in outputs if o.is_floating_point()]
    pairs = [(o, s) for o, s in zip(real, seeds, strict=True) if o.requires_grad]
    leaves = [*(x for x in given if x.requires_grad), *parameters]
    if not pairs:
        raise ValueError("no output carries a gradient")
    gradients = torch.autograd.grad([o for o, _ in pairs], leaves, [s for _, s in pairs], allow_unused=True)
    zeros = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients, strict=True)]
    for parameter in parameters:
        parameter.requires_grad_(False)
    return tuple(v.detach() for v in (*outputs, *zeros))


def tensors_of(value):
    """The tensors in what a method returned, in order; those of a dict by their names."""
    import torch

    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, dict):
        value = [value[name] for name in sorted(value)]
    if isinstance(value, (list, tuple)):
        return tuple(t for one in value for t in tensors_of(one))
    if value is None or isinstance(value, str):
        return ()
    return (torch.tensor(value),)


class Compiled:
    """The compiled methods or the programs of a package, with the shape of a module. They take one batch dimension, and
    dense memory."""

    def __init__(self, job):
        import io
        import zipfile

        import torch

        if job["guarded"]:
            os.environ["AOTI_RUNTIME_CHECK_INPUTS"] = "1"
        with zipfile.ZipFile(job["archive"]) as archive:
            place = next(n for n in archive.namelist() if n.endswith("/data/torchferry/parameters.pt"))
            held = torch.load(io.BytesIO(archive.read(place)), weights_only=True)
        self.device = torch.device(job["device"])
        self.held = {method: {n: t.to(self.device) for n, t in of.items()} for method, of in held.items()}
        self.methods = list(held)
        load = calls_of_code if job["holds"] == "code" else calls_of_programs
        self.calls = load(job["archive"], self.methods)

    def named_parameters(self):
        # One tensor for each name, whichever methods take it.
        found = {}
        for of in self.held.values():
            for name, value in of.items():
                found.setdefault(name, value)
        for of in self.held.values():
            of.update({name: found[name] for name in of})
        return list(found.items())

    def run(self, method, inputs):
        given = [x.contiguous() for x in inputs] + list(self.held[method].values())
        return tuple(self.calls[method](given))


def calls_of_code(archive, methods):
    import torch

    loader = getattr(torch._C, "_aoti").AOTIModelPackageLoader  # noqa: B009
    return {m: loader(archive, m, False, 1, -1).boxed_run for m in methods}


def calls_of_programs(archive, methods):
    from torch.export.pt2_archive._package import load_pt2

    refuse_pickles(archive)
    programs = load_pt2(archive).exported_programs
    return {m: functools.partial(called, programs[m].module()) for m in methods}


def refuse_pickles(archive):
    """torch runs what a pickle of a package says; what torchferry writes there are tensors."""
    import io
    import zipfile

    import torch

    with zipfile.ZipFile(archive) as file:
        for name in file.namelist():
            _, _, own = name.partition("/")
            if own.startswith("data/sample_inputs/"):
                torch.load(io.BytesIO(file.read(name)), weights_only=True)
            elif own.startswith(("data/weights/", "data/constants/")):
                if name.endswith("_config.json"):
                    held = json.loads(file.read(name)).get("config", {}).values()
                    pickled = any(one.get("use_pickle") or not TENSORS.match(one["path_name"]) for one in held)
                else:
                    # Without a configuration torch reads NAME.pt, whole.
                    pickled = own.endswith(".pt")
                if pickled:
                    raise ValueError(f"record {name} is or names a pickle, which torchferry does not write")


def called(module, given):
    return module(*given)


def opened(job):
    import torch

    if job["holds"] != "graphs":
        return Compiled(job)
    return torch.jit.load(job["archive"], map_location=job["device"]).eval()


def call_compiled(module, method, *inputs):
    return module.run(method, inputs)


def perform(job):
    set_limits(job)
    import torch
    from torch.jit._fuser import optimized_execution

    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    evidence = {
        "refused": try_imports(job["refused"]),
        "sys_path": sys.path,
        "torch": torch.__version__,
        "default_dtype": str(torch.get_default_dtype()),
    }
    results = []
    try:
        module = opened(job)
    except Exception as error:
        evidence["load_error"] = f"{type(error).__name__}: {error}"
    else:
        evidence["parameters"] = [
            [name, list(p.shape), str(p.dtype).removeprefix("torch.")] for name, p in module.named_parameters()
        ]
        compiled = isinstance(module, Compiled)
        evidence["methods"] = module.methods if compiled else list(module._c._method_names())
        evidence["nodes"] = 0 if compiled else graph_size(module)
        evidence["optimised"] = evidence["nodes"] <= job["largest_optimised"]
        device = torch.device(job["device"])
        moved = None
        parameters = dict(module.named_parameters())
        for call in torch.load(job["calls"], weights_only=True):
            method, inputs, dtype, from_cpu, left_on_cpu, names, values, seeds, by = call
            torch.set_default_dtype(getattr(torch, dtype))
            given = [x if i == left_on_cpu else on(device, x) for i, x in enumerate(inputs)]
            before = {name: parameters[name].detach().clone() for name in names}
            try:
                put(parameters, dict(zip(names, values, strict=True)))
                if from_cpu and moved is None:
                    moved = torch.jit.load(job["archive"], map_location="cpu").eval().to(device)
                if compiled:
                    run = functools.partial(call_compiled, module, method)
                else:
                    run = getattr(moved if from_cpu else module, method)
                with torch.inference_mode(not seeds), optimized_execution(evidence["optimised"]):
                    if seeds:
                        leaves = [parameters[name] for name in by]
                        outputs = differentiated(run, given, [on(device, s) for s in seeds], leaves)
                    else:
                        outputs = run(*given)
                if job["any_outputs"]:
                    outputs = tensors_of(outputs)
                if not isinstance(outputs, tuple):
                    raise TypeError(f"{type(outputs).__name__} returned instead of a tuple")
                for i, t in enumerate(outputs):
                    if t.device.type != device.type:
                        raise ValueError(f"output {i} is on device {t.device} instead of {device}")
                results.append({"outputs": [t.cpu().clone() for t in outputs], "error": ""})
            except Exception as error:
                results.append({"outputs": [], "error": describe(error)})
            put(parameters, before)
    evidence["foreign_modules"] = foreign_modules(job["packages"])
    torch.save(results, job["results"])
    with open(job["evidence"], "w") as file:
        json.dump(evidence, file)


def run(job):
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(job["said"], os.O_WRONLY | os.O_CREAT, 0o600), 2)
        perform(job)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def waited_for(number):
    """How the process ended; with it ends this one where the host is gone, which closes the standard input."""
    try:
        ended = os.pidfd_open(number)
    except (AttributeError, OSError):
        # Not on this system, which then waits for the job's own end.
        return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    watched = select.poll()
    watched.register(sys.stdin.fileno(), 0)
    watched.register(ended, select.POLLIN)
    if ended not in dict(watched.poll()):
        os.kill(number, signal.SIGKILL)
        os._exit(1)
    os.close(ended)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def serve():
    packages = json.loads(sys.argv[1])
    # In the place of the finder that looks wherever the path leads.
    sys.meta_path.remove(importlib.machinery.PathFinder)
    sys.meta_path.append(OnlyTorch(packages))
    warnings.simplefilter("ignore")
    import torch  # noqa: F401

    for line in sys.stdin:
        number = os.fork()
        if number == 0:
            run({**json.loads(line), "packages": packages})
        print(waited_for(number), flush=True)


if __name__ == "__main__":
    serve()
