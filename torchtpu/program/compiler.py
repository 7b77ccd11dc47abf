"""From a JAX function to an executable, at once or in the background."""

from __future__ import annotations

import concurrent.futures
import threading
import warnings
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from torchtpu.cache.report import compiles_forbidden
from torchtpu.cache.store import find_or_make
from torchtpu.eager.errors import user_line
from torchtpu.program.builder import WindowFunction
from torchtpu.runtime import client
from torchtpu.runtime.executable import Executable

# Half types are rounded after every operation, as PyTorch does, whatever XLA fuses.
_OPTIONS: dict[str, str | bool] = {"xla_allow_excess_precision": False}

_pool: concurrent.futures.ThreadPoolExecutor | None = None
_pending: set[concurrent.futures.Future] = set()
_lock = threading.Lock()
_warned = False


class Program:
    """A compiled window. The native core reads `call` (None until it is ready), `has_checks` and `failed`."""

    def __init__(self, function: WindowFunction, donated: tuple[bool, ...], device_index: int, location: str = ""):
        self.function: WindowFunction | None = function
        self.donated = donated
        self.device_index = device_index
        self.location = location  # the line of the user's code that asked for it
        self.forbidden = False  # an error when it has to be compiled
        self.call: Any = None
        self.has_checks = False
        self.failed = False
        self.checks: list[Any] = []
        self.operations = len(function.nodes)
        self.seconds = 0.0
        self.executable: Executable | None = None

    def compile(self) -> None:
        """Finds the program in the compile cache, or traces, lowers and compiles; raises what JAX raises."""
        function = self.function
        assert function is not None
        device = client.device(self.device_index)
        donations = function.donations(self.donated)

        def make() -> tuple[Executable, list[Any]]:
            here = SingleDeviceSharding(device)
            with jax.enable_x64(True):
                # Said of the results too: a program without inputs would run on JAX's first device.
                jitted = jax.jit(function, donate_argnums=donations, keep_unused=True, out_shardings=here)
                lowered = jitted.lower(*function.arguments(here))
                compiled = lowered.compile(compiler_options=_OPTIONS)
            return Executable.of(compiled, device), function.checks

        found = find_or_make(function, donations, _OPTIONS, device, make, self.location, self.forbidden)
        self.executable, self.checks, self.seconds = found.executable, found.checks, found.seconds
        self.has_checks = bool(self.checks)
        self.function = None
        self.call = found.executable.call  # last: the core may look at any time


def build(window: dict[str, Any], wait: bool) -> Program:
    """The program of a window: compiled when `wait`, else handed to the background."""
    program = Program(WindowFunction(window), window["donated"], window["device"], user_line())
    program.forbidden = compiles_forbidden()
    if wait or program.forbidden:  # the error is the caller's, not a warning in the background
        program.compile()
    else:
        _submit(program)
    return program


def _submit(program: Program) -> None:
    global _pool
    with _lock:
        if _pool is None:
            _pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="torchtpu-compile")
        future = _pool.submit(_compile_in_background, program)
        _pending.add(future)
    future.add_done_callback(_pending.discard)


def _compile_in_background(program: Program) -> None:
    global _warned
    if not threading.main_thread().is_alive():
        return  # the process is ending
    try:
        program.compile()
    except Exception as error:
        program.failed = True
        if not _warned:
            _warned = True
            warnings.warn(
                f"a window of {program.operations} operations could not be compiled as a whole and runs operation by "
                f"operation: {type(error).__name__}: {error}",
                stacklevel=1,
            )


def wait_for_compiles() -> None:
    """Returns when no compile is under way in the background."""
    while True:
        with _lock:
            waiting = list(_pending)
        if not waiting:
            return
        concurrent.futures.wait(waiting)
