"""XLA executables: calling them and turning them into bytes. The one place that uses jaxlib's client directly.

jaxlib's own call of a loaded executable is what `jax.stages.Compiled` ends in; going there straight saves its check of
the arguments, which the native core has made before, and is all that an executable read from a file has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import compiler as jax_compiler
from jax._src.interpreters import pxla
from jax._src.lib import xla_client
from jax.core import ShapedArray
from jax.sharding import SingleDeviceSharding

Spec = tuple[np.dtype, tuple[int, ...]]


class Executable:
    """A program on one device.

    call: takes the program's arrays and gives its results, a list of jax.Array. outputs: their dtypes and shapes.
    compiled: whether it was compiled in this process and not read from bytes.
    """

    __slots__ = ("__weakref__", "call", "compiled", "device", "loaded", "outputs")

    def __init__(self, loaded: Any, outputs: Sequence[Spec], device: jax.Device, compiled: bool):
        self.loaded = loaded
        self.compiled = compiled
        self.outputs = tuple(outputs)
        self.device = device
        self.call = _caller(loaded, self.outputs, device)

    @classmethod
    def of(cls, compiled: jax.stages.Compiled, device: jax.Device) -> Executable:
        """The executable of an ahead-of-time compilation whose result is a tuple of arrays."""
        outputs = [(np.dtype(out.dtype), tuple(out.shape)) for out in compiled.out_info]
        return cls(compiled.runtime_executable(), outputs, device, True)

    def serialize(self) -> bytes:
        """The executable as bytes for the same kind of device. Raises jax.errors.JaxRuntimeError where XLA cannot.

        Only for one that was compiled here: XLA's CPU client forgets the object code of one that was read from bytes.
        """
        assert self.compiled
        client: Any = self.device.client
        return client.serialize_executable(self.loaded)

    @classmethod
    def deserialize(cls, data: bytes, outputs: Sequence[Spec], device: jax.Device) -> Executable:
        """The executable on `device`, whichever it was compiled for.

        XLA runs what is in `data`: only bytes from a trusted source may come here.
        """
        if b"lapack_" in data:
            _initialize_lapack()
        client: Any = device.client
        # Without an assignment of its own the executable would run on the device it was compiled for.
        options = jax_compiler.get_compile_options(
            num_replicas=1, num_partitions=1, device_assignment=np.array([[device.id]])
        )
        loaded = client.deserialize_executable(data, xla_client.DeviceList((device,)), options)
        return cls(loaded, outputs, device, False)


def _caller(loaded: Any, outputs: Sequence[Spec], device: jax.Device) -> Callable[..., list[jax.Array]]:
    sharding = SingleDeviceSharding(device)
    handlers = [pxla.global_aval_to_result_handler(ShapedArray(shape, dtype), sharding, True) for dtype, shape in outputs]
    execute = loaded.execute_sharded

    def call(*arrays: jax.Array) -> list[jax.Array]:
        return execute(arrays).consume_with_handlers(handlers)

    return call


def _initialize_lapack() -> None:
    """JAX looks LAPACK's functions up when it lowers a call of one, which a program read from a file never did. It
    imports SciPy, so only for programs that name such a function."""
    from jaxlib import lapack

    lapack._lapack.initialize()
