"""Stores of Zarr whose codecs run code are refused before anything of them is read."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy
import pytest
import zarr
from data_sets import make_steps, write_data

from exporter.common.errors import UsageError
from runtime_checks.evaluation.data_sets import open_data_set
from runtime_checks.evaluation.zarr_codecs import DEPTH, check_codecs


class Marker:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def write_pickled(store: Path, name: str, payload: bytes) -> None:
    """An array of the second version, whose chunk is a pickle."""
    folder = store / name
    folder.mkdir(parents=True)
    (store / ".zgroup").write_text('{"zarr_format": 2}')
    metadata = {
        "chunks": [1],
        "compressor": None,
        "dtype": "|O",
        "fill_value": None,
        "filters": [{"id": "pickle", "protocol": 5}],
        "order": "C",
        "shape": [1],
        "zarr_format": 2,
    }
    (folder / ".zarray").write_text(json.dumps(metadata))
    (folder / ".zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": [name]}))
    (folder / "0").write_bytes(payload)


def test_a_pickle_is_not_run(tmp_path):
    store, marker = tmp_path / "hostile.zarr", tmp_path / "run"
    payload = pickle.dumps(numpy.array([Marker(marker)], dtype=object))
    write_pickled(store, "point", payload)
    with pytest.raises(UsageError, match="codec that may run code") as caught:
        open_data_set(store)
    assert "pickle" in str(caught.value)
    assert ".zarray" in str(caught.value)
    assert not marker.exists()
    # The control: it is a pickle that leaves the file, for whoever reads the chunk.
    pickle.loads(payload)
    assert marker.exists()


@pytest.mark.parametrize("place", ["codecs", "filters", "compressor", "index_codecs"])
@pytest.mark.parametrize("codec", [{"name": "numcodecs.pickle"}, {"id": "Pickle"}, "pickle", {"id": "of_my_own"}, {}])
def test_every_place_of_a_codec(tmp_path, place, codec):
    store = write_data(tmp_path / "d.zarr", make_steps(3))
    check_codecs(store)
    path = store / "strain" / "zarr.json"
    metadata = json.loads(path.read_text())
    metadata["codecs"].append({"name": "sharding_indexed", "configuration": {place: [codec]}})
    path.write_text(json.dumps(metadata))
    with pytest.raises(UsageError, match="may run code"):
        check_codecs(store)


def test_a_group_that_says_it_is_an_array(tmp_path):
    """Its members would not be looked at."""
    store = tmp_path / "d.zarr"
    write_pickled(store, "point", b"")
    for name in (".zarray", "zarr.json"):
        text = '{"node_type": "array", "zarr_format": 3, "codecs": []}' if name == "zarr.json" else '{"filters": null}'
        (store / name).write_text(text)
        with pytest.raises(UsageError, match="a group and an array at once"):
            check_codecs(store)
        (store / name).unlink()
    with pytest.raises(UsageError, match="may run code"):
        check_codecs(store)


def test_both_names_of_a_codec_are_looked_at(tmp_path):
    store = write_data(tmp_path / "d.zarr", make_steps(3))
    path = store / "strain" / "zarr.json"
    metadata = json.loads(path.read_text())
    metadata["codecs"].append({"id": "zstd", "name": "pickle"})
    path.write_text(json.dumps(metadata))
    with pytest.raises(UsageError, match="may run code"):
        check_codecs(store)


def test_attributes_are_the_users(tmp_path):
    store = tmp_path / "d.zarr"
    group = zarr.create_group(store, attributes={"filters": [{"id": "low pass"}]})
    group.create_group("a").create_array("b", shape=(3,), dtype="f8", attributes={"codecs": ["mine"]})
    check_codecs(store)


@pytest.mark.parametrize("text", ["not JSON", "[" * 100_000, '{"node_type": "array", "codecs": [{"name": "x"}]}'])
def test_metadata_of_a_stranger(tmp_path, text):
    store = write_data(tmp_path / "d.zarr", make_steps(3))
    (store / "strain" / "zarr.json").write_text(text)
    with pytest.raises(UsageError):
        open_data_set(store)


def test_groups_within_groups(tmp_path):
    store = folder = tmp_path / "d.zarr"
    zarr.create_group(store)
    for _ in range(DEPTH + 1):
        folder = folder / "g"
    folder.mkdir(parents=True)
    with pytest.raises(UsageError, match="too many levels"):
        check_codecs(store)
