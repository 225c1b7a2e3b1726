"""Everything that is checked on a GPU, in one command: ``make cuda-check``. Writes ``artifacts/cuda.json``.

Exports models in float64 and float32 and verifies them in Python and libtorch on the CPU and on every GPU; measures
the harness's latency curve on both. Exit code 0: all passed; 5: numbers differ; 6: there is no GPU.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import torchferry
from exporter.common.errors import MismatchError, TorchferryError
from runtime_checks import native_build

ROOT = Path(__file__).parents[1]
MODELS = {
    "elastic, float64": f"{ROOT / 'tests' / 'support' / 'native_models.py'}:Elastic",
    "single, float32": f"{ROOT / 'tests' / 'support' / 'native_models.py'}:Single",
    "whole, fixed shapes": f"{ROOT / 'tests' / 'support' / 'native_models.py'}:Whole",
    "decay": f"{ROOT / 'examples' / 'solvers' / 'decay.py'}:make_model",
}


def check(source: str, folder: Path, devices: list[str]) -> dict:
    path = folder / "m.pt"
    try:
        (exported,) = torchferry.export(source, output=path, runtimes="python,libtorch", devices=["cpu", *devices])
        report = exported.report
    except MismatchError as error:
        return {"passed": False, "error": str(error), "report": error.report.as_dict()}
    except TorchferryError as error:
        return {"passed": False, "error": str(error)}
    return {"passed": True, "report": report.as_dict(), "latency": {d: latency(path, d) for d in ("cpu", devices[0])}}


def latency(path: Path, device: str) -> list[dict]:
    program = native_build.build() / "bin" / "torchferry_verify"
    done = subprocess.run(
        [str(program), str(path), "--json", "--latency", "--device", device], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)["latency"]


def main() -> int:
    if not torch.cuda.is_available():
        sys.stderr.write("there is no GPU here, or this torch is built without CUDA: nothing was checked\n")
        return 6
    devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    with tempfile.TemporaryDirectory() as folder:
        results = {name: check(source, Path(folder), devices) for name, source in MODELS.items()}
    passed = all(r["passed"] for r in results.values())
    report = {
        "passed": passed,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "models": results,
    }
    target = ROOT / "artifacts" / "cuda.json"
    target.write_text(json.dumps(report, indent=1) + "\n")
    for name, result in results.items():
        print(f"{name}: {'passed' if result['passed'] else result['error']}")
    print(f"wrote {target.relative_to(ROOT)}")
    return 0 if passed else 5


if __name__ == "__main__":
    sys.exit(main())
