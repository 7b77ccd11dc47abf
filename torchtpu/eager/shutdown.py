"""The end of the process: nothing of ours may still need the interpreter.

PyTorch's autograd threads drop the last graph, and with it Python objects, just after `backward()` has returned. A
thread that asks for the GIL while the interpreter ends is killed by it in a way that aborts the process (Python before
3.14; any device with autograd threads of its own has this race). So the exit waits until those threads are idle.
"""

from __future__ import annotations

import atexit
import time
from pathlib import Path

_TASKS = Path("/proc/self/task")
_LIMIT = 1.0  # seconds; an autograd thread that is still at work then is stuck
_CHECKS = 3  # times in a row that the threads must be seen asleep


def _autograd_threads() -> list[str]:
    """States ("S" asleep, "R" running) of autograd's threads, as Linux tells them."""
    states = []
    for task in _TASKS.iterdir():
        try:
            name, rest = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue  # the thread has ended
        if name.startswith("pt_autograd"):
            states.append(rest.split()[0])
    return states


def _wait_for_autograd() -> None:
    if not _TASKS.exists():
        return
    end, asleep = time.monotonic() + _LIMIT, 0
    while asleep < _CHECKS and time.monotonic() < end:
        states = _autograd_threads()
        if not states:
            return
        asleep = asleep + 1 if all(state == "S" for state in states) else 0
        time.sleep(0.002)  # lets the GIL go, which is what such a thread may be waiting for


def register() -> None:
    """Waits for autograd's threads at the end of the process."""
    atexit.register(_wait_for_autograd)
