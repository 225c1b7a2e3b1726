"""Runs in FMPy's own environment: fmu_cases.py JOB validates and simulates FMUs, and prints a line of JSON."""

from __future__ import annotations

import json
import sys

import fmpy
import numpy as np
from fmpy.validation import validate_fmu

with open(sys.argv[1]) as file:
    jobs = json.load(file)
results = []
for job in jobs:
    problems = validate_fmu(job["fmu"])
    signals = None
    if job["input"]:
        names = list(job["input"])
        rows = list(zip(*(job["input"][n] for n in names), strict=True))
        signals = np.array(rows, dtype=[(n, float) for n in names])
    result = fmpy.simulate_fmu(
        job["fmu"],
        fmi_type=job["kind"],
        stop_time=job["stop"],
        output_interval=job["interval"],
        relative_tolerance=1e-8,
        input=signals,
        start_values=job["starts"],
        output=job["outputs"],
    )
    results.append({"problems": [str(p) for p in problems], "rows": [[float(v) for v in row] for row in result]})
print("RESULT " + json.dumps(results))
