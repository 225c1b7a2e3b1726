"""How long an export takes, beside what torch itself offers for the same network.

python benchmarks/export_time.py [--only NAME] [--thorough]

Each row is one command in a process of its own, imports included, the shorter of two runs. The peers load the network
and write their file, without a check.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
NETWORKS = ROOT / "benchmarks" / "image_networks.py"
# Source and options of ``torchferry export``, and whether torch's own exporters are run beside it.
MODELS = {
    "three rates": (f"{ROOT / 'examples/rates/model.i'}", ["--model", "eq"], False),
    "network": (f"{ROOT / 'benchmarks/network.py'}:make_model", [], False),
    "MobileNetV3-small": (f"{NETWORKS}:make_mobilenet", [], True),
    "ResNet-18": (f"{NETWORKS}:make_resnet", [], True),
}
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
    """Run a command twice; return the seconds of the shorter run."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds.append(time.perf_counter() - start)
        if result.returncode:
            raise SystemExit(f"{' '.join(command)[:200]}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return min(seconds)


def main() -> None:
    """Time each model and print the table."""
    parser = argparse.ArgumentParser(description="Time exports beside those of torch.")
    parser.add_argument("--only", choices=MODELS, help="one of the models")
    parser.add_argument("--thorough", action="store_true", help="pass --thorough to the export")
    arguments = parser.parse_args()
    table = Table("model", "command", "seconds", "times torch.export")
    for name, (source, options, has_peers) in MODELS.items():
        if arguments.only not in (None, name):
            continue
        rows: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "model.pt")
            command = [sys.executable, "-m", "exporter", "export", source, "-o", path, *options]
            rows["torchferry export"] = time_command([*command, *["--thorough"] * arguments.thorough])
            rows["torchferry verify"] = time_command([sys.executable, "-m", "exporter", "verify", path])
            for peer, code in PEERS.items() if has_peers else ():
                preparation = PEER.format(folder=str(NETWORKS.parent), factory=source.rpartition(":")[2])
                rows[peer] = time_command([sys.executable, "-c", preparation + code.format(path=path)])
        for label, seconds in rows.items():
            times = f"{seconds / rows['torch.export']:.1f}" if "torch.export" in rows else ""
            table.add_row(name, label, f"{seconds:.1f}", times)
    Console().print(table)


if __name__ == "__main__":
    main()
