"""Sorting and selection by rank. NaN is the greatest value, as on the CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import context
from torchtpu.lowering.index import index_dtype, mask_positions, put_rows, take_flat
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


def _changes(x: jax.Array, dim: int) -> jax.Array:
    """Whether an element differs from the one before it; the first does."""
    n = x.shape[dim]
    differs = lax.ne(along(x, dim, 1, n), along(x, dim, 0, n - 1))
    first = lax.full((*x.shape[:dim], 1, *x.shape[dim + 1 :]), True, np.bool_)
    return lax.concatenate([first, differs], dim)


# Unique values: the device counts them first, so the sizes of the results are known.


def _runs(changes: jax.Array, count: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """For a flat sequence's runs: start of each, the run of each element, and how long each is."""
    n = changes.shape[0]
    starts = mask_positions(changes, count)
    run = lax.sub(lax.cumsum(changes.astype(np.int32)), np.int32(1))
    ends = lax.concatenate([starts[1:], lax.full((1,), n, starts.dtype)], 0)
    return starts, run, lax.sub(ends, starts)


def _unique_results(inverse: jax.Array, counts: jax.Array) -> list[jax.Array]:
    """Inverse and counts, empty where PyTorch was not asked for them."""
    outs = context().outs
    out = []
    for value, spec in zip((inverse, counts), outs[1:], strict=False):
        out.append(
            lax.reshape(value, spec.shape) if value.size == np.prod(spec.shape) else zeros(spec.shape, value.dtype)
        )
    return out


def _unique_sorted(self: jax.Array) -> tuple[jax.Array, ...]:
    outs = context().outs
    count = context().out_shape[0]
    if self.size == 0 or count == 0:
        return tuple(zeros(o.shape, dtypes.to_numpy_dtype(o.dtype)) for o in outs)
    values, index = sort_with_index(lax.reshape(self, (self.size,)), 0)
    starts, run, counts = _runs(_changes(values, 0), count)
    inverse = put_rows("set", zeros((self.size,), np.dtype(np.int32)), 0, index, run)
    return (take_flat(values, starts), *_unique_results(inverse, counts))


@lower("_unique", "_unique2")
def unique(self, sorted=True, return_inverse=False, return_counts=False):
    return _unique_sorted(self)


@lower("unique_consecutive")
def unique_consecutive(self, return_inverse=False, return_counts=False, dim=None):
    outs = context().outs
    if self.size == 0:
        return tuple(zeros(o.shape, dtypes.to_numpy_dtype(o.dtype)) for o in outs)
    if dim is None:
        flat = lax.reshape(self, (self.size,))
        starts, run, counts = _runs(_changes(flat, 0), context().out_shape[0])
        return (take_flat(flat, starts), *_unique_results(run, counts))
    dim = axis(dim, self.ndim)
    rows = lax.reshape(jnp.moveaxis(self, dim, 0), (self.shape[dim], self.size // self.shape[dim]))
    return _unique_rows(self, dim, rows, None)


@lower("unique_dim_consecutive")
def unique_dim_consecutive(self, dim, return_inverse=False, return_counts=False):
    return unique_consecutive(self, return_inverse, return_counts, dim)


@lower("unique_dim")
def unique_dim(self, dim, sorted=True, return_inverse=False, return_counts=False):
    if self.size == 0:
        return tuple(zeros(o.shape, dtypes.to_numpy_dtype(o.dtype)) for o in context().outs)
    dim = axis(dim, self.ndim)
    n = self.shape[dim]
    rows = lax.reshape(jnp.moveaxis(self, dim, 0), (n, self.size // n))
    # Rows in lexicographic order: one stable sort per column, the last column first.
    keys = rows.astype(np.uint8) if rows.dtype == np.bool_ else rows
    columns = [lax.squeeze(along(keys, 1, c, c + 1), (1,)) for c in range(rows.shape[1])]
    *_, index = lax.sort((*columns, iota(np.int32, (n,), 0)), dimension=0, is_stable=True, num_keys=len(columns))
    return _unique_rows(self, dim, rows, index)


def _unique_rows(self: jax.Array, dim: int, rows: jax.Array, order: jax.Array | None) -> tuple[jax.Array, ...]:
    out, n = context().out_shape, rows.shape[0]
    ordered = rows if order is None else jnp.take(rows, order, axis=0)
    differs = lax.ne(along(ordered, 0, 1, n), along(ordered, 0, 0, n - 1))
    differs = lax.reduce(differs, np.False_, lax.bitwise_or, (1,))
    changes = lax.concatenate([lax.full((1,), True, np.bool_), differs], 0)
    starts, run, counts = _runs(changes, out[dim])
    values = jnp.take(ordered, starts, axis=0)
    values = lax.reshape(values, (out[dim], *self.shape[:dim], *self.shape[dim + 1 :]))
    inverse = run if order is None else put_rows("set", zeros((n,), np.dtype(np.int32)), 0, order, run)
    return (jnp.moveaxis(values, 0, dim), *_unique_results(inverse, counts))
