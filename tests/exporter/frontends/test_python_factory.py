import sys

import numpy
import pytest
import torch
from project import PLANTED
from torch import nn

from exporter.archive.input_files import read_inputs
from exporter.common.errors import SourceError, UsageError
from exporter.frontends import python_factory, resolve
from exporter.frontends.model_request import ModelRequest
from exporter.model.eager.warmup import run_first, warm_up

F = torch.float64


def load(name, arguments=None):
    return python_factory.load(f"{PLANTED}:{name}", arguments)


def write(tmp_path, text, name="made.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{PLANTED}:soundd", "no 'soundd'(.|\n)*did you mean 'sound'"),
        (f"{PLANTED}:not_callable", "not callable"),
        (f"{PLANTED}:raises", "fails(.|\n)*planted_models.py:(.|\n)*the factory's own error"),
        (f"{PLANTED}:no_module", "returns no module(.|\n)*got: dict"),
        (f"{PLANTED}:needs_arguments", "needs arguments(.|\n)*size"),
        ("nowhere.py:make", "no such file"),
        ("no_such_package.models:make", "package or module does not exist"),
        ("exporter.nothing:make", "package or module does not exist"),
    ],
)
def test_factories_that_do_not_work(text, message):
    with pytest.raises(SourceError, match=message):
        python_factory.load(text, None)


def test_a_file_that_does_not_import(tmp_path):
    with pytest.raises(SourceError, match=r"fails(.|\n)*broken\.py:2(.|\n)*SyntaxError"):
        python_factory.load(f"{write(tmp_path, chr(10) + 'def (', 'broken.py')}:make", None)
    with pytest.raises(SourceError, match=r"fails(.|\n)*nmpy"):
        python_factory.load(f"{write(tmp_path, 'import nmpy', 'missing.py')}:make", None)


def test_a_package_module_and_an_instance(tmp_path, monkeypatch):
    folder = tmp_path / "some_package"
    folder.mkdir()
    write(folder, "")
    (folder / "__init__.py").write_text("")
    write(folder, "from torch import nn\nlayer = nn.Linear(2, 1)\nlayer.train()\n", "nets.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    source = python_factory.load("some_package.nets:layer", {"input": torch.zeros(3, 2)})
    assert not source.parameter_module.training
    assert source.inputs[0].describe() == "input: Tensor[2] float32"
    sys.modules.pop("some_package.nets")


def test_a_neighbour_can_be_imported(tmp_path):
    write(tmp_path, "SIZE = 4", "neighbour_of_model.py")
    path = write(
        tmp_path,
        "from torch import nn\nfrom neighbour_of_model import SIZE\n\ndef make():\n    return nn.Linear(SIZE, 1)\n",
        "has_neighbour.py",
    )
    assert python_factory.load(f"{path}:make", {"input": torch.zeros(1, 4)}).inputs[0].shape == (4,)


def test_named_tensors_without_anything_of_ours():
    arguments = {"position": torch.rand(4, 2, dtype=F), "velocity": torch.rand(4, 2, dtype=F)}
    source = load("plain", arguments)
    assert [s.name for s in source.inputs] == ["position", "velocity"]
    assert [s.name for s in warm_up(run_first(source, 0), 0).output_specs] == ["kinetic", "turned"]


def test_example_inputs_on_the_module():
    source = load("plain_with_examples")
    # In the order of forward, not of the dict.
    assert [s.name for s in source.inputs] == ["position", "velocity"]
    assert source.calls[0][0].tolist() == [[1.0, 2.0]]


def test_a_factory_may_return_examples(tmp_path):
    path = write(
        tmp_path,
        "import torch\nfrom torch import nn\n\ndef make():\n    return nn.Tanh(), {'input': torch.zeros(2, 3)}\n",
        "pair.py",
    )
    assert python_factory.load(f"{path}:make", None).inputs[0].shape == (3,)


def test_nothing_is_known_of_the_inputs():
    with pytest.raises(SourceError, match=r"not known(.|\n)*forward\(position, velocity\)(.|\n)*--inputs"):
        load("plain")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"position": [[1.0, 2.0]]}, "missing: 'velocity'"),
        ({"position": [[1.0]], "velocity": [[1.0]], "speed": [1.0]}, "not an input: 'speed'"),
    ],
)
def test_examples_that_do_not_fit(arguments, message):
    with pytest.raises(UsageError, match=message):
        load("plain", arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"position": [[1.0]], "velocity": torch.tensor(3.0)}, "'velocity' has shape []"),
        ({"position": [[1.0], [2.0]], "velocity": [[1.0], [1.0], [1.0]]}, "sizes: 'position': 2, 'velocity': 3"),
    ],
)
def test_examples_without_a_common_leading_size_have_no_batch(arguments, reason):
    source = load("plain", arguments)
    assert (source.batch_ndim, source.whole_call) == (0, ())
    (finding,) = source.findings
    assert reason in finding.reason
    # The control: 1 is as good as any size.
    source = load("plain", {"position": [[1.0], [2.0]], "velocity": [[1.0]]})
    assert (source.batch_ndim, source.findings) == (1, ())
    assert [list(t.shape) for t in source.calls[0]] == [[2, 1], [2, 1]]
    assert [list(t.shape) for t in source.whole_call] == [[2, 1], [1, 1]]


def test_given_inputs_are_the_warmup_case(tmp_path):
    numpy.savez(tmp_path / "x.npz", x=numpy.array([[1.0, 2.0, 3.0]]))
    source = load("sound", read_inputs(tmp_path / "x.npz"))
    assert warm_up(run_first(source, 0), 0).inputs[0].tolist() == [[1.0, 2.0, 3.0]]


def test_model_option_is_for_input_files():
    with pytest.raises(UsageError, match="--model is for input files"):
        resolve.choose_models(ModelRequest(f"{PLANTED}:sound"), ["eq"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a.py:make", True), ("pkg.mod:make", True), ("model.i", False), ("dir/model.i", False), ("C:/x y", False)],
)
def test_what_is_python(text, expected):
    assert resolve.is_python(ModelRequest(text)) is expected


def test_a_module_subclass_is_a_factory(tmp_path):
    path = write(tmp_path, "from torch import nn\nclass Net(nn.Tanh):\n    pass\n", "subclass.py")
    assert python_factory.load(f"{path}:Net", {"input": torch.zeros(1, 2)}).name == "Net"


def test_a_file_named_like_a_module_takes_nobodys_place(tmp_path):
    import json

    path = write(tmp_path, "from torch import nn\n\ndef make():\n    return nn.Tanh()\n", "json.py")
    python_factory.load(f"{path}:make", {"input": torch.zeros(1, 2)})
    assert sys.modules["json"] is json


def test_an_edited_file_is_run_again(tmp_path):
    path = write(tmp_path, "from torch import nn\n\ndef make():\n    return nn.Tanh()\n", "edited.py")
    first = python_factory.load(f"{path}:make", {"input": torch.zeros(1, 2)})
    assert python_factory.load(f"{path}:make", {"input": torch.zeros(1, 2)}).origin == first.origin
    path.write_text("from torch import nn\n\ndef make():\n    return nn.Sigmoid()\n")
    second = python_factory.load(f"{path}:make", {"input": torch.zeros(1, 2)})
    assert type(second.parameter_module).__name__ == "Sigmoid"
    assert second.origin.sha256 != first.origin.sha256


BY_NAME = """
import torch
from torch import nn
from torchferry import Signature

class Difference(nn.Module):
    signature = Signature.of({SIGNATURE}, {"y": ()})

    def forward(self, ARGUMENTS):
        return a - b

def make():
    return Difference()
"""


@pytest.mark.parametrize(
    ("signature", "arguments", "expected"),
    [
        ('{"b": (), "a": ()}', "a, b", 4.0),
        ('{"b": (), "a": ()}', "a, *, b", 4.0),
        ('{"b": (), "a": ()}', "a, w=None, b=None", 4.0),
        ('{"state/b": (), "a": ()}', "b, a", 4.0),
        ('{"state/b": (), "a": ()}', "a, b", None),
    ],
)
def test_variables_go_to_the_arguments_of_their_name(tmp_path, signature, arguments, expected):
    text = BY_NAME.replace("{SIGNATURE}", signature).replace("ARGUMENTS", arguments)
    path = write(tmp_path, text, f"named_{abs(hash((signature, arguments)))}.py")
    if expected is None:
        with pytest.raises(SourceError, match="not clear which argument"):
            python_factory.load(f"{path}:make", None)
        return
    source = python_factory.load(f"{path}:make", None)
    values = {"b": 1.0, "state/b": 1.0, "a": 5.0}
    assert source.module(*(torch.tensor([values[s.name]]) for s in source.inputs)).item() == expected


@pytest.mark.parametrize("code", ["import sys\nsys.exit(0)", "def make():\n    import sys\n    sys.exit(0)"])
def test_a_factory_that_ends_the_process_does_not(tmp_path, code):
    with pytest.raises(SourceError, match="SystemExit"):
        python_factory.load(f"{write(tmp_path, code, f'exits_{len(code)}.py')}:make", None)


def test_dots_in_a_file_name(tmp_path):
    path = write(tmp_path, "from torch import nn\nnet = nn.Tanh()\n", "my.model.py")
    assert python_factory.load(f"{path}:net", {"input": torch.zeros(1, 2)}).name == "net"


@pytest.mark.parametrize("shape", [(), (1, 3)])
def test_a_parameter_with_one_number_for_several_elements(shape):
    model = nn.Linear(3, 3).double()
    value = torch.full(shape, 2.0, dtype=F)
    model.weight = nn.Parameter(value.expand(3, 3))
    examples = {"input": torch.rand(4, 3, dtype=F)}
    with pytest.raises(SourceError, match="'weight' is an expanded view"):
        python_factory.source_from_module(model, "m", examples, "the test")
    # The control.
    model.weight = nn.Parameter(value.expand(3, 3).clone())
    python_factory.source_from_module(model, "m", examples, "the test")


def test_examples_without_rows():
    with pytest.raises(UsageError, match=r"'input' has no rows(.|\n)*got: shape \[0, 3\](.|\n)*mend: give examples"):
        python_factory.source_from_module(nn.Linear(3, 3), "m", {"input": torch.zeros(0, 3)}, "here")
