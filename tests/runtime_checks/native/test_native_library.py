"""The native library, from C++, C and Fortran, and how it is built."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from native_build import CLIENTS, need_fortran, programs, run
from project import RATES, ROOT, export_unverified, load_module

from exporter.archive import pt_archive
from runtime_checks import native_build
from runtime_checks.runners.base import Call
from runtime_checks.runners.libtorch_runner import LibtorchRunner

SANITIZERS = "address,undefined"


@pytest.fixture(scope="session")
def clients(shared: Path) -> Path:
    return programs(CLIENTS, shared)


def test_the_cpp_interface(clients, archives):
    where = {f"TF_{name.upper()}": str(path) for name, path in archives.items()}
    code, _, text = run(clients / "test_model", environment=where)
    assert code == 0, text


def test_fortran_arrays_sections_names_and_errors(clients, archives):
    need_fortran()
    code, _, text = run(clients / "fortran_layouts", archives["elastic"], archives["whole"])
    assert code == 0, text
    assert "all passed" in text


def test_wrong_calls_give_a_status_and_the_handle_goes_on(clients, archives, damaged):
    code, _, text = run(clients / "wrong_calls", archives["elastic"], archives["picks"], damaged)
    assert code == 0, text
    assert int(text.split()[-5]) > 25, text


@pytest.mark.thorough
def test_the_sanitizers_find_nothing_over_all_wrong_calls(shared, archives, damaged):
    folder = programs(CLIENTS, shared, sanitize=SANITIZERS)
    code, _, text = run(
        folder / "wrong_calls",
        archives["elastic"],
        archives["picks"],
        damaged,
        environment={
            "ASAN_OPTIONS": "detect_leaks=1:halt_on_error=1",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        },
    )
    assert code == 0, text[-4000:]
    assert "0 failures" in text


@pytest.mark.thorough
def test_the_sanitizer_of_threads_finds_nothing(shared, archives):
    folder, options = programs(CLIENTS, shared, sanitize="thread"), {"TSAN_OPTIONS": "exitcode=66"}
    code, _, text = run(folder / "stress", archives["elastic"], "threads", "100000", environment=options)
    assert code == 0, text[-4000:]
    assert text.startswith("100000 calls, 0 mismatches, 0 wrong messages")
    assert "ThreadSanitizer" not in text
    # The control.
    code, _, text = run(folder / "stress", archives["elastic"], "race", "1000", environment=options)
    assert code == 66
    assert "data race" in text


def test_eight_threads_on_one_handle(clients, archives):
    code, _, text = run(clients / "stress", archives["elastic"], "threads", "100000")
    assert code == 0, text
    assert text.startswith("100000 calls, 0 mismatches, 0 wrong messages")


def test_memory_does_not_grow_with_the_number_of_batch_sizes(clients, archives):
    code, out, text = run(clients / "stress", archives["elastic"], "sizes", "2000")
    assert code == 0, text
    before, after = map(int, out.split())
    assert after <= before * 1.01, text
    # Results that are borrowed and not given back do show.
    _, out, text = run(clients / "stress", archives["elastic"], "leaks", "2000")
    before, after = map(int, out.split())
    assert after > before * 1.01, text


def bits(tensors) -> bytes:
    return b"".join(t.contiguous().numpy().tobytes() for t in tensors)


def fortran_order(value: torch.Tensor) -> torch.Tensor:
    """A batch of matrices as Fortran lays ``a(i, j, e)`` out."""
    return value.transpose(-1, -2) if value.ndim == 3 else value


def agreement(path: Path) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor]]:
    """Inputs of 23 elements that nobody traced, and what Python gives for them."""
    opened = pt_archive.read(path)
    generator = torch.Generator().manual_seed(7)
    inputs = tuple(
        torch.rand(23, *spec.static_shape, dtype=torch.float64, generator=generator) + 0.5
        for spec in opened.contract.inputs
    )
    return inputs, list(load_module(path)(*inputs))


@pytest.mark.parametrize("name", ["eq", "slash", "composed", "elastic"])
def test_c_fortran_and_the_harness_agree_with_python(name, clients, archives, tmp_path, neml2):
    path = archives.get(name, tmp_path / "m.pt")
    if name == "composed":
        export_unverified(f"{ROOT / 'examples' / 'composed' / 'model.py'}:make_model", path)
    elif name != "elastic":
        export_unverified(str(RATES if name == "eq" else RATES.with_name("slash.i")), path, "eq")
    inputs, expected = agreement(path)
    code, out, text = run(clients / "call_raw", path, "23", stdin=bits(inputs))
    assert code == 0, text
    assert out == bits(expected)
    (result,) = LibtorchRunner().run(path, pt_archive.read(path).contract, [Call("forward", inputs)]).results
    assert bits(result.outputs) == bits(expected)
    need_fortran()
    (tmp_path / "in").write_bytes(bits(map(fortran_order, inputs)))
    code, _, text = run(clients / "call_raw_fortran", path, "23", tmp_path / "in", tmp_path / "out")
    assert code == 0, text
    content = (tmp_path / "out").read_bytes()
    if name == "elastic":
        # Sums over a matrix run along memory, and Fortran's matrices lie the other way: the last bit may differ.
        numbers = torch.frombuffer(bytearray(content), dtype=torch.float64)
        wanted = torch.frombuffer(bytearray(bits(map(fortran_order, expected))), dtype=torch.float64)
        torch.testing.assert_close(numbers, wanted, rtol=1e-15, atol=0)
    else:
        assert content == bits(map(fortran_order, expected))


def test_the_folder_of_the_cmake_package(capfd):
    from torchferry.cli.app import run as command

    assert command(["cmake-dir"]) == 0
    folder = Path(capfd.readouterr().out.strip())
    assert (folder / "torchferryConfig.cmake").is_file()
    assert command(["native", "path"]) == 0
    assert Path(capfd.readouterr().out.strip()) == folder.parents[2]


def test_pkg_config_builds_a_c_client(archives, tmp_path):
    prefix = native_build.build()
    text = (prefix / "lib" / "pkgconfig" / "torchferry.pc").read_text()
    assert "/tmp" not in text
    assert str(prefix) not in text
    flags = [line.split(":", 1)[1] for line in text.splitlines() if line.startswith(("Cflags", "Libs"))]
    result = " ".join(flags).replace("${includedir}", f"{prefix}/include").replace("${libdir}", f"{prefix}/lib")
    compile_it = ["gcc", str(CLIENTS / "call_raw.c"), "-o", str(tmp_path / "client"), *result.split()]
    native_build.run_tool(compile_it)
    inputs, expected = agreement(archives["elastic"])
    code, out, text = run(tmp_path / "client", archives["elastic"], "23", stdin=bits(inputs))
    assert code == 0, text
    assert out == bits(expected)


def test_sources_are_where_an_installed_wheel_has_them():
    listed = {p.relative_to(native_build.SOURCES).as_posix() for p in native_build.SOURCES.rglob("*.*")}
    assert {"CMakeLists.txt", "include/torchferry/torchferry.h", "fortran/torchferry.f90"} <= listed
    assert sys.modules["runtime_checks"].__file__
