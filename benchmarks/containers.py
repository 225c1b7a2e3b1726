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
    found: dict = {"model": name, "to": to}
    try:
        made = torchferry.convert(path, place, to=to)
    except torchferry.TorchferryError as error:
        found |= {"verdict": type(error).__name__, "reason": error.what, **error.details}
    else:
        worst = max((o.comparison.max_rel for o in made.report.outputs), default=0.0)
        found |= {"verdict": "verified", "max_rel": worst, "limits": made.contract.batch.limits}
    return {**found, "seconds": round(time.perf_counter() - start, 1)}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("folder", type=Path)
    asked.add_argument("-o", "--output", type=Path, required=True)
    asked.add_argument("--to", default="onnx")
    asked.add_argument("--only", default="")
    given = asked.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    kept = given.output / "containers.json"
    rows = json.loads(kept.read_text()) if kept.exists() else []
    done = {(r["model"], r["to"]) for r in rows}
    for path in sorted(given.folder.rglob("*.pt")):
        name = str(path.relative_to(given.folder).with_suffix(""))
        if (name, given.to) in done or given.only not in name:
            continue
        rows.append(row(path, given.folder, given.output, given.to))
        kept.write_text(json.dumps(rows, indent=1))
        one = rows[-1]
        said = f"{one['max_rel']:.1e}" if one["verdict"] == "verified" else one["reason"]
        print(f"{one['verdict']:18} {one['seconds']:6.1f} s  {name}: {said}", flush=True)
    print(dict(Counter((r["to"], r["verdict"]) for r in rows)))


if __name__ == "__main__":
    main()
