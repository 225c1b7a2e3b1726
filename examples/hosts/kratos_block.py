"""A block of hexahedra in Kratos, whose material is a UMAT of ``torchferry wrap kratos``.

    pip install KratosGeoMechanicsApplication==10.4.4
    python kratos_block.py model/kratos/libmake_model_kratos.so 1

The arguments are the library and the count of its state variables. It prints, for each step, the residuals of the
global Newton iteration and the largest stress.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import KratosMultiphysics as Kratos
import KratosMultiphysics.GeoMechanicsApplication
import KratosMultiphysics.StructuralMechanicsApplication

AXES = (Kratos.DISPLACEMENT_X, Kratos.DISPLACEMENT_Y, Kratos.DISPLACEMENT_Z)
REACTIONS = (Kratos.REACTION_X, Kratos.REACTION_Y, Kratos.REACTION_Z)
ITERATIONS = 20
CORNERS = ((0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1))


def make_block(cells: int, law: str, variables: dict[str, Any]) -> tuple[Kratos.Model, Kratos.ModelPart]:
    """Make a cube of cells in each direction, with one material."""
    model = Kratos.Model()
    part = model.CreateModelPart("solid", 2)
    for variable in (Kratos.DISPLACEMENT, Kratos.REACTION, Kratos.VOLUME_ACCELERATION):
        part.AddNodalSolutionStepVariable(variable)
    part.ProcessInfo[Kratos.DOMAIN_SIZE] = 3

    def number(i: int, j: int, k: int) -> int:
        return 1 + i + (cells + 1) * (j + (cells + 1) * k)

    places = [(i, j, k) for k in range(cells + 1) for j in range(cells + 1) for i in range(cells + 1)]
    for place in places:
        part.CreateNewNode(number(*place), *(v / cells for v in place))
    properties = part.CreateNewProperties(1)
    for place in (p for p in places if max(p) < cells):
        nodes = [number(*(v + c for v, c in zip(place, corner, strict=True))) for corner in CORNERS]
        part.CreateNewElement("SmallDisplacementElement3D8N", number(*place), nodes, properties)
    material = {"constitutive_law": {"name": law}, "Variables": {"DENSITY": 1.0, **variables}, "Tables": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "materials.json"
        path.write_text(
            json.dumps({"properties": [{"model_part_name": "solid", "properties_id": 1, "Material": material}]})
        )
        settings = {"Parameters": {"materials_filename": str(path)}}
        Kratos.ReadMaterialsUtility(Kratos.Parameters(json.dumps(settings)), model)
    for axis, reaction in zip(AXES, REACTIONS, strict=True):
        Kratos.VariableUtils().AddDof(axis, reaction, part)
    return model, part


def measure_residual(part: Kratos.ModelPart, forces: Any) -> float:
    """Return the norm of the forces that nothing holds."""
    free = [node.GetDof(axis).EquationId for node in part.Nodes for axis in AXES if not node.IsFixed(axis)]
    return math.sqrt(sum(forces[i] ** 2 for i in free))


def solve(part: Kratos.ModelPart, gradients: list[list[list[float]]], on_surface: bool) -> list[dict[str, Any]]:
    """Move bottom and top, or the whole surface, by a gradient of displacement in each step; return what came out."""
    criterion = Kratos.ResidualCriteria(1e-10, 1e-8)
    builder = Kratos.ResidualBasedBlockBuilderAndSolver(Kratos.SkylineLUFactorizationSolver())
    scheme = Kratos.ResidualBasedIncrementalUpdateStaticScheme()
    # One iteration at a time, so that the residuals are seen.
    strategy = Kratos.ResidualBasedNewtonRaphsonStrategy(part, scheme, criterion, builder, 1, True, False, True)
    strategy.SetEchoLevel(0)
    strategy.Initialize()
    results = []
    # The law takes the strain of its first step for the one that it starts from.
    for step, gradient in enumerate([[[0.0] * 3] * 3, *gradients]):
        part.CloneTimeStep(float(step))
        part.ProcessInfo[Kratos.STEP], part.ProcessInfo[Kratos.DELTA_TIME] = step, 1.0
        for node in part.Nodes:
            x = (node.X0, node.Y0, node.Z0)
            if (min(x) == 0 or max(x) == 1) if on_surface else x[2] in (0, 1):
                for axis, row in zip(AXES, gradient, strict=True):
                    node.Fix(axis)
                    node.SetSolutionStepValue(axis, 0, sum(g * v for g, v in zip(row, x, strict=True)))
        strategy.InitializeSolutionStep()
        strategy.Predict()
        residuals, is_solved = [], False
        while not is_solved and len(residuals) < ITERATIONS:
            is_solved = strategy.SolveSolutionStep()
            residuals.append(measure_residual(part, strategy.GetSystemVector()))
        strategy.FinalizeSolutionStep()
        info = part.ProcessInfo
        points = [e.CalculateOnIntegrationPoints(Kratos.CAUCHY_STRESS_VECTOR, info) for e in part.Elements]
        stresses = [list(stress) for element in points for stress in element]
        moved = [list(node.GetSolutionStepValue(Kratos.DISPLACEMENT)) for node in part.Nodes]
        results.append({"solved": is_solved, "residuals": residuals, "stresses": stresses, "displacements": moved})
    return results[1:]


def describe_umat(library: str, states: int) -> dict[str, Any]:
    """Return the material's variables of a UMAT."""
    return {
        "UDSM_NAME": library,
        "IS_FORTRAN_UDSM": True,
        # One zero: the values that were exported, where the law has several.
        "UMAT_PARAMETERS": [0.0],
        "STATE_VARIABLES": [0.0] * states,
        # The elements ask for these.
        "YOUNG_MODULUS": 1.0,
        "POISSON_RATIO": 0.3,
    }


def stretch(size: float) -> list[list[float]]:
    """Return a gradient of displacement of stretch and shear."""
    return [[0.3 * size, 0.0, size], [0.0, -0.2 * size, 0.4 * size], [0.1 * size, 0.0, size]]


def main() -> None:
    """Run three steps with the library of the command line."""
    # The model lives as long as its part.
    umat = describe_umat(str(Path(sys.argv[1]).resolve()), int(sys.argv[2]))
    model, part = make_block(4, "SmallStrainUMAT3DLaw", umat)
    for step in solve(part, [stretch(size) for size in (1e-3, 2e-3, 3e-3)], on_surface=False):
        residuals = ", ".join(f"{r:.1e}" for r in step["residuals"])
        largest = max(abs(s) for stress in step["stresses"] for s in stress)
        print(f"converged: {step['solved']}, residuals {residuals}, largest stress {largest:.3f}")
    del model


if __name__ == "__main__":
    Kratos.Logger.GetDefaultOutput().SetSeverity(Kratos.Logger.Severity.WARNING)
    main()
