"""TorchTPU: a PyTorch device called `tpu` that runs on XLA.

`import torch` is enough to use the device. Importing this package gives control over it:
the eager modes, and what has been compiled and run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Name → module that has it. Resolved at first use: the entry point imports this package while torch is still loading.
_WHERE = {
    "set_eager_mode": "torchtpu.eager.modes",
    "get_eager_mode": "torchtpu.eager.modes",
    "eager_mode": "torchtpu.eager.modes",
    "compile_count": "torchtpu.program.stats",
    "stats": "torchtpu.program.stats",
    "reset_stats": "torchtpu.program.stats",
    "fallbacks": "torchtpu.program.stats",
    "explain": "torchtpu.program.explain",
    "wait_for_compiles": "torchtpu.program.compiler",
    "warmup": "torchtpu.cache.warmup",
    "save_cache": "torchtpu.cache.archive",
    "load_cache": "torchtpu.cache.archive",
    "compile_report": "torchtpu.cache.report",
    "forbid_compiles": "torchtpu.cache.report",
    "CompileForbiddenError": "torchtpu.cache.report",
    "synchronize": "torchtpu.device",
}

__all__ = [
    "CompileForbiddenError",
    "__version__",
    "compile_count",
    "compile_report",
    "eager_mode",
    "explain",
    "fallbacks",
    "forbid_compiles",
    "get_eager_mode",
    "load_cache",
    "reset_stats",
    "save_cache",
    "set_eager_mode",
    "stats",
    "synchronize",
    "wait_for_compiles",
    "warmup",
]

if TYPE_CHECKING:
    from torchtpu.cache.archive import load_cache, save_cache
    from torchtpu.cache.report import CompileForbiddenError, compile_report, forbid_compiles
    from torchtpu.cache.warmup import warmup
    from torchtpu.device import synchronize
    from torchtpu.eager.modes import eager_mode, get_eager_mode, set_eager_mode
    from torchtpu.program.compiler import wait_for_compiles
    from torchtpu.program.explain import explain
    from torchtpu.program.stats import compile_count, fallbacks, reset_stats, stats


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'torchtpu' has no attribute {name!r}")
    value = getattr(importlib.import_module(where), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])


def _loading_torch() -> bool:
    """Whether `import torch` is under way: then its entry point registers the device, and reports problems."""
    import sys

    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(spec and getattr(spec, "_initializing", False))


def _is_command() -> bool:
    """Whether this is the command line tool, which tells itself what is in the way."""
    import sys

    name = sys.argv[0].rpartition("/")[2] if sys.argv else ""
    return name == "torchtpu" or (name == "-m" and "torchtpu" in sys.orig_argv)


if not _loading_torch() and not _is_command():
    import torch  # noqa: F401  (loads the native core's libraries; runs the entry point)

    from torchtpu._autoload import register

    register()
