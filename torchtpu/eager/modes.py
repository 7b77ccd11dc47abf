"""The three eager modes: policies for where a window ends and who waits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_NAMES = ("debug", "strict", "fused")
_hook: Any = None


def _number(mode: str) -> int:
    if mode not in _NAMES:
        raise ValueError(f"unknown eager mode {mode!r}: expected 'debug', 'strict' or 'fused'")
    return _NAMES.index(mode)


def get_eager_mode() -> str:
    """The mode of this process: "debug", "strict" or "fused"."""
    from torchtpu import _C

    return _NAMES[_C._mode()]


def set_eager_mode(mode: str) -> None:
    """Sets the mode of this process. What was recorded before runs under the old one. Raises ValueError."""
    from torchtpu import _C

    number = _number(mode)
    _C._set_mode(number)
    if mode == "fused":
        _watch_optimizers()


@contextlib.contextmanager
def eager_mode(mode: str) -> Iterator[None]:
    """The mode for a `with` block."""
    before = get_eager_mode()
    set_eager_mode(mode)
    try:
        yield
    finally:
        set_eager_mode(before)


def _watch_optimizers() -> None:
    """Ends windows with `optimizer.step()`, through PyTorch's own global hook: a training loop finds its period."""
    global _hook
    if _hook is None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        _hook = register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    from torchtpu import _C

    if _C._mode() == _NAMES.index("fused"):
        _C._cut_lane("optimizer step")
