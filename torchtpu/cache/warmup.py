"""Compiling before it matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_RUNS = 5  # of a function whose programs never settle


def warmup(fn: Callable[..., Any], *example_inputs: Any) -> int:
    """Runs `fn(*example_inputs)` in the present mode until it needs no program that it did not need before.

    Returns how many programs were compiled or loaded. In Fused it waits for what compiles in the background. The
    random state is put back; whatever else `fn` changes stays changed, so give it a model's forward pass and loss, or
    a training step on a copy. Sizes other than the examples' need a call of their own.
    """
    import torch

    from torchtpu import device
    from torchtpu.program.compiler import wait_for_compiles
    from torchtpu.program.stats import programs

    def settle() -> None:
        device.synchronize()
        wait_for_compiles()

    settle()
    before = programs()
    with device.fork_rng(), torch.random.fork_rng(devices=[]):
        last = -1
        for _ in range(_RUNS):
            fn(*example_inputs)
            settle()
            # Fused compiles a whole window when it sees it again, so one quiet run is not enough.
            if programs() == last:
                break
            last = programs()
    return programs() - before
