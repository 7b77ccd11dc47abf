"""From a window to a JAX function: one trace over the window's operations."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import Check
from torchtpu.program.signature import Signature


def _feed(vector: Any, start: int) -> Callable[[], Any]:
    position = [start]

    def take() -> Any:
        at = position[0]
        position[0] += 1
        return lax.squeeze(lax.slice(vector, (at,), (at + 1,)), (0,))

    return take


def _flags(checks: list[Check]) -> jax.Array:
    """Number of the first check that failed (0: none) and the value it complains about, as int64[2]."""
    code, value = jnp.int64(0), jnp.int64(0)
    for number, check in reversed(list(enumerate(checks, 1))):
        code = jnp.where(check.ok, code, number)
        value = jnp.where(check.ok, value, check.value)
    return jnp.stack([code, value])


class WindowFunction:
    """The window as a function of its inputs' arrays, then a float64 and an int64 vector of scalars (when not empty).

    Returns the values that somebody still holds, in order, then the flags of run-time checks if there are any.
    """

    def __init__(self, window: dict[str, Any]):
        self.nodes: list[tuple[Signature, tuple[int, ...], int, int]] = window["nodes"]
        self.externals = [(dtypes.to_numpy_dtype(d), tuple(s)) for d, s in window["externals"]]
        self.alive: tuple[bool, ...] = window["alive"]
        self.n_floats: int = window["floats"]
        self.n_ints: int = window["ints"]
        self.checks: list[Check] = []
        self.__name__ = self._name()

    def _name(self) -> str:
        first = self.nodes[0][0].name.split("::")[1]
        return first if len(self.nodes) == 1 else f"window_{len(self.nodes)}_{first}"

    def arguments(self, sharding: Any) -> list[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the arguments."""
        specs = list(self.externals)
        if self.n_floats:
            specs.append((np.dtype(np.float64), (self.n_floats,)))
        if self.n_ints:
            specs.append((np.dtype(np.int64), (self.n_ints,)))
        return [jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for dtype, shape in specs]

    def outputs(self) -> list[tuple[np.dtype, tuple[int, ...]]]:
        """Dtypes and shapes of the values returned, without the flags."""
        specs: list[tuple[np.dtype, tuple[int, ...]]] = []
        for signature, _, _, _ in self.nodes:
            specs.extend(signature.writes.values())
            specs.extend((dtypes.to_numpy_dtype(f[0]), tuple(f[3])) for f in signature.fresh if f is not None)
        return [spec for spec, alive in zip(specs, self.alive, strict=True) if alive]

    def donations(self, donated: tuple[bool, ...]) -> tuple[int, ...]:
        """Dead inputs whose memory one of the results can take over."""
        room = collections.Counter(self.outputs())
        chosen = []
        for i, (spec, dead) in enumerate(zip(self.externals, donated, strict=True)):
            if dead and room[spec] > 0:
                room[spec] -= 1
                chosen.append(i)
        return tuple(chosen)

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        inputs = arrays[: len(self.externals)]
        rest = list(arrays[len(self.externals) :])
        floats = rest.pop(0) if self.n_floats else None
        ints = rest.pop(0) if self.n_ints else None
        results: list[Any] = []
        checks: list[Check] = []
        for signature, codes, first_float, first_int in self.nodes:
            bases: dict[int, Any] = {}
            for slot, code in zip(signature.needs, codes, strict=True):
                bases[slot] = None if code == 0 else results[code >> 1] if code & 1 else inputs[(code >> 1) - 1]
            results.extend(signature.apply(bases, _feed(floats, first_float), _feed(ints, first_int), checks))
        self.checks = [Check(None, None, c.exception, c.message, c.where) for c in checks]  # type: ignore[arg-type]
        out = [value for value, alive in zip(results, self.alive, strict=True) if alive]
        if checks:
            out.append(_flags(checks))
        return tuple(out)
