"""Scattered writes and reductions, histograms and searches in sorted sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import cast, context, filler
from torchtpu.lowering.index import as_dims, in_range, index_dtype, put_along, put_rows, take_along
from torchtpu.lowering.registry import lower
from torchtpu.lowering.shape import along, axis, broadcast_to, iota, zero, zeros

_KINDS = {"add": "add", "sum": "add", "mean": "add", "multiply": "mul", "prod": "mul", "amax": "max", "amin": "min"}


def identity(kind: str, dtype: np.dtype) -> np.ndarray:
    """The value that a reduction leaves unchanged."""
    if kind in ("add", "mul"):
        return np.asarray(kind == "mul", dtype)
    if dtype == np.bool_:
        return np.asarray(kind == "min", dtype)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return np.asarray(info.min if kind == "max" else info.max, dtype)
    return np.asarray(-np.inf if kind == "max" else np.inf, dtype)


def _divide(total: jax.Array, count: jax.Array) -> jax.Array:
    """A mean: rounded down for integers, unchanged where nothing was counted."""
    count = lax.max(count, np.asarray(1, count.dtype))
    if np.issubdtype(total.dtype, np.integer):
        # uint8 can wrap a count; PyTorch's does too.
        return jnp.floor_divide(total, count.astype(total.dtype))
    if total.dtype == np.bool_:
        return total
    compute = dtypes.opmath(total.dtype)
    return lax.div(total.astype(compute), count.astype(compute)).astype(total.dtype)


def _scatter(
    self: jax.Array,
    dim: int,
    index: jax.Array,
    src: jax.Array,
    kind: str,
    include_self: bool = True,
    mean: bool = False,
) -> jax.Array:
    shape = self.shape
    if self.ndim == 0:
        self = lax.reshape(self, (1,))
    if index.ndim == 0:
        index = lax.reshape(index, (1,))
    if src.ndim == 0:
        src = broadcast_to(src, index.shape)
    if index.size == 0 or self.size == 0:
        return lax.reshape(self, shape)
    dim = axis(dim, self.ndim)
    n = self.shape[dim]
    message = f"index {{value}} is out of bounds for dimension {dim} with size {n}"
    context().check(in_range(index, 0, n), RuntimeError, message, index)
    index = index.astype(index_dtype(n))
    src = cast(lax.slice(src, [0] * src.ndim, index.shape), self.dtype)
    part_shape = [n if d == dim else m for d, m in enumerate(index.shape)]
    part = lax.slice(self, [0] * self.ndim, part_shape)
    if not include_self:
        # Written positions forget their old value.
        blank = lax.full(index.shape, identity(kind, self.dtype), self.dtype)
        part = put_along("set", part, dim, index, blank)
    out = put_along(kind, part, dim, index, src)
    if mean:
        count = lax.full(part.shape, int(include_self), np.int32)
        out = _divide(out, put_along("add", count, dim, index, lax.full(index.shape, 1, np.int32)))
    if out.shape != self.shape:
        out = lax.dynamic_update_slice(self, out, [np.int32(0)] * self.ndim)
    return lax.reshape(out, shape)


@lower("scatter.src")
def scatter_src(self, dim, index, src):
    return _scatter(self, dim, index, cast(src, self.dtype), "set")


@lower("scatter.value")
def scatter_value(self, dim, index, value):
    return _scatter(self, dim, index, filler(value, self.dtype), "set")


@lower("scatter.reduce")
def scatter_with_reduce(self, dim, index, src, *, reduce):
    return _scatter(self, dim, index, cast(src, self.dtype), _KINDS[reduce])


@lower("scatter.value_reduce")
def scatter_value_reduce(self, dim, index, value, *, reduce):
    return _scatter(self, dim, index, filler(value, self.dtype), _KINDS[reduce])


@lower("scatter_add")
def scatter_add(self, dim, index, src):
    return _scatter(self, dim, index, src, "add")


@lower("scatter_reduce.two")
def scatter_reduce(self, dim, index, src, reduce, *, include_self=True):
    return _scatter(self, dim, index, src, _KINDS[reduce], include_self, reduce == "mean")


@lower("index_reduce")
def index_reduce(self, dim, index, source, reduce, *, include_self=True):
    shape = self.shape
    self, dim, index = as_dims(self, dim, index)
    n = self.shape[dim]
    context().check(in_range(index, 0, n), IndexError, "index out of range in self", index)
    if self.size == 0 or index.size == 0:
        return lax.reshape(self, shape)
    index = index.astype(index_dtype(n))
    source = lax.reshape(cast(source, self.dtype), (*self.shape[:dim], index.size, *self.shape[dim + 1 :]))
    kind = _KINDS[reduce]
    if not include_self:
        self = put_rows("set", self, dim, index, lax.full(source.shape, identity(kind, self.dtype), self.dtype))
    out = put_rows(kind, self, dim, index, source)
    if reduce == "mean":
        count = put_rows(
            "add", lax.full((n,), int(include_self), np.int32), 0, index, lax.full((index.size,), 1, np.int32)
        )
        out = _divide(out, lax.broadcast_in_dim(count, out.shape, (dim,)))
    return lax.reshape(out, shape)


# Counting


def _extremes(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    every = tuple(range(x.ndim))
    return (
        lax.reduce(x, identity("min", x.dtype), lax.min, every),
        lax.reduce(x, identity("max", x.dtype), lax.max, every),
    )


def _widened(low: jax.Array, high: jax.Array, by: float) -> tuple[jax.Array, jax.Array]:
    """A range that is not empty."""
    empty, margin = lax.eq(low, high), np.asarray(by, low.dtype)
    return lax.select(empty, lax.sub(low, margin), low), lax.select(empty, lax.add(high, margin), high)


def _check_range(low: jax.Array, high: jax.Array, name: str, order: str) -> None:
    """A range that is finite and not reversed."""
    if not np.issubdtype(low.dtype, np.integer):
        finite = lax.bitwise_and(lax.is_finite(low), lax.is_finite(high))
        context().check(finite, RuntimeError, f"torch.{name} is not finite")
    context().check(lax.le(low, high), RuntimeError, order)


@lower("histc")
def histc(self, bins=100, min=0, max=0):
    dtype = context().out_dtype
    x = lax.reshape(self, (self.size,))
    if x.size == 0:
        return zeros((bins,), dtype)
    low, high = cast(jnp.asarray(min), x.dtype), cast(jnp.asarray(max), x.dtype)
    # Equal ends ask for the range of the data.
    same, (least, most) = lax.eq(low, high), _extremes(x)
    low, high = lax.select(same, least, low), lax.select(same, most, high)
    _check_range(low, high, "histc: the range", "torch.histc: max must be larger than min")
    low, high = _widened(low, high, 1)
    compute = np.dtype(np.float64) if np.issubdtype(dtype, np.integer) else dtypes.opmath(dtype)
    inside = lax.bitwise_and(lax.ge(x, broadcast_to(low, x.shape)), lax.le(x, broadcast_to(high, x.shape)))
    x, low, high = x.astype(compute), low.astype(compute), high.astype(compute)
    position = (x - low) * np.asarray(bins, compute) / (high - low)
    position = lax.min(position.astype(np.int32), np.int32(bins - 1))
    position = lax.select(inside, position, lax.full(position.shape, bins, np.int32))
    counts = put_rows("add", zeros((bins,), np.dtype(np.int32)), 0, position, lax.full(x.shape, 1, np.int32), drop=True)
    return counts.astype(dtype)


def _edges(x: jax.Array, bins: Sequence[int], ranges: Sequence[jax.Array] | None) -> list[jax.Array]:
    out = []
    for d, n in enumerate(bins):
        column = lax.squeeze(along(x, 1, d, d + 1), (1,))
        if ranges is not None:
            low, high = (cast(jnp.asarray(v), x.dtype) for v in ranges[2 * d : 2 * d + 2])
        elif column.size:
            low, high = _extremes(column)
        else:
            low, high = jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
        order = f"torch.histogramdd: min should not exceed max for dimension {d}"
        _check_range(low, high, f"histogramdd: dimension {d}'s range", order)
        low, high = _widened(low, high, 0.5)
        step = lax.div(lax.sub(high, low), np.asarray(n, x.dtype))
        index = iota(np.int32, (n + 1,), 0)
        up = low + index.astype(x.dtype) * step
        down = high - (np.int32(n) - index).astype(x.dtype) * step
        out.append(lax.select(lax.lt(index, np.int32((n + 1) // 2)), up, down))
    return out


def _histogram(
    x: jax.Array,
    edges: Sequence[jax.Array],
    weight: jax.Array | None,
    density: bool,
) -> jax.Array:
    """Counts of the points x (N, D) in the cells between edges; the last edge of a dimension belongs to its last bin."""
    shape, dtype = tuple(e.shape[0] - 1 for e in edges), x.dtype
    size = math.prod(shape)
    position, inside = None, None
    for d, edge in enumerate(edges):
        column = lax.squeeze(along(x, 1, d, d + 1), (1,))
        first, last = broadcast_to(edge[0], column.shape), broadcast_to(edge[-1], column.shape)
        ok = lax.bitwise_and(lax.ge(column, first), lax.le(column, last))
        bin_ = lax.min(lax.sub(search(edge, column, True), np.int32(1)), np.int32(shape[d] - 1))
        position = bin_ if position is None else lax.add(lax.mul(position, np.int32(shape[d])), bin_)
        inside = ok if inside is None else lax.bitwise_and(inside, ok)
    assert position is not None and inside is not None  # there is at least one dimension
    position = lax.select(inside, position, lax.full(position.shape, size, np.int32))
    updates = lax.full(position.shape, 1, dtype) if weight is None else lax.reshape(cast(weight, dtype), position.shape)
    out = lax.reshape(put_rows("add", zeros((size,), dtype), 0, position, updates, drop=True), shape)
    if density:
        out = lax.div(out, broadcast_to(lax.reduce(out, zero(dtype), lax.add, tuple(range(out.ndim))), shape))
        for d, edge in enumerate(edges):
            out = lax.div(out, lax.broadcast_in_dim(lax.sub(edge[1:], edge[:-1]), shape, (d,)))
    return out


def _points(self: jax.Array) -> jax.Array:
    return lax.reshape(self, (self.size // max(self.shape[-1], 1), self.shape[-1]))


@lower("histogram.bin_ct")
def histogram_bin_ct(self, bins=100, *, range=None, weight=None, density=False):
    x = lax.reshape(self, (self.size, 1))
    (edge,) = _edges(x, [bins], range)
    return _histogram(x, [edge], weight, density), edge


@lower("histogram.bins_tensor")
def histogram_bins_tensor(self, bins, *, weight=None, density=False):
    return _histogram(lax.reshape(self, (self.size, 1)), [bins], weight, density), bins


@lower("_histogramdd_bin_edges")
def histogramdd_bin_edges(self, bins, *, range=None, weight=None, density=False):
    return _edges(_points(self), bins, range)


@lower("_histogramdd_from_bin_cts")
def histogramdd_from_bin_cts(self, bins, *, range=None, weight=None, density=False):
    x = _points(self)
    return _histogram(x, _edges(x, bins, range), weight, density)


@lower("_histogramdd_from_bin_tensors")
def histogramdd_from_bin_tensors(self, bins, *, weight=None, density=False):
    return _histogram(_points(self), bins, weight, density)


# Searching


def search(
    sequence: jax.Array,
    values: jax.Array,
    right: bool,
    sorter: jax.Array | None = None,
    nan_last: bool = False,
) -> jax.Array:
    """Insertion positions (int32) in sequences sorted on the last dimension; 1-d sequences serve values of any shape.

    Short sequences are compared in full, in one fused loop; long ones take a binary search of log2(n) gathers.
    PyTorch's search passes over NaNs in a sequence; with nan_last they count as greatest.
    """
    n = sequence.shape[-1]
    if n == 0 or values.size == 0:
        return zeros(values.shape, np.dtype(np.int32))

    def passed(at: jax.Array) -> jax.Array:
        if nan_last:
            return lax.le(at, values) if right else lax.lt(at, values)
        # Negated comparisons send a NaN value, and values met by a NaN in the sequence, to the right.
        return lax.bitwise_not(lax.gt(at, values) if right else lax.ge(at, values))

    if n <= 64 and sorter is None:
        shape = (*values.shape, n)
        dims = (len(shape) - 1,) if sequence.ndim == 1 else (*range(sequence.ndim - 1), len(shape) - 1)
        at = lax.broadcast_in_dim(sequence, shape, dims)
        value = lax.broadcast_in_dim(values, shape, tuple(range(values.ndim)))
        stops = lax.gt(at, value) if right else lax.ge(at, value)
        position = lax.select(stops, iota(np.int32, shape, len(shape) - 1), lax.full(shape, n, np.int32))
        return lax.reduce(position, np.int32(n), lax.min, (len(shape) - 1,))
    shape = values.shape
    if sequence.ndim == 1:
        values = lax.reshape(values, (values.size,))
    else:
        rows = math.prod(sequence.shape[:-1])
        sequence = lax.reshape(sequence, (rows, n))
        sorter = None if sorter is None else lax.reshape(sorter, (rows, n))
        values = lax.reshape(values, (rows, values.size // rows))
    start = zeros(values.shape, np.dtype(np.int32))
    end = lax.full(values.shape, n, np.int32)
    dim = sequence.ndim - 1
    for _ in range(n.bit_length()):
        middle = lax.add(start, lax.div(lax.sub(end, start), np.int32(2)))
        probe = lax.min(middle, np.int32(n - 1))
        if sorter is not None:
            probe = take_along(sorter, dim, probe).astype(np.int32)
        beyond = passed(take_along(sequence, dim, probe))
        active = lax.lt(start, end)
        start = lax.select(lax.bitwise_and(active, beyond), lax.add(middle, np.int32(1)), start)
        end = lax.select(lax.bitwise_and(active, lax.bitwise_not(beyond)), middle, end)
    return lax.reshape(start, shape)


def _search_operands(sequence: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
    if sequence.dtype == value.dtype:
        return sequence, value
    number = value.ndim == 0
    common = dtypes.result_type(
        [dtypes.to_torch_dtype(sequence.dtype)] + ([] if number else [dtypes.to_torch_dtype(value.dtype)]),
        [],
        [dtypes.to_torch_dtype(value.dtype)] if number else [],
        context().default_float,
    )
    wide = dtypes.to_numpy_dtype(common)
    return cast(sequence, wide), cast(value, wide)


@lower("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(sorted_sequence, self, *, out_int32=False, right=False, side=None, sorter=None):
    sequence, value = _search_operands(sorted_sequence, jnp.asarray(self))
    return search(sequence, value, right or side == "right", sorter)


@lower("bucketize.Tensor", "bucketize.Scalar")
def bucketize(self, boundaries, *, out_int32=False, right=False):
    sequence, value = _search_operands(boundaries, jnp.asarray(self))
    return search(sequence, value, right)


@lower("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def isin(elements, test_elements, *, assume_unique=False, invert=False):
    elements, tests = jnp.asarray(elements), jnp.asarray(test_elements)
    groups: tuple[list, list] = ([], [])
    for x in (elements, tests):
        groups[0 if x.ndim else 1].append(dtypes.to_torch_dtype(x.dtype))
    common = dtypes.to_numpy_dtype(dtypes.result_type(groups[0], groups[1], [], context().default_float))
    elements, tests = cast(elements, common), lax.reshape(cast(tests, common), (tests.size,))
    if tests.size == 0 or elements.size == 0:
        return lax.full(elements.shape, invert, np.bool_)
    if tests.size <= 64 or not np.issubdtype(common, np.number) or np.issubdtype(common, np.complexfloating):
        shape = (*elements.shape, tests.size)
        equal = lax.eq(
            lax.broadcast_in_dim(elements, shape, tuple(range(elements.ndim))),
            lax.broadcast_in_dim(tests, shape, (len(shape) - 1,)),
        )
        found = lax.reduce(equal, np.False_, lax.bitwise_or, (len(shape) - 1,))
    else:
        ordered = lax.sort(tests)
        flat = lax.reshape(elements, (elements.size,))
        at = lax.min(search(ordered, flat, False, nan_last=True), np.int32(tests.size - 1))
        found = lax.reshape(lax.eq(take_along(ordered, 0, at), flat), elements.shape)
    return lax.bitwise_not(found) if invert else found
