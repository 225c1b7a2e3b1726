"""Runs in Kratos' own environment: one stage of GeoMechanicsAnalysis, which cuts steps back that do not converge.

kratos_stage.py JOB prints a line of JSON for each step that it accepts."""

from __future__ import annotations

import json
import sys
from typing import Any

import KratosMultiphysics as Kratos
from KratosMultiphysics.GeoMechanicsApplication.geomechanics_analysis import GeoMechanicsAnalysis

with open(sys.argv[1]) as opened:
    JOB = json.load(opened)
DIMENSION = JOB["dimension"]
CELLS = 2
CORNERS = ((0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1))[: 2**DIMENSION]
# The direction from bottom to top.
UP = DIMENSION - 1
PROCESSES = "KratosMultiphysics.GeoMechanicsApplication"


def number(i: int, j: int, k: int) -> int:
    return 1 + i + (CELLS + 1) * (j + (CELLS + 1) * k)


def write_mesh() -> None:
    places = [
        (i, j, k)
        for k in (range(CELLS + 1) if DIMENSION == 3 else (0,))
        for j in range(CELLS + 1)
        for i in range(CELLS + 1)
    ]
    cells = [place for place in places if max(place) < CELLS]
    elements = [[number(*(v + c for v, c in zip(p, corner, strict=True))) for corner in CORNERS] for p in cells]
    lines = ["Begin Properties 1", "End Properties"]
    lines += [
        f"Begin Table 1 TIME DISPLACEMENT_{'XYZ'[UP]}",
        "0.0 0.0",
        f"1.0 {JOB['stretch']}",
        "End Table",
        "Begin Nodes",
    ]
    lines += [f"{number(*p)} {p[0] / CELLS} {p[1] / CELLS} {p[2] / CELLS}" for p in places]
    lines += ["End Nodes", f"Begin Elements UPwSmallStrainElement{DIMENSION}D{len(CORNERS)}N"]
    lines += [f"{i} 1 {' '.join(map(str, nodes))}" for i, nodes in enumerate(elements, 1)]
    lines += ["End Elements"]
    parts: list[tuple[str, list[int], list[int]]] = [
        ("body", [number(*p) for p in places], list(range(1, len(elements) + 1))),
        ("bottom", [number(*p) for p in places if p[UP] == 0], []),
        ("top", [number(*p) for p in places if p[UP] == CELLS], []),
    ]
    for name, nodes, of_part in parts:
        lines += [f"Begin SubModelPart {name}", "  Begin SubModelPartTables", "1" if name == "top" else ""]
        lines += ["  End SubModelPartTables", "  Begin SubModelPartNodes", *map(str, nodes), "  End SubModelPartNodes"]
        lines += ["  Begin SubModelPartElements", *map(str, of_part), "  End SubModelPartElements", "End SubModelPart"]
    with open("block.mdpa", "w") as file:
        file.write("\n".join(lines) + "\n")


def write_material() -> None:
    soil = {
        "IGNORE_UNDRAINED": True,
        "YOUNG_MODULUS": 2e5,
        "POISSON_RATIO": 0.3,
        "DENSITY_SOLID": 2650,
        "DENSITY_WATER": 1000,
        "POROSITY": 0.3,
        "BULK_MODULUS_SOLID": 1e12,
        "BULK_MODULUS_FLUID": 2e9,
        **{
            f"PERMEABILITY_{axes}": 1e-9 if axes[0] == axes[1] else 0.0 for axes in ("XX", "YY", "ZZ", "XY", "YZ", "ZX")
        },
        "DYNAMIC_VISCOSITY": 1e-3,
        "BIOT_COEFFICIENT": 1.0,
        "RETENTION_LAW": "SaturatedLaw",
        "SATURATED_SATURATION": 1.0,
    }
    material = {"constitutive_law": {"name": JOB["law"]}, "Variables": soil | JOB["variables"], "Tables": {}}
    entry = {"model_part_name": "PorousDomain.body", "properties_id": 1, "Material": material}
    with open("materials.json", "w") as file:
        json.dump({"properties": [entry]}, file)


def fix(part: str, tables: list[int]) -> dict[str, Any]:
    settings = {"model_part_name": f"PorousDomain.{part}", "variable_name": "DISPLACEMENT", "active": [True] * 3}
    settings |= {"is_fixed": [True] * 3, "value": [0.0] * 3, "table": tables}
    process = {"python_module": "apply_vector_constraint_table_process", "kratos_module": PROCESSES}
    return process | {"process_name": "ApplyVectorConstraintTableProcess", "Parameters": settings}


def describe() -> dict[str, Any]:
    pressure = {"model_part_name": "PorousDomain.body", "variable_name": "WATER_PRESSURE", "is_fixed": True}
    pressure |= {"value": 0.0, "table": 0, "fluid_pressure_type": "Uniform"}
    dry = {"python_module": "apply_scalar_constraint_table_process", "kratos_module": PROCESSES}
    dry |= {"process_name": "ApplyScalarConstraintTableProcess", "Parameters": pressure}
    solver = {
        "solver_type": "U_Pw",
        "model_part_name": "PorousDomain",
        "domain_size": DIMENSION,
        "model_import_settings": {"input_type": "mdpa", "input_filename": "block"},
        "material_import_settings": {"materials_filename": "materials.json"},
        "time_stepping": {"time_step": JOB["step"]},
        "solution_type": "Quasi-Static",
        "scheme_type": "Backward_Euler",
        "reset_totals": True,
        "strategy_type": "newton_raphson",
        "convergence_criterion": "residual_criterion",
        "residual_relative_tolerance": 1e-8,
        "residual_absolute_tolerance": 1e-9,
        "max_iterations": 15,
        "min_iterations": 0,
        "number_cycles": 10,
        "reduction_factor": 0.5,
        "increase_factor": 1.0,
        "linear_solver_settings": {"solver_type": "skyline_lu_factorization"},
        "problem_domain_sub_model_part_list": ["body"],
        "processes_sub_model_part_list": ["bottom", "top"],
        "body_domain_sub_model_part_list": ["body"],
    }
    problem = {"problem_name": "block", "start_time": 0.0, "end_time": 1.0, "echo_level": 0, "parallel_type": "OpenMP"}
    constraints = [fix("bottom", [0, 0, 0]), fix("top", [int(axis == UP) for axis in range(3)]), dry]
    processes = {"constraints_process_list": constraints, "loads_process_list": [], "auxiliary_process_list": []}
    return {"problem_data": problem, "solver_settings": solver, "output_processes": {}, "processes": processes}


class Watched(GeoMechanicsAnalysis):
    def OutputSolutionStep(self) -> None:
        part = self._GetSolver().GetComputingModelPart()
        points = [e.CalculateOnIntegrationPoints(Kratos.CAUCHY_STRESS_VECTOR, part.ProcessInfo) for e in part.Elements]
        stresses = [list(stress) for element in points for stress in element]
        step = {"time": part.ProcessInfo[Kratos.TIME], "tries": part.ProcessInfo[Kratos.NUMBER_OF_CYCLES]}
        print("RESULT " + json.dumps({**step, "stresses": stresses}), flush=True)


write_mesh()
write_material()
Kratos.Logger.GetDefaultOutput().SetSeverity(Kratos.Logger.Severity.WARNING)
Watched(Kratos.Model(), Kratos.Parameters(json.dumps(describe()))).Run()
