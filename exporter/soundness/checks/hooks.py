"""Check of hooks of the backward pass.

In a model that takes gradients itself, the value that a hook computes is captured; what it appends to a list, keeps in
a dict, counts or prints is not. In any other, a hook that changes gradients changes nothing of the file's outputs, and
none of the gradients that are taken through the file: the contract says so."""

from __future__ import annotations

import functools
import io
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from exporter.archive.contract import Finding
from exporter.common.errors import UnsoundError
from exporter.common.torch_hooks import Entry, patch_autograd_engine
from exporter.model.eager.gradient_hooks import GradientHook, find_gradient_hooks, has_hooks
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import EagerContext, make_refusal, run_eager
from exporter.soundness.checks.hidden_state import is_state_changed
from exporter.soundness.footprint import Footprint, runs_user_code
from exporter.soundness.line_tracing import trace_user_lines

CHECK = "hook"
_MEND = "let the hook return a gradient and nothing else; return what it keeps from the function"
# Calls of hooks that are watched.
MAX_CALLS = 30


def check(context: EagerContext) -> list[Finding]:
    """Check that hooks of the backward pass have no side effects, or note that they change gradients."""
    if context.source.uses_autograd:
        return context.room(_check, context.inputs, context.other_inputs)
    what, reason = "changes gradients; those through the file are without it", "outputs do not depend on it"
    hooks = context.room(find_gradient_hooks, context.inputs)
    return [Finding(CHECK, f"{h.what} {what}", h.where, reason, evidence=h.evidence) for h in hooks]


def has_something(source: Source, inputs: Inputs) -> bool:
    """Return whether a call has hooks to look at."""
    return source.uses_autograd or has_hooks(source, inputs)


def require_plain_gradients(source: Source, hooks: Sequence[GradientHook]) -> None:
    """Raise ``UnsoundError`` for hooks that change gradients of a model whose derivatives are asked for."""
    if not hooks:
        return
    hook, *others = hooks
    raise UnsoundError(
        f"derivatives of model {source.name!r} are not those of its operations: {hook.what} changes them",
        check=CHECK,
        where=hook.where,
        got=hook.evidence + "".join(f"; also {other.what} at {other.where}" for other in others[:3]),
        expected="derivatives of the operations of the forward pass",
        mend="remove the hook; or take the gradient in the function itself, where hooks are captured",
    )


def _check(source: Source, inputs: Inputs, other_inputs: Inputs) -> list[Finding]:
    with Footprint() as footprint:
        # Twice: state that the first call creates exists before the call that is watched.
        for _ in range(2):
            run_eager(source, inputs)
    read_fingerprints = functools.partial(footprint.read_fingerprints, source.parameter_module)
    # Closures that belong to one call are gone afterwards.
    read_fingerprints()
    watch = _Watch(read_fingerprints)
    # At other inputs: a stored gradient changes then.
    with patch_autograd_engine(watch.wrap_entry), trace_user_lines(watch.trace_event):
        run_eager(source, other_inputs)
    return watch.findings


class _Watch:
    """A comparison of the state before and after each call that torch's engine makes into the user's code."""

    def __init__(self, state: Callable[[], dict[str, str]]) -> None:
        self.findings: list[Finding] = []
        self._read_state = state
        self._in_engine = False
        self._hook: types.FrameType | None = None
        self._state_before: dict[str, str] = {}
        self._printed, self._stdout = io.StringIO(), sys.stdout
        self._calls = 0

    def wrap_entry(self, original: Entry) -> Entry:
        """Wrap an entry of torch's engine."""

        def run(*args: Any, **kwargs: Any) -> Any:
            outer, self._in_engine = self._in_engine, True
            try:
                return original(*args, **kwargs)
            finally:
                self._in_engine = outer

        return run

    def trace_event(self, frame: types.FrameType, event_type: str, arg: Any) -> Any:
        """Watch the outermost frame of each hook, for ``sys.settrace``."""
        if not self._in_engine or self._hook not in (None, frame) or not runs_user_code(frame):
            return None
        if self._hook is None and event_type == "call" and self._calls < MAX_CALLS:
            self._hook, self._state_before = frame, self._read_state()
            self._calls += 1
            self._printed, self._stdout = io.StringIO(), sys.stdout
            sys.stdout = self._printed
        elif self._hook is frame and event_type == "return":
            sys.stdout, self._hook = self._stdout, None
            self._report_changes(frame)
        return self.trace_event

    def _report_changes(self, frame: types.FrameType) -> None:
        after = self._read_state()
        changed = [label for label, text in after.items() if is_state_changed(self._state_before, {label: text})]
        printed = self._printed.getvalue().strip()
        code = frame.f_code
        effects = [f"it changes {', '.join(changed[:3])}"] * bool(changed)
        effects += [f"it prints {printed[:60]!r}"] * bool(printed)
        if effects:
            what = f"hook {code.co_name!r} of the backward pass does more than give a gradient"
            where = f"{code.co_filename}:{code.co_firstlineno}"
            self.findings.append(make_refusal(CHECK, what, where, "; ".join(effects), _MEND))
