"""torch.tpu: devices, streams, events, memory and random state, in the shape of torch.cuda.

Streams are names only. XLA runs the work of a device in an order that respects its data dependences, so work under
any stream sees what earlier work wrote; `wait_stream` and `wait_event` have nothing left to do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch

from torchtpu import _C
from torchtpu.runtime.platform import NoDeviceError

_Device: TypeAlias = "torch.device | str | int | None"
_NAME = "tpu"


def _index(device: Any = None) -> int:
    """The index that `device` means (None, "tpu" and -1: the current one). Raises ValueError for another type."""
    if device is None:
        return _C._current_device()
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != _NAME:
            raise ValueError(f"Expected a tpu device, but got: {device}")
        device = device.index if device.index is not None else -1
    index = int(device)
    return _C._current_device() if index < 0 else index


def _checked_index(device: Any = None) -> int:
    """As `_index`. Raises RuntimeError when there is no such device."""
    index = _index(device)
    count = _C._device_count()
    if index >= count:
        verb, plural = ("is", "") if count == 1 else ("are", "s")
        raise RuntimeError(f"Invalid device index {index}: there {verb} {count} tpu device{plural}")
    return index


# Devices


def device_count() -> int:
    """Number of devices; 0 when XLA has none (making a tensor then says what to install)."""
    try:
        return _C._device_count()
    except NoDeviceError:
        return 0


def is_available() -> bool:
    """Whether there is a device. Starts XLA only where that cannot be told otherwise."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether XLA runs in this process."""
    return _C._runtime_started() and not _is_in_bad_fork()


def __getattr__(name: str) -> Any:
    # torch.utils.checkpoint reads this flag to know whether there is random state to keep.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module 'torch.tpu' has no attribute {name!r}")


def _is_in_bad_fork() -> bool:
    return _C._is_forked()


def init() -> None:
    """Starts XLA; needed only to do so at a time of one's own choosing. Raises RuntimeError when it has no device."""
    _lazy_init()


def _lazy_init() -> None:
    _C._check_not_forked()
    from torchtpu.runtime import client

    client.devices()


def current_device() -> int:
    """Index of the calling thread's current device."""
    return _C._current_device()


def set_device(device: _Device) -> None:
    """Makes `device` current in this thread; a negative index does nothing. Raises RuntimeError."""
    if isinstance(device, int) and device < 0:
        return
    _C._set_device(_index(device))


def _exchange_device(index: int) -> int:
    return _C._exchange_device(index)


def _maybe_exchange_device(index: int) -> int:
    return _C._exchange_device(index)


class device:
    """Context manager that makes a device current; a negative index or None does nothing."""

    def __init__(self, device: Any):
        is_none = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if is_none else _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _C._exchange_device(self.idx)

    def __exit__(self, *exc_info: Any) -> None:
        _C._restore_device(self.prev_idx)


class device_of(device):
    """Context manager that makes the device of a tensor or storage current; others do nothing."""

    def __init__(self, obj: Any):
        super().__init__(obj.device if obj.device.type == _NAME else -1)


@dataclasses.dataclass(frozen=True)
class _Properties:
    name: str
    platform: str
    index: int
    total_memory: int
    process_index: int


def get_device_name(device: _Device = None) -> str:
    """What XLA calls the device ("TPU v4", "NVIDIA H200", "cpu"). Raises RuntimeError."""
    from torchtpu.runtime import client

    return str(client.device(_checked_index(device)).device_kind)


def get_device_properties(device: _Device = None) -> _Properties:
    """Name, platform, index, total_memory in bytes and process_index of a device. Raises RuntimeError."""
    from torchtpu.runtime import client

    index = _checked_index(device)
    target = client.device(index)
    total = client.memory_info(index)[1]
    return _Properties(str(target.device_kind), client.platform(), index, total, int(target.process_index))


def get_device_capability(device: _Device = None) -> tuple[int, int]:
    """(major, minor) of an NVIDIA GPU; (0, 0) on platforms that have no such thing. Raises RuntimeError."""
    from torchtpu.runtime import client

    target = client.device(_checked_index(device))
    major, _, minor = str(getattr(target, "compute_capability", "0.0")).partition(".")
    return int(major), int(minor or 0)


def synchronize(device: _Device = None) -> None:
    """Waits until everything recorded on a device has run. Raises the errors of operations that failed meanwhile."""
    _C._check_not_forked()
    if _C._runtime_started():
        _C._synchronize(_checked_index(device))


# Streams and events


class _OfTpu(type):
    """Makes `isinstance(x, torch.tpu.Stream)` true for what PyTorch's own class makes for a tpu device."""

    of: type

    def __instancecheck__(cls, instance: Any) -> bool:
        device = getattr(instance, "device", None)
        return isinstance(instance, cls.of) and device is not None and device.type == _NAME


# PyTorch compares streams and events by exact type, so these make PyTorch's own rather than a subclass's.


class Stream(metaclass=_OfTpu):
    """A torch.Stream of a tpu device. `priority` is accepted and means nothing."""

    of = torch.Stream

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> torch.Stream:  # type: ignore[misc]
        if kwargs:
            return torch.Stream(**kwargs)
        return torch.Stream(device=torch.device(_NAME, _checked_index(device)), priority=priority)


class Event(metaclass=_OfTpu):
    """A torch.Event of a tpu device.

    With `enable_timing` recording it waits for the device and takes the host's time, as XLA has no device timestamps.
    """

    of = torch.Event

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        return torch.Event(device=_NAME, enable_timing=enable_timing, blocking=blocking)


def current_stream(device: _Device = None) -> torch.Stream:
    """The current stream of a device in this thread."""
    return torch._C._accelerator_getStream(_checked_index(device))


def default_stream(device: _Device = None) -> torch.Stream:
    """The default stream of a device."""
    current = current_stream(device)
    return torch.Stream(stream_id=0, device_index=current.device_index, device_type=current.device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream`, and its device, current in this thread; None does nothing."""
    if stream is not None:
        torch._C._accelerator_setStream(stream)


class StreamContext:
    """Context manager that makes a stream current; None does nothing."""

    def __init__(self, stream: torch.Stream | None):
        self.stream = stream
        self._before: tuple[int, torch.Stream] | None = None

    def __enter__(self) -> None:
        if self.stream is not None:
            self._before = current_device(), current_stream(self.stream.device)
            set_stream(self.stream)

    def __exit__(self, *exc_info: Any) -> None:
        if self._before is not None:
            index, before = self._before
            set_stream(before)
            _C._restore_device(index)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager that makes `stream` current."""
    return StreamContext(stream)


# Memory

_FIGURES = ("current", "peak", "allocated", "freed")


def memory_stats(device: _Device = None) -> dict[str, Any]:
    """Figures of the allocator: `allocated_bytes.all.{current,peak,allocated,freed}` and what torch.cuda calls the
    same. XLA holds memory for live values only, so what is reserved is what is allocated."""
    stats = dict(_C._memory_stats(_index(device)))
    for figure in _FIGURES:
        for name in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
            stats[f"{name}.all.{figure}"] = stats[f"allocated_bytes.{figure}"]
        stats[f"allocation.all.{figure}"] = stats.get(f"allocation.{figure}", 0)
    return stats


def memory_allocated(device: _Device = None) -> int:
    """Bytes held by the tensors of a device."""
    return int(_C._memory_stats(_index(device))["allocated_bytes.current"])


def max_memory_allocated(device: _Device = None) -> int:
    """The most bytes held at one time since the start or `reset_peak_memory_stats`."""
    return int(_C._memory_stats(_index(device))["allocated_bytes.peak"])


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def reset_peak_memory_stats(device: _Device = None) -> None:
    """Starts the peak again from what is held now."""
    _C._reset_peak_memory(_index(device))


def reset_max_memory_allocated(device: _Device = None) -> None:
    """As `reset_peak_memory_stats`."""
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: _Device = None) -> None:
    """Starts the sums of allocated and freed bytes again from zero."""
    _C._reset_accumulated_memory(_index(device))


def mem_get_info(device: _Device = None) -> tuple[int, int]:
    """(free, total) bytes of a device; of the host for XLA's CPU client."""
    from torchtpu.runtime import client

    return client.memory_info(_checked_index(device))


def empty_cache() -> None:
    """Does nothing: XLA's client has no cache that could be emptied from here."""


def memory_summary(device: _Device = None, abbreviated: bool = False) -> str:
    """The figures of `memory_stats` as a small table."""
    stats = memory_stats(device)
    width = 16
    lines = [f"tpu:{_index(device)} memory", f"{'':<12}" + "".join(f"{f:>{width}}" for f in _FIGURES)]
    for name, key in (("bytes", "allocated_bytes"), ("tensors", "allocation")):
        lines.append(f"{name:<12}" + "".join(f"{stats[f'{key}.all.{f}']:>{width},}" for f in _FIGURES))
    limit = stats.get("limit") or 0
    lines.append(f"limit: {limit:,} bytes" if limit else "limit: none")
    return "\n".join(lines)


# Random state


class _DefaultGenerators:
    """The default generator of each device, made when it is asked for."""

    def __getitem__(self, index: int) -> torch.Generator:
        if not 0 <= index < max(device_count(), 1):
            raise IndexError(f"Invalid device index {index}: there are {device_count()} tpu devices")
        return _C._default_generator(index)

    def __len__(self) -> int:
        return device_count()

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[index] for index in range(len(self)))


default_generators = _DefaultGenerators()


def _get_generator(device: torch.device) -> torch.Generator:
    return _C._default_generator(_index(device))


def _wrap_seed(seed: int) -> int:
    """A seed as PyTorch takes it, -2**63 to 2**64 - 1, as an unsigned number. Raises RuntimeError."""
    seed = int(seed)
    if not -(2**63) <= seed < 2**64:
        raise RuntimeError("Overflow when unpacking long long")
    return seed % 2**64


def manual_seed(seed: int) -> None:
    """Seeds the generator of the current device."""
    _C._default_generator(-1).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices, without starting XLA. torch.manual_seed calls this."""
    _C._manual_seed_all(_wrap_seed(seed))


def seed() -> None:
    """Seeds the generator of the current device with a random number."""
    _C._default_generator(-1).seed()


def seed_all() -> None:
    """Seeds the generators of all devices with one random number."""
    manual_seed_all(int.from_bytes(os.urandom(7), "little"))


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _C._default_generator(-1).initial_seed()


def get_rng_state(device: _Device = None) -> torch.Tensor:
    """State of a device's generator: a CPU uint8 tensor of 16 bytes, seed and offset."""
    return _C._default_generator(_index(device)).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """`get_rng_state` of each device."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: _Device = None) -> None:
    """Sets the state of a device's generator. Raises TypeError or RuntimeError for what is no such state."""
    _C._default_generator(_index(device)).set_state(new_state)


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """`set_rng_state` of each device."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


@contextlib.contextmanager
def fork_rng(enabled: bool = True) -> Iterator[None]:
    """Restores the random state of all devices at the end of the block."""
    states = get_rng_state_all() if enabled else []
    try:
        yield
    finally:
        set_rng_state_all(states)


# Automatic mixed precision


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The types that torch.autocast("tpu") may use."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: every XLA platform has bfloat16."""
    return True


def is_autocast_enabled() -> bool:
    """Whether autocast is on for tpu in this thread."""
    return torch.is_autocast_enabled(_NAME)


def get_autocast_dtype() -> torch.dtype:
    """The type that autocast uses for tpu."""
    return torch.get_autocast_dtype(_NAME)
