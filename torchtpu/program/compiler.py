"""From a JAX function to an executable, at once or in the background."""

from __future__ import annotations

import concurrent.futures
import math
import threading
import warnings
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from torchtpu.cache.key import processors
from torchtpu.cache.report import compiles_forbidden
from torchtpu.cache.store import find_or_make
from torchtpu.eager.errors import user_line
from torchtpu.program.builder import WindowFunction
from torchtpu.runtime import client
from torchtpu.runtime.executable import Executable

# Half types are rounded after every operation, as PyTorch does, whatever XLA fuses.
_OPTIONS: dict[str, Any] = {"xla_allow_excess_precision": False}
# On XLA's CPU client, for operations on little data: compiled in a third of the time, and the launch is what costs.
_QUICK_OPTIONS: dict[str, Any] = {
    **_OPTIONS, "xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False,
}  # fmt: skip
_QUICK_ELEMENTS = 4096  # of all operands and results
_QUICK_PART_ELEMENTS = 1 << 20  # the same for a part of a window, which a whole program soon replaces

_pools: dict[str, concurrent.futures.ThreadPoolExecutor] = {}
_pending: set[concurrent.futures.Future] = set()
_lock = threading.Lock()
_warned = False


class Program:
    """A compiled window. The native core reads `call` (None until it is ready), `has_checks`, `failed` and `quick`."""

    def __init__(
        self, function: WindowFunction, donated: tuple[bool, ...], device_index: int, location: str = "", part: bool = False
    ):
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
        self.quick = self.operations == 1 and client.device(device_index).platform == "cpu" and _elements(function) <= (
            _QUICK_PART_ELEMENTS if part else _QUICK_ELEMENTS
        )  # fmt: skip

    def compile(self) -> None:
        """Finds the program in the compile cache, or traces, lowers and compiles; raises what JAX raises."""
        function = self.function
        assert function is not None
        device = client.device(self.device_index)
        donations = function.donations(self.donated)
        options = _QUICK_OPTIONS if self.quick else _OPTIONS

        def make() -> tuple[Executable, list[Any]]:
            here = SingleDeviceSharding(device)
            with jax.enable_x64(True):
                # Said of the results too: a program without inputs would run on JAX's first device.
                jitted = jax.jit(function, donate_argnums=donations, keep_unused=True, out_shardings=here)
                lowered = jitted.lower(*function.arguments(here))
                compiled = lowered.compile(compiler_options=options)
            return Executable.of(compiled, device), function.checks

        found = find_or_make(function, donations, options, device, make, self.location, self.forbidden)
        self.executable, self.checks, self.seconds = found.executable, found.checks, found.seconds
        self.has_checks = bool(self.checks)
        if not self.quick:
            self.function = None
        self.call = found.executable.call  # last: the core may look at any time


def _elements(function: WindowFunction) -> int:
    return sum(math.prod(shape) for _, shape in (*function.externals, *function.outputs()))


def build(window: dict[str, Any], wait: bool) -> Program:
    """The program of a window: compiled when `wait`, else handed to the background.

    Raises what JAX raises for a window of one operation; a larger one that cannot be compiled is marked as failed.
    """
    program = Program(WindowFunction(window), window["donated"], window["device"], user_line())
    program.forbidden = compiles_forbidden()
    if program.operations == 1 or program.forbidden:  # the error is the caller's, not a warning in the background
        program.compile()
    elif wait:
        _compile_whole(program)
    else:
        _submit(program)
    return program


def build_parts(windows: list[dict[str, Any]]) -> list[Program | None]:
    """Programs of one operation each, compiled side by side. None for one that cannot be: running it says why."""
    location = user_line()
    programs = [Program(WindowFunction(w), w["donated"], w["device"], location, part=True) for w in windows]
    if compiles_forbidden() or len(programs) < 2 or not threading.main_thread().is_alive():
        return [None] * len(programs)  # each is compiled when it runs
    pool = _pool("torchtpu-parts", min(4, processors()))
    futures = [pool.submit(program.compile) for program in programs]
    concurrent.futures.wait(futures)
    return [program if future.exception() is None else None for program, future in zip(programs, futures, strict=True)]


def improve(program: Program) -> None:
    """Compiles a quickly compiled program again in the background, at XLA's full effort, since it runs often."""
    if program.quick and program.function is not None and not compiles_forbidden():
        program.quick = False
        _submit(program)


def _pool(name: str, workers: int) -> concurrent.futures.ThreadPoolExecutor:
    with _lock:
        if name not in _pools:
            _pools[name] = concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix=name)
        return _pools[name]


def _submit(program: Program) -> None:
    future = _pool("torchtpu-compile", 1).submit(_compile_in_background, program)
    with _lock:
        _pending.add(future)
    future.add_done_callback(_pending.discard)


def _compile_in_background(program: Program) -> None:
    if threading.main_thread().is_alive():  # else the process is ending
        _compile_whole(program)


def _compile_whole(program: Program) -> None:
    global _warned
    try:
        program.compile()
    except Exception as error:
        if program.call is not None:
            return  # what there was before still serves
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
