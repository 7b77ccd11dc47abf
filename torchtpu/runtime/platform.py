"""Which XLA platform to use. JAX is imported when devices are asked for, not before."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from typing import Any

from torchtpu import config

ORDER = ("tpu", "cuda", "cpu")

_INSTALL = {
    "tpu": "On a TPU host install libtpu: pip install 'torchtpu[tpu]'",
    "cuda": "On a host with an NVIDIA GPU install JAX's CUDA plugin: pip install 'torchtpu[cuda]'",
    "cpu": "Install JAX with its CPU client: pip install torchtpu",
}


class NoDeviceError(RuntimeError):
    """XLA has no device on the platform. The message says what to install."""


def _has_accelerator_plugin() -> bool:
    """Whether JAX could find anything but its CPU client (an installed PJRT plugin counts, loaded or not)."""
    if any(importlib.util.find_spec(name) for name in ("libtpu", "jax_plugins")):
        return True
    return bool(importlib.metadata.entry_points(group="jax_plugins"))


def is_surely_cpu() -> bool:
    """True when the platform will be the CPU client, as far as can be told without starting XLA."""
    requested = config.get("TORCHTPU_PLATFORM")
    if requested is not None:
        return requested == "cpu"
    return not _has_accelerator_plugin()


def jax_has_started() -> bool:
    """Whether someone in this process has already created JAX's clients."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    answer = getattr(bridge, "backends_are_initialized", None)
    return bool(answer and answer())


def _local_devices(platform: str) -> list[Any]:
    import jax

    return list(jax.local_devices(backend=platform))


def _missing(platform: str, requested: bool, reason: object) -> NoDeviceError:
    origin = f"TORCHTPU_PLATFORM={platform}" if requested else "chosen by torchtpu"
    return NoDeviceError(
        f"tpu: XLA has no device on platform '{platform}' ({origin}). {_INSTALL[platform]}. "
        f"TORCHTPU_PLATFORM=cpu runs on XLA's CPU client instead. XLA said: {reason}"
    )


def _request_cpu_devices(count: int) -> None:
    """Asks JAX for `count` CPU devices, which works only before its clients exist."""
    import jax

    asked: int = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
    if count > 1 and not jax_has_started() and asked < count:
        jax.config.update("jax_num_cpu_devices", count)


def choose() -> tuple[str, list[Any]]:
    """The platform's name and its local devices, creating JAX's clients. Raises NoDeviceError."""
    requested = config.get("TORCHTPU_PLATFORM")
    cpu_devices = config.get("TORCHTPU_CPU_DEVICES")
    try:
        _request_cpu_devices(cpu_devices)
    except ImportError as error:
        raise _missing(requested or "cpu", requested is not None, error) from error
    reason: object = None
    for platform in (requested,) if requested else ORDER:
        try:
            devices = _local_devices(platform)
        except RuntimeError as error:  # JAX's way to say that it does not have this platform
            devices, reason = [], error
        if devices and platform == "cpu":
            return platform, _limit(devices, cpu_devices)
        if devices:
            return platform, devices
    raise _missing(requested or "cpu", requested is not None, reason)


def _limit(devices: list[Any], count: int) -> list[Any]:
    if len(devices) < count:
        raise NoDeviceError(
            f"tpu: TORCHTPU_CPU_DEVICES={count}, but JAX was already running in this process with "
            f"{len(devices)} CPU device{'s' if len(devices) > 1 else ''}. Use tpu before other JAX code, or call "
            f"jax.config.update('jax_num_cpu_devices', {count}) before it."
        )
    return devices[:count]
