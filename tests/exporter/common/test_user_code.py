"""Lines of the user's code, in tracebacks of Python and in stacks of TorchScript."""

from __future__ import annotations

import pytest
import torch

from exporter.common.torch_hooks import ignore_deprecations
from exporter.common.user_code import user_traceback_location


class Scripted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] != 5:
            raise ValueError("as planted")
        return x


class Traced(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(5, 3)


def fail(module: object) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        module(torch.ones(4, 3))  # type: ignore[operator]
    return caught.value


def test_the_line_of_compiled_and_of_traced_code():
    with ignore_deprecations():
        scripted, traced = torch.jit.script(Scripted()), torch.jit.trace(Traced(), torch.ones(5, 3))
    code = Scripted.forward.__code__
    assert user_traceback_location(fail(scripted)) == f"{__file__}:{code.co_firstlineno + 2}"
    assert user_traceback_location(fail(traced)) == f"{__file__}:{Traced.forward.__code__.co_firstlineno + 1}"


def test_code_without_a_file_is_named_by_its_caller():
    unit = torch.jit.CompilationUnit("def f(x: Tensor) -> Tensor:\n  assert 1 > 2\n  return x\n")
    error = fail(unit.f)
    assert user_traceback_location(error) == f"{__file__}:{fail.__code__.co_firstlineno + 2}"
