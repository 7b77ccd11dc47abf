"""Sorting and selection by rank. NaN is the greatest value, as on the CPU."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import context
from torchtpu.lowering.index import index_dtype, take_flat
from torchtpu.lowering.registry import lower
from torchtpu.lowering.shape import along, axis, broadcast_to, iota, zeros


def is_float(x: jax.Array) -> bool:
    """Whether a real floating type."""
    return dtypes.to_torch_dtype(x.dtype).is_floating_point


def is_nan(x: jax.Array) -> jax.Array:
    """NaN, for floating types."""
    return lax.ne(x, x)


def sort_with_index(x: jax.Array, dim: int, descending: bool = False) -> tuple[jax.Array, jax.Array]:
    """Stable sort along a dimension: values and int32 positions."""
    values = x.astype(np.uint8) if x.dtype == np.bool_ else x
    index = iota(index_dtype(x.shape[dim]), x.shape, dim)
    if descending:
        # Reversing before and after keeps equal elements in order.
        values, index = lax.rev(values, (dim,)), lax.rev(index, (dim,))
    values, index = lax.sort((values, index), dimension=dim, is_stable=True, num_keys=1)
    if descending:
        values, index = lax.rev(values, (dim,)), lax.rev(index, (dim,))
    return values.astype(x.dtype), index


@lower("sort", "sort.stable")
def sort(self, dim=-1, descending=False, *, stable=None):
    if self.ndim == 0 or self.size == 0:
        return self, zeros(self.shape, np.dtype(np.int64))
    return sort_with_index(self, axis(dim, self.ndim), descending)


@lower("argsort")
def argsort(self, dim=-1, descending=False, *, stable=None):
    if self.ndim == 0 or self.size == 0:
        return zeros(self.shape, np.dtype(np.int64))
    return sort_with_index(self, axis(dim, self.ndim), descending)[1]


@lower("msort")
def msort(self):
    return sort_with_index(self, 0)[0] if self.ndim and self.size else self


def _top(x: jax.Array, k: int, largest: bool) -> tuple[jax.Array, jax.Array]:
    """The k extreme values of the last dimension in order, with their positions."""
    dtype = x.dtype
    if dtype == np.bool_:
        x = x.astype(np.uint8)
    if is_float(x):
        # XLA orders NaNs by their sign bit. One sign for all makes them greatest, or least once negated.
        x = lax.select(is_nan(x), lax.full(x.shape, np.nan, dtype), x)
        values, index = lax.top_k(x if largest else lax.neg(x), k)
        return (values if largest else lax.neg(values)), index
    values, index = lax.top_k(x if largest else lax.bitwise_not(x), k)
    return (values if largest else lax.bitwise_not(values)).astype(dtype), index


@lower("topk")
def topk(self, k, dim=-1, largest=True, sorted=True):
    if self.ndim == 0:
        return broadcast_to(self, context().out_shape), zeros(context().out_shape, np.dtype(np.int64))
    if 0 in context().out_shape:
        return zeros(context().out_shape, self.dtype), zeros(context().out_shape, np.dtype(np.int64))
    dim, last = axis(dim, self.ndim), self.ndim - 1
    if dim == last:
        return _top(self, k, largest)
    perm = list(range(self.ndim))
    perm[dim], perm[last] = last, dim
    values, index = _top(lax.transpose(self, perm), k, largest)
    return lax.transpose(values, perm), lax.transpose(index, perm)


@lower("kthvalue")
def kthvalue(self, k, dim=-1, keepdim=False):
    if self.ndim == 0:
        return self, np.zeros((), np.int64)
    dim = axis(dim, self.ndim)
    if 0 in self.shape:
        return zeros(context().out_shape, self.dtype), zeros(context().out_shape, np.dtype(np.int64))
    values, index = (along(x, dim, k - 1, k) for x in sort_with_index(self, dim))
    return (values, index) if keepdim else (lax.squeeze(values, (dim,)), lax.squeeze(index, (dim,)))


@lower("torchtpu::lexicographic_order")
def lexicographic_order(rows):
    """Positions of the rows of an (n, m) matrix in lexicographic order, int64[n]; equal rows keep theirs."""
    n, columns = rows.shape
    keys = rows.astype(np.uint8) if rows.dtype == np.bool_ else rows

    def by_column(i, order):
        column = lax.dynamic_index_in_dim(keys, columns - 1 - i, 1, keepdims=False)
        return lax.sort((take_flat(column, order), order), dimension=0, is_stable=True, num_keys=1)[1]

    # Stable sorts by single columns, the last one first.
    start = iota(index_dtype(n), (n,), 0)
    return (lax.fori_loop(0, columns, by_column, start) if rows.size else start).astype(np.int64)
