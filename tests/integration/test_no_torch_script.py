"""Archives where torch has no TorchScript: loaded, evaluated and converted; what needs it says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from project import ARTIFACTS, ROOT

import torchferry
from exporter.archive import pt_archive

WITHOUT = ROOT / "tests" / "support" / "no_torch_script"
NAMES = sorted(path.stem for path in ARTIFACTS.glob("*.pt"))


def run_without(code: str, *arguments: object, folder: Path = ROOT) -> Any:
    """Run code in a process whose torch has no TorchScript, and return what it prints last."""
    head = """
        import json, sys, warnings
        from pathlib import Path
        import torch
        import torchferry
        from exporter.common import torch_internals
        from exporter.common.errors import MissingRuntimeError
    """
    paths = os.pathsep.join([str(WITHOUT), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(code), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_it_is_gone():
    """The control of the others: neither ours nor a user's code gets TorchScript there."""
    result = run_without("""
        gone = []
        for code in ("import torch.jit", "from torch import jit", "from torch.jit import load", "torch.jit.load",
                     "torch.jit.script", "torch._C.import_ir_module", "torch._C.CompilationUnit"):
            try:
                exec(code)
            except (ImportError, AttributeError):
                gone.append(code)
        print(json.dumps({"gone": len(gone), "has": torch_internals.HAS_TORCH_SCRIPT}))
    """)
    assert result == {"gone": 7, "has": False}


def test_every_archive_gives_its_numbers_there():
    result = run_without(
        """
        warnings.simplefilter("ignore", torchferry.EngineWarning)
        worst = {}
        for path in map(Path, sys.argv[1:]):
            model = torchferry.load(path)
            assert type(model.engine).__name__ == "InterpreterEngine"
            contract = model.contract
            for case in __import__("exporter.archive.pt_archive").archive.pt_archive.read(path).cases():
                names = contract.methods[case.method].inputs
                outputs = model.call(case.method, dict(zip(names, case.inputs))).values()
                for name, got, expected in zip(contract.methods[case.method].outputs, outputs, case.outputs):
                    bounds = contract.tolerance.bounds(name, str(expected.dtype).removeprefix("torch."))
                    scale = expected.abs().nan_to_num(posinf=0.0).max().item() if expected.numel() else 0.0
                    allowed = bounds.atol * scale + bounds.floor
                    worst[f"{path.stem} {case.method} {case.name}"] = torch.allclose(
                        got, expected, bounds.rtol, allowed, equal_nan=True
                    )
        print(json.dumps(worst))
        """,
        *(ARTIFACTS / f"{name}.pt" for name in NAMES),
    )
    assert len(result) > 50
    assert [case for case, close in result.items() if not close] == []


def test_the_engine_is_said():
    result = run_without(
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torchferry.load(sys.argv[1])
            torchferry.load(sys.argv[1], engine="interpreter")
        print(json.dumps([str(w.message) for w in caught]))
        """,
        ARTIFACTS / "rates.pt",
    )
    assert result == ["rates.pt runs in Python: this torch has no TorchScript: a kernel of it is faster"]


def test_a_file_is_verified_there():
    result = run_without(
        """
        report = torchferry.verify(sys.argv[1])
        try:
            torchferry.verify(sys.argv[1], runtimes="python")
        except MissingRuntimeError as error:
            print(json.dumps([report.passed, [leg.name for leg in report.legs], str(error)]))
        """,
        ARTIFACTS / "return_map.pt",
    )
    assert result[:2] == [True, ["interpreter, cpu"]]
    assert result[2].startswith("this torch has no TorchScript")


def convert_without(name: str, kind: str, output: Path) -> bool:
    """Convert an artifact in such a process; return whether it is verified."""
    code = "print(json.dumps(torchferry.convert(sys.argv[1], sys.argv[3], to=sys.argv[2]).report.passed))"
    return bool(run_without(code, ARTIFACTS / f"{name}.pt", kind, output))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["robertson", "perzyna"])
@pytest.mark.parametrize(("kind", "suffix"), [("onnx", ".onnx"), ("program", ".program.pt2")])
def test_conversions_are_verified(name, kind, suffix, tmp_path):
    assert convert_without(name, kind, tmp_path / f"{name}{suffix}")


@pytest.mark.thorough
def test_a_kernel_is_the_one_that_is_made_elsewhere(tmp_path):
    """Its sources are the same bytes, but for the lines that operators came from."""
    assert convert_without("robertson", "c", tmp_path / "robertson")
    torchferry.convert(ARTIFACTS / "robertson.pt", tmp_path / "here", to="c")
    here = read_code(tmp_path / "here")
    assert len(here) > 50
    assert read_code(tmp_path / "robertson") == here


def read_code(folder) -> list[str]:
    return [
        line.partition("/*")[0].rstrip()
        for path in sorted(folder.glob("*.c"))
        for line in path.read_text().splitlines()
        if not path.name.endswith("_shared.c")
    ]


@pytest.mark.thorough
def test_a_data_set_is_evaluated_there(tmp_path):
    rng = np.random.default_rng(0)
    archive = pt_archive.read(ARTIFACTS / "robertson.pt")
    values: dict[str, Any] = {s.name: rng.random((50, *s.static_shape)) for s in archive.contract.inputs}
    np.savez(tmp_path / "data.npz", **values)
    result = run_without(
        """
        import numpy, xarray
        warnings.simplefilter("ignore", torchferry.EngineWarning)
        values = dict(numpy.load(sys.argv[2]))
        data = xarray.Dataset({n: (["row", *(f"{n}_{i}" for i in range(v.ndim - 1))], v) for n, v in values.items()})
        results = torchferry.evaluate(sys.argv[1], data)
        print(json.dumps({name: results[name].values.tolist() for name in results if name != "status"}))
        """,
        ARTIFACTS / "robertson.pt",
        tmp_path / "data.npz",
    )
    names = archive.contract.methods["forward"].inputs
    module = torch.jit.load(ARTIFACTS / "robertson.pt")
    expected = module(*(torch.from_numpy(values[name]) for name in names))
    outputs = archive.contract.methods["forward"].output_names
    for name, tensor in zip(outputs, expected, strict=True):
        assert np.array_equal(np.array(result[name]), tensor.detach().numpy())


@pytest.mark.parametrize(
    "call",
    [
        'torchferry.export(torch.nn.Identity(), output="x.pt")',
        "torchferry.diff(sys.argv[1], sys.argv[1])",
        'torchferry.adopt(sys.argv[1], inputs={"x": torch.ones(1)}, output="x.pt")',
    ],
)
def test_what_needs_torchscript_says_so(call, tmp_path):
    code = f"""
        try:
            {call}
        except MissingRuntimeError as error:
            print(json.dumps([str(error), error.exit_code]))
    """
    text, exit_code = run_without(code, ARTIFACTS / "rates.pt", folder=tmp_path)
    assert text.startswith("this torch has no TorchScript")
    assert exit_code == 6
    assert list(tmp_path.iterdir()) == []
