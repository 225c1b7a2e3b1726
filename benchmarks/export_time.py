"""How long an export takes, beside what torch itself and NEML2 offer for the same model.

python benchmarks/export_time.py [--only NAME] [--thorough] [--scenarios FOLDER]

Each row is one command in a process of its own, imports included, the shorter of two runs, each with empty caches of
compiled code; of ``hardening`` a C kernel is written. The peers load the model and write their file, without a check;
``neml2-compile`` writes machine code, as a C kernel is. ``--scenarios`` adds the model that the
driver of each NEML2 input file below a folder drives, run once, with its largest memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from exporter.frontends.model_request import ModelRequest
from exporter.frontends.neml2 import input_file

ROOT = Path(__file__).parents[1]
NETWORKS = ROOT / "benchmarks" / "image_networks.py"
BY_HAND = ROOT / "benchmarks" / "by_hand"
# Source and options of ``torchferry export``, and whose own exporters are run beside it.
MODELS = {
    "three rates": (f"{ROOT / 'examples/rates/model.i'}", ["--model", "eq"], "neml2"),
    "network": (f"{ROOT / 'benchmarks/network.py'}:make_model", [], ""),
    "hardening": (f"{BY_HAND / 'hardening.i'}", ["--model", "update", "--format", "pt,c"], "neml2"),
    "Chaboche": (f"{BY_HAND / 'chaboche.i'}", ["--model", "update"], "neml2"),
    # neml2-compile fails on it: too many indices for a tensor of dimension 1.
    "diffusion": (f"{BY_HAND / 'diffusion.i'}", ["--model", "update"], ""),
    "MobileNetV3-small": (f"{NETWORKS}:make_mobilenet", [], "torch"),
    "ResNet-18": (f"{NETWORKS}:make_resnet", [], "torch"),
}
# Steps from rest, elastic and plastic: random values of the inputs are no state of this material.
STEPS = 32
PEER = """
import sys, torch
sys.path.insert(0, {folder!r})
import image_networks
model, inputs = image_networks.{factory}()
(x,) = inputs.values()
batch = {{0: torch.export.Dim.DYNAMIC}}
"""
PEERS = {
    "torch.jit.trace": "torch.jit.trace(model, x, check_trace=False).save({path!r})",
    "torch.export": "torch.export.save(torch.export.export(model, (x,), dynamic_shapes=(batch,)), {path!r} + '2')",
    "torch.onnx.export": "torch.onnx.export(model, (x,), {path!r} + '.onnx', dynamo=True, dynamic_shapes=(batch,))",
}


def time_command(command: list[str]) -> float:
    """Run a command twice, without what an earlier one has compiled; return the seconds of the shorter run."""
    seconds = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as cache:
            caches = {"TORCHFERRY_CACHE": f"{cache}/torchferry", "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor"}
            start = time.perf_counter()
            result = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | caches)
            seconds.append(time.perf_counter() - start)
        if result.returncode:
            raise SystemExit(f"{' '.join(command)[:200]}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return min(seconds)


def write_steps(path: Path) -> None:
    """Write inputs of ``hardening``: strains at the end of a first step, everything else zero."""
    import torch

    generator = torch.Generator().manual_seed(3)
    six = {n: torch.zeros(STEPS, 6, dtype=torch.float64) for n in ("strain~1", "stress", "stress~1")}
    names = ("t~1", "equivalent_plastic_strain", "equivalent_plastic_strain~1")
    item = {n: torch.zeros(STEPS, dtype=torch.float64) for n in names}
    strain = 5e-3 * (2 * torch.rand(STEPS, 6, generator=generator, dtype=torch.float64) - 1)
    torch.save({**six, **item, "strain": strain, "t": torch.ones(STEPS, dtype=torch.float64)}, path)


def time_scenarios(folder: Path) -> Table:
    """Export the model of each driver once; return a table of seconds and memory."""
    table = Table("scenario", "seconds", "largest memory, GB")
    for path in sorted(folder.rglob("*.i")):
        for name in input_file.list_driver_models(ModelRequest(str(path)))[:1]:
            with tempfile.TemporaryDirectory() as output:
                command = [sys.executable, "-m", "exporter", "export", str(path), "--model", name]
                start = time.perf_counter()
                process = subprocess.Popen([*command, "-o", f"{output}/m.pt"], stdout=subprocess.DEVNULL)
                _, status, usage = os.wait4(process.pid, 0)
                seconds = f"{time.perf_counter() - start:.0f}" if status == 0 else f"exit code {status >> 8}"
                table.add_row(str(path.relative_to(folder)), seconds, f"{usage.ru_maxrss / 1e6:.1f}")
    return table


def main() -> None:
    """Time each model and print the table."""
    parser = argparse.ArgumentParser(description="Time exports beside those of torch.")
    parser.add_argument("--only", choices=MODELS, help="one of the models")
    parser.add_argument("--thorough", action="store_true", help="pass --thorough to the export")
    parser.add_argument("--scenarios", type=Path, help="a folder of NEML2 input files")
    arguments = parser.parse_args()
    table = Table("model", "command", "seconds", "times torch.export", "times torch.onnx")
    for name, (source, options, peers_of) in MODELS.items():
        if arguments.only not in (None, name):
            continue
        rows: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "model.pt")
            command = [sys.executable, "-m", "exporter", "export", source, "-o", path, *options]
            if name == "hardening":
                write_steps(Path(folder) / "steps.pt")
                command += ["--inputs", f"{folder}/steps.pt"]
            rows["torchferry export"] = time_command([*command, *["--thorough"] * arguments.thorough])
            rows["torchferry verify"] = time_command([sys.executable, "-m", "exporter", "verify", path])
            if peers_of == "neml2":
                tool = str(Path(sys.executable).with_name("neml2-compile"))
                peer_options = [source, "--model", options[1], "--output-dir", f"{folder}/compiled", "-q"]
                rows["neml2-compile"] = time_command([tool, *peer_options])
            for peer, code in PEERS.items() if peers_of == "torch" else ():
                preparation = PEER.format(folder=str(NETWORKS.parent), factory=source.rpartition(":")[2])
                rows[peer] = time_command([sys.executable, "-c", preparation + code.format(path=path)])
        for label, seconds in rows.items():
            times = [f"{seconds / rows[p]:.1f}" if p in rows else "" for p in ("torch.export", "torch.onnx.export")]
            table.add_row(name, label, f"{seconds:.1f}", *times)
    Console().print(table)
    if arguments.scenarios:
        Console().print(time_scenarios(arguments.scenarios))


if __name__ == "__main__":
    main()
