"""Operators that make tensors from sizes and scalars, and triangles."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import cast, context, filler
from torchtpu.lowering.registry import lower
from torchtpu.lowering.shape import iota, zeros


def _is_float(dtype: np.dtype) -> bool:
    return dtypes.to_torch_dtype(dtype).is_floating_point


def _sequence(start: jax.Array, step: jax.Array) -> jax.Array:
    n, out = context().out_shape[0], context().out_dtype
    # PyTorch steps in double for floating types and in int64 for the others.
    compute = np.dtype(np.float64 if _is_float(out) else np.int64)
    index = iota(np.int32 if n < 2**31 else np.int64, (n,), 0).astype(compute)
    return lax.add(lax.mul(index, cast(jnp.asarray(step), compute)), cast(jnp.asarray(start), compute))


@lower("arange")
def arange(end, *, dtype=None):
    return _sequence(np.int64(0), np.int64(1))


@lower("arange.start")
def arange_start(start, end, *, dtype=None):
    return _sequence(start, np.int64(1))


@lower("arange.start_step", "arange.start_out")
def arange_start_step(start, end, step=1, *, dtype=None):
    return _sequence(start, step)


@lower("range", "range.step")
def range_step(start, end, step=1, *, dtype=None):
    return _sequence(start, step)


def _spaced(start: jax.Array, end: jax.Array, steps: int, dtype: np.dtype) -> jax.Array:
    """Evenly spaced values that hit both ends: the second half counts back from the end, as PyTorch's."""
    compute = np.dtype(np.complex128 if np.issubdtype(dtype, np.complexfloating) else np.float64)
    start, end = (cast(jnp.asarray(x), dtype).astype(compute) for x in (start, end))
    if steps == 1:
        return lax.reshape(start, (1,))
    index = iota(np.int32, (steps,), 0)
    step = lax.div(lax.sub(end, start), np.asarray(steps - 1, compute))
    if not np.issubdtype(dtype, np.integer):
        # PyTorch rounds the step to the result's type.
        step = step.astype(dtype).astype(compute)
    up = start + index.astype(compute) * step
    down = end - (np.int32(steps - 1) - index).astype(compute) * step
    return lax.select(lax.lt(index, np.int32(steps // 2)), up, down)


@lower("linspace", "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor")
def linspace(start, end, steps, *, dtype=None):
    out = _spaced(start, end, steps, context().out_dtype)
    return lax.reshape(out, context().out_shape)


@lower("logspace", "logspace.Tensor_Tensor", "logspace.Tensor_Scalar", "logspace.Scalar_Tensor", static=("base",))
def logspace(start, end, steps, base=10.0, *, dtype=None):
    out = context().out_dtype
    exponents = _spaced(start, end, steps, out)
    powers = lax.pow(jnp.asarray(base, exponents.dtype), exponents)
    if steps == 1 or not np.issubdtype(out, np.integer):
        return lax.reshape(powers, context().out_shape)
    return lax.reshape(powers, context().out_shape)


@lower("eye", "eye.m")
def eye(n, m=None, *, dtype=None):
    shape = context().out_shape
    return lax.eq(iota(np.int32, shape, 0), iota(np.int32, shape, 1)).astype(context().out_dtype)


def _filled(value: jax.Array | int) -> jax.Array:
    value = cast(jnp.asarray(value), context().out_dtype)
    return lax.broadcast_in_dim(lax.reshape(value, ()), context().out_shape, ())


@lower("full", "new_full", "full_like")
def full(*args, dtype=None, memory_format=None, names=None):
    return _filled(filler(args[-1], context().out_dtype))


@lower("scalar_tensor")
def scalar_tensor(s, *, dtype=None):
    return _filled(filler(s, context().out_dtype))


@lower(
    "zeros",
    "zeros_like",
    "new_zeros",
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "empty_permuted",
    "_efficientzerotensor",
    "_new_zeros_with_same_feature_meta",
)
def zeros_(*args, dtype=None, memory_format=None, names=None, **options):
    return _filled(0)


@lower("ones", "ones_like", "new_ones")
def ones(*args, dtype=None, memory_format=None, names=None):
    return _filled(1)


@lower("tril_indices")
def tril_indices(row, col, offset=0, *, dtype=None):
    return jnp.asarray(np.stack(np.tril_indices(row, offset, col)))


@lower("triu_indices")
def triu_indices(row, col, offset=0, *, dtype=None):
    return jnp.asarray(np.stack(np.triu_indices(row, offset, col)))


def _triangle(self: jax.Array, diagonal: int, keep: str) -> jax.Array:
    if self.ndim < 2 or self.size == 0:
        return self
    n, m = self.shape[-2:]
    compare = lax.ge if keep == "lower" else lax.le
    reach = lax.add(iota(np.int32, (n, m), 0), np.int32(np.clip(diagonal, -(2**30), 2**30)))
    mask = lax.broadcast_in_dim(compare(reach, iota(np.int32, (n, m), 1)), self.shape, (self.ndim - 2, self.ndim - 1))
    return lax.select(mask, self, zeros(self.shape, self.dtype))


@lower("tril")
def tril(self, diagonal=0):
    return _triangle(self, diagonal, "lower")


@lower("triu")
def triu(self, diagonal=0):
    return _triangle(self, diagonal, "upper")
