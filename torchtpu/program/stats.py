"""What the process has compiled and run."""

from __future__ import annotations

import threading
import warnings
from typing import Any

_lock = threading.Lock()
_compiles = 0
_seconds = 0.0
_fallbacks: dict[str, int] = {}
_loads: dict[str, int] = {}


def note_compile(seconds: float) -> None:
    """Counts one XLA compile of `seconds` (tracing and lowering included)."""
    global _compiles, _seconds
    with _lock:
        _compiles += 1
        _seconds += seconds


def note_load(tier: str) -> None:
    """Counts a program that the compile cache had: in "memory", on "disk" or in the "shared" directory."""
    with _lock:
        _loads[tier] = _loads.get(tier, 0) + 1


def loads() -> dict[str, int]:
    """How many programs each tier of the compile cache had."""
    with _lock:
        return dict(_loads)


def programs() -> int:
    """Number of programs that were compiled or found in the compile cache."""
    with _lock:
        return _compiles + sum(_loads.values())


def note_fallback(name: str) -> None:
    """Counts an operator that ran on the CPU; warns once by name, or raises when TORCHTPU_FALLBACK=error."""
    from torchtpu import config

    policy = config.get("TORCHTPU_FALLBACK")
    if policy == "error":
        raise NotImplementedError(
            f"{name} has no lowering to XLA and TORCHTPU_FALLBACK=error forbids running it on the CPU. "
            "Unset TORCHTPU_FALLBACK to allow it."
        )
    with _lock:
        _fallbacks[name] = _fallbacks.get(name, 0) + 1
        first = _fallbacks[name] == 1
    if first and policy == "warn":
        warnings.warn(
            f"{name} has no lowering to XLA yet and runs on the CPU, which copies its tensors there and back. "
            "torchtpu.fallbacks() counts such operators; TORCHTPU_FALLBACK=error forbids them, =silent hides this.",
            stacklevel=2,
        )


def compile_count() -> int:
    """Number of XLA compiles in this process so far."""
    return _compiles


def fallbacks() -> dict[str, int]:
    """Operators that ran on the CPU, with how often."""
    with _lock:
        return dict(_fallbacks)


def stats() -> dict[str, Any]:
    """Counters since the start or the last `reset_stats()`.

    compiles, compile_seconds: XLA compiles and the seconds they took, tracing and lowering included.
    loads: programs that were not compiled because the compile cache had them.
    cache_hits: windows whose program was already there. windows: windows run. programs_run: executables launched.
    operations: operations recorded. signatures: distinct operations seen. fallbacks: operators run on the CPU.
    """
    from torchtpu import _C

    counters = _C._counters()
    return {
        "compiles": _compiles,
        "compile_seconds": _seconds,
        "loads": sum(loads().values()),
        "cache_hits": counters["hits"],
        "windows": counters["windows"],
        "programs_run": counters["programs_run"],
        "operations": counters["operations"],
        "signatures": counters["signatures"],
        "run_by_parts": counters["launches_by_parts"],
        "fallbacks": sum(fallbacks().values()),
    }


def reset_stats() -> None:
    """Sets all counters, compile_count() included, to zero; compiled programs stay."""
    global _compiles, _seconds
    from torchtpu import _C
    from torchtpu.cache import report

    with _lock:
        _compiles, _seconds = 0, 0.0
        _fallbacks.clear()
        _loads.clear()
    report.clear()
    _C._reset_counters()
