"""What users do with a file on a GPU. All but the last test run on the CPU as well, which is held to the same; `make
test` leaves that to tests of the modules."""

from __future__ import annotations

import ctypes
import json
import runpy
import shutil
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from project import ARTIFACTS, MODELS, ROOT

import torchferry
from exporter.common.errors import MismatchError
from runtime_checks import native_build
from runtime_checks.engines.cuda_kernel import CudaKernel
from runtime_checks.kernels import gpu_compilation

RETURN_MAP = ARTIFACTS / "return_map.pt"
DEVICES = [pytest.param("cpu", marks=pytest.mark.thorough), pytest.param("cuda", marks=pytest.mark.cuda)]
UNIAXIAL = """strain[0],stress[1],stress[2],stress[3],stress[4],stress[5],steps
0,0,0,0,0,0,
0.01,,,,,,20
-0.01,,,,,,40
"""


def need_device(device: str) -> None:
    """No GPU is no fault of a machine, so this is a skip in CI too."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")


def invoke(*arguments: object) -> None:
    """Run the command in a process that has not used the GPU: one that is forked from such a process cannot."""
    command = [sys.executable, "-m", "exporter", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("source", "options"),
    [
        (f"{ROOT}/examples/return_map.py:make_model", {"derivatives": "stress:strain"}),
        (f"{ROOT}/examples/return_map.py:make_model", {"per_element": "*.yield_stress"}),
        (f"{MODELS}:Single", {}),
    ],
    ids=["newton", "per element", "float32"],
)
def test_export_checks_on_the_device(device, source, options, tmp_path):
    need_device(device)
    (exported,) = torchferry.export(
        source, output=tmp_path / "m.pt", runtimes="python,libtorch", devices=device, **options
    )
    verdicts = {(leg.runtime, c.check): c.verdict for leg in exported.report.legs for c in leg.checks}
    for runtime in ("python", "libtorch"):
        assert verdicts[runtime, "stored cases"] == verdicts[runtime, "fresh inputs"] == "passed"


@pytest.mark.parametrize("device", DEVICES)
def test_a_file_of_the_cpu_is_confined_on_the_device(device):
    """The file was made on the CPU by somebody else."""
    need_device(device)
    report = torchferry.verify(RETURN_MAP, runtimes="python,libtorch", devices=device)
    confined = [c for c in report.checks if c.check == "confinement"]
    assert len(confined) == 2
    assert all(c.verdict == "passed" and "nothing outside its folder" in c.detail for c in confined)


@pytest.mark.parametrize("device", DEVICES)
def test_a_history_is_that_of_the_cpu(device, tmp_path):
    """Prescribed stresses on the device; the path that was found, by the file on the CPU."""
    need_device(device)
    (tmp_path / "uniaxial.csv").write_text(UNIAXIAL)
    history, results = tmp_path / "path.pt", tmp_path / "results.pt"
    table = ["--table", tmp_path / "uniaxial.csv", "--save-history", history]
    invoke("run", RETURN_MAP, *table, "-o", results, "--device", device)
    invoke("run", RETURN_MAP, "--history", history, "-o", tmp_path / "again.pt")
    expected, again = torch.load(results), torch.load(tmp_path / "again.pt")
    assert expected["stress"].abs().max() > 250
    torch.testing.assert_close(again["stress"], expected["stress"], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["return_map", "robertson"])
def test_a_kernel_runs_on_the_device(device, name, tmp_path):
    """Every check of the folder, and calls of the archive by it: in torch's stream, on tensors of the device."""
    need_device(device)
    path = tmp_path / "m.pt"
    shutil.copy(ARTIFACTS / f"{name}.pt", path)
    torchferry.convert(path, tmp_path / "m", to="cuda")
    report = torchferry.verify(tmp_path / "m", runtimes="cuda", devices=device)
    on_gpu = {check.check: check.verdict for check in report.checks}["on a GPU"]
    assert on_gpu == ("passed" if device == "cuda" else "not run")
    if device == "cpu":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = torchferry.load(path, device, engine="kernel")
    assert isinstance(model.engine, CudaKernel)
    plain = torchferry.load(path)
    inputs = [1e-3 * torch.rand(5000, *s.static_shape, dtype=torch.float64) for s in plain.contract.inputs]
    with torch.cuda.stream(torch.cuda.Stream()):
        outputs = model(*(value.to(device) for value in inputs))
        torch.cuda.current_stream().synchronize()
    for got, expected in zip(outputs, plain(*inputs), strict=True):
        assert got.device.type == device
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.cuda
def test_a_solver_that_stays_on_the_gpu(tmp_path):
    need_device("cuda")
    solvers, folder = ROOT / "examples" / "solvers", tmp_path / "kernel"
    torchferry.export(f"{solvers / 'decay.py'}:make_model", output=folder, formats="cuda")
    nvcc = [*gpu_compilation.find_nvcc(), "-O2", "-fmad=false", "-arch=native", f"-I{folder}"]
    files = [str(solvers / "decay_gpu.cu"), str(folder / "make_model.cu")]
    subprocess.run([*nvcc, *files, "-o", str(tmp_path / "decay")], check=True)
    message = subprocess.run([str(tmp_path / "decay")], capture_output=True, text=True, check=True).stdout
    lines = [[float(number) for number in line.split()] for line in message.splitlines()]
    got = torch.tensor(lines, dtype=torch.float64)
    integrate = runpy.run_path(str(solvers / "decay.py"))["integrate"]
    expected = torch.tensor(integrate(), dtype=torch.float64).t()
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("device", DEVICES)
def test_the_benchmark_holds_the_device_to_the_cases(device):
    need_device(device)
    command = [sys.executable, "-m", "exporter", "bench", str(RETURN_MAP), "--batch", "16,4096", "--json"]
    done = subprocess.run([*command, "--device", device], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["device"] == device
    assert {timing["batch"] for timing in report["timings"]} == {16, 4096}


# The header's structures, as a solver in Python has them.
STRUCTURES: dict[str, Any] = runpy.run_path(str(ROOT / "examples" / "solvers" / "robertson_scipy.py"))
Device, Tensor = STRUCTURES["Device"], STRUCTURES["Tensor"]
CPU, CUDA, WRONG_DEVICE = 1, 2, 10


def describe(tensor: torch.Tensor) -> Any:
    assert tensor.dtype == torch.float64
    sizes = [(ctypes.c_int64 * tensor.dim())(*numbers) for numbers in (tensor.shape, tensor.stride())]
    device = Device(CPU, 0) if tensor.device.type == "cpu" else Device(CUDA, tensor.device.index or 0)
    return Tensor(tensor.data_ptr(), STRUCTURES["FLOAT64"], tensor.dim(), *sizes, device)


@pytest.fixture(scope="module")
def library() -> Any:
    (path,) = (native_build.build() / "lib").glob("libtorchferry.so")
    library = ctypes.CDLL(str(path))
    library.tf_last_error.restype = ctypes.c_char_p
    return library


@pytest.mark.parametrize("device", DEVICES)
def test_c_calls_use_the_memory_of_the_device(device, library):
    """The host's arrays lie on the device, one of them with strides; memory of the other device is an error."""
    need_device(device)
    handle = ctypes.c_void_p()
    assert library.tf_load(str(RETURN_MAP).encode(), device.encode(), None, ctypes.byref(handle)) == 0
    model = torchferry.load(RETURN_MAP, device)
    inputs = []
    for spec in model.contract.inputs:
        scale = 1e-2 if spec.name == "strain" else 0.0
        inputs.append(scale * torch.randn(5000, *spec.static_shape, dtype=torch.float64, device=device))
    inputs[0] = torch.empty(inputs[0].shape[::-1], dtype=torch.float64, device=device).t().copy_(inputs[0])
    expected = model.call("forward", dict(zip((s.name for s in model.contract.inputs), inputs, strict=True)))
    outputs = [
        torch.zeros_like(expected[s.name], memory_format=torch.contiguous_format) for s in model.contract.outputs
    ]

    def call(described: list[Any]) -> int:
        inner = (Tensor * len(described))(*described)
        outer = (Tensor * len(outputs))(*map(describe, outputs))
        status = library.tf_call(handle, None, len(described), inner, len(outputs), outer)
        library.tf_synchronize(handle)
        return status

    if device == "cuda":
        torch.cuda.synchronize()
    described = [describe(tensor) for tensor in inputs]
    assert call(described) == 0, library.tf_last_error(handle)
    for spec, output in zip(model.contract.outputs, outputs, strict=True):
        torch.testing.assert_close(output, expected[spec.name], rtol=1e-12, atol=1e-12)
    described[-1].device = Device(CPU if device == "cuda" else CUDA, 0)
    assert call(described) == WRONG_DEVICE
    assert b"is on the wrong device" in library.tf_last_error(handle)
    assert library.tf_close(handle) == 0


LEFT_BEHIND = """
import torch
import torchferry

@torch.jit.script
def make_ones(x: torch.Tensor) -> torch.Tensor:
    return torch.ones([x.size(0), 1], dtype=x.dtype, device="cpu")

class LeftBehind(torch.nn.Module):
    signature = torchferry.Signature.of({"x": (3,)}, {"y": (3,)})

    def forward(self, x):
        return x + make_ones(x)
"""


@pytest.mark.cuda
def test_what_stays_on_the_cpu_is_found(tmp_path):
    """A device in a scripted function, which the trace does not look into: the run on the GPU is the one that fails."""
    need_device("cuda")
    (tmp_path / "left.py").write_text(LEFT_BEHIND)
    source = f"{tmp_path / 'left.py'}:LeftBehind"
    with pytest.raises(MismatchError):
        torchferry.export(source, output=tmp_path / "m.pt", devices="cuda")
    assert not (tmp_path / "m.pt").exists()
