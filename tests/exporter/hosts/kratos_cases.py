"""Runs in Kratos' own environment: kratos_cases.py EXAMPLES JOB prints what a block gave, as one line of JSON."""

from __future__ import annotations

import json
import sys

sys.path.insert(0, sys.argv[1])

import KratosMultiphysics as Kratos
import KratosMultiphysics.ConstitutiveLawsApplication
from kratos_block import make_block, solve

Kratos.Logger.GetDefaultOutput().SetSeverity(Kratos.Logger.Severity.WARNING)


def main() -> None:
    with open(sys.argv[2]) as file:
        job = json.load(file)
    # The model lives as long as its part.
    model, part = make_block(job["cells"], job["law"], job["variables"])
    results = solve(part, job["gradients"], job["patch"])
    del model
    print("RESULT " + json.dumps(results), flush=True)


main()
