import json

import numpy
import pytest
import torch

from exporter.archive.input_files import align_inputs, read_inputs
from exporter.archive.tensor_spec import TensorSpec
from exporter.common.errors import UsageError

SPECS = (TensorSpec("x", (3,)), TensorSpec("t"))
X = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


def write(tmp_path, kind: str):
    path = tmp_path / f"inputs.{kind}"
    if kind == "json":
        path.write_text(json.dumps({"x": X, "t": 1}))
    elif kind == "npz":
        numpy.savez(path, x=numpy.array(X), t=numpy.array(1.0))
    else:
        torch.save({"x": torch.tensor(X, dtype=torch.float64), "t": torch.tensor(1.0, dtype=torch.float64)}, path)
    return path


@pytest.mark.parametrize("kind", ["json", "npz", "pt"])
def test_three_kinds_of_file(tmp_path, kind):
    x, t = align_inputs(read_inputs(write(tmp_path, kind)), SPECS, 1)
    assert x.tolist() == X
    assert t.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": X}, "missing: 't'"),
        ({"x": X, "t": 1.0, "T": 1.0}, "not an input: 'T'(.|\n)*did you mean|not an input: 'T'"),
        ({"x": [[1.0, 2.0]], "t": 1.0}, r"'x' has the wrong shape(.|\n)*\[1, 2\](.|\n)*\[batch, 3\]"),
        ({"x": X, "t": [1.0, 2.0, 3.0]}, "different batch sizes"),
        ({"x": X, "t": torch.tensor([1, 2])}, r"wrong dtype(.|\n)*int64(.|\n)*float64"),
        ({"x": X, "t": torch.tensor([1j, 2j])}, "wrong dtype"),
        ({"x": X, "t": "soon"}, "not an array of numbers"),
        ({"x": [[1.0], [2.0, 3.0]], "t": 1.0}, "not an array of numbers"),
        ({"x": [X], "t": 1.0}, "wrong shape"),
    ],
)
def test_inputs_that_do_not_fit(arguments, message):
    with pytest.raises(UsageError, match=message):
        align_inputs(arguments, SPECS, 1)


def test_fixed_shapes_take_no_batch():
    (x,) = align_inputs({"x": X}, (TensorSpec("x", (2, 3)),), 0)
    assert x.shape == (2, 3)
    with pytest.raises(UsageError, match="wrong shape"):
        align_inputs({"x": [X]}, (TensorSpec("x", (2, 3)),), 0)


def test_integers_in_json_for_an_integer_input():
    (n,) = align_inputs({"n": [1, 2]}, (TensorSpec("n", (), "int64"),), 1)
    assert n.dtype == torch.int64
    with pytest.raises(UsageError, match="cannot hold"):
        align_inputs({"n": [1.5]}, (TensorSpec("n", (), "int64"),), 1)


@pytest.mark.parametrize("text", ["{", "[1, 2]", "3"])
def test_a_file_without_a_dict(tmp_path, text):
    path = tmp_path / "inputs.json"
    path.write_text(text)
    with pytest.raises(UsageError):
        read_inputs(path)


def test_files_that_are_not_there_or_of_another_kind(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        read_inputs(tmp_path / "none.pt")
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(UsageError, match="unknown format"):
        read_inputs(tmp_path / "a.csv")


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (exec, ("raise SystemExit(99)",))

    torch.save({"x": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(UsageError, match="cannot be read"):
        read_inputs(tmp_path / "evil.pt")
