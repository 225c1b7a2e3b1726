"""The processes of ``PythonRunner``: standard library and torch only, so nothing of torchferry is imported here, but
for what evaluates an archive without TorchScript.

The first one imports torch, which takes a second, and nothing else; it forks one for each job, whose memory, modules
and end are its own. Its argument lists the packages that may be imported; it reads jobs from standard input, each a
line of JSON, and prints the exit code of each job's process. That process writes to files that the job names: results,
its output before an early end, and the evidence of isolation: the outcome of importing the source library, the import
path, foreign modules (none)."""

import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pathlib
import runpy
import select
import signal
import sys
import time
import traceback
import types
import warnings
import zipfile

# torch watches the first call of a method, optimises in the second, and is ready for the third.
OPTIMISING_CALLS = 3


def load_file(path):
    """Load a file that needs nothing else of torchferry, which cannot be imported here."""
    return types.SimpleNamespace(**runpy.run_path(path))


isolation = load_file(os.path.join(os.path.dirname(__file__), "isolation.py"))
confinement = load_file(os.path.join(os.path.dirname(__file__), "confinement.py"))
package_loading = load_file(os.path.join(os.path.dirname(__file__), "package_loading.py"))


def describe_error(error):
    """Return the last line of an error: a TorchScript error has its message there, after the traceback."""
    # Errors of torchferry's reader say how to mend them behind what they are.
    text = getattr(error, "what", None) or str(error)
    lines = [line for line in text.strip().splitlines() if line.strip()]
    lines = [line for line in lines if not (".py(" in line and "): " in line)]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


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
        import torch

        if job["guarded"]:
            os.environ["AOTI_RUNTIME_CHECK_INPUTS"] = "1"
        with zipfile.ZipFile(job["archive"]) as archive:
            record = next(n for n in archive.namelist() if n.endswith("/data/torchferry/parameters.pt"))
            parameters = torch.load(io.BytesIO(archive.read(record)), weights_only=True)
        self.device = torch.device(job["device"])
        self.method_parameters = {m: {n: t.to(self.device) for n, t in ts.items()} for m, ts in parameters.items()}
        self.methods = list(parameters)
        if job["holds"] == "code":
            self.calls = package_loading.load_compiled_calls(job["archive"], self.methods)
        else:
            operators = load_file(job["script_loading"]).OPERATORS
            self.calls = package_loading.load_program_calls(job["archive"], self.methods, operators)

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


class RecordsModule:
    """The methods of an archive, read from its records and evaluated by torchferry, with the interface of a module."""

    def __init__(self, archive, device):
        # Not above: processes for other files can import nothing of torchferry.
        pt_archive = importlib.import_module("exporter.archive.pt_archive")
        opened = pt_archive.read(pathlib.Path(archive))
        self.saved = importlib.import_module("exporter.saved_code.saved_module").SavedModule(opened, device)
        self.saved.prepare(list(opened.contract.methods))
        self.methods = sorted(self.saved.method_names)

    def named_parameters(self):
        """Return the parameters by name."""
        return list(self.saved.named_parameters.items())

    def to(self, device):
        """Move all tensors to a device."""
        self.saved.to(device)
        return self

    def run(self, method, inputs):
        """Run a method and return its outputs as a tuple."""
        return tuple(self.saved.run(method, inputs))


def load_module(job):
    """Load the module or package of the job."""
    if job["holds"] == "records":
        return RecordsModule(job["archive"], job["device"])
    if job["holds"] != "graphs":
        return PackageModule(job)
    return load_script(job, job["device"])


def load_script(job, device):
    """Load the TorchScript module of the job."""
    return load_file(job["script_loading"]).load_script(job["archive"], device).eval()


def list_script_methods(module):
    """List the methods of a TorchScript module."""
    return list(module._c._method_names())


def load_on_cpu(job):
    """Load the module of the job on the CPU, to be moved."""
    return RecordsModule(job["archive"], "cpu") if job["holds"] == "records" else load_script(job, "cpu")


def call_method(module, method, *inputs):
    """Call a method of what is no module of TorchScript."""
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
        if from_cpu and self.moved is None:
            self.moved = load_on_cpu(self.job).to(self.device)
        module = self.moved if from_cpu else self.module
        is_script = not isinstance(module, (PackageModule, RecordsModule))
        return getattr(module, method) if is_script else functools.partial(call_method, module, method)

    def choose_executor(self):
        """Return the context in which TorchScript's optimiser is on or off; one without effect for all else."""
        if self.job["holds"] != "graphs":
            return contextlib.nullcontext()
        from torch.jit._fuser import optimized_execution

        return optimized_execution(self.optimised)

    def compute(self, function, placed, seeds, wrt):
        """Return the outputs as a tuple of tensors on the device; raise if they are not."""
        import torch

        with torch.inference_mode(not seeds), self.choose_executor():
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


def divide_by_method(methods, count):
    """Return the indices of the calls that each of so many processes runs, in order, of calls of these methods.

    All calls of a method are in one process: torch optimises a method in each that runs it."""
    numbers = {}
    for i, method in enumerate(methods):
        numbers.setdefault(method, []).append(i)
    shares = [[] for _ in range(min(count, len(numbers)) or 1)]
    for indices in sorted(numbers.values(), key=len, reverse=True):
        min(shares, key=len).extend(indices)
    return [sorted(share) for share in shares]


def divide_by_cost(costs, count):
    """Return the indices of the calls that each of so many processes runs, in order, of calls that cost so much."""
    shares, loads = [[] for _ in range(count)], [0] * count
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        k = loads.index(min(loads))
        shares[k].append(i)
        loads[k] += costs[i]
    return [sorted(share) for share in shares if share]


def run_after_first(calls, count, job_calls, least_seconds):
    """Run the first calls here, for which torch optimises a method, and the others in as many as ``count`` processes
    if they are to take longer than ``least_seconds``; return as ``run_shares`` does, and the number of processes."""
    number = OPTIMISING_CALLS if job_calls.optimised else 1
    answers, seconds = [], 0.0
    for call in calls[:number]:
        start = time.perf_counter()
        answers.append(job_calls.run(call))
        seconds = time.perf_counter() - start
    last, *costs = [measure_call(call) for call in calls[number - 1 :]]
    is_long = sum(costs) * seconds / last > least_seconds
    shares = divide_by_cost(costs, count if is_long else 1)
    results, foreign = run_shares(calls[number:], shares, job_calls)
    return answers + results, foreign, len(shares)


def measure_call(call):
    """Return the cost of a call: one, and the numbers that it is given."""
    return 1 + sum(x.numel() for x in call[1])


def run_share(calls, share, job_calls):
    """Run a share of the calls; return the results, and the foreign modules that were loaded."""
    results = [job_calls.run(calls[i]) for i in share]
    return results, isolation.find_foreign_modules(job_calls.job["packages"], __file__)


def fork_share(calls, share, job_calls, path):
    """Run a share of the calls in a forked process, which saves what ``run_share`` returns; return its number."""
    import torch

    number = os.fork()
    if number == 0:
        code = 1
        try:
            torch.save(run_share(calls, share, job_calls), path)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return number


def run_shares(calls, shares, job_calls):
    """Run the first share of the calls here, and each other in a process of its own; return as ``run_share`` does."""
    import torch

    paths = [f"{job_calls.job['results']}.{k}" for k in range(1, len(shares))]
    children = []
    try:
        for share, path in zip(shares[1:], paths, strict=True):
            children.append(fork_share(calls, share, job_calls, path))
        parts = [run_share(calls, shares[0], job_calls)]
        while children:
            code = os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])
            del children[0]
            if code:
                raise ChildProcessError(f"a process of some calls ended with {code}")
    finally:
        for number in children:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
    parts += [torch.load(path, weights_only=True) for path in paths]
    results = [None] * len(calls)
    for share, (answers, _) in zip(shares, parts, strict=True):
        for i, answer in zip(share, answers, strict=True):
            results[i] = answer
    return results, sorted({name for _, foreign in parts for name in foreign})


def run_side_by_side(calls, count, job_calls, nodes):
    """Run calls of a graph of so many nodes in as many as ``count`` processes; return as ``run_after_first`` does."""
    job, methods = job_calls.job, [call[0] for call in calls]
    is_large = job_calls.optimised and nodes >= job["least_shared"]
    shares = divide_by_method(methods, count if is_large else 1)
    # Each process would optimise another method anew; and autograd forbids forks once it has run.
    has_one_method = len(set(methods)) == 1 or not job_calls.optimised
    is_divisible = has_one_method and not any(seeds for *_, seeds, _ in calls)
    if len(shares) == 1 and count > 1 and is_divisible and len(calls) > OPTIMISING_CALLS:
        return run_after_first(calls, count, job_calls, job["least_seconds"])
    return *run_shares(calls, shares, job_calls), len(shares)


def perform_job(job):
    """Run the calls of a job; write the results and the evidence."""
    devices = job["device"] != "cpu"
    confinement.set_limits(job["memory"], job["seconds"], devices)
    in_force = confinement.confine(job["folder"], devices)
    import torch

    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    evidence = {
        "confinement": in_force,
        "refused": isolation.try_imports(job["refused"]),
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
        parameters = [(n, list(p.shape), str(p.dtype)) for n, p in module.named_parameters()]
        evidence["parameters"] = [[n, shape, dtype.removeprefix("torch.")] for n, shape, dtype in parameters]
        is_script = job["holds"] == "graphs"
        evidence["methods"] = list_script_methods(module) if is_script else module.methods
        evidence["nodes"] = load_file(job["script_loading"]).count_graph_nodes(module) if is_script else 0
        evidence["optimised"] = evidence["nodes"] <= job["largest_optimised"]
        calls = torch.load(job["calls"], weights_only=True)
        # A process that was forked from one that has used a GPU cannot use it.
        count = 1 if devices else job["jobs"]
        parts = run_side_by_side(calls, count, JobCalls(job, module, evidence["optimised"]), evidence["nodes"])
        results, evidence["foreign_modules"], evidence["processes"] = parts
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
        # With all that the job has forked: the server leads a group of processes.
        os.killpg(0, signal.SIGKILL)
    os.close(ended)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def serve():
    """Fork a process for each job from standard input and print its exit code."""
    packages, parts = json.loads(sys.argv[1]), {}
    isolation.guard_imports(packages, parts)
    warnings.simplefilter("ignore")
    # Nearly all objects of an import stay: garbage collections would look at them again and again, there and in forks.
    gc.disable()
    import torch  # noqa: F401

    gc.freeze()
    gc.enable()

    for line in sys.stdin:
        number = os.fork()
        if number == 0:
            job = json.loads(line)
            # The guard of this process alone knows them from now on.
            packages.update(job["further_packages"])
            parts.update(job["parts"])
            run_job({**job, "packages": packages})
        print(wait_for_job(number), flush=True)


if __name__ == "__main__":
    serve()
