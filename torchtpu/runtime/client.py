"""The XLA client of this process: its platform, devices and memory. Started at first use."""

from __future__ import annotations

import os
import threading
import warnings
from typing import Any

from torchtpu import _C, config
from torchtpu.runtime import platform as _platform
from torchtpu.runtime.platform import NoDeviceError

__all__ = ["NoDeviceError", "device", "device_count", "devices", "memory_info", "platform", "started"]

_lock = threading.RLock()
_started: tuple[str, tuple[Any, ...]] | None = None


def _start() -> tuple[str, tuple[Any, ...]]:
    global _started
    _C._check_not_forked()
    if _started is None:
        with _lock:
            if _started is None:
                config.check()
                ours = not _platform.jax_has_started()
                # Before XLA makes its threads, so that a fork from now on is recognised in the child.
                _C._mark_runtime_started()
                name, found = _platform.choose()
                if ours:
                    _silence_fork_warning()
                _started = name, tuple(found)
    return _started


def _silence_fork_warning() -> None:
    """JAX warns at every fork once it runs, and DataLoader workers are forked. They touch no device, and whatever
    does touch one in a child gets our own error. Where the user started JAX, its warning is left alone."""
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)


def started() -> bool:
    """Whether the client exists."""
    return _started is not None


def platform() -> str:
    """"tpu", "cuda" or "cpu". Starts the client; raises NoDeviceError, ValueError or, in a forked child,
    RuntimeError."""
    return _start()[0]


def devices() -> tuple[Any, ...]:
    """The jax.Device of each index. Starts the client; raises as `platform` does."""
    return _start()[1]


def device(index: int) -> Any:
    """The jax.Device of `index`. Raises RuntimeError when there is no such index."""
    found = devices()
    if not 0 <= index < len(found):
        raise RuntimeError(f"Invalid device index {index}: there are {len(found)} tpu devices")
    return found[index]


def device_count() -> int:
    """Number of devices. Raises NoDeviceError, and ValueError for a bad TORCHTPU_* variable.

    Where it can be told without starting XLA (the CPU client), nothing is started: PyTorch's autograd engine asks
    in every process that calls `backward`, also for models that live on the CPU.
    """
    if _started is not None:
        return len(_started[1])
    config.check()
    if _platform.is_surely_cpu() and not _platform.jax_has_started():
        if not _jax_installed():
            raise NoDeviceError("tpu: JAX is not installed. Install it: pip install torchtpu")
        return config.get("TORCHTPU_CPU_DEVICES")
    return len(devices())


def _jax_installed() -> bool:
    from importlib.util import find_spec

    return find_spec("jax") is not None and find_spec("jaxlib") is not None


def memory_info(index: int) -> tuple[int, int]:
    """(free, total) bytes of a device: what XLA reports, or the host's memory for the CPU client.

    TORCHTPU_MEMORY_LIMIT, where set, is the total, and what tensors hold is taken off it.
    """
    target = device(index)
    stats = target.memory_stats() if hasattr(target, "memory_stats") else None
    if stats and stats.get("bytes_limit"):
        total = int(stats["bytes_limit"])
        free = total - int(stats.get("bytes_in_use", 0))
    else:
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES")
        free = page * os.sysconf("SC_AVPHYS_PAGES")
    limit = int(_C._memory_stats(index)["limit"] or 0)
    if limit > 0:
        total = min(total, limit)
        free = min(free, total - int(_C._memory_stats(index)["allocated_bytes.current"]))
    return max(free, 0), total
