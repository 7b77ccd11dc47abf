"""Bytes between host memory and devices. Dtypes are kept exactly, 64-bit ones included."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.sharding import SingleDeviceSharding

from torchtpu.runtime import client

try:
    # The direct way costs a third of jax.device_put and says itself how the host memory may be used.
    from jaxlib._jax import HostBufferSemantics, batched_device_put

    _DURING_CALL = HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
except (ImportError, AttributeError):  # a jaxlib that names them differently
    batched_device_put = None

_MOST_DIMENSIONS = 64
_READ, _WRITE = 0x100, 0x200
_view_memory = ctypes.pythonapi.PyMemoryView_FromMemory
_view_memory.restype = ctypes.py_object
_view_memory.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


@functools.cache
def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype called `name` ("float32", "bool", "bfloat16", "float8_e4m3fn", …). Raises TypeError."""
    extended = getattr(ml_dtypes, name, None)
    return np.dtype(extended if extended is not None else name)


@functools.lru_cache(4096)
def _aval(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    return jax.core.ShapedArray(shape, dtype)


@functools.cache
def _target(index: int) -> tuple[Any, Any]:
    device = client.device(index)
    return device, SingleDeviceSharding(device)


def _put(host: np.ndarray, index: int) -> Any:
    """A copy of `host` on a device; the caller may change `host` as soon as this returns."""
    device, sharding = _target(index)
    if batched_device_put is not None:
        return batched_device_put(
            _aval(host.shape, host.dtype), sharding, [host], [device], True, True, _DURING_CALL, True
        )
    with jax.enable_x64(True):
        # device_put may keep using the memory that it is given: hand it a copy of its own.
        return jax.device_put(np.array(host, copy=True), sharding)


def from_host(address: int, nbytes: int, dtype: str, shape: tuple[int, ...], device_index: int) -> Any:
    """A jax.Array with a copy of the `nbytes` bytes at `address`, row-major, as `shape` and `dtype`.

    Raises ValueError when the sizes do not agree, TypeError for an unknown dtype, RuntimeError for more dimensions than
    numpy, and with it JAX, has.
    """
    if len(shape) > _MOST_DIMENSIONS:
        raise RuntimeError(f"only tensors with up to {_MOST_DIMENSIONS} dims are supported on tpu")
    kind = numpy_dtype(dtype)
    if nbytes == 0:
        return _put(np.empty(shape, kind), device_index)
    # np.ndarray checks that shape and dtype fit into the memory.
    return _put(np.ndarray(shape, kind, _view_memory(address, nbytes, _READ)), device_index)


def to_host(array: Any, address: int, nbytes: int) -> None:
    """Waits for `array` and copies its row-major bytes to `address`. Raises ValueError when `nbytes` is not its size,
    and whatever XLA raises when computing it failed."""
    if array.nbytes != nbytes:
        raise ValueError(f"the array has {array.nbytes} bytes, its destination {nbytes}")
    if nbytes == 0:
        array.block_until_ready()
        return
    host = _as_numpy(array)
    np.copyto(np.ndarray(host.shape, host.dtype, _view_memory(address, nbytes, _WRITE)), host)


def _as_numpy(array: Any) -> np.ndarray:
    """The array's value on the host. np.asarray would keep it in the jax.Array as long as that lives: on a TPU a
    second copy of every tensor ever read, on the CPU client a reference that stands in the way of donation."""
    direct = getattr(array, "_single_device_array_to_np_array_did_copy", None)
    if direct is None:
        return np.asarray(array)
    return direct()[0]


def scalar_vector(values: np.ndarray, device_index: int) -> Any:
    """A jax.Array with a copy of a small 1-d numpy array, dtype kept."""
    return _put(values, device_index)


def across(array: Any, device_index: int) -> Any:
    """`array` on another device (the same array when it is already there)."""
    device, sharding = _target(device_index)
    if array.devices() == {device}:
        return array
    if batched_device_put is not None:
        return batched_device_put(_aval(array.shape, array.dtype), sharding, [array], [device])
    with jax.enable_x64(True):
        return jax.device_put(array, sharding)
