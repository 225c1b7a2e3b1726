"""Variables of Zarr, NetCDF and Parquet: found by name, read slice by slice."""

from __future__ import annotations

from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import xarray
from data_sets import SHAPES, make_dataset, make_steps, write_data, write_dataset

from exporter.common.errors import UsageError
from runtime_checks.evaluation.data_sets import digest_data, open_data_set

WHOLE = slice(None)


@pytest.mark.parametrize("suffix", [".zarr", ".nc", ".parquet"])
def test_slices_are_those_of_the_arrays(tmp_path, suffix):
    values = make_steps(50)
    options = {"row_group_size": 7} if suffix == ".parquet" else {}
    data = open_data_set(write_data(tmp_path / f"d{suffix}", values, **options))
    for name, shape in SHAPES.items():
        variable = data.find_variable(name, shape)
        assert variable is not None
        assert (variable.shape, variable.dtype) == ((50, *shape), "float64")
        for part in (slice(0, 50), slice(5, 29), slice(13, 14), slice(49, 50)):
            read = data.read(variable, (part, *[WHOLE] * len(shape)))
            assert numpy.array_equal(read, values[name][part])
    assert data.find_variable("absent", ()) is None
    assert set(SHAPES) <= {name.split("[")[0] for name in data.list_names()}


def test_stored_chunks_are_known(tmp_path):
    data = open_data_set(write_data(tmp_path / "d.parquet", make_steps(50), row_group_size=7))
    variable = data.find_variable("strain", (6,))
    assert variable is not None
    assert variable.stored == {"row": 7}
    encoding = {"ep~1": {"chunks": (20,)}}
    data = open_data_set(write_dataset(tmp_path / "d.zarr", make_dataset(make_steps(50)), encoding=encoding))
    variable = data.find_variable("ep~1", ())
    assert variable is not None
    assert variable.stored == {"point": 20}


def test_lists_in_a_column(tmp_path):
    values = numpy.random.default_rng(0).random((10, 2, 3))
    fixed = pyarrow.list_(pyarrow.list_(pyarrow.float64(), 3), 2)
    columns = {
        "fixed": pyarrow.array(values.tolist(), fixed),
        "lists": pyarrow.array(values[:, 0].tolist(), pyarrow.list_(pyarrow.float64())),
        "ragged": pyarrow.array([[1.0] * (k + 1) for k in range(10)]),
    }
    path = tmp_path / "d.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    data = open_data_set(path)
    for name, expected in (("fixed", values), ("lists", values[:, 0])):
        variable = data.find_variable(name, expected.shape[1:])
        assert variable is not None
        part = (slice(2, 9), *[WHOLE] * (expected.ndim - 1))
        assert numpy.array_equal(data.read(variable, part), expected[2:9])
    ragged = data.find_variable("ragged", (3,))
    assert ragged is not None
    with pytest.raises(UsageError, match="lists of one length are expected"):
        data.read(ragged, (WHOLE, WHOLE))


@pytest.mark.parametrize("lists", [[[1.0, 2.0], [1.0] * 4, [1.0] * 3], [[1.0] * 3, None, [1.0] * 3], [[1.0] * 4] * 3])
def test_lists_of_other_lengths(tmp_path, lists):
    path = tmp_path / "d.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"v": lists}), path)
    data = open_data_set(path)
    variable = data.find_variable("v", (3,))
    assert variable is not None
    with pytest.raises(UsageError, match="are expected"):
        data.read(variable, (WHOLE, WHOLE))


@pytest.mark.parametrize("kind", ["lists", "fixed", "fixed inside"])
def test_an_open_size_is_that_of_the_lists(tmp_path, kind):
    values = numpy.random.default_rng(0).random((5, 4, 3))
    inner = pyarrow.list_(pyarrow.float64(), -1 if kind == "lists" else 3)
    column = pyarrow.array(values.tolist(), pyarrow.list_(inner, 4 if kind == "fixed" else -1))
    path = tmp_path / "d.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"x": column}), path)
    data = open_data_set(path)
    variable = data.find_variable("x", ("n", 3))
    assert variable is not None
    assert variable.shape == (5, 4, 3)
    assert numpy.array_equal(data.read(variable, (slice(1, 4), WHOLE, WHOLE)), values[1:4])


def test_an_open_size_without_rows(tmp_path):
    path = tmp_path / "d.parquet"
    kind = pyarrow.list_(pyarrow.list_(pyarrow.float64()))
    pyarrow.parquet.write_table(pyarrow.table({"x": pyarrow.array([], kind)}), path)
    variable = open_data_set(path).find_variable("x", ("n", 3))
    assert variable is not None
    assert variable.shape == (0, 0, 3)


def test_names_have_one_order(tmp_path):
    """A store of Zarr lists its arrays as they come: every worker has to have them in one order."""
    data = open_data_set(write_data(tmp_path / "d.zarr", make_steps(3)))
    assert data.list_names() == sorted(["point", *SHAPES])


def test_a_row_group_is_read_once_for_small_chunks(tmp_path, monkeypatch):
    data: Any = open_data_set(write_data(tmp_path / "d.parquet", make_steps(40), row_group_size=20))
    variable = data.find_variable("strain", (6,))
    reads = []
    read = pyarrow.parquet.ParquetFile.read_row_group
    monkeypatch.setattr(
        pyarrow.parquet.ParquetFile, "read_row_group", lambda *a, **k: reads.append(a[1]) or read(*a, **k)
    )
    for start in range(0, 40, 5):
        data.read(variable, (slice(start, start + 5), WHOLE))
    assert reads == [0, 1]


def test_a_folder_of_tables_is_one(tmp_path):
    values = make_steps(30)
    folder = tmp_path / "tables"
    folder.mkdir()
    for k in range(3):
        write_data(folder / f"{k}.parquet", {n: v[10 * k : 10 * k + 10] for n, v in values.items()}, row_group_size=4)
    data = open_data_set(folder)
    variable = data.find_variable("strain", (6,))
    assert variable is not None
    assert numpy.array_equal(data.read(variable, (slice(7, 25), WHOLE)), values["strain"][7:25])
    # Those of folders in it too, in the order of their paths.
    (folder / "1").mkdir()
    (folder / "1.parquet").rename(folder / "1" / "part.parquet")
    nested = open_data_set(folder)
    assert numpy.array_equal(nested.read(variable, (WHOLE, WHOLE)), values["strain"])
    write_data(folder / "9.parquet", {"other": numpy.zeros(3)})
    with pytest.raises(UsageError, match="different columns"):
        open_data_set(folder)


def test_empty_cells(tmp_path):
    path = tmp_path / "d.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": [1.0, None, 3.0], "n": [1, None, 3]}), path)
    data = open_data_set(path)
    numbers, counts = data.find_variable("a", ()), data.find_variable("n", ())
    assert numbers is not None
    assert counts is not None
    assert numpy.isnan(data.read(numbers, (WHOLE,))).tolist() == [False, True, False]
    with pytest.raises(UsageError, match="1 empty cells"):
        data.read(counts, (WHOLE,))


def test_columns_of_several_types_are_named(tmp_path):
    path = tmp_path / "d.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"v[0]": [1.0], "v[1]": [1]}), path)
    variable = open_data_set(path).find_variable("v", (2,))
    assert variable is not None
    assert variable.dtype == "float64 and int64"


def test_no_index_and_no_time_is_made(tmp_path):
    dataset = xarray.Dataset(
        {"a": ("t", numpy.arange(3.0))}, {"t": ("t", numpy.arange(3), {"units": "days since 2000"})}
    )
    data = open_data_set(write_dataset(tmp_path / "d.nc", dataset))
    variable = data.find_variable("t", ())
    assert variable is not None
    assert (variable.dtype, dict(variable.attributes)) == ("int64", {"units": "days since 2000"})
    assert data.list_coordinates() == ["t"]


@pytest.mark.parametrize("name", ["absent.zarr", "absent.nc", "table.csv", "folder"])
def test_what_is_no_data_set(tmp_path, name):
    path = tmp_path / name
    if name == "table.csv":
        path.write_text("a,b\n1,2\n")
    elif name == "folder":
        path.mkdir()
    with pytest.raises(UsageError, match="no such data set" if "absent" in name else "unknown kind"):
        open_data_set(path)


@pytest.mark.parametrize("suffix", [".nc", ".parquet"])
@pytest.mark.parametrize("content", [b"", b"PAR1" + b"\x00" * 40 + b"PAR1", b"\x89HDF\r\n\x1a\n" + b"\xff" * 400])
def test_damaged_files(tmp_path, suffix, content):
    path = tmp_path / f"d{suffix}"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="cannot be opened"):
        open_data_set(path)


def test_a_chunk_that_is_cut_off(tmp_path):
    store = write_data(tmp_path / "d.zarr", make_steps(50))
    variable = open_data_set(store).find_variable("strain", (6,))
    assert variable is not None
    (chunk,) = (p for p in (store / "strain" / "c").rglob("*") if p.is_file())
    chunk.write_bytes(chunk.read_bytes()[:40])
    with pytest.raises(UsageError, match="'strain' cannot be read"):
        open_data_set(store).read(variable, (slice(0, 3), WHOLE))


def test_a_digest_is_of_the_state(tmp_path):
    store = write_data(tmp_path / "d.zarr", make_steps(5))
    before = digest_data(store)
    assert digest_data(store) == before
    (store / "more").write_text("x")
    assert digest_data(store) != before
