"""Units from the author and the command line to whoever takes the file: data sets, C, kernels, other formats."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy
import pyarrow.parquet
import pytest
import torch
import xarray
from data_sets import write_data, write_dataset
from project import skip_checks, skip_gate

import torchferry
from exporter.archive import formats
from exporter.common.errors import UsageError
from runtime_checks import native_build
from torchferry.cli.app import run

VALUES = {"x": numpy.linspace(0.1, 1.0, 12).reshape(6, 2), "T": numpy.linspace(280.0, 300.0, 6)}
UNITS = {"x": "mm", "T": "K"}


class Spring(torch.nn.Module):
    signature = torchferry.Signature.of(
        {"x": torchferry.TensorSpec("x", (2,), unit="mm"), "T": ()},
        {"force": torchferry.TensorSpec("force", (2,), unit="N")},
    )

    def __init__(self) -> None:
        super().__init__()
        self.k = torch.nn.Parameter(torch.tensor(3.0, dtype=torch.float64))

    def forward(self, x: torch.Tensor, T: torch.Tensor) -> torch.Tensor:
        return self.k * x * T[..., None] + x**3


@pytest.fixture(scope="module")
def spring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("units") / "spring.pt"
    export_spring(path, ["pt", "onnx", "program", "c"])
    return path


def export_spring(path: Path, format_names: list[str]) -> None:
    wanted: dict[str, Any] = {"derivatives": ["force:x", "force:k"], "units": ["T=K", "k=N mm⁻¹"]}
    with skip_checks():
        torchferry.export(Spring(), output=path, formats=format_names, **wanted)


def make_dataset(**units: str) -> xarray.Dataset:
    dataset = xarray.Dataset({"x": (("point", "c"), VALUES["x"]), "T": ("point", VALUES["T"])})
    dataset["point"] = ("point", numpy.arange(6.0), {"units": "km", "long_name": "place"})
    for name, unit in units.items():
        dataset[name].attrs["units"] = unit
    return dataset


def read_units(path: Path) -> dict[str, Any]:
    if path.suffix == ".parquet":
        schema = pyarrow.parquet.read_schema(path)
        return {field.name: (field.metadata or {}).get(b"units", b"").decode() for field in schema}
    engine: Any = "zarr" if path.suffix == ".zarr" else "h5netcdf"
    with xarray.open_dataset(path, engine=engine) as dataset:
        return {str(name): dataset[name].attrs.get("units", "") for name in dataset.variables}


@pytest.mark.parametrize("format_name", ["pt", "onnx", "program", "c"])
def test_every_format_has_them(spring, format_name):
    check_units(spring, format_name)


@pytest.mark.thorough
def test_compiled_code_has_them(tmp_path):
    export_spring(tmp_path / "spring.pt", ["pt", "pt2"])
    check_units(tmp_path / "spring.pt", "pt2")


def check_units(spring: Path, format_name: str) -> None:
    read = formats.FORMATS[format_name].read(formats.path_for_format(spring, format_name)).contract
    specs = (*read.inputs, *read.outputs, *read.parameters)
    expected = {"x": "mm", "T": "K", "force": "N", "k": "N mm⁻¹"}
    # A format whose parameters are constants has none that could have a unit.
    assert {s.name: s.unit for s in specs} == {n: u for n, u in expected.items() if n in {s.name for s in specs}}


@pytest.mark.parametrize("suffix", [".zarr", ".nc", ".parquet"])
def test_results_have_units(spring, tmp_path, suffix):
    data, results = tmp_path / "data.zarr", tmp_path / f"out{suffix}"
    write_dataset(data, make_dataset(**UNITS))
    options: dict[str, Any] = {"method": "jacobian", "vary": {"k": [1.0, 2.0]}, "keep": ["T"]}
    result = torchferry.evaluate_to_file(spring, data, results, **options)
    assert result.unchecked_units == ()
    # A table has a column for each number.
    units = {name.partition("[")[0]: unit for name, unit in read_units(results).items()}
    blocks = {"d_force___d_x": "N/(mm)", "d_force___d_k": "N/(N mm⁻¹)"}
    assert units.items() >= {"force": "N", "k": "N mm⁻¹", "T": "K", "status": "", **blocks}.items()


def test_what_is_varied_has_its_unit(spring, tmp_path):
    write_dataset(tmp_path / "data.zarr", make_dataset(x="mm").drop_vars("T"))
    arguments: dict[str, Any] = {"vary": {"T": [280.0, 290.0]}}
    result = torchferry.evaluate_to_file(spring, tmp_path / "data.zarr", tmp_path / "out.zarr", **arguments)
    assert read_units(tmp_path / "out.zarr")["T"] == "K"
    assert result.unchecked_units == ()


def test_lazy_results_have_units(spring):
    results = torchferry.evaluate(spring, make_dataset(x="millimeter", T="kelvin"))
    # Those of the file, and none of what an input has; coordinates stay as they are.
    assert [results[name].attrs for name in ("force", "status")] == [{"units": "N"}, {}]
    assert results.force.point.attrs == results.point.attrs == {"units": "km", "long_name": "place"}
    assert results.attrs == {}
    assert torchferry.evaluate(spring, make_dataset(T="K")).attrs == {"unchecked_units": "x"}
    expected = 3 * VALUES["x"] * VALUES["T"][:, None] + VALUES["x"] ** 3
    numpy.testing.assert_allclose(results.force.compute(), expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("unit", "mend"),
    [
        ("m", r"'x' \* 1000"),
        ("s", "name another variable"),
        ("inchworm", "is not read as a unit"),
        ("mm^2", "name another"),
    ],
)
def test_another_unit_is_refused(spring, tmp_path, unit, mend):
    dataset, data, results = make_dataset(x=unit), tmp_path / "data.nc", tmp_path / "out.zarr"
    write_dataset(data, dataset)
    for evaluate in (
        lambda: torchferry.evaluate(spring, dataset),
        lambda: torchferry.evaluate_to_file(spring, data, results),
    ):
        with pytest.raises(UsageError, match=f"'x' has the wrong unit for input 'x'(.|\n)*{mend}") as caught:
            evaluate()
        assert (caught.value.details["got"], caught.value.details["expected"]) == (unit, "mm")
    assert run(["evaluate", str(spring), str(data), "-o", str(results)]) == 2
    assert list(tmp_path.iterdir()) == [data]


@pytest.mark.parametrize(("value", "fits"), [(numpy.array(["mm"]), True), (numpy.array(["m"]), False), (1, False)])
def test_a_unit_that_is_no_text(spring, value, fits):
    dataset = make_dataset()
    dataset["x"].attrs["units"] = value
    if fits:
        assert torchferry.evaluate(spring, dataset).force.attrs == {"units": "N"}
        return
    with pytest.raises(UsageError, match="wrong unit for input 'x'"):
        torchferry.evaluate(spring, dataset)


@pytest.mark.parametrize("value", [numpy.array(["mm", "m"]), b"mm", ["mm"], True])
def test_a_unit_that_is_none(spring, value):
    """It is refused of an input whose unit the file says, and is nobody's business elsewhere."""
    dataset = make_dataset()
    dataset["x"].attrs["units"] = value
    with pytest.raises(UsageError, match="wrong unit for input 'x'"):
        torchferry.evaluate(spring, dataset)
    elsewhere = make_dataset()
    elsewhere["point"].attrs["units"] = value
    assert torchferry.evaluate(spring, elsewhere).force.attrs == {"units": "N"}


def test_a_text_without_end(spring, tmp_path):
    """In a data set, whose texts have no limit; the message quotes a part of it."""
    dataset, text = make_dataset(x="kilo" * 20_000), ""
    with pytest.raises(UsageError, match="wrong unit for input 'x'") as caught:
        torchferry.evaluate(spring, dataset)
    text = str(caught.value)
    assert len(text) < 1000


def test_an_offset_is_no_agreement(spring):
    with pytest.raises(UsageError, match=r"'T' \+ 273.15"):
        torchferry.evaluate(spring, make_dataset(T="degC"))


def test_columns_of_a_table_have_units(spring, tmp_path):
    data, results = write_data(tmp_path / "data.parquet", VALUES), tmp_path / "out.parquet"
    table = pyarrow.parquet.read_table(data)

    def write(path: Path, **units: str) -> None:
        fields = [f.with_metadata({"units": units[f.name]} if f.name in units else {}) for f in table.schema]
        pyarrow.parquet.write_table(table.cast(pyarrow.schema(fields)), path)

    for units, message in (
        ({"x[0]": "m", "x[1]": "m"}, "wrong unit for input 'x'"),
        ({"x[0]": "mm", "x[1]": "km"}, "wrong unit for input 'x'"),
        ({"x[1]": "km"}, "wrong unit for input 'x'"),
    ):
        write(data, **units)
        with pytest.raises(UsageError, match=message):
            torchferry.evaluate_to_file(spring, data, results)
    folder = tmp_path / "folder.parquet"
    folder.mkdir()
    write(folder / "0.parquet", T="K")
    write(folder / "1.parquet", T="degC")
    with pytest.raises(UsageError, match=r"wrong unit for input 'T'(.|\n)*degC"):
        torchferry.evaluate_to_file(spring, folder, results)
    # One unit in two spellings, and none.
    write(folder / "1.parquet", T="kelvin", **{"x[1]": "mm"})
    assert torchferry.evaluate_to_file(spring, folder, results).unchecked_units == ()


def test_what_was_not_compared_is_said(spring, tmp_path, capfd):
    data, results = tmp_path / "data.zarr", tmp_path / "out.zarr"
    write_dataset(data, make_dataset(T="K"))
    assert run(["evaluate", str(spring), str(data), "-o", str(results)]) == 0
    assert "units: not compared for x: the data have no attribute 'units'" in capfd.readouterr().out
    other = tmp_path / "other.zarr"
    assert run(["evaluate", str(spring), str(data), "-o", str(other), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["unchecked_units"] == ["x"]


def test_the_c_interface(spring):
    library = ctypes.CDLL(str(native_build.build() / "lib" / "libtorchferry.so"))
    model, text = ctypes.c_void_p(), ctypes.c_char_p()
    assert library.tf_load(str(spring).encode(), None, None, ctypes.byref(model)) == 0

    def read(function: str, *arguments: Any) -> str:
        assert getattr(library, function)(model, *arguments, ctypes.byref(text)) == 0
        return (text.value or b"").decode()

    assert [read("tf_input_unit", None, i) for i in range(2)] == ["mm", "K"]
    assert [read("tf_output_unit", b"jacobian", i) for i in range(3)] == ["N", "N/(mm)", "N/(N mm⁻¹)"]
    assert read("tf_parameter_unit", 0) == "N mm⁻¹"
    assert library.tf_close(model) == 0


def test_people_see_them(spring, capfd):
    assert run(["inspect", str(spring)]) == 0
    shown = capfd.readouterr().out
    assert "unit" in shown
    assert "k [] float64 N mm⁻¹" in shown
    header = next(spring.with_suffix("").glob("*.h")).read_text()
    assert "/* x, 2 float64, mm */" in header
    assert "/* k, float64, N mm^-1 */" in header


def test_a_unit_without_a_meaning_is_noted(tmp_path, capfd):
    (tmp_path / "model.py").write_text(
        "import torch\nimport torchferry\n\n\nclass Twice(torch.nn.Module):\n"
        "    signature = torchferry.Signature.of({'dose': ()}, {'y': ()})\n\n"
        "    def forward(self, dose):\n        return 2.0 * dose\n"
    )
    arguments = ["export", f"{tmp_path / 'model.py'}:Twice", "-o", str(tmp_path / "twice.pt")]
    with skip_gate():
        assert run([*arguments, "--unit", "dose=dpa"]) == 0
        assert "units: dpa of dose: it is not read as a unit" in capfd.readouterr().out
        assert run([*arguments, "--unit", "dos=dpa"]) == 2
    assert "did you mean 'dose'" in capfd.readouterr().err
