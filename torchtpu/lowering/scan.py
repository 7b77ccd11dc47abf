"""Cumulative operators along one dimension."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import cast, context
from torchtpu.lowering.index import index_dtype
from torchtpu.lowering.registry import lower
from torchtpu.lowering.shape import axis, iota, zeros


def _accumulate(self: jax.Array, dim: int, scan: Callable, dtype: np.dtype | None = None) -> jax.Array:
    """A scan in `dtype`, by default the result's; half types accumulate in float32."""
    x = cast(self, dtypes.opmath(context().out_dtype if dtype is None else dtype))
    if self.ndim == 0 or self.size == 0:
        return x
    return scan(x, axis(dim, self.ndim))


@lower("cumsum")
def cumsum(self, dim, *, dtype=None):
    return _accumulate(self, dim, lax.cumsum)


@lower("cumprod")
def cumprod(self, dim, *, dtype=None):
    return _accumulate(self, dim, lax.cumprod)


def _extreme(self: jax.Array, dim: int, largest: bool) -> tuple[jax.Array, jax.Array]:
    """Running maximum or minimum, with the position of the latest element that equals it."""
    if self.ndim == 0 or self.size == 0:
        return self, zeros(self.shape, np.dtype(np.int64))
    dim = axis(dim, self.ndim)
    x = self.astype(np.uint8) if self.dtype == np.bool_ else self
    values = (lax.cummax if largest else lax.cummin)(x, dim)
    hit = lax.eq(x, values)
    if dtypes.to_torch_dtype(x.dtype).is_floating_point:
        # The first NaN stays, and each further one moves the index.
        hit = lax.bitwise_or(hit, lax.ne(x, x))
    dtype = index_dtype(x.shape[dim])
    position = lax.select(hit, iota(dtype, x.shape, dim), zeros(x.shape, dtype))
    return values.astype(self.dtype), lax.cummax(position, dim)


@lower("cummax")
def cummax(self, dim):
    return _extreme(self, dim, True)


@lower("cummin")
def cummin(self, dim):
    return _extreme(self, dim, False)


@lower("_cummax_helper")
def cummax_helper(self, values, indices, dim):
    return _extreme(self, dim, True)


@lower("_cummin_helper")
def cummin_helper(self, values, indices, dim):
    return _extreme(self, dim, False)


def _log_add(a: jax.Array, b: jax.Array) -> jax.Array:
    """log(exp(a) + exp(b)), exact for infinities and NaNs."""
    if np.issubdtype(a.dtype, np.complexfloating):
        # The larger real part leads.
        swap = lax.lt(lax.real(a), lax.real(b))
        high, low = lax.select(swap, b, a), lax.select(swap, a, b)
        out = lax.add(high, lax.log1p(lax.exp(lax.sub(low, high))))
        real = lax.real(high)
        nothing = lax.eq(real, np.asarray(-np.inf, real.dtype))
        return lax.select(nothing, high, out)
    high, gap = lax.max(a, b), lax.sub(a, b)
    out = lax.add(high, lax.log1p(lax.exp(lax.neg(lax.abs(gap)))))
    # Equal infinities differ by NaN.
    return lax.select(lax.eq(a, b) & lax.bitwise_not(lax.is_finite(a)), a, out)


@lower("_logcumsumexp", "logcumsumexp")
def logcumsumexp(self, dim):
    out = _accumulate(self, dim, lambda x, d: lax.associative_scan(_log_add, x, axis=d), self.dtype)
    return out.astype(self.dtype)  # PyTorch has no meta kernel for the first name
