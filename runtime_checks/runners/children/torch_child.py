"""The processes of ``PythonRunner``: standard library and torch only, so nothing of torchferry is imported here.

The first one imports torch, which takes a second, and nothing else; it forks one for each job, whose memory, modules
and end are its own. Its argument lists the packages that may be imported; it reads jobs from standard input, each a
line of JSON, and prints the exit code of each job's process. That process writes to files that the job names: results,
its output before an early end, and the evidence of isolation: the outcome of importing the source library, the import
path, foreign modules (none)."""

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


def is_standard(name):
    """Return whether a top-level module belongs to the standard library."""
    # The module with sysconfig's data is named after the machine.
    return name in sys.stdlib_module_names or name.startswith("_sysconfigdata_")


# Records of a package that hold the bytes of tensors; those of other names torch unpickles.
TENSORS = re.compile(r"(weight|tensor)_\d+$")


class TorchOnlyFinder:
    """A meta path finder: the standard library, and torch's own packages from their folders. No other name is found."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        """Return the spec of an allowed module, else None."""
        top = name.partition(".")[0]
        if is_standard(top):
            return importlib.machinery.PathFinder.find_spec(name, path, target)
        if top in self.packages:
            places = path if path is not None else [self.packages[top]]
            return importlib.machinery.PathFinder.find_spec(name, places, target)
        return None


def lower_limit(name, value):
    """Lower a limit; if the user's own hard limit is lower still, keep that one."""
    # Not available everywhere, and not needed by a host that counts nodes.
    import resource

    resource_id = getattr(resource, name)
    _, hard = resource.getrlimit(resource_id)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(resource_id, (value, value))


def set_limits(job):
    """Set the limits of the job's process on memory, CPU time and core files."""
    # A GPU's driver maps the memory of the device, and more, into the address space.
    if job["device"] == "cpu":
        lower_limit("RLIMIT_AS", job["memory"])
    lower_limit("RLIMIT_CPU", int(job["seconds"]) + 1)
    lower_limit("RLIMIT_CORE", 0)


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
    allowed = {*packages, "__main__"}
    return sorted(
        name
        for name, module in sys.modules.items()
        if not is_standard(top := name.partition(".")[0])
        and top not in allowed
        and getattr(module, "__file__", None) not in (None, __file__)
    )


def describe_error(error):
    """Return the last line of an error: a TorchScript error has its message there, after the traceback."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    lines = [line for line in lines if not (".py(" in line and "): " in line)]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


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


def copy_to_device(device, value):
    """Copy a value to the device in the same memory layout: ``to`` would make it contiguous."""
    import torch

    if device.type == "cpu":
        return value
    once = value[tuple(slice(0, 1) if step == 0 else slice(None) for step in value.stride())]
    moved = torch.empty_strided(once.shape, once.stride(), dtype=value.dtype, device=device).copy_(once)
    return moved.expand(value.shape)


def set_parameters(parameters, values):
    """Copy values into the parameters of the same names."""
    import torch

    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)


def run_with_gradients(run, inputs, seeds, parameters):
    """Return the outputs, then gradients of the floating inputs and of these parameters, by torch's own autograd."""
    import torch

    primals = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    for parameter in parameters:
        parameter.requires_grad_(True)
    with torch.enable_grad():
        outputs = run(*primals)
    real = [o for o in outputs if o.is_floating_point()]
    pairs = [(o, s) for o, s in zip(real, seeds, strict=True) if o.requires_grad]
    leaves = [*(x for x in primals if x.requires_grad), *parameters]
    if not pairs:
        raise ValueError("no output carries a gradient")
    gradients = torch.autograd.grad([o for o, _ in pairs], leaves, [s for _, s in pairs], allow_unused=True)
    zeros = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients, strict=True)]
    for parameter in parameters:
        parameter.requires_grad_(False)
    return tuple(v.detach() for v in (*outputs, *zeros))


def flatten_tensors(value):
    """Return the tensors in a method's return value, in order; those of a dict by their names."""
    import torch

    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, dict):
        value = [value[name] for name in sorted(value)]
    if isinstance(value, (list, tuple)):
        return tuple(t for item in value for t in flatten_tensors(item))
    if value is None or isinstance(value, str):
        return ()
    return (torch.tensor(value),)


class PackageModule:
    """The compiled methods or the programs of a package, with the interface of a module. They take one batch dimension,
    and dense memory."""

    def __init__(self, job):
        import io
        import zipfile

        import torch

        if job["guarded"]:
            os.environ["AOTI_RUNTIME_CHECK_INPUTS"] = "1"
        with zipfile.ZipFile(job["archive"]) as archive:
            record = next(n for n in archive.namelist() if n.endswith("/data/torchferry/parameters.pt"))
            parameters = torch.load(io.BytesIO(archive.read(record)), weights_only=True)
        self.device = torch.device(job["device"])
        self.method_parameters = {
            method: {n: t.to(self.device) for n, t in values.items()} for method, values in parameters.items()
        }
        self.methods = list(parameters)
        load = load_compiled_calls if job["holds"] == "code" else load_program_calls
        self.calls = load(job["archive"], self.methods)

    def named_parameters(self):
        """Return the parameters by name; methods that share one get the same tensor."""
        # One tensor for each name, whichever methods take it.
        unique = {}
        for values in self.method_parameters.values():
            for name, value in values.items():
                unique.setdefault(name, value)
        for values in self.method_parameters.values():
            values.update({name: unique[name] for name in values})
        return list(unique.items())

    def run(self, method, inputs):
        """Run a method and return its outputs as a tuple."""
        arguments = [x.contiguous() for x in inputs] + list(self.method_parameters[method].values())
        return tuple(self.calls[method](arguments))


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
    import io
    import zipfile

    import torch

    with zipfile.ZipFile(archive) as file:
        for name in file.namelist():
            _, _, record = name.partition("/")
            if record.startswith("data/sample_inputs/"):
                torch.load(io.BytesIO(file.read(name)), weights_only=True)
            elif record.startswith(("data/weights/", "data/constants/")):
                if name.endswith("_config.json"):
                    entries = json.loads(file.read(name)).get("config", {}).values()
                    has_pickle = any(
                        entry.get("use_pickle") or not TENSORS.match(entry["path_name"]) for entry in entries
                    )
                else:
                    # Without a configuration torch reads NAME.pt, whole.
                    has_pickle = record.endswith(".pt")
                if has_pickle:
                    raise ValueError(f"record {name} is or names a pickle, which torchferry does not write")


def call_module(module, inputs):
    """Call a module with a list of inputs."""
    return module(*inputs)


def load_module(job):
    """Load the module or package of the job."""
    import torch

    if job["holds"] != "graphs":
        return PackageModule(job)
    return torch.jit.load(job["archive"], map_location=job["device"]).eval()


def call_package(module, method, *inputs):
    """Call a method of a package."""
    return module.run(method, inputs)


class JobCalls:
    """The calls of a job, run one after the other on a module."""

    def __init__(self, job, module, optimised):
        import torch

        self.job, self.module, self.optimised = job, module, optimised
        self.device = torch.device(job["device"])
        self.parameters = dict(module.named_parameters())
        self.moved = None

    def run(self, call):
        """Run one call; return its outputs, or the error that it raised."""
        import torch

        method, inputs, dtype, from_cpu, left_on_cpu, names, values, seeds, wrt = call
        torch.set_default_dtype(getattr(torch, dtype))
        placed = [x if i == left_on_cpu else copy_to_device(self.device, x) for i, x in enumerate(inputs)]
        before = {name: self.parameters[name].detach().clone() for name in names}
        try:
            set_parameters(self.parameters, dict(zip(names, values, strict=True)))
            outputs = self.compute(self.choose_function(method, from_cpu), placed, seeds, wrt)
            return {"outputs": [t.cpu().clone() for t in outputs], "error": ""}
        except Exception as error:
            return {"outputs": [], "error": describe_error(error)}
        finally:
            set_parameters(self.parameters, before)

    def choose_function(self, method, from_cpu):
        """Return the function to call: of the module, or of one that was loaded on the CPU and then moved."""
        import torch

        if from_cpu and self.moved is None:
            self.moved = torch.jit.load(self.job["archive"], map_location="cpu").eval().to(self.device)
        if isinstance(self.module, PackageModule):
            return functools.partial(call_package, self.module, method)
        return getattr(self.moved if from_cpu else self.module, method)

    def compute(self, function, placed, seeds, wrt):
        """Return the outputs as a tuple of tensors on the device; raise if they are not."""
        import torch
        from torch.jit._fuser import optimized_execution

        with torch.inference_mode(not seeds), optimized_execution(self.optimised):
            if seeds:
                leaves = [self.parameters[name] for name in wrt]
                seeds = [copy_to_device(self.device, s) for s in seeds]
                outputs = run_with_gradients(function, placed, seeds, leaves)
            else:
                outputs = function(*placed)
        if self.job["any_outputs"]:
            outputs = flatten_tensors(outputs)
        if not isinstance(outputs, tuple):
            raise TypeError(f"{type(outputs).__name__} returned instead of a tuple")
        for i, t in enumerate(outputs):
            if t.device.type != self.device.type:
                raise ValueError(f"output {i} is on device {t.device} instead of {self.device}")
        return outputs


def perform_job(job):
    """Run the calls of a job; write the results and the evidence."""
    set_limits(job)
    import torch

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
        module = load_module(job)
    except Exception as error:
        evidence["load_error"] = f"{type(error).__name__}: {error}"
    else:
        evidence["parameters"] = [
            [name, list(p.shape), str(p.dtype).removeprefix("torch.")] for name, p in module.named_parameters()
        ]
        compiled = isinstance(module, PackageModule)
        evidence["methods"] = module.methods if compiled else list(module._c._method_names())
        evidence["nodes"] = 0 if compiled else count_graph_nodes(module)
        evidence["optimised"] = evidence["nodes"] <= job["largest_optimised"]
        calls = JobCalls(job, module, evidence["optimised"])
        for call in torch.load(job["calls"], weights_only=True):
            results.append(calls.run(call))
    evidence["foreign_modules"] = find_foreign_modules(job["packages"])
    torch.save(results, job["results"])
    with open(job["evidence"], "w") as file:
        json.dump(evidence, file)


def run_job(job):
    """Run a job in this process, with its output in the job's log, and exit."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(job["said"], os.O_WRONLY | os.O_CREAT, 0o600), 2)
        perform_job(job)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait_for_job(number):
    """Wait for a job's process and return its exit code; if the host closes the standard input, end both."""
    try:
        ended = os.pidfd_open(number)
    except (AttributeError, OSError):
        # Without pidfd, wait for the job's own end.
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
    """Fork a process for each job from standard input and print its exit code."""
    packages = json.loads(sys.argv[1])
    # Replaces the finder that searches the whole path.
    sys.meta_path.remove(importlib.machinery.PathFinder)
    sys.meta_path.append(TorchOnlyFinder(packages))
    warnings.simplefilter("ignore")
    import torch  # noqa: F401

    for line in sys.stdin:
        number = os.fork()
        if number == 0:
            run_job({**json.loads(line), "packages": packages})
        print(wait_for_job(number), flush=True)


if __name__ == "__main__":
    serve()
