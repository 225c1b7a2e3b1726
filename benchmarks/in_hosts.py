"""What ``hosts.py`` runs inside other programs: each prints times and numbers as JSON behind RESULT."""

from __future__ import annotations

KRATOS = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import KratosMultiphysics as Kratos
import KratosMultiphysics.ConstitutiveLawsApplication
from kratos_block import describe_umat, make_block, solve, stretch
Kratos.Logger.GetDefaultOutput().SetSeverity(Kratos.Logger.Severity.WARNING)
Kratos.ParallelUtilities.SetNumThreads(1)
steps = [stretch(size) for size in (1e-3, 2e-3, 3e-3)]
laws = {"own": ("SmallStrainJ2Plasticity3DLaw", json.loads(sys.argv[3]))}
laws["ours"] = ("SmallStrainUMAT3DLaw", describe_umat(sys.argv[2], 1))
results, seconds = {}, {name: 1e9 for name in laws}
for _ in range(5):
    for name, (law, variables) in laws.items():
        model, part = make_block(4, law, variables)
        start = time.perf_counter()
        results[name] = solve(part, steps, False)
        seconds[name] = min(seconds[name], time.perf_counter() - start)
        del model
print("RESULT " + json.dumps([results, seconds]))
"""
FMPY = """
import json, sys, time
import fmpy
from fmpy.validation import validate_fmu
results = []
for fmu in sys.argv[1:]:
    for kind in ("ModelExchange", "CoSimulation"):
        start = time.perf_counter()
        rows = fmpy.simulate_fmu(fmu, fmi_type=kind, stop_time=40.0, output_interval=4.0, relative_tolerance=1e-8,
                                 start_values={"y[1]": 1.0, "y[2]": 0.0, "y[3]": 0.0}, output=["y[1]", "y[2]", "y[3]"])
        results.append([len(validate_fmu(fmu)), time.perf_counter() - start, [float(v) for v in rows[-1]]])
print("RESULT " + json.dumps(results))
"""
AKANTU = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
import torchferry
from akantu_block import solve
kernel = torchferry.load(sys.argv[2])
results, seconds = {}, {"ours": 1e9, "own": 1e9}
for _ in range(3):
    for name, law in (("ours", kernel), ("own", None)):
        start = time.perf_counter()
        results[name] = solve(law, 2)
        seconds[name] = min(seconds[name], time.perf_counter() - start)
print("RESULT " + json.dumps([results, seconds]), flush=True)
os._exit(0)
"""
# The same potential as an expression that OpenMM compiles.
OPENMM = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import openmm
import torchferry
from openmm_chain import ATOMS, STEP, make_context, make_force
weights = json.loads(sys.argv[3])
bonds = [f"100000*(distance(p{i},p{i + 1})-0.15)^2" for i in range(1, ATOMS)]
units = []
for row, bias, factor in zip(*weights[:3]):
    parts = [f"({w!r})*10*distance(p{i},p{i + 2})" for i, w in enumerate(row, 1)]
    units.append(f"5*({factor!r})*tanh({'+'.join(parts)}+({bias!r}))")
own = openmm.CustomCompoundBondForce(ATOMS, "+".join([*bonds, *units, f"5*({weights[3]!r})"]))
own.addBond(list(range(ATOMS)), [])
kernel = torchferry.load(sys.argv[2])
seconds, energies = {"ours": 1e9, "own": 1e9}, {}
for _ in range(5):
    for name, make in (("ours", lambda: make_force(kernel)), ("own", lambda: openmm.XmlSerializer.clone(own))):
        context = make_context(make(), STEP)
        start = time.perf_counter()
        context.getIntegrator().step(1000)
        seconds[name] = min(seconds[name], time.perf_counter() - start)
        energies[name] = context.getState(energy=True).getPotentialEnergy()._value
print("RESULT " + json.dumps([seconds, energies]))
"""
LAMMPS = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import torchferry
from lammps_chain import run
kernel, seconds = torchferry.load(sys.argv[2]), 1e9
for _ in range(5):
    start = time.perf_counter()
    total = run(kernel)["total"]
    seconds = min(seconds, time.perf_counter() - start)
print("RESULT " + json.dumps([seconds, max(abs(e - total[0]) for e in total)]))
"""
JAX = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
from make_model_jax import make_model
k = jnp.array([0.04, 1e4, 3e7])

def own(y):
    first = k[0] * y[:, 0] - k[1] * y[:, 1] * y[:, 2]
    second = k[2] * y[:, 1] ** 2
    return jnp.stack([-first, first - second, second], -1)

points = jax.random.uniform(jax.random.key(0), (int(sys.argv[2]), 3), dtype=jnp.float64)
seconds, values = {"ours": 1e9, "own": 1e9}, {}
laws = {"ours": make_model, "own": own}
ways = {name: jax.jit(jax.grad(lambda y, f=f: jnp.square(jnp.asarray(f(y))).sum())) for name, f in laws.items()}
for _ in range(9):
    for name, way in ways.items():
        values[name] = way(points).block_until_ready()
        start = time.perf_counter()
        for _ in range(20):
            way(points).block_until_ready()
        seconds[name] = min(seconds[name], (time.perf_counter() - start) / 20)
difference = jnp.abs(values["ours"] - values["own"]).max() / jnp.abs(values["own"]).max()
print("RESULT " + json.dumps([seconds, float(difference)]))
"""
R = """
source("make_model.R")
own <- function(y) {
  first <- 0.04 * y[, 1] - 1e4 * y[, 2] * y[, 3]
  second <- 3e7 * y[, 2]^2
  cbind(-first, first - second, second)
}
set.seed(0)
y <- matrix(runif(3 * COUNT), COUNT)
best <- c(Inf, Inf)
for (round in 1:7) for (which in 1:2) {
  call <- if (which == 1) function() make_model(y) else function() own(y)
  start <- proc.time()[["elapsed"]]
  for (i in 1:200) call()
  best[which] <- min(best[which], (proc.time()[["elapsed"]] - start) / 200)
}
ours <- make_model(y)
if (is.list(ours)) ours <- ours[[1]]
difference <- max(abs(ours - own(y))) / max(abs(own(y)))
cat(sprintf("RESULT [%.9g, %.9g, %.9g]\\n", best[1], best[2], difference))
"""
OCTAVE = """
1;
function r = own(y)
  first = 0.04 * y(:, 1) - 1e4 * y(:, 2) .* y(:, 3);
  second = 3e7 * y(:, 2) .^ 2;
  r = [-first, first - second, second];
end
rand("seed", 0);
y = rand(COUNT, 3);
best = [Inf, Inf];
for round = 1:7
  for which = 1:2
    tic;
    if which == 1
      for i = 1:200, r = make_model("forward", y); end
    else
      for i = 1:200, r = own(y); end
    end
    best(which) = min(best(which), toc / 200);
  end
end
difference = max(max(abs(make_model("forward", y) - own(y)))) / max(max(abs(own(y))));
printf("RESULT [%.9g, %.9g, %.9g]\\n", best(1), best(2), difference);
"""
