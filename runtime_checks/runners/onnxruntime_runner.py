"""Runner of an ONNX container in a fresh Python process that has onnxruntime and NumPy, and no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.archive import onnx_container
from exporter.archive.contract import Contract
from exporter.archive.onnx_container import OnnxFiles
from exporter.common.errors import MissingRuntimeError, RunError
from runtime_checks.runners.array_files import require_packages, run_child
from runtime_checks.runners.base import Call, Run, RunnerVerdict
from runtime_checks.runners.subprocesses import MEMORY, check_limits, find_package_folders

CHILD = Path(__file__).with_name("children") / "onnx_child.py"
# onnxruntime, and what the standard's checker needs.
PACKAGES = ("onnxruntime", "numpy", "onnx", "google", "ml_dtypes", "typing_extensions", "flatbuffers", "packaging")
PROVIDERS = {"cpu": ["CPUExecutionProvider"], "cuda": ["CUDAExecutionProvider", "CPUExecutionProvider"]}
CHECKER, OPSET, SIGNATURE = "onnx.checker", "opset", "names and types"
_TYPES = {"float64": "double", "float32": "float"}


@dataclass(frozen=True)
class OnnxRuntimeRunner:
    """A runner with a fresh process for each run, within limits on wall time and address space."""

    seconds: float = 600.0
    device: str = "cpu"
    name: str = "onnxruntime"
    memory: float = MEMORY

    def __post_init__(self) -> None:
        check_limits(self.seconds, self.memory)

    def run(self, path: Path, contract: Contract, calls: Sequence[Call]) -> Run:
        opened = onnx_container.read(path)
        _require_packages()
        packages = find_package_folders(PACKAGES)
        source = {contract.source.library, *contract.source.refused_imports, "torch", "exporter", "torchferry"} - {""}
        job = {
            "models": {m: str(path.with_name(name).resolve()) for m, name in opened.methods.items()},
            "providers": PROVIDERS[self.device.partition(":")[0]],
            "devices": self.device != "cpu",
            "packages": packages,
            "memory": self.memory,
            "refused": sorted(source - packages.keys()),
        }
        results, evidence = run_child(CHILD, path, self.seconds, job, opened.inputs, calls)
        if evidence.get("load_error"):
            what, mend = "onnxruntime does not accept the model", "write the operation with others, or use the .pt"
            where = " ".join(filter(None, (str(path), evidence.get("load_origin", ""))))
            expected = "operators that onnxruntime has kernels for, in the dtypes of the model"
            raise RunError(what, where=where, got=evidence["load_error"], expected=expected, mend=mend)
        return Run(results, evidence, _judge_models(opened, evidence))


def _require_packages() -> None:
    require_packages(("onnxruntime", "numpy", "onnx"), "--runtime onnxruntime", 'pip install "torchferry[onnx]"')


def check_device(name: str) -> None:
    """Raise ``MissingRuntimeError`` if onnxruntime has no provider for the device."""
    _require_packages()
    import onnxruntime

    provider = PROVIDERS[name.partition(":")[0]][0]
    available = onnxruntime.get_available_providers()
    if provider not in available:
        what, where = f"onnxruntime has no {provider}", f"--device {name}"
        mend = "install onnxruntime-gpu instead of onnxruntime, or omit --device cuda"
        raise MissingRuntimeError(what, where=where, got=", ".join(available), mend=mend)


def _judge_models(opened: OnnxFiles, evidence: dict[str, Any]) -> tuple[RunnerVerdict, ...]:
    """Return the verdicts on the models themselves: checker, opset, names and types."""
    messages = {m: text for m, text in evidence["checker"].items() if text}
    text = "; ".join(f"{method}: {text}" for method, text in messages.items())
    models = f"{len(opened.methods)} {'model' if len(opened.methods) == 1 else 'models'}"
    verdicts = [RunnerVerdict(CHECKER, not messages, text or f"{models}, with the shapes and types of every value")]
    expected = {"": opened.opset}
    mismatches = {m: versions for m, versions in evidence["opsets"].items() if versions != expected}
    text = "; ".join(f"{m}: {v}" for m, v in mismatches.items())
    detail = f"{text} instead of {opened.opset}" if text else str(opened.opset)
    verdicts.append(RunnerVerdict(OPSET, not mismatches, detail))
    wrong = []
    for method, (inputs, outputs) in evidence["signatures"].items():
        spec = opened.contract.methods[method]
        dtypes = {name: opened.contract.input_spec(name).dtype for name in spec.inputs}
        required = [[name, f"tensor({_TYPES.get(dtypes[name], dtypes[name])})"] for name in opened.inputs[method]]
        further = [name for name, _ in inputs[len(required) :]]
        is_known = {*further} <= {p.name for p in opened.contract.parameters}
        if inputs[: len(required)] != required or not is_known or list(outputs) != list(opened.outputs[method]):
            wrong.append(f"{method}: {inputs} to {outputs}")
        plain = list(spec.output_names)
        if [o.removeprefix("out:") for o in opened.outputs[method]] != plain or opened.inputs[method] != spec.inputs:
            wrong.append(f"{method}: the names in the manifest differ from the contract")
    verdicts.append(RunnerVerdict(SIGNATURE, not wrong, "; ".join(wrong) or "as in the contract"))
    return tuple(verdicts)
