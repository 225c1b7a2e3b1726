"""Archives in other containers: which hold them, and why the others do not.

    torchferry sweep models/ -o out/sweep
    python benchmarks/containers.py out/sweep -o out/containers --to onnx

converts every archive below a folder, verifies the container, and prints a row for each; OUTPUT/containers.json keeps
them, and a run goes on where the last one ended.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

import torchferry


def row(path: Path, root: Path, output: Path, to: str) -> dict:
    name = str(path.relative_to(root).with_suffix(""))
    place = output / f"{name}.{to}"
    start = time.perf_counter()
    result: dict = {"model": name, "to": to}
    try:
        container = torchferry.convert(path, place, to=to)
    except torchferry.TorchferryError as error:
        result |= {"verdict": type(error).__name__, "reason": error.what, **error.details}
    else:
        worst = max((o.comparison.max_rel for o in container.report.outputs), default=0.0)
        result |= {"verdict": "verified", "max_rel": worst, "limits": container.contract.batch.limits}
    return {**result, "seconds": round(time.perf_counter() - start, 1)}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("folder", type=Path)
    asked.add_argument("-o", "--output", type=Path, required=True)
    asked.add_argument("--to", default="onnx")
    asked.add_argument("--only", default="")
    arguments = asked.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    kept = arguments.output / "containers.json"
    rows = json.loads(kept.read_text()) if kept.exists() else []
    done = {(r["model"], r["to"]) for r in rows}
    for path in sorted(arguments.folder.rglob("*.pt")):
        name = str(path.relative_to(arguments.folder).with_suffix(""))
        if (name, arguments.to) in done or arguments.only not in name:
            continue
        rows.append(row(path, arguments.folder, arguments.output, arguments.to))
        kept.write_text(json.dumps(rows, indent=1))
        item = rows[-1]
        message = f"{item['max_rel']:.1e}" if item["verdict"] == "verified" else item["reason"]
        print(f"{item['verdict']:18} {item['seconds']:6.1f} s  {name}: {message}", flush=True)
    print(dict(Counter((r["to"], r["verdict"]) for r in rows)))


if __name__ == "__main__":
    main()
