"""Every host: folders, names that mean something elsewhere, kernels that say nothing or do not fit."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from material_hosts import Umat, export_function, make, plant, wrap
from project import ROOT, make_once, mark_thorough_after, need, skip_checks

import torchferry
from exporter.common.errors import UsageError
from exporter.hosts.fmu import FmuOptions
from exporter.hosts.registry import HOSTS, wrap_kernel
from exporter.hosts.small_strain import PointOptions
from exporter.hosts.umat import UmatOptions
from torchferry.cli.app import run

MODELS = ROOT / "tests" / "support" / "host_models.py"


@pytest.fixture(scope="module")
def odd(shared: Path) -> dict[str, Path]:
    def make(folder: Path) -> None:
        with skip_checks():
            for name, derivatives in {"Hiding": "all", "Named": (), "Shared": "all"}.items():
                torchferry.export(f"{MODELS}:{name}", output=folder / name, formats="c", derivatives=derivatives)

    folder = make_once(shared / "odd kernels", make)
    return {name: folder / name for name in ("Hiding", "Named", "Shared")}


@pytest.mark.parametrize("host", mark_thorough_after(4, ["casadi", "fmu", "r", "octave", "torch"]))
def test_names_of_a_stranger_are_only_names(odd, tmp_path, host):
    program = {"r": "Rscript", "octave": "mkoctfile"}.get(host, "cc")
    need(shutil.which(program) is not None, f"{program} is not installed")
    wrap_kernel(host, odd["Named"], tmp_path / host, FmuOptions() if host == "fmu" else None)
    result = make(tmp_path / host, "test")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "<script>" not in (tmp_path / host / "README.md").read_text()
    for path in (tmp_path / host).glob("*.py"):
        compile(path.read_text(), str(path), "exec")


@pytest.mark.parametrize("host", mark_thorough_after(1, ["casadi", "torch"]))
def test_a_derivative_is_by_the_input_where_a_parameter_has_its_name(odd, tmp_path, host):
    wrap_kernel(host, odd["Shared"], tmp_path / host, None)
    result = make(tmp_path / host, "test")
    assert result.returncode == 0, result.stdout + result.stderr
    readme = (tmp_path / host / "README.md").read_text()
    assert ": k -> y." in readme


def test_names_of_an_fmu_are_all_different(odd, tmp_path):
    wrap_kernel("fmu", odd["Named"], tmp_path / "fmu", FmuOptions())
    lines = (tmp_path / "fmu" / "modelDescription.xml").read_text().splitlines()
    names = [line.split('name="')[1].split('"')[0] for line in lines if "<Float64" in line]
    assert names[0] == "time"
    assert len(set(names)) == len(names) == 8


@pytest.mark.parametrize("host", ["umat", "vumat", "mgis"])
def test_a_number_that_is_none_does_not_get_in(odd, tmp_path, host):
    wrapped = wrap(host, odd["Hiding"], tmp_path / host, UmatOptions() if host == "umat" else PointOptions())
    result = wrapped.run_self_test()
    assert result.returncode == 0, result.stdout
    if host == "umat":
        umat = Umat(wrapped.library)
        assert umat(np.zeros(6), [], np.zeros(6), [np.nan, 0, 0, 0, 0, 0]).pnewdt < 1
        assert umat(np.full(6, np.nan), [], np.zeros(6), np.zeros(6)).pnewdt < 1
        assert umat(np.zeros(6), [], np.zeros(6), np.zeros(6)).pnewdt == 1


def test_a_self_test_without_rows_has_tested_nothing(odd, tmp_path):
    wrapped = wrap("umat", odd["Hiding"], tmp_path / "umat", UmatOptions())
    plant(wrapped.folder / "test_Hiding_umat.c", "ROWS = 12", "ROWS = 0")
    assert make(wrapped.folder, "test").returncode == 2


def test_the_file_of_somebody_else_stays(odd, tmp_path, capfd):
    (tmp_path / "README.md").write_text("# Mine\n")
    assert run(["wrap", "casadi", str(odd["Named"]), "-o", str(tmp_path)]) == 2
    assert "somebody else's" in capfd.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["README.md"]
    assert run(["wrap", "casadi", str(odd["Named"]), "-o", str(odd["Named"])]) == 2
    for _ in range(2):
        assert run(["wrap", "casadi", str(odd["Named"]), "-o", str(tmp_path / "casadi")]) == 0


def test_what_abaqus_links_is_compiled_as_the_library(odd, tmp_path):
    wrap_kernel("umat", odd["Hiding"], tmp_path / "umat", UmatOptions())
    assert make(tmp_path / "umat", "Hiding.o").returncode == 0
    printed = make(tmp_path / "umat", "-n", "-B", "Hiding.o").stdout
    assert "-fPIC" in printed
    assert "-ffp-contract=off" in printed


def test_a_folder_that_was_changed_is_refused(odd, tmp_path):
    folder = Path(shutil.copytree(odd["Hiding"], tmp_path / "kernel"))
    (folder / "Hiding.c").write_text("")
    for host in HOSTS:
        assert run(["wrap", host, str(folder)]) == 4
        assert not (folder / host).exists()


def test_values_before_the_step_have_the_shape_of_those_after_it(tmp_path):
    source = tmp_path / "shapes.py"
    source.write_text(
        "import torch\nfrom torch import nn\nfrom torchferry import Signature\n\n\nclass Shapes(nn.Module):\n"
        "    signature = Signature.of({'strain': (6,), 'ep~1': (9,)}, {'stress': (6,), 'ep': (6,)})\n\n"
        "    def forward(self, strain, old):\n        return strain * 2, old[:, :6] + strain\n"
    )
    with skip_checks():
        torchferry.export(f"{source}:Shapes", output=tmp_path / "k", formats="c", derivatives="stress:strain")
    for host, options in {
        "umat": UmatOptions(),
        "vumat": PointOptions(),
        "mgis": PointOptions(),
        "fmu": FmuOptions(),
    }.items():
        with pytest.raises(UsageError, match="no value of its variable"):
            wrap_kernel(host, tmp_path / "k", tmp_path / host, options)


def test_two_kernels_of_one_name_stay_apart(tmp_path):
    laws = []
    for factor in (3, 7):
        folder = tmp_path / str(factor)
        folder.mkdir()
        wrap_kernel("torch", export_function(folder, "Lin", f"x * {factor}.0"), folder / "torch", None)
        assert make(folder / "torch").returncode == 0
        laws.append(folder / "torch")
    script = "import importlib.util as u, torch\nlaws = []\n"
    for i, folder in enumerate(laws):
        script += f"s = u.spec_from_file_location('lin{i}', {str(folder / 'Lin_torch.py')!r})\n"
        script += "m = u.module_from_spec(s); s.loader.exec_module(m); laws.append(m.Lin)\n"
    script += "print([float(law(torch.ones(1).double())) for law in laws])\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[3.0, 7.0]"


def test_rates_and_tolerances_of_an_fmu(tmp_path, capfd):
    folder = tmp_path / "robertson"
    assert run(["convert", str(ROOT / "artifacts" / "robertson.pt"), "--to", "c", "-o", str(folder)]) == 0
    assert run(["wrap", "fmu", str(folder), "--rate", "y:rate", "--rate", "y:rate"]) == 2
    assert "a state has one rate" in capfd.readouterr().err
    wrapped = wrap("fmu", folder, tmp_path / "fmu", FmuOptions("2.0", (("y", "rate"),)))
    library = ctypes.CDLL(str(wrapped.library))
    library.fmi2Instantiate.restype = ctypes.c_void_p
    text = (wrapped.folder / "make_model_fmu.c").read_text()
    token = text.split('#define TOKEN "')[1].split('"')[0]
    instance = ctypes.c_void_p(library.fmi2Instantiate(b"test", 1, token.encode(), b"", None, 0, 0))
    for value, status in ((1e-8, 0), (0.0, 3), (-1.0, 3)):
        for reference in (1, 2):
            argument = ctypes.byref(ctypes.c_uint(reference))
            assert library.fmi2SetReal(instance, argument, 1, ctypes.byref(ctypes.c_double(value))) == status
    assert library.fmi2ExitInitializationMode(instance) == 0
    assert library.fmi2DoStep(instance, ctypes.c_double(0), ctypes.c_double(40), 0) == 0
    y = (ctypes.c_double * 3)()
    first = next(i for i, line in enumerate(text.split("starts[VALUES] = {\n")[1].splitlines()) if "y[1]" in line)
    assert library.fmi2GetReal(instance, (ctypes.c_uint * 3)(first, first + 1, first + 2), 3, y) == 0
    assert np.allclose(y[:], [0.7158270688, 9.185534764e-06, 0.2841637457], rtol=0, atol=1e-6)
    library.fmi2FreeInstance(instance)
