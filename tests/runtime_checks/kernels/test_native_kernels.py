"""Kernels in the native runtime: as shared objects, and as the engine of a ``.pt``."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from kernel_host import Difference
from native_build import CLIENTS, need_fortran, programs, run, verify_natively
from project import ARTIFACTS, mark_thorough_after
from tampering import rewrite
from torch import nn

import torchferry
from exporter.archive import kernel_container, pt_archive
from exporter.common.errors import ArchiveError
from runtime_checks import native_build
from runtime_checks.kernels import compilation

OTHER = ARTIFACTS / "robertson.pt"


def built(folder: Path, to: Path, change: Callable[[dict[str, str]], None] | None = None) -> Path:
    """The shared object of a kernel's folder, as the README says; ``change`` is a planted fault, compiled quickly."""
    files = {p.name: p.read_text() for p in folder.iterdir() if p.suffix in (".c", ".h")}
    if change is not None:
        change(files)
    to.mkdir(parents=True)
    for name, text in files.items():
        (to / name).write_text(text)
    name = kernel_container.read_manifest(folder)["name"]
    sources = [str(to / f) for f in (f"{name}.c", f"{name}_shared.c") if f in files]
    flags = [
        "-Wl,-Bsymbolic",
        "-Wall",
        "-Wextra",
        "-Wconversion",
        "-pedantic",
        "-Werror",
        *compilation.FLAGS,
        "-march=native",
        *(["-O0"] if change is not None else []),
    ]
    library = to / f"lib{name}.so"
    subprocess.run([*compilation.find_compiler(), *flags, *sources, "-o", str(library), "-lm"], check=True)
    return library


@pytest.fixture(scope="module")
def library(solid, tmp_path_factory) -> Path:
    return built(solid.with_suffix(""), tmp_path_factory.mktemp("library") / "built")


def harness(path: Path, *arguments: str, **environment: str) -> tuple[int, dict]:
    """As ``verify_natively``, of code that was asked for."""
    return verify_natively(path, "--allow-native", *arguments, **environment)


def few(files: dict[str, str]) -> None:
    head, tail = files["make_model.c"].split("int make_model_forward(", 1)
    start = "  struct forward_call call;\n"
    assert start in tail
    tail = tail.replace(start, f"{start}  if (count > 5000) return -1;\n", 1)
    files["make_model.c"] = f"{head}int make_model_forward({tail}"


@pytest.mark.thorough
def test_both_interfaces(solid, library, folders, shared, tmp_path):
    where = {
        "TF_ARCHIVE": str(solid),
        "TF_KERNEL": str(library),
        "TF_OTHER": str(built(folders["robertson"], tmp_path / "built")),
        "TF_PARTS": str(built(solid.with_suffix(""), tmp_path / "parts", few)),
    }
    code, _, text = run(programs(CLIENTS, shared) / "test_kernel", environment=where)
    assert code == 0, text


@pytest.mark.thorough
def test_the_folder_builds_a_shared_object_that_loads(solid, tmp_path):
    cmake, ninja = native_build.find_tool("cmake"), native_build.find_tool("ninja", needed=False)
    options = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    folder = solid.with_suffix("")
    native_build.run_tool([cmake, "-S", str(folder), "-B", str(tmp_path), "-DBUILD_SHARED_LIBS=ON", *options])
    native_build.run_tool([cmake, "--build", str(tmp_path)])
    native_build.run_tool([str(Path(cmake).with_name("ctest")), "--test-dir", str(tmp_path)])
    (result,) = tmp_path.glob("lib*.so")
    code, report = harness(result)
    assert code == 0
    assert report["engine"] == "kernel"
    assert len(report["cases"]) > 4


@pytest.mark.thorough
def test_fortran_loads_it(library, shared):
    need_fortran()
    code, _, text = run(programs(CLIENTS, shared) / "kernel_fortran", library)
    assert code == 0, text
    assert "kernel" in text


@pytest.mark.parametrize(
    ("fault", "message"),
    mark_thorough_after(
        4,
        [
            ("no table", "without the symbol torchferry_kernel"),
            ("another format", "torchferry kernel 9"),
            ("another machine", "a processor without amx_none"),
            ("the end lost", "truncated"),
            ("the head alone", "truncated"),
            ("a torn contract", "contract"),
            ("torn cases", "cases cannot be read"),
            ("a method lost", "has no method"),
        ],
    ),
)
def test_shared_objects_that_are_refused(fault, message, solid, library, tmp_path):
    def change(files):
        name = "make_model_shared.c"
        if fault == "no table":
            del files[name]
            return
        text = files[name]
        files[name] = {
            "another format": text.replace("torchferry kernel 1", "torchferry kernel 9"),
            "another machine": text.replace('instructions[] = ""', 'instructions[] = "amx_none "'),
            "a torn contract": text.replace('contract_text[] = {\n  "', 'contract_text[] = {\n  "x'),
            "torn cases": text.replace("\\nend\\n", "\\n"),
            "a method lost": text.replace('{ "jacobian",', '{ "other",'),
        }[fault]
        assert files[name] != text

    if fault in ("the end lost", "the head alone"):
        path = tmp_path / "cut.so"
        size = library.stat().st_size if fault == "the end lost" else 140
        path.write_bytes(library.read_bytes()[: size - 100])
    else:
        path = built(solid.with_suffix(""), tmp_path / "built", change)
    code, report = harness(path)
    assert code == 4, report
    assert message in report["error"]


def test_a_shared_object_of_something_else(tmp_path):
    path = next(p for p in Path("/lib").rglob("libm.so.6"))
    code, report = harness(path)
    assert code == 4
    assert "this shared object is no kernel" in report["error"]


def test_python_takes_its_folder_instead(library):
    for use in (torchferry.load, torchferry.verify):
        with pytest.raises(ArchiveError, match="a shared object is not an archive"):
            use(library)


def test_the_folder_itself(solid):
    _, report = harness(solid.with_suffix(""))
    assert report["status"] == "TF_ERROR_FILE"
    assert "-DBUILD_SHARED_LIBS=ON" in report["error"]


@pytest.mark.thorough
def test_functions_of_the_same_names_elsewhere(library, solid, tmp_path):
    """What a host links, or has loaded before, does not stand in the place of a kernel's own functions."""
    name = kernel_container.read_manifest(solid.with_suffix(""))["name"]
    files = [str(library.with_name(f"{name}{end}.c")) for end in ("", "_shared")]
    unbound = tmp_path / "unbound.so"
    subprocess.run(["cc", *compilation.FLAGS, *files, "-o", str(unbound), "-lm"], check=True)
    assert harness(unbound)[0] == 0
    code, report = harness(unbound, LD_PRELOAD=str(library))
    assert code == 4
    assert "-Wl,-Bsymbolic" in report["error"]
    assert harness(library, LD_PRELOAD=str(unbound))[0] == 0


def test_a_planted_fault_fails_its_cases(solid, tmp_path):
    def change(files):
        lanes = files["make_model_lanes.h"]
        files["make_model_lanes.h"] = lanes.replace(" - ", " + ", 3)
        assert files["make_model_lanes.h"] != lanes

    code, report = harness(built(solid.with_suffix(""), tmp_path / "built", change))
    assert code == 5
    assert not report["passed"]


def test_the_engine_is_used_once_it_has_passed(carrying):
    code, report = harness(carrying, "--engine", "kernel")
    assert (code, report["engine"], report["warnings"]) == (0, "kernel", [])
    assert harness(carrying)[1]["engine"] == "torchscript"


def test_python_and_the_native_runtime_build_one_kernel(carrying, tmp_path):
    place = tmp_path / "cache"
    environment = {**os.environ, "TORCHFERRY_CACHE": str(place)}
    program = native_build.build() / "bin" / "torchferry_verify"
    command = [str(program), str(carrying), "--engine", "kernel", "--allow-native"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    (first,) = (p for p in (place / "kernels").iterdir() if p.is_dir())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHFERRY_CACHE", str(place))
        files = pt_archive.read(carrying).kernel()
        sources = {name: data for name, data in files.items() if name != kernel_container.MANIFEST}
        ordered = {n: sources[n] for n in sorted(sources, key=lambda n: not n.endswith(".c"))}
        assert compilation.compile_kernel(ordered) == first / "kernel.so"


def stays(path: Path, message: str, **environment: str) -> None:
    """Torch runs the model, and it is said why."""
    code, report = harness(path, "--engine", "kernel", **environment)
    assert (code, report["engine"]) == (0, "torchscript"), report
    (text,) = report["warnings"]
    assert "runs by TorchScript" in text
    assert message in text


def test_an_archive_without_a_kernel(tmp_path):
    stays(OTHER, "it carries no kernel")


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        ("none-such", "the C compiler is not there"),
        ("false", "the C compiler does not start"),
        ("fails", "error: as asked"),
    ],
)
def test_compilers_that_do_not_serve(compiler, message, carrying, tmp_path):
    if compiler == "fails":
        script = tmp_path / "cc"
        script.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit 0\necho "error: as asked" >&2\nexit 1\n')
        script.chmod(0o755)
        compiler = str(script)
    place = tmp_path / "cache"
    stays(carrying, message, CC=compiler, TORCHFERRY_CACHE=str(place))
    assert not [p for p in (place / "kernels").glob("*") if p.is_dir()]


def test_a_cache_that_is_a_file(carrying, tmp_path):
    (tmp_path / "cache").write_text("")
    stays(carrying, "the kernel has no place to be built", TORCHFERRY_CACHE=str(tmp_path / "cache"))


def test_a_cache_of_others(carrying, tmp_path):
    place = tmp_path / "cache"
    (place / "kernels").mkdir(parents=True)
    (place / "kernels").chmod(0o777)
    stays(carrying, "others can write", TORCHFERRY_CACHE=str(place))


def test_a_cache_that_was_changed(carrying, tmp_path):
    place = tmp_path / "cache"
    assert harness(carrying, "--engine", "kernel", TORCHFERRY_CACHE=str(place))[1]["engine"] == "kernel"
    (result,) = place.glob("kernels/*/kernel.so")
    data = bytearray(result.read_bytes())
    data[len(data) // 2] ^= 1
    result.write_bytes(data)
    stays(carrying, "was changed", TORCHFERRY_CACHE=str(place))


def test_cases_that_do_not_pass(carrying):
    def change(result):
        (name,) = (n for n in result if n.endswith("_lanes.h"))
        result[name] = result[name].replace(b" - ", b" + ", 3)

    rewrite(carrying, change, manifest=True)
    stays(carrying, "does not pass")


def test_a_kernel_of_other_variables(carrying):
    def change(result):
        (name,) = (n for n in result if n.endswith("kernel/manifest.json"))
        whole = json.loads(result[name])
        whole["methods"]["forward"]["inputs"].reverse()
        result[name] = json.dumps(whole).encode()

    rewrite(carrying, change, manifest=True)
    stays(carrying, "other variables or methods")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["methods"]["forward"]["inputs"][0].update(shape=[7]),
        lambda manifest: manifest["methods"]["forward"]["inputs"][0].update(dtype="float32"),
        lambda manifest: manifest["methods"]["forward"]["outputs"][0].update(shape=[]),
        lambda manifest: manifest["methods"]["forward"]["outputs"][0].update(dtype="float32"),
        lambda manifest: manifest["parameters"][0].update(shape=[2]),
        lambda manifest: manifest["parameters"].pop(),
        lambda manifest: manifest.update(batched=False),
        lambda manifest: manifest["workspace"].update(another=0),
        lambda manifest: manifest["workspace"].update(forward=-1),
    ],
)
def test_a_kernel_of_other_shapes(change, carrying):
    """It would read and write beyond the memory of the archive's variables."""

    def apply(result):
        (name,) = (n for n in result if n.endswith("kernel/manifest.json"))
        manifest = json.loads(result[name])
        change(manifest)
        result[name] = json.dumps(manifest).encode()

    rewrite(carrying, apply, manifest=True)
    stays(carrying, "other variables or methods")


def test_a_kernel_of_another_format(carrying):
    def change(result):
        (name,) = (n for n in result if n.endswith("kernel/manifest.json"))
        result[name] = result[name].replace(b"torchferry kernel 1", b"torchferry kernel 9")

    rewrite(carrying, change, manifest=True)
    stays(carrying, "another format")


def test_cases_that_say_nothing_of_a_kernel(tmp_path):
    path = tmp_path / "m.pt"
    arguments = {"x": torch.randn(8, 3, dtype=torch.float64)}
    torchferry.export(Difference().double(), output=path, inputs=arguments, formats="pt,c")
    code, report = harness(path, "--engine", "kernel")
    assert (code, report["engine"]) == (0, "kernel")
    assert len(report["cases"]) < len(harness(path)[1]["cases"])


class Kinds(nn.Module):
    """Parameters of all kinds of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Parameter(torch.tensor([True, False, True]), requires_grad=False)
        self.whole = nn.Parameter(torch.tensor([1, 2, 3], dtype=torch.int32), requires_grad=False)
        self.single = nn.Parameter(torch.tensor([2.5, 1.0, 1.5]))
        self.factor = nn.Parameter(torch.tensor(2.5, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(self.mask, x * self.factor, -x) + self.whole * self.single


def test_parameters_of_all_kinds(tmp_path):
    path = tmp_path / "m.pt"
    arguments = {"x": torch.randn(8, 3, dtype=torch.float64)}
    torchferry.export(Kinds(), output=path, inputs=arguments, formats="pt,c")
    assert harness(built(path.with_suffix(""), tmp_path / "built"))[0] == 0
    assert harness(path, "--engine", "kernel")[1]["engine"] == "kernel"
    kernel, model = torchferry.load(path.with_suffix("")), torchferry.load(path)
    for name, value in (("mask", [False, True, True]), ("whole", [7, 8, 9]), ("single", [0.5, 1.5, 3.0])):
        kernel.set_parameter(name, value)
        model.set_parameter(name, torch.tensor(value, dtype=getattr(Kinds(), name).dtype))
    x = torch.randn(5, 3, dtype=torch.float64)
    assert numpy.allclose(kernel(x.numpy())[0], model(x)[0].detach().numpy(), rtol=1e-12, atol=0)


def test_a_manifest_that_is_damaged(carrying):
    def change(result):
        (name,) = (n for n in result if n.endswith("kernel/manifest.json"))
        result[name] = result[name][:-9]

    rewrite(carrying, change, manifest=True)
    stays(carrying, "manifest of its kernel is damaged")


def test_compiled_code_has_no_other_engine(compiled_robertson):
    _, report = harness(compiled_robertson, "--engine", "kernel")
    assert report["status"] == "TF_ERROR_ARGUMENT"
