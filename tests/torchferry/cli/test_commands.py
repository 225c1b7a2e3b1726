"""The commands as their user types them: output, exit code, one message, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from project import PLANTED, RATES, ROOT, mark_thorough_after

from exporter import __version__
from torchferry.cli.app import run

pytestmark = pytest.mark.usefixtures("neml2")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)


def command(*arguments: object, **options):
    """The console script in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "exporter", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        **options,
    )


WHOLE = """
import torch

class Loss(torch.nn.Module):
    def forward(self, x, dt=0.1, mode="a"):
        return {"loss": (x * dt).sum()}

def make():
    return Loss(), {"x": torch.rand(5, 3, dtype=torch.float64), "dt": 0.1, "mode": "[bold]b"}
"""


@pytest.mark.thorough
def test_an_export_says_what_nobody_has_said():
    Path("whole.py").write_text(WHOLE)
    done = command("export", "whole.py:make", "-o", "m.pt")
    assert done.returncode == 0, done.stderr
    assert "batch: shapes are whole, without a batch: output 'loss'" in done.stdout
    assert "arguments: 'dt' is fixed: it is 0.1, and no tensor" in done.stdout
    assert "arguments: 'mode' is fixed: it is '[bold]b', and no tensor" in done.stdout
    # The control.
    done = command("export", f"{ROOT}/examples/solvers/decay.py:make_model", "-o", "d.pt")
    assert done.returncode == 0, done.stderr
    assert not re.search("^(batch|arguments):", done.stdout, re.MULTILINE)
    done = command("export", "whole.py:make", "-o", "n.pt", "--batch", "maybe")
    assert (done.returncode, "expected: auto, yes, no" in done.stderr) == (2, True)


def left_behind() -> list[str]:
    return [str(p) for p in Path().rglob("*")]


BAD_EXPORTS = [
    (["nothing.i"], 2, "no such input file"),
    (["."], 2, "a folder"),
    ([PLANTED], 2, "factory's name too"),
    ([ROOT / "README.md"], 2, "does not parse"),
    ([RATES, "--model", "ep"], 2, "did you mean 'eq'"),
    ([RATES], 2, "several models"),
    ([RATES, "--model", "eq", "--rename", "x:y"], 2, "matches no variable"),
    ([RATES, "--model", "eq", "--rename", "a~1:a"], 2, "two names equal"),
    ([RATES, "--model", "eq", "--rename", "a"], 2, "rename is invalid"),
    ([RATES, "--model", "eq", "--inputs", "none.pt"], 2, "input file does not exist"),
    ([f"{PLANTED}:none"], 2, "no 'none'"),
    ([f"{PLANTED}:not_callable"], 2, "not callable"),
    ([f"{PLANTED}:raises"], 2, "the factory's own error"),
    ([f"{PLANTED}:no_module"], 2, "returns no module"),
    ([f"{PLANTED}:no_tensor"], 3, "not a tensor"),
    ([f"{PLANTED}:not_a_number"], 3, "NaN or infinity"),
    ([f"{PLANTED}:branch_on_data"], 3, "reads data into Python"),
    ([f"{PLANTED}:batch_read_through_python"], 3, "batch size is read into Python"),
    ([f"{PLANTED}:constant_of_wrong_dtype"], 3, "default dtype"),
    ([f"{PLANTED}:left_in_train_mode"], 3, "train mode"),
    ([f"{PLANTED}:hidden_counter"], 3, "other outputs than it gives as the first call"),
    ([f"{PLANTED}:unknown_operator"], 3, "planted::twice"),
    (["no_such_package:make"], 2, "package or module does not exist"),
    (["--no-such-option"], 2, "No such option"),
    ([], 2, "Missing argument"),
]


def test_a_binary_file_is_no_hit_file(tmp_path, capfd):
    (tmp_path / "model.i").write_bytes(bytes(range(256)) * 20)
    assert run(["export", str(tmp_path / "model.i")]) == 2
    error = capfd.readouterr().err
    assert "does not parse" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(("arguments", "code", "message"), BAD_EXPORTS, ids=lambda x: None)
def test_bad_input_gets_its_code_and_one_message(arguments, code, message, capfd):
    assert run(["export", *map(str, arguments)]) == code
    error = capfd.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert left_behind() == []


INPUTS = {name: [1.0, 2.0] for name in ("a", "a~1", "b", "b~1", "c", "c~1", "t")} | {"t~1": [0.0, 0.0]}


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (lambda v: v.pop("t"), 2, "missing: 't'"),
        (lambda v: v.update(T=[1.0]), 2, "not an input: 'T'"),
        (lambda v: v.update(t=[1.0, 2.0, 3.0]), 2, "batch"),
        (lambda v: v.update(t="now"), 2, "not an array of numbers"),
        (lambda v: v.update(t=v["t~1"]), 3, "NaN or infinity"),
    ],
)
def test_bad_inputs(change, code, message, capfd, tmp_path):
    values = dict(INPUTS)
    change(values)
    file = tmp_path / "inputs.json"
    file.write_text(json.dumps(values))
    assert run(["export", str(RATES), "--model", "eq", "--inputs", str(file)]) == code
    error = capfd.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert left_behind() == []


@pytest.mark.parametrize("kind", [torch.int64, torch.complex128])
def test_integer_or_complex_inputs_where_a_float_is_needed(kind, capfd, tmp_path):
    values = {k: torch.tensor(v, dtype=torch.float64) for k, v in INPUTS.items()}
    values["a"] = torch.ones(2, dtype=kind)
    torch.save(values, tmp_path / "inputs.pt")
    assert run(["export", str(RATES), "--model", "eq", "--inputs", str(tmp_path / "inputs.pt")]) == 2
    assert "wrong dtype" in capfd.readouterr().err


def test_export_verify_inspect(capfd):
    assert run(["export", str(RATES), "--model", "eq", "-o", "eq.pt", "--timings"]) == 0
    text = capfd.readouterr().out
    assert text.index("Name: eq (ComposedModel)") < text.index("Inputs") < text.index("eq: checks")
    for word in ("source library absent", "fresh inputs", "permutation", "verified", "capture"):
        assert word in text
    assert left_behind() == ["eq.pt"]
    assert run(["verify", "eq.pt"]) == 0
    assert "verified" in capfd.readouterr().out
    assert run(["inspect", "eq.pt"]) == 0
    text = capfd.readouterr().out
    assert "extra/torchferry/manifest.json" in text
    assert "a~1" in text


def test_inspect_a_kernel_and_an_onnx_container(capfd, eq_path):
    for name, file in (("c", "eq_kernel"), ("onnx", "eq.onnx")):
        assert run(["convert", str(eq_path), "--to", name, "-o", file]) == 0
        capfd.readouterr()
        assert run(["inspect", file, "--json"]) == 0
        content = json.loads(capfd.readouterr().out)
        assert content["contract"]["name"] == "eq"
        assert all(size > 0 for size in content["records"].values())
    assert run(["inspect", "eq_kernel"]) == 0
    text = capfd.readouterr().out
    assert "cases.txt" in text


def test_json_is_json(capfd, eq_path):
    assert run(["verify", str(eq_path), "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["passed"] is True
    assert {c["check"] for c in report["legs"][0]["checks"]} >= {"integrity", "stored cases"}
    assert run(["inspect", str(eq_path), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["contract"]["name"] == "eq"
    assert run(["show", str(RATES), "--json"]) == 0
    assert [m["name"] for m in json.loads(capfd.readouterr().out)][-1] == "eq"
    assert run(["export", "nothing.i", "--json"]) == 2
    assert json.loads(capfd.readouterr().out)["exit_code"] == 2


def test_export_json_and_several_models(capfd):
    assert run(["export", str(RATES), "--model", "eq", "--model", "rate_a", "-o", "out", "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert [e["name"] for e in result] == ["eq", "rate_a"]
    assert all(e["report"]["passed"] for e in result)
    assert left_behind() == ["out", "out/eq.pt", "out/rate_a.pt"] or sorted(left_behind()) == sorted(
        ["out", "out/eq.pt", "out/rate_a.pt"]
    )


def test_show_lists_all_models(capfd):
    assert run(["show", str(RATES)]) == 0
    text = capfd.readouterr().out
    assert all(f"Name: {n}" in text for n in ("rate_a", "rate_b", "rate_c", "eq"))


def test_version_and_help(capfd):
    assert run(["--version"]) == 0
    assert capfd.readouterr().out == f"torchferry {__version__}\n"
    for name in ("export", "show", "inspect", "verify", "sweep"):
        assert run([name, "--help"]) == 0
        text = capfd.readouterr().out
        assert "Examples:" in text
        assert f"torchferry {name}" in text
    assert run(["--help"]) == 0
    assert "--install-completion" in capfd.readouterr().out


def test_an_existing_file_is_replaced_whole():
    Path("rate_a.pt").write_text("old")
    assert run(["export", str(RATES), "--model", "rate_a"]) == 0
    assert run(["inspect", "rate_a.pt"]) == 0
    assert run(["export", str(RATES), "--model", "nope", "-o", "rate_a.pt"]) == 2
    assert run(["inspect", "rate_a.pt"]) == 0


def test_a_mismatch_at_export_leaves_no_file(monkeypatch, capfd):
    """The fault: what is saved differs from eager mode by a millionth."""
    from exporter.soundness import checked_capture
    from torchferry import pipeline

    capture = checked_capture.capture

    def faulty(warm, inputs, seed, wanted, solves):
        captured = capture(warm, inputs, seed)
        with torch.no_grad():
            next(iter(captured.module.parameters())).mul_(1 + 1e-6)
        return captured

    monkeypatch.setattr(checked_capture, "capture", faulty)
    # The parameter is the user's own tensor: cases were made before the fault and must be made after it too.
    stored = pipeline.make_stored_cases

    def before(warm, seed):
        with torch.no_grad():
            warm.source.parameter_module.scale.div_(1 + 1e-6)
        try:
            return stored(warm, seed)
        finally:
            with torch.no_grad():
                warm.source.parameter_module.scale.mul_(1 + 1e-6)

    monkeypatch.setattr(pipeline, "make_stored_cases", before)
    assert run(["export", f"{PLANTED}:sound", "-o", "sound.pt"]) == 5
    assert "does not agree with eager mode" in capfd.readouterr().err
    assert left_behind() == []


def test_an_output_that_cannot_be_written(capfd):
    Path("file").write_text("")
    assert run(["export", str(RATES), "--model", "eq", "-o", "file/eq.pt"]) == 2
    assert "cannot be written" in capfd.readouterr().err
    Path("folder.pt").mkdir()
    assert run(["export", str(RATES), "--model", "eq", "-o", "folder.pt"]) == 0
    assert Path("folder.pt/eq.pt").is_file()


def test_a_full_disk():
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    done = command("export", RATES, "--model", "eq", "-o", "eq.pt", preexec_fn=small_files)
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert left_behind() == []


@pytest.mark.parametrize("number", mark_thorough_after(1, [signal.SIGINT, signal.SIGTERM]))
def test_an_interrupt_leaves_nothing(number):
    process = subprocess.Popen(
        [sys.executable, "-m", "exporter", "export", str(RATES), "--model", "eq", "-o", "eq.pt"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        # A shell that starts the tests in its background has told its children to ignore an interrupt.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509
    )
    deadline = time.monotonic() + 60
    while not left_behind() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [p for p in left_behind() if p.endswith(".tmp")], "the archive was never begun"
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in error
    assert "Traceback" not in error
    assert left_behind() == []


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch):
    import torchferry.cli.inspect

    def bug(path):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(torchferry.cli.inspect, "infer_format", bug)
    with pytest.raises(ZeroDivisionError):
        run(["inspect", "eq.pt"])
    change = "import torchferry.cli.inspect as a\na.infer_format = lambda p: 1 / 0"
    code = f"{change}\nfrom torchferry.cli.app import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", code, "inspect", "eq.pt"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_python_api_behaves_the_same():
    import torchferry

    (exported,) = torchferry.export(f"{PLANTED}:sound", output="sound.pt", seed=3)
    assert exported.report.passed
    assert torchferry.verify("sound.pt").passed
    model = torchferry.load("sound.pt")
    x = torch.rand(2, 3, dtype=torch.float64)
    torch.testing.assert_close(model(x)[0], x.sin() * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    with pytest.raises(torchferry.CaptureError):
        torchferry.export(f"{PLANTED}:branch_on_data", output="branch.pt")
    assert left_behind() == ["sound.pt"]


def test_a_module_that_is_there(tmp_path):
    import torchferry

    layer = torch.nn.Linear(3, 2, dtype=torch.float64)
    x = torch.rand(4, 3, dtype=torch.float64)
    (exported,) = torchferry.export(layer, inputs={"input": x}, output="linear.pt")
    assert exported.contract.name == "Linear"
    torch.testing.assert_close(torchferry.load("linear.pt")(x)[0], layer(x))


def test_names_are_the_users_not_markup(capfd, tmp_path):
    assert run(["export", f"{PLANTED}:sound", "-o", "z[/red].pt"]) == 0
    assert "z[/red].pt" in capfd.readouterr().out


def test_a_sweep_that_could_not_write_its_results(tmp_path, capfd):
    (tmp_path / "models").mkdir()
    shutil.copy(RATES, tmp_path / "models" / "rates.i")
    Path("file").write_text("")
    assert run(["sweep", str(tmp_path / "models"), "-o", "file"]) == 2
    assert "cannot be written" in capfd.readouterr().err


def test_two_folders_of_one_name(tmp_path, capfd):
    for parent in ("p", "q"):
        (tmp_path / parent / "models").mkdir(parents=True)
        shutil.copy(RATES, tmp_path / parent / "models" / "rates.i")
    assert run(["sweep", str(tmp_path / "p/models"), str(tmp_path / "q/models"), "-o", "out"]) == 2
    assert "one name" in capfd.readouterr().err


@pytest.mark.thorough
def test_sweep(tmp_path, capfd):
    folder = tmp_path / "models"
    folder.mkdir()
    text = RATES.read_text()
    (folder / "rates.i").write_text(text)
    page = tmp_path / "coverage.md"
    command = ["sweep", str(folder), "-o", "out", "--jobs", "2", "--coverage", str(page), "--format", "onnx,c"]
    assert run(command) == 0
    assert "4 of 4 models verified" in capfd.readouterr().out
    report = json.loads(Path("out/report.json").read_text())
    assert (
        report["counts"]["verified"] == report["formats"]["onnx"]["verified"] == report["formats"]["c"]["verified"] == 4
    )
    assert all(cell["bytes"] > 1000 for model in report["models"] for cell in (model, *model["formats"].values()))
    assert Path("out/models/rates/eq.onnx").is_file()
    assert Path("out/models/rates/eq/eq.c").is_file()
    assert "| models | 4 | 4 | 4 | 4 | 0 |" in page.read_text()


def test_python_models_are_listed_too(capfd, tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"position": [[1.0, 2.0]], "velocity": [[3.0, 4.0]]}))
    assert run(["show", f"{PLANTED}:plain", "--inputs", str(tmp_path / "x.json")]) == 0
    text = capfd.readouterr().out
    assert "velocity" in text
    assert "kinetic" in text
    assert run(["show", f"{PLANTED}:plain"]) == 2
    assert "--inputs" in capfd.readouterr().err


SLOW = """
import os
import torch
from torch import nn
import torchferry

COMMAND = os.getpid()

@torch.jit.script
def count(n: int) -> int:
    k = 0
    while k < n:
        k = k + 1
    return k

class Slow(nn.Module):
    signature = torchferry.Signature.of({"x": ()}, {"y": ()})

    def forward(self, x):
        if os.getpid() != COMMAND:
            return x + 1
        open("begun", "w").close()
        # For Python one operation, which takes hours.
        return x + count(10**12)
"""


def test_an_interrupt_ends_a_long_operation():
    Path("slow.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "-m", "exporter", "export", "slow.py:Slow", "-o", "slow.pt"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    deadline = time.monotonic() + 60
    while not Path("begun").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    try:
        # Without an end of its own it would be here for hours.
        _, error = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted" in error
    assert sorted(left_behind()) == ["begun", "slow.py"]


def test_long_commands_say_what_they_do(monkeypatch, capfd):
    monkeypatch.setattr("torchferry.cli.progress.QUIET_SECONDS", 0.0)
    assert run(["export", str(RATES), "--model", "eq", "-o", "eq.pt", "--timings"]) == 0
    captured = capfd.readouterr()
    assert re.search(r"^\d+ s: soundness \(1 of 15\): random numbers$", captured.err, re.MULTILINE)
    assert re.search(r"^\d+ s: soundness \(15 of 15\): dtype$", captured.err, re.MULTILINE)
    slowest = [line for line in captured.out.splitlines() if line.startswith("slow: ")]
    assert len(slowest) == 3
    assert any("soundness" in line and "--jobs" in line for line in slowest)
    assert run(["check", str(RATES), "--model", "eq", "--json"]) == 0
    assert capfd.readouterr().err == ""


def test_a_slow_model_is_announced_at_once(monkeypatch, capfd):
    monkeypatch.setattr("exporter.model.eager.warmup.SLOW_CALL", 0.0)
    assert run(["check", str(RATES), "--model", "eq"]) == 0
    captured = capfd.readouterr()
    assert re.search(r"^a call takes 0 s, an export about 100 of them: 0 minutes$", captured.err, re.MULTILINE)
    assert run(["check", str(RATES), "--model", "eq", "--json"]) == 0
    captured = capfd.readouterr()
    assert captured.err == ""
    assert "draws were not run" in captured.out


CHILDREN = """
import multiprocessing
import time
import torchferry
from torch import nn

def wait():
    time.sleep(60)

class Parallel(nn.Module):
    signature = torchferry.Signature.of({"x": ()}, {"y": ()})

    def forward(self, x):
        return x + 1

def make_model():
    child = multiprocessing.get_context("fork").Process(target=wait)
    child.start()
    time.sleep(0.1)
    child.terminate()
    child.join()
    # Longer than an interrupt may take.
    time.sleep(1.5)
    assert child.exitcode == -15
    return Parallel()
"""


def test_a_signal_to_a_process_of_the_user_s_is_not_the_command_s():
    Path("children.py").write_text(CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "exporter", "export", "children.py:make_model", "-o", "m.pt"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert Path("m.pt").exists()


def test_the_command_line_starts_without_torch():
    code = "import sys, torchferry.cli.app\nprint('torch' in sys.modules, 'typer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"


def test_a_command_ends_as_python_does():
    """Although it leaves out what takes torch apart."""

    def run_process(*arguments: str) -> tuple[int, str, str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)
        return done.returncode, done.stdout, done.stderr

    code = "import atexit\natexit.register(print, 'said at the end')\nfrom torchferry.cli.app import main\nmain()"
    status, text, _ = run_process(sys.executable, "-c", code, "--version")
    assert (status, text.splitlines()[-1]) == (0, "said at the end")
    status, text, error = run_process(sys.executable, "-c", code, "inspect", "nothing.pt")
    assert (status, text) == (4, "said at the end\n")
    assert "does not exist" in error
    late = "import threading as t\nt.Thread(target=lambda: (t.main_thread().join(), print('late'))).start()\n"
    _, text, _ = run_process(sys.executable, "-c", late + code, "--version")
    assert text.splitlines()[-2:] == ["late", "said at the end"]
    _, text, _ = run_process(sys.executable, "-m", "cProfile", "-m", "exporter", "--version")
    assert "function calls" in text
    for closed in (">&-", "2>&-"):
        line = f'exec "$0" -m exporter --version {closed}'
        assert run_process("sh", "-c", line, sys.executable)[0] == 0
