"""Errors that say which operation, which operands and, in Debug, which line of the user's code."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _foreign() -> tuple[str, ...]:
    roots = [_HERE + os.sep]
    for name in ("torch", "jax", "jaxlib"):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "__file__", None):
            roots.append(os.path.dirname(str(module.__file__)) + os.sep)
    return tuple(roots)


def user_line() -> str:
    """ "file:line in function" of the innermost frame that is not PyTorch's, JAX's or ours; "" when there is none."""
    foreign = _foreign()
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(foreign) and not path.startswith("<frozen"):
            return f"{path}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


def _note(error: BaseException, signature: Any) -> None:
    from torchtpu.eager import modes

    error.add_note(f"in {signature.text()}")
    if modes.get_eager_mode() == "debug":
        line = user_line()
        error.add_note(f"called at {line}" if line else "called from autograd; torch.autograd.set_detect_anomaly(True) shows the forward line")
    else:
        error.add_note("run with torchtpu.set_eager_mode('debug') to see the line of your code")


def explain_failure(error: BaseException | None, signature: Any) -> BaseException:
    """The error of a failed operation, with the operation's details; XLA's out-of-memory becomes PyTorch's.

    Where the CPU refuses the same call, its error is given instead of the lowering's."""
    import torch

    if error is None:
        error = RuntimeError("the operation failed")
    text = str(error)
    if "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower():
        better: BaseException = torch.OutOfMemoryError(f"tpu out of memory in {signature.text()}: {text}")
        better.__cause__ = error
        error = better
    else:
        from torchtpu.lowering.validate import cpu_error

        refusal = cpu_error(signature)
        if refusal is not None:  # the call itself was wrong
            refusal.__cause__ = error
            error = refusal
    _note(error, signature)
    return error


def explain_call(kind: str, text: str, told: dict[str, Any]) -> BaseException:
    """PyTorch's own error for a call that it refused, with the operands and the user's line (Debug)."""
    import builtins

    import torch

    from torchtpu.program.signature import Signature

    named = {"OutOfMemoryError": torch.OutOfMemoryError, "LinAlgError": torch.linalg.LinAlgError}
    error: BaseException = named.get(kind, getattr(builtins, kind, RuntimeError))(text)
    _note(error, Signature(told))
    return error


def verify(flags: list[tuple[Any, Any]]) -> None:
    """Raises the error of the first run-time check that failed. `flags` pairs each program's flags with the program."""
    for array, program in flags:
        code, value = (int(x) for x in np.asarray(array))
        if code:
            check = program.checks[code - 1]
            error = check.exception(check.message.format(value=value))
            _note(error, check.where)
            raise error


def nan_check(results: Any, signature: Any) -> None:
    """Raises when a floating result holds a NaN (TORCHTPU_NAN_CHECK=1, Debug)."""
    for array in results:
        host = np.asarray(array)
        if host.dtype.kind in "fcV" and bool(np.isnan(host.astype(np.complex128 if host.dtype.kind == "c" else np.float32)).any()):
            error = RuntimeError("the result holds NaN")
            _note(error, signature)
            raise error
