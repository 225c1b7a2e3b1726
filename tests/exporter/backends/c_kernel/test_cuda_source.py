"""Kernels for GPUs, on a machine without one: as C++ whose threads take turns, and as NVRTC compiles them."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from kernel_host import Mixed, edit, name_of, resealed, write_cuda_kernel
from project import ARTIFACTS, MODELS, mark_rest_thorough, need

import torchferry
from exporter.archive import kernel_container, pt_archive
from exporter.archive.formats import infer_format
from exporter.backends.c_kernel import cuda_source, frame_layout
from exporter.common.errors import ArchiveError, MismatchError, MissingRuntimeError, UnsupportedError, UsageError
from runtime_checks.kernels import compilation, gpu_compilation, nvrtc_program
from runtime_checks.kernels.ctypes_library import make_arrays
from runtime_checks.report import FAILED, NOT_RUN, PASSED
from runtime_checks.runners.kernel_runner import COMPILES, ON_GPU

pytestmark = pytest.mark.usefixtures("file_without_the_gate")

F = torch.float64
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-std=c++14"]
HAS_NVRTC = all(importlib.util.find_spec(name) for name in ("cuda", "cuda.bindings", "cuda.bindings.nvrtc"))


def need_nvrtc() -> None:
    need(HAS_NVRTC, "NVRTC is not installed (pip install 'torchferry[cuda]')")


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to / "folder"))


@pytest.mark.parametrize("name", mark_rest_thorough(["return_map"], ["robertson", "perzyna"]))
def test_it_has_the_numbers_of_eager_mode(cuda_folders, name):
    """What did not run on a GPU says so."""
    need_nvrtc()
    report = torchferry.verify(cuda_folders[name], trust="native")
    assert [leg.runtime for leg in report.legs] == ["cuda", "c"]
    verdicts = {check.check: check for check in report.legs[0].checks}
    assert verdicts["stored cases"].verdict == PASSED
    assert (verdicts[ON_GPU].verdict, verdicts[COMPILES].verdict) == (NOT_RUN, PASSED)
    assert "compute_80, compute_90" in verdicts[COMPILES].detail


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Path:
    """The archive of a model that has variables of every type; its kernel lies beside it."""
    path = tmp_path_factory.mktemp("mixed") / "m.pt"
    torchferry.export(Mixed(), output=path, inputs=Mixed.draw(9), formats="pt,cuda")
    return path


def test_variables_of_every_type(mixed):
    """The export has verified it, in CUDA's runtime and in C."""
    report = torchferry.verify(mixed.with_suffix(""))
    assert [leg.runtime for leg in report.legs] == ["cuda", "c"]
    assert report.passed


@pytest.fixture
def without_nvrtc(monkeypatch, tmp_path) -> Iterator[None]:
    """Its process runs where no package can be imported; nothing is known from before, nor later."""
    program = tmp_path / "program.py"
    hidden = "import sys\nsys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
    program.write_text(hidden + Path(nvrtc_program.__file__).read_text())
    monkeypatch.setattr(nvrtc_program, "__file__", str(program))
    gpu_compilation._compile_to_ptx.cache_clear()
    yield
    gpu_compilation._compile_to_ptx.cache_clear()


@pytest.mark.usefixtures("without_nvrtc")
def test_without_nvrtc_the_report_says_so(cuda_folders):
    (leg,) = torchferry.verify(cuda_folders["robertson"], runtimes="cuda", trust="native").legs
    (verdict,) = (check for check in leg.checks if check.check == COMPILES)
    assert (verdict.verdict, "pip install" in verdict.detail) == (NOT_RUN, True)


FAULTS = {
    "a stride that is taken for 1": ("robertson", edit("model.cu", r"i1 \* call\.strides\[\d+\]", "i1", 9)),
    "another variable's stride of the batch": (
        "return_map",
        edit("model.cu", r"data\[3\] \+ e \* call\.strides\[\d+\]", "data[3] + e * call.strides[0]", 9),
    ),
    "an element that is left out": ("robertson", edit("model.cu", r"e >= call\.count", "e + 1 >= call.count", 9)),
    "parameters that are never the call's": (
        "robertson",
        edit("model.cu", r"if \(!parameters\.numbers\[\d+\]\)", "", 99),
    ),
    "a status that is always good": (
        "return_map",
        edit("_lanes.h", r"status\[l\] = good\[l\] \? 0", "status[l] = 1 ? 0", 9),
    ),
}


@pytest.mark.parametrize("fault", mark_rest_thorough([*FAULTS][:2], [*FAULTS][2:]))
def test_a_fault_is_found(cuda_folders, fault, tmp_path):
    name, change = FAULTS[fault]
    folder = copied(cuda_folders[name], tmp_path)
    resealed(folder, change)
    with pytest.raises(MismatchError) as caught:
        torchferry.verify(folder, runtimes="cuda", trust="native")
    failed = {check.check for check in caught.value.report.checks if check.verdict == FAILED}
    assert failed, fault


def test_what_does_not_compile_for_a_gpu_is_quoted(cuda_folders, tmp_path):
    """A compiler of C++ sees nothing of it."""
    need_nvrtc()
    folder = copied(cuda_folders["robertson"], tmp_path)
    resealed(folder, edit("_lanes.h", r"\A", "#if defined(__CUDACC__)\nint unknown = strange;\n#endif\n"))
    with pytest.raises(MissingRuntimeError, match="does not compile for a GPU") as caught:
        torchferry.verify(folder, runtimes="cuda", trust="native")
    assert "strange" in str(caught.value)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["robertson", "return_map", "perzyna"])
def test_machine_code_of_two_generations(cuda_folders, name):
    """Assembled as well: registers, memory of a thread and arguments of a kernel are within their limits."""
    need_nvrtc()
    sources = kernel_container.read(cuda_folders[name]).cuda_sources()
    assert "sm_80, sm_90" in str(gpu_compilation.compile_to_ptx(sources, ("sm_80", "sm_90")))


@pytest.mark.thorough
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_no_warnings(cuda_folders, mixed, compiler, tmp_path):
    need(shutil.which(compiler) is not None, f"{compiler} is not installed (apt-get install g++ clang)")
    for folder in (*cuda_folders.values(), mixed.with_suffix("")):
        main = folder / f"{name_of(folder)}_host.cu"
        command = [compiler, *WARNINGS, "-x", "c++", "-O1", "-c", str(main), "-o", str(tmp_path / "o")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:2000]


@pytest.mark.parametrize("name", mark_rest_thorough(["robertson"], ["return_map"]))
def test_sanitizers_over_the_cases(cuda_folders, name, tmp_path):
    """The test program, with the methods for the host's arrays in place of the C kernel: dense arrays and others."""
    folder, main = cuda_folders[name], name_of(cuda_folders[name])
    flags = ["-g", "-O1", "-ffp-contract=off", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    parts = [
        ("g++", ["-x", "c++", "-std=c++14"], f"{main}_host.cu"),
        ("gcc", ["-DWITHOUT_PREPARED_CALLS"], f"test_{main}.c"),
    ]
    objects = []
    for number, (compiler, language, source) in enumerate(parts):
        objects.append(str(tmp_path / f"{number}.o"))
        subprocess.run([compiler, *language, *flags, "-c", str(folder / source), "-o", objects[-1]], check=True)
    subprocess.run(["g++", *flags, *objects, "-o", str(tmp_path / "test"), "-lm"], check=True)
    command = [str(tmp_path / "test"), str(folder / "cases.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.endswith("passed\n"), done.stderr) == (0, True, "")


class TestLauncher:
    """Calls of ``NAME_cuda_METHOD``, whose device is the host here."""

    @pytest.fixture
    def call(self, cuda_folders):
        opened = kernel_container.read(cuda_folders["robertson"])
        path = compilation.compile_kernel(opened.cuda_sources(), compilation.CXX_COMPILER)
        library = ctypes.CDLL(str(path))
        size = getattr(library, f"{opened.name}_cuda_forward_workspace")
        size.restype = ctypes.c_size_t
        workspace = numpy.zeros(size())

        def call(inputs, outputs, status=None, work=workspace.ctypes.data):
            function = getattr(library, f"{opened.name}_cuda_forward")
            function.argtypes = [ctypes.c_ssize_t, *[ctypes.c_void_p] * 6]
            return function(
                len(inputs[0]), make_arrays(inputs, True), make_arrays(outputs, True), None, status, work, None
            )

        return call

    def test_in_place_and_apart(self, call):
        y = numpy.random.default_rng(1).random((1000, 3))
        expected, status = numpy.empty_like(y), numpy.full(1000, -1, dtype=numpy.int32)
        assert call([y], [expected], status.ctypes.data) == 0
        assert not status.any()
        (wanted,) = torchferry.load(ARTIFACTS / "robertson.pt")(torch.from_numpy(y))
        assert numpy.allclose(expected, wanted.numpy(), rtol=1e-12)
        apart = numpy.empty((3, 1000)).T
        assert call([y], [apart]) == 0
        assert (apart == expected).all()
        assert call([y], [y]) == 0
        assert (y == expected).all()

    def test_what_is_refused(self, call):
        y = numpy.zeros((10, 3))
        assert call([y[:8]], [y[1:9]]) == -3
        assert call([y], [numpy.broadcast_to(numpy.zeros(3), (10, 3))]) == -2
        assert call([y], [numpy.zeros((10, 3))], work=None) == -1


# What the sources use of CUDA's runtime, which keeps its last error, and starts nothing.
RUNTIME = """
#define __CUDACC__ 1
#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(threads, blocks)
#include <stddef.h>
struct dim3 { unsigned x; dim3(unsigned n = 0) : x(n) {} };
static thread_local dim3 blockIdx, blockDim, threadIdx;
typedef int cudaError_t;
typedef void *cudaStream_t;
enum { cudaSuccess, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
extern "C" { int last = 0, answer = 0, starts = 0; }
static inline int cudaGetLastError() { const int error = last; last = 0; return error; }
static inline const char *cudaGetErrorString(int error) { return error ? "out of memory" : "no error"; }
static inline int cudaLaunchKernel(const void *, dim3 blocks, dim3 block, void **, size_t, cudaStream_t) {
  starts += blocks.x && block.x;
  if (answer) last = answer;
  return answer;
}
"""


def test_a_call_that_the_device_refuses_is_the_only_one(cuda_folders, tmp_path):
    """Neither an error of the host nor one of an earlier call is this call's; work that was refused says so."""
    opened = kernel_container.read(cuda_folders["robertson"])
    (tmp_path / "runtime.h").write_text(RUNTIME)
    for name, data in opened.cuda_sources().items():
        (tmp_path / name).write_bytes(data)
    command = ["g++", "-x", "c++", "-std=c++14", "-O1", "-fPIC", "-shared", "-include", str(tmp_path / "runtime.h")]
    target = str(tmp_path / "kernel.so")
    subprocess.run([*command, str(tmp_path / f"{opened.name}.cu"), "-o", target], check=True)
    library = ctypes.CDLL(target)
    last, answer, starts = (ctypes.c_int.in_dll(library, name) for name in ("last", "answer", "starts"))
    function, explain = (getattr(library, f"{opened.name}_cuda_{name}") for name in ("forward", "error"))
    function.argtypes = [ctypes.c_ssize_t, *[ctypes.c_void_p] * 6]
    explain.restype = ctypes.c_char_p
    arrays = [make_arrays([numpy.zeros((10, 3))], True) for _ in range(2)]
    workspace = numpy.zeros(100)

    def call() -> int:
        return function(10, *arrays, None, None, workspace.ctypes.data, None)

    assert (call(), starts.value) == (0, 2)
    answer.value = 2
    assert (call(), explain(), explain()) == (-4, b"out of memory", b"no error")
    answer.value, last.value = 0, 700
    assert (call(), last.value) == (0, 700)


class TestLimits:
    def test_too_many_arrays(self):
        variable = {"shape": [3, 3]}
        method = {
            "method": "forward",
            "inputs": [variable] * 130,
            "outputs": [],
            "parameters": [],
            "strides": 390,
            "frame": 0,
        }
        with pytest.raises(UnsupportedError, match="too big") as caught:
            cuda_source._check_limits(method, 16)
        assert "4096" in str(caught.value)
        cuda_source._check_limits({**method, "inputs": [variable] * 100, "strides": 300}, 16)

    def test_too_many_numbers_of_an_element(self):
        method = {"method": "forward", "inputs": [], "outputs": [], "parameters": [], "strides": 0, "frame": 2**23}
        with pytest.raises(UnsupportedError, match="too big"):
            cuda_source._check_limits(method, 16)
        cuda_source._check_limits(method, 32)


def test_functions_of_large_methods_stay_apart(monkeypatch, tmp_path):
    monkeypatch.setattr(frame_layout, "INLINED", 10)
    folder = write_cuda_kernel(ARTIFACTS / "robertson.pt", tmp_path / "large")
    (lanes,) = folder.glob("*_lanes.h")
    assert "#define TF_PART TF_LARGE" in lanes.read_text()
    assert torchferry.verify(folder, trust="native").passed


class TestFormats:
    def test_both_is_one_folder(self, tmp_path):
        (exported,) = torchferry.export(f"{MODELS}:Elastic", output=tmp_path / "m.pt", formats="pt,c,cuda")
        (container,) = exported.containers
        folder = tmp_path / "m"
        assert (container.path, infer_format(folder)) == (folder, "cuda")
        assert [leg.runtime for leg in container.report.legs] == ["cuda", "c"]
        assert torchferry.verify(folder).passed
        # The archive carries the sources in C alone.
        assert not [name for name in pt_archive.read(tmp_path / "m.pt").kernel() if name.endswith(".cu")]
        torchferry.convert(tmp_path / "m.pt", folder, to="c")
        assert infer_format(folder) == "c"
        assert not list(folder.glob("*cu*"))
        with pytest.raises(UsageError, match="does not run"):
            torchferry.verify(folder, runtimes="cuda")

    def test_a_file_that_is_missing(self, cuda_folders, tmp_path):
        folder = copied(cuda_folders["robertson"], tmp_path)
        next(folder.glob("*_host.cu")).unlink()
        with pytest.raises(ArchiveError, match="missing"):
            torchferry.verify(folder, trust="native")

    def test_a_manifest_without_one_of_them(self, cuda_folders, tmp_path):
        folder = copied(cuda_folders["robertson"], tmp_path)

        def forget(files: dict[str, bytes]) -> None:
            files.pop(next(name for name in files if name.endswith("_host.cu")))

        resealed(folder, forget)
        with pytest.raises(ArchiveError, match="missing"):
            torchferry.verify(folder, trust="native")

    def test_no_kernel_is_written_for_its_runtime(self, tmp_path):
        with pytest.raises(UsageError, match="none is written"):
            torchferry.export(f"{MODELS}:Elastic", output=tmp_path / "m.pt", formats="pt,c", runtimes="python,cuda")
