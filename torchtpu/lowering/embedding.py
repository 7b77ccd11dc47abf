"""Embedding tables: rows by index, bags of rows, and their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import context
from torchtpu.lowering.index import in_range, index_dtype, put_rows, take_rows
from torchtpu.lowering.registry import lower
from torchtpu.lowering.shape import broadcast_to, iota, zero, zeros

_SUM, _MEAN, _MAX = 0, 1, 2


@lower("embedding")
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    n = weight.shape[0]
    context().check(in_range(indices, 0, n), IndexError, "index out of range in self", indices)
    if 0 in context().out_shape:
        return zeros(context().out_shape, weight.dtype)
    return take_rows(weight, 0, indices.astype(index_dtype(n)))


def _counts(index: jax.Array, n: int) -> jax.Array:
    """How often each row is named."""
    ones = lax.full(index.shape, 1, np.int32)
    return put_rows("add", zeros((n,), np.dtype(np.int32)), 0, index, ones, drop=True)


def _rows(x: jax.Array, width: int) -> jax.Array:
    """One value per row, across the row."""
    return lax.broadcast_in_dim(x, (x.shape[0], width), (0,))


def _scaled_by_frequency(rows: jax.Array, index: jax.Array, n: int) -> jax.Array:
    count = take_rows(_counts(index, n), 0, lax.min(index, np.asarray(n - 1, index.dtype)))
    compute = dtypes.opmath(rows.dtype)
    return lax.div(rows.astype(compute), _rows(count.astype(compute), rows.shape[1]))


@lower("embedding_dense_backward")
def embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq):
    width = context().out_shape[1]
    if grad_output.size == 0 or num_weights == 0:
        return zeros(context().out_shape, grad_output.dtype)
    rows = lax.reshape(grad_output, (indices.size, width))
    index = lax.reshape(indices.astype(index_dtype(num_weights)), (indices.size,))
    if scale_grad_by_freq:
        rows = _scaled_by_frequency(rows, index, num_weights)
    if padding_idx >= 0:
        # A row past the end is dropped.
        away = lax.full(index.shape, num_weights, index.dtype)
        index = lax.select(lax.eq(index, np.asarray(padding_idx, index.dtype)), away, index)
    # A scatter beats a one-hot product on XLA's CPU client from a few thousand products on (measured: 30 µs against
    # 14 at 65×32, 62 against 249 at 256×512), and a product spreads an inf or NaN to every row.
    return put_rows("add", zeros((num_weights, width), rows.dtype), 0, index, rows, drop=True)


@lower("embedding_renorm", static=("norm_type",))
def embedding_renorm(self, indices, max_norm, norm_type):
    n, width = self.shape
    context().check(in_range(indices, 0, n), IndexError, "index out of range in self", indices)
    if indices.size == 0 or self.size == 0:
        return self
    index = lax.reshape(indices.astype(index_dtype(n)), (indices.size,))
    rows = take_rows(self, 0, index).astype(dtypes.opmath(self.dtype))
    size = lax.abs(rows)
    if norm_type == np.inf:
        norm = lax.reduce(size, zero(rows.dtype), lax.max, (1,))
    elif norm_type == 2:
        norm = lax.sqrt(lax.reduce(lax.mul(size, size), zero(rows.dtype), lax.add, (1,)))
    else:
        power = lax.pow(size, np.asarray(norm_type, rows.dtype))
        norm = lax.pow(lax.reduce(power, zero(rows.dtype), lax.add, (1,)), np.asarray(1 / norm_type, rows.dtype))
    limit = broadcast_to(jnp.asarray(max_norm).astype(rows.dtype), norm.shape)
    scale = lax.div(limit, lax.add(norm, np.asarray(1e-7, norm.dtype)))
    scale = lax.select(lax.gt(norm, limit), scale, lax.full(norm.shape, 1, norm.dtype))
    return put_rows("set", self, 0, index, lax.mul(rows, _rows(scale, width)).astype(self.dtype))


# Bags


def _bag_of_each(offsets: jax.Array, n: int) -> jax.Array:
    """The bag that each of n indices belongs to: one less than the number of bags begun up to it."""
    ones = lax.full(offsets.shape, 1, np.int32)
    begun = put_rows("add", zeros((n,), np.dtype(np.int32)), 0, offsets.astype(np.int32), ones, drop=True)
    return lax.sub(lax.cumsum(begun), np.int32(1))


def _bag_sums(rows: jax.Array, bag: jax.Array, bags: int) -> jax.Array:
    return put_rows("add", zeros((bags, rows.shape[1]), rows.dtype), 0, bag, rows, drop=True)


def _empty_like_spec(k: int) -> jax.Array:
    spec = context().outs[k]
    return zeros(spec.shape, dtypes.to_numpy_dtype(spec.dtype))


def _as_spec(value: jax.Array, k: int) -> jax.Array:
    """A by-product of a bag in the shape that PyTorch keeps, which may be empty or longer where it is unused."""
    shape = context().outs[k].shape
    if value.shape == shape:
        return value
    if len(shape) == value.ndim and all(a >= b for a, b in zip(shape, value.shape, strict=True)):
        return lax.pad(value, zero(value.dtype), [(0, a - b, 0) for a, b in zip(shape, value.shape, strict=True)])
    return zeros(shape, value.dtype)


@lower("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=_SUM,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
):
    n, width = weight.shape
    bags = context().out_shape[0]
    context().check(
        in_range(indices, 0, n),
        RuntimeError,
        f"embedding_bag: index {{value}} is not in the valid range [0, {n})",
        indices,
    )
    if offsets.size:
        first, last = offsets[0], offsets[-1]
        context().check(
            lax.eq(first, zero(first.dtype)),
            RuntimeError,
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. "
            "However, got {value}",
            first,
        )
        context().check(
            lax.le(last, np.asarray(indices.shape[0], last.dtype)),
            RuntimeError,
            f"offsets[-1] can not be greater than input's length {indices.shape[0]} but got offsets[-1] of {{value}}",
            last,
        )
    if indices.size == 0 or bags == 0 or width == 0:
        return tuple(_empty_like_spec(k) for k in range(4))
    offsets = offsets[:bags]
    index = indices.astype(index_dtype(n))
    bag = _bag_of_each(offsets, indices.size)
    live = (
        bag
        if padding_idx < 0
        else lax.select(lax.eq(index, np.asarray(padding_idx, index.dtype)), lax.full(bag.shape, bags, bag.dtype), bag)
    )
    compute = dtypes.opmath(weight.dtype)
    rows = take_rows(weight, 0, index).astype(compute)
    if per_sample_weights is not None:
        rows = lax.mul(rows, _rows(per_sample_weights.astype(compute), width))
    # PyTorch leaves the sizes of summed bags at 0, and gives them in place of maxima where there are none.
    size = zeros((bags,), np.dtype(np.int32)) if mode == _SUM else _counts(live, bags)
    chosen = size
    if mode == _MAX:
        out, chosen = _bag_max(rows, index, live, bags)
    else:
        out = _bag_sums(rows, live, bags)
        if mode == _MEAN:
            out = lax.div(out, _rows(lax.max(size, np.int32(1)).astype(compute), width))
    return out, _as_spec(bag, 1), _as_spec(size, 2), _as_spec(chosen, 3)


def _bag_max(rows: jax.Array, index: jax.Array, bag: jax.Array, bags: int) -> tuple[jax.Array, jax.Array]:
    """The greatest value of each column of each bag, and the first table row that holds it."""
    n, width = rows.shape
    least = put_rows("max", lax.full((bags, width), -np.inf, rows.dtype), 0, bag, rows, drop=True)
    holds = lax.eq(take_rows(least, 0, lax.min(bag, np.int32(bags - 1))), rows) | lax.ne(rows, rows)
    position = lax.select(holds, iota(np.int32, rows.shape, 0), lax.full(rows.shape, n, np.int32))
    first = put_rows("min", lax.full((bags, width), n, np.int32), 0, bag, position, drop=True)
    empty = lax.eq(first, np.int32(n))
    chosen = take_rows(index, 0, lax.min(first, np.int32(n - 1)))
    blank = zeros((bags, width), rows.dtype)
    return lax.select(empty, blank, least), lax.select(empty, lax.full(chosen.shape, 0, chosen.dtype), chosen)


@lower("_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad,
    indices,
    offset2bag,
    bag_size,
    maximum_indices,
    num_weights,
    scale_grad_by_freq,
    mode,
    per_sample_weights=None,
    padding_idx=-1,
):
    shape, width = context().out_shape, context().out_shape[1]
    if grad.size == 0 or indices.size == 0 or num_weights == 0:
        return zeros(shape, grad.dtype)
    bags, dtype = grad.shape[0], index_dtype(num_weights)
    away = np.asarray(num_weights, dtype)
    compute = dtypes.opmath(grad.dtype)
    if mode == _MAX:
        # Each bag's column flows to the row that gave its maximum; an empty bag has none.
        row = maximum_indices.astype(dtype)
        empty = lax.broadcast_in_dim(lax.eq(bag_size, zero(bag_size.dtype)), row.shape, (0,))
        row = lax.reshape(lax.select(empty, lax.full(row.shape, away, dtype), row), (bags * width,))
        column = lax.reshape(iota(dtype, (bags, width), 1), (bags * width,))
        dims = lax.ScatterDimensionNumbers((), (0, 1), (0, 1))
        where = lax.concatenate([row[:, None], column[:, None]], 1)
        out = lax.scatter_add(
            zeros(shape, compute),
            where,
            lax.reshape(grad, (bags * width,)).astype(compute),
            dims,
            mode=lax.GatherScatterMode.FILL_OR_DROP,
        )
        return out
    index = indices.astype(dtype)
    bag = lax.min(offset2bag.astype(np.int32), np.int32(bags - 1))
    rows = take_rows(grad, 0, bag).astype(compute)
    if per_sample_weights is not None:
        rows = lax.mul(rows, _rows(per_sample_weights.astype(compute), width))
    if mode == _MEAN:
        size = take_rows(lax.max(bag_size, np.asarray(1, bag_size.dtype)), 0, bag)
        rows = lax.div(rows, _rows(size.astype(compute), width))
    if scale_grad_by_freq:
        rows = _scaled_by_frequency(rows, index, num_weights)
    if padding_idx >= 0:
        index = lax.select(lax.eq(index, np.asarray(padding_idx, dtype)), lax.full(index.shape, away, dtype), index)
    return put_rows("add", zeros(shape, compute), 0, index, rows, drop=True)


@lower("_embedding_bag_backward")
def embedding_bag_backward(
    grad,
    indices,
    offsets,
    offset2bag,
    bag_size,
    maximum_indices,
    num_weights,
    scale_grad_by_freq,
    mode,
    sparse,
    per_sample_weights,
    padding_idx=-1,
):
    if indices.size and grad.size:
        bag = _bag_of_each(offsets[: grad.shape[0]], indices.size)
        if bag_size.shape != (grad.shape[0],):
            bag_size = _sizes(bag, indices, grad.shape[0], padding_idx)
        offset2bag = bag
    return embedding_bag_dense_backward(
        grad,
        indices,
        offset2bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


def _sizes(bag: jax.Array, indices: jax.Array, bags: int, padding_idx: int) -> jax.Array:
    if padding_idx >= 0:
        padded = lax.eq(indices, np.asarray(padding_idx, indices.dtype))
        bag = lax.select(padded, lax.full(bag.shape, bags, bag.dtype), bag)
    return _counts(bag, bags)


@lower("_embedding_bag_per_sample_weights_backward")
def per_sample_weights_backward(grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1):
    if indices.size == 0 or grad.size == 0:
        return zeros(context().out_shape, grad.dtype)
    bag = _bag_of_each(offsets[: grad.shape[0]], indices.size) if offset2bag.size == 0 else offset2bag.astype(np.int32)
    compute = dtypes.opmath(grad.dtype)
    index = indices.astype(index_dtype(weight.shape[0]))
    products = lax.mul(take_rows(grad, 0, bag).astype(compute), take_rows(weight, 0, index).astype(compute))
    out = lax.reduce(products, zero(compute), lax.add, (1,))
    if padding_idx >= 0:
        out = lax.select(lax.eq(indices, np.asarray(padding_idx, indices.dtype)), zeros(out.shape, out.dtype), out)
    return out
