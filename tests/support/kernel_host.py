"""Functions of tensors as kernels, without an archive: lowered, compiled, and called on tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from exporter.archive import kernel_container, pt_archive
from exporter.archive.contract import DEFAULT_TOLERANCE, Batch, Contract, CreatedWith, Envelope, MethodSpec, Origin
from exporter.archive.tensor_spec import TensorSpec
from exporter.backends.backend import KernelOptions
from exporter.backends.c_kernel import forward_mode
from exporter.backends.c_kernel.c_source import render_sources
from exporter.backends.c_kernel.expression_graph import ExprGraph
from exporter.backends.c_kernel.lowering import LoweredMethod
from exporter.backends.c_kernel.package import package_kernel
from exporter.backends.c_kernel.symbolic_tensor import SymbolicDispatch, SymbolicTensor
from runtime_checks.kernels import compilation
from runtime_checks.kernels.ctypes_library import Library

Outputs = tuple[torch.Tensor, ...]
# What changes a kernel's files.
Change = Callable[[dict[str, bytes]], None]


def contract_of(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Contract:
    return Contract(
        schema=1,
        name="direct",
        source=Origin("python", "", "", "direct", ""),
        created_with=CreatedWith("0", "0", "0"),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        batch=Batch(1),
        methods={"forward": MethodSpec(tuple(s.name for s in inputs), tuple(s.name for s in outputs))},
        parameters=(),
        tolerance=DEFAULT_TOLERANCE,
        devices=("cpu",),
        operators=(),
        findings=(),
        envelope=Envelope(),
    )


class Direct:
    """``function`` takes and gives tensors with one batch dimension. ``jacobian``: what it gives is differentiated by
    its first input, in forward mode, instead."""

    def __init__(
        self,
        function: Callable[..., Outputs],
        example: Mapping[str, torch.Tensor],
        *,
        jacobian: bool = False,
        finite_math: bool = False,
        change: Callable[[dict[str, bytes]], None] = lambda files: None,
    ) -> None:
        self.terms = ExprGraph(finite_math=finite_math)
        lowering = SymbolicDispatch(self.terms)
        leaves = {n: lowering.add_leaves(n, v.shape[1:], v.dtype, 1) for n, v in example.items()}
        arguments = [SymbolicTensor(leaves[n][None], v.dtype) for n, v in example.items()]
        with torch.no_grad(), lowering:
            result: Any = function(*arguments)
        outputs = [tuple(item.ids.reshape(-1).tolist()) for item in result]
        first, *_ = example
        if jacobian:
            wrt = leaves[first].reshape(-1).tolist()
            outputs = [tuple(forward_mode.build_jacobian(self.terms, {}, item, wrt)) for item in outputs]
        self.outputs = outputs
        wide = tuple(example[first].shape[1:]) if jacobian else ()
        taken = [TensorSpec(n, tuple(v.shape[1:]), str(v.dtype).removeprefix("torch.")) for n, v in example.items()]
        dtypes = [str(item.dtype).removeprefix("torch.") for item in result]
        given_specs = [
            TensorSpec(f"y{i}", (*item.ids.shape[1:], *wide), dtype)
            for i, (item, dtype) in enumerate(zip(result, dtypes, strict=True))
        ]
        contract = contract_of(taken, given_specs)
        sources = render_sources(
            contract, {"forward": LoweredMethod("forward", self.terms, tuple(example), tuple(outputs), {}, {})}, {}
        )
        files = {name: text.encode() for name, text in sources.files.items()}
        change(files)
        self.files = files
        ordered = {f"{sources.name}.c": files[f"{sources.name}.c"], **files}
        described = json.loads(kernel_container.build_manifest(contract, sources.name, files, sources.workspace))
        self.library = Library(str(compilation.compile_kernel(ordered)), described)

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        result, _ = self.library.call("forward", [value.numpy() for value in inputs], {})
        return [torch.from_numpy(value) for value in result]


def name_of(folder: Path) -> str:
    return kernel_container.read(folder).name


def write_hook(marker: Path) -> str:
    """C that makes a file as soon as what it is compiled into is loaded."""
    return (
        "#include <stdio.h>\n__attribute__((constructor)) static void at_load(void) "
        f'{{ FILE* file = fopen("{marker}", "w"); if (file) fclose(file); }}\n'
    )


def resealed(folder: Path, change: Change) -> None:
    """Change a kernel's files, and make the manifest agree with them: a fault that only its numbers show."""
    whole = kernel_container.read(folder)
    files = {name: (folder / name).read_bytes() for name in whole.files}
    change(files)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    left_out = kernel_container.read_manifest(folder)["left_out"]
    result = kernel_container.build_manifest(whole.contract, whole.name, files, whole.workspace, left_out)
    (folder / kernel_container.MANIFEST).write_bytes(result)


def edit(ending: str, pattern: str, replacement: str | Callable[[re.Match[str]], str], count: int = 1) -> Change:
    """A change of the one file of a kernel that ends so, for ``resealed``; a pattern that is not there is an error."""

    def change(files: dict[str, bytes]) -> None:
        (name,) = (n for n in files if n.endswith(ending) and not n.startswith("test_") and not n.endswith("_shared.c"))
        text = files[name].decode()
        result, matches = re.subn(pattern, replacement, text, count=count)
        assert matches, f"nothing in {name} is like {pattern}"
        files[name] = result.encode()

    return change


class Mixed(nn.Module):
    """Variables of every type, a table that is read at an index, and no parameter."""

    def forward(self, x: torch.Tensor, on: torch.Tensor, n: torch.Tensor, single: torch.Tensor) -> Outputs:
        table = torch.arange(12, dtype=torch.float64) ** 2
        y = torch.where(on.unsqueeze(-1), x, -x) + table[n.clamp(0, 11)].unsqueeze(-1)
        return y, y.sum(-1) > 0.5, n * 3 - 1, single.square()

    @staticmethod
    def draw(rows: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(rows)
        x = torch.randn(rows, 3, dtype=torch.float64, generator=generator)
        n = torch.randint(0, 12, (rows,), generator=generator)
        return {"x": x, "on": n % 2 == 0, "n": n, "single": torch.rand(rows, 2, generator=generator)}


class Difference(nn.Module):
    """Of large numbers nothing is left but how they were rounded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.sin(x)) + (x + 1.0) - x


def write_cuda_kernel(archive: Path, folder: Path) -> Path:
    """Write the kernel of an archive with its sources for GPUs, unverified: compilers for those take seconds."""
    folder.mkdir(parents=True)
    for name, data in package_kernel(pt_archive.read(archive), KernelOptions(has_cuda=True)).items():
        (folder / name).write_bytes(data)
    return folder
