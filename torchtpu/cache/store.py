"""Looking a program up and keeping it: in this process, on disk, in a shared directory."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from torchtpu import config
from torchtpu.cache import key as keys
from torchtpu.cache import report
from torchtpu.cache.directory import Directory, UnsafeError
from torchtpu.cache.entry import CheckSpec, DamagedError, Entry, decode, exception_name, exception_type
from torchtpu.lowering.call import Check
from torchtpu.program import stats
from torchtpu.runtime.executable import Executable

if TYPE_CHECKING:
    from torchtpu.cache.archive import Archive


@dataclass
class Program:
    """An executable and what its flags mean. specs: its checks as an entry holds them, None when it cannot."""

    executable: Executable
    checks: list[Check]
    specs: list[CheckSpec] | None
    seconds: float


@dataclass
class _Kept:
    """A program of this process, as long as something can run it."""

    executable: weakref.ref[Executable]
    name: str
    specs: list[CheckSpec]
    seconds: float
    description: Mapping[str, Any]
    environment: Mapping[str, Any]


_lock = threading.Lock()
_warned: set[str] = set()


def warn_once(kind: str, message: str) -> None:
    """One warning of a kind in a process: a cache must not fill the log."""
    with _lock:
        if kind in _warned:
            return
        _warned.add(kind)
    warnings.warn(f"torchtpu's compile cache: {message}", RuntimeWarning, stacklevel=2)


def user_directory() -> Path:
    """The directory on disk: TORCHTPU_CACHE_DIR or the user's cache folder."""
    chosen = config.get("TORCHTPU_CACHE_DIR")
    if chosen is not None:
        return chosen
    import platformdirs

    return Path(platformdirs.user_cache_dir("torchtpu"))


def directories() -> dict[str, Directory]:
    """The directories in the order they are asked: "disk", "shared". Empty with TORCHTPU_CACHE=off."""
    if not config.get("TORCHTPU_CACHE"):
        return {}
    limit, trust = config.get("TORCHTPU_CACHE_SIZE"), config.get("TORCHTPU_CACHE_TRUST")
    found = {"disk": Directory(user_directory(), limit, trust=trust)}
    shared = config.get("TORCHTPU_SHARED_CACHE")
    if shared is not None:
        found["shared"] = Directory(shared, limit, private=False, trust=trust)
    return found


@dataclass
class Store:
    """The tiers of a process. directories: by name, in the order that they are asked. archives: asked after them."""

    directories: dict[str, Directory] = field(default_factory=directories)
    archives: list[Archive] = field(default_factory=list)
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _read_only: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name, directory in list(self.directories.items()):
            try:
                directory.check()
            except FileNotFoundError:
                continue  # made by the first entry that is written
            except OSError as error:
                del self.directories[name]
                remedy = (
                    "Take the right to write from group and others (chmod go-w), name another directory, or set "
                    "TORCHTPU_CACHE_TRUST=1 if everybody who can write there may run code as you"
                    if isinstance(error, UnsafeError)
                    else "Name another directory"
                )
                warn_once(f"refused {name}", f"{directory.root} is not used: {error.strerror or error}. {remedy}.")

    def load(self, key: str, device: jax.Device, where: Callable[[int], Any]) -> tuple[str, Program] | None:
        """The program of a key and the tier that had it. where: the signature of a node, for errors of checks."""
        found = self._from_memory(key, device, where)
        if found is not None:
            return "memory", found
        for name, source in self._sources():
            found = self._from_source(name, source, key, device, where)
            if found is not None:
                return name, found
        return None

    def _sources(self) -> list[tuple[str, Directory | Archive]]:
        return [*self.directories.items(), *(("archive", archive) for archive in self.archives)]

    def _from_memory(self, key: str, device: jax.Device, where: Callable[[int], Any]) -> Program | None:
        kept = self._kept.get(key)
        executable = kept.executable() if kept is not None else None
        if kept is None or executable is None:
            return None
        if executable.device != device:
            if not executable.compiled:
                return None  # the directory has it
            try:
                executable = Executable.deserialize(executable.serialize(), executable.outputs, device)
            except jax.errors.JaxRuntimeError:
                return None
        return Program(executable, _checks(kept.specs, where), kept.specs, kept.seconds)

    def _from_source(
        self, name: str, source: Directory | Archive, key: str, device: jax.Device, where: Callable[[int], Any]
    ) -> Program | None:
        try:
            data = source.read(key)
            if data is None:
                return None
            entry = decode(data, key)
            outputs = [(np.dtype(dtype), shape) for dtype, shape in entry.outputs]
            checks = _checks(entry.checks, where)
            executable = Executable.deserialize(entry.executable, outputs, device)
        except (DamagedError, OSError, TypeError, IndexError, jax.errors.JaxRuntimeError) as error:
            text = f"{source.path(key)} is not used: {error}. `torchtpu cache verify` finds all such entries."
            warn_once(f"unusable {name}", text)
            if isinstance(source, Directory) and not isinstance(error, OSError):
                source.remove(key)
            return None
        if name != "disk":
            self._write("disk", key, data)
        return Program(executable, checks, entry.checks, entry.seconds)

    def keep(
        self, key: str, name: str, program: Program, description: Mapping[str, Any], environment: Mapping[str, Any]
    ) -> _Kept | None:
        """Keeps a program in this process."""
        if program.specs is None:
            return None
        kept = _Kept(weakref.ref(program.executable), name, program.specs, program.seconds, description, environment)
        with _lock:
            self._kept[key] = kept
        return kept

    def save(self, key: str, executable: Executable, kept: _Kept) -> None:
        """Writes a program that was just compiled to every directory that takes it."""
        names = [name for name in self.directories if name not in self._read_only]
        data = _entry(key, kept, executable) if names else None
        for name in names if data is not None else ():
            self._write(name, key, data)

    def _write(self, name: str, key: str, data: bytes | None) -> None:
        directory = self.directories.get(name)
        if directory is None or name in self._read_only or data is None:
            return
        try:
            directory.write(key, data)
        except OSError as error:
            self._read_only.add(name)  # what it has can still be read
            if name == "disk":
                warn_once(
                    "write",
                    f"nothing can be written to {directory.root}: {error.strerror or error}. New programs are kept in this process "
                    "only. Free some space, name another directory in TORCHTPU_CACHE_DIR, or set TORCHTPU_CACHE=off.",
                )

    def keys(self) -> list[str]:
        """Keys of the programs that this process has compiled or loaded."""
        with _lock:
            return list(self._kept)

    def entries(self) -> Iterator[tuple[str, bytes]]:
        """The key and bytes of each program that this process compiled or loaded and can still run."""
        with _lock:
            items = list(self._kept.items())
        for key, kept in items:
            executable = kept.executable()
            if executable is None:
                continue
            data = _entry(key, kept, executable) if executable.compiled else self._bytes(key)
            if data is not None:
                yield key, data

    def _bytes(self, key: str) -> bytes | None:
        """A whole entry from wherever it still is."""
        for _, source in self._sources():
            with contextlib.suppress(OSError, DamagedError):
                data = source.read(key)
                if data is not None:
                    decode(data, key)
                    return data
        return None

    def exclusively(self, key: str) -> ExitStack:
        """A `with` block that one process on this host runs at a time for a key, where there is a directory on disk."""
        stack = ExitStack()
        if "disk" in self.directories and "disk" not in self._read_only:
            stack.enter_context(self.directories["disk"].lock(key, config.get("TORCHTPU_CACHE_WAIT")))
        return stack


def _entry(key: str, kept: _Kept, executable: Executable) -> bytes | None:
    try:
        data = executable.serialize()
    except jax.errors.JaxRuntimeError as error:
        warn_once("serialize", f"this platform's programs cannot be kept on disk: {error}")
        return None
    outputs = [(dtype.name, shape) for dtype, shape in executable.outputs]
    return Entry(
        key, kept.name, len(kept.description["nodes"]), kept.seconds, outputs, kept.specs, kept.environment,
        keys.dump(kept.description), data,
    ).encode()


def _checks(specs: list[CheckSpec], where: Callable[[int], Any]) -> list[Check]:
    return [Check(None, None, exception_type(s.exception), s.message, where(s.node)) for s in specs]  # type: ignore[arg-type]


def check_specs(checks: list[Check], node_of: Callable[[Any], int]) -> list[CheckSpec] | None:
    """The checks as an entry holds them, or None when one of them raises an exception that is not PyTorch's."""
    specs = []
    for check in checks:
        name = exception_name(check.exception)
        if name is None:
            return None
        specs.append(CheckSpec(name, check.message, node_of(check.where)))
    return specs


_store: Store | None = None


def store() -> Store:
    """The process's store, made by the settings when it is first asked for."""
    global _store
    if _store is None:
        made = Store()
        with _lock:
            _store = _store or made
    return _store


def reset() -> None:
    """Forgets the programs of this process and reads the settings anew; for tests and after a change of settings."""
    global _store
    with _lock:
        _store = None
        _warned.clear()


def find_or_make(
    function: Any,
    donated: tuple[int, ...],
    options: Mapping[str, Any],
    device: jax.Device,
    make: Callable[[], tuple[Executable, list[Check]]],
    location: str = "",
    forbidden: bool = False,
) -> Program:
    """The program of a window: from a tier, or from `make`, which compiles it.

    function: a WindowFunction. donated: the inputs whose memory is taken over. options: XLA's compiler options.
    location: the line of the user's code that asked. forbidden: raise CompileForbiddenError instead of compiling.
    Raises what `make` raises.
    """
    name = function.__name__
    nodes = function.nodes
    try:
        description = keys.window(function, donated)
    except keys.NotCacheableError as error:
        if forbidden:
            raise report.forbidden(name, location, None, None, str(error)) from None
        executable, checks, seconds = _timed(make)
        report.note(name, len(nodes), location, seconds, None, None, str(error))
        return Program(executable, checks, None, seconds)
    environment = keys.environment(device, options)
    key = keys.digest(description, environment)
    tiers = store()

    def where(node: int) -> Any:
        return nodes[node][0]

    def look() -> Program | None:
        found = tiers.load(key, device, where)
        if found is None:
            return None
        stats.note_load(found[0])
        report.note_known(description, environment)
        tiers.keep(key, name, found[1], description, environment)
        return found[1]

    found = look()
    if found is not None:
        return found
    if forbidden:
        raise report.forbidden(name, location, key, description, "", environment)
    with tiers.exclusively(key):
        found = look()  # whoever held the lock has made it
        if found is not None:
            return found
        executable, checks, seconds = _timed(make)
        index = {id(node[0]): i for i, node in reversed(list(enumerate(nodes)))}
        program = Program(executable, checks, check_specs(checks, lambda signature: index[id(signature)]), seconds)
        kept = tiers.keep(key, name, program, description, environment)
        if kept is not None:
            tiers.save(key, executable, kept)
    report.note(name, len(nodes), location, seconds, key, description, "", environment)
    return program


def _timed(make: Callable[[], tuple[Executable, list[Check]]]) -> tuple[Executable, list[Check], float]:
    start = time.perf_counter()
    executable, checks = make()
    seconds = time.perf_counter() - start
    stats.note_compile(seconds)
    return executable, checks, seconds
