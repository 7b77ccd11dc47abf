"""Reading and writing by index tensors and masks.

XLA clamps an index that is out of range, so each operator checks its indices itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import cast, context, filler
from torchtpu.lowering.registry import lower
from torchtpu.lowering.shape import axis, broadcast_to, iota, take_flat, zeros

IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS
_SCATTERS = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "mul": lax.scatter_mul,
    "max": lax.scatter_max,
    "min": lax.scatter_min,
}


def in_range(index: jax.Array, low: int, high: int) -> jax.Array:
    """Whether low <= index < high."""
    if low == 0 and high > 0 and np.issubdtype(index.dtype, np.signedinteger):
        # One unsigned comparison: a negative index becomes a huge one.
        unsigned = np.dtype(f"u{index.dtype}")
        return lax.lt(
            lax.bitcast_convert_type(index, unsigned), np.asarray(min(high, np.iinfo(unsigned).max), unsigned)
        )
    return lax.bitwise_and(lax.ge(index, np.asarray(low, index.dtype)), lax.lt(index, np.asarray(high, index.dtype)))


def index_dtype(size: int) -> np.dtype:
    """The integer type for positions below a size: 32 bits are much faster on accelerators."""
    return np.dtype(np.int32 if size < 2**31 else np.int64)


def wrap(index: jax.Array, n: int) -> jax.Array:
    """Indices with negative ones counted from the end."""
    index = index.astype(index_dtype(n))
    return lax.select(lax.lt(index, np.asarray(0, index.dtype)), lax.add(index, np.asarray(n, index.dtype)), index)


def scatter(
    kind: str,
    operand: jax.Array,
    index: jax.Array,
    updates: jax.Array,
    dims: lax.ScatterDimensionNumbers,
    drop: bool = False,
    unique: bool = False,
) -> jax.Array:
    """XLA's scatter for every dtype: bool adds as `or` and multiplies as `and`, half types accumulate in float32."""
    dtype = operand.dtype
    compute = dtype
    if dtype == np.bool_:
        compute = np.dtype(np.uint8)
        kind = {"add": "max", "mul": "min"}.get(kind, kind)
    elif kind in ("add", "mul"):
        compute = dtypes.opmath(dtype)
    mode = lax.GatherScatterMode.FILL_OR_DROP if drop else IN_BOUNDS
    out = _SCATTERS[kind](
        operand.astype(compute), index, updates.astype(compute), dims, unique_indices=unique, mode=mode
    )
    return out.astype(dtype)


def take_rows(x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    """Slices of one dimension at positions in range; the index's dimensions take the place of `dim`."""
    kept = [d for d in range(x.ndim) if d != dim]
    dims = lax.GatherDimensionNumbers(
        offset_dims=tuple(d if d < dim else d + index.ndim - 1 for d in kept),
        collapsed_slice_dims=(dim,),
        start_index_map=(dim,),
    )
    sizes = [1 if d == dim else n for d, n in enumerate(x.shape)]
    return lax.gather(x, index[..., None], dims, sizes, mode=IN_BOUNDS)


def put_rows(kind: str, x: jax.Array, dim: int, index: jax.Array, updates: jax.Array, drop: bool = False) -> jax.Array:
    """Writes slices of one dimension at the positions of a 1-d index."""
    kept = tuple(d for d in range(x.ndim) if d != dim)
    dims = lax.ScatterDimensionNumbers(
        update_window_dims=kept, inserted_window_dims=(dim,), scatter_dims_to_operand_dims=(dim,)
    )
    return scatter(kind, x, index[:, None], updates, dims, drop=drop)


def take_along(x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    """out[..., i, ...] = x[..., index[..., i, ...], ...]; the other dimensions have equal sizes."""
    others = tuple(d for d in range(x.ndim) if d != dim)
    dims = lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(dim,),
        start_index_map=(dim,),
        operand_batching_dims=others,
        start_indices_batching_dims=others,
    )
    return lax.gather(x, index[..., None], dims, (1,) * x.ndim, mode=IN_BOUNDS)


def put_along(
    kind: str,
    x: jax.Array,
    dim: int,
    index: jax.Array,
    updates: jax.Array,
    drop: bool = False,
    unique: bool = False,
) -> jax.Array:
    """The write that corresponds to take_along."""
    others = tuple(d for d in range(x.ndim) if d != dim)
    dims = lax.ScatterDimensionNumbers(
        update_window_dims=(),
        inserted_window_dims=(dim,),
        scatter_dims_to_operand_dims=(dim,),
        operand_batching_dims=others,
        scatter_indices_batching_dims=others,
    )
    return scatter(kind, x, index[..., None], updates, dims, drop=drop, unique=unique)


def mask_ranks(mask: jax.Array) -> jax.Array:
    """For each element of a flat mask, how many elements before it are set."""
    counts = lax.cumsum(mask.astype(index_dtype(mask.size)))
    return lax.sub(counts, mask.astype(counts.dtype))


def mask_positions(mask: jax.Array, count: int, fill: int | None = None) -> jax.Array:
    """Positions of the first `count` set elements of a flat mask; `fill` where there are fewer."""
    dtype = index_dtype(mask.size)
    ranks = lax.select(mask, mask_ranks(mask), lax.full(mask.shape, count, dtype))
    dims = lax.ScatterDimensionNumbers(
        update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )
    out = lax.full((count,), mask.size if fill is None else fill, dtype)
    return scatter("set", out, ranks[:, None], iota(dtype, mask.shape, 0), dims, drop=True)


def unravel(positions: jax.Array, shape: Sequence[int]) -> list[jax.Array]:
    """Flat positions as one index per dimension; a position past the end is past the end of the first."""
    out = []
    for n in reversed(shape[1:]):
        length = np.asarray(max(n, 1), positions.dtype)
        out.append(lax.rem(positions, length))
        positions = lax.div(positions, length)
    return [positions, *reversed(out)]


def _is_mask(index: jax.Array) -> bool:
    return index.dtype in (np.bool_, np.uint8)


def _where_placed(entries: Sequence[jax.Array | None]) -> tuple[list[int], int]:
    """The indexed dimensions, and where the result's index dimensions go: in place if adjacent, else in front."""
    dims = [d for d, index in enumerate(entries) if index is not None]
    adjacent = bool(dims) and dims == list(range(dims[0], dims[0] + len(dims)))
    return dims, dims[0] if adjacent else 0


def _layout(indices: Sequence[jax.Array | None]) -> tuple[int, int]:
    """Number and place of the index dimensions in the result, before masks are expanded."""
    entries: list[jax.Array | None] = []
    rank = 0
    for index in indices:
        if index is None:
            entries.append(None)
        elif _is_mask(index):
            entries.extend([index] * index.ndim)
            rank = max(rank, 1)
        else:
            entries.append(index)
            rank = max(rank, index.ndim)
    return rank, _where_placed(entries)[1]


def _expand(indices: Sequence[jax.Array | None], shape: Sequence[int], count: int) -> list[jax.Array | None]:
    """One entry per indexed dimension, in range, masks replaced by the positions of their first `count` elements."""
    entries: list[jax.Array | None] = []
    number = 0
    for index in indices:
        dim = len(entries)
        if index is None:
            entries.append(None)
        elif _is_mask(index):
            mask = cast(lax.reshape(index, (index.size,)), np.dtype(np.bool_))
            assert count is not None  # the caller knows the result's size
            found = mask_positions(mask, count)
            if any(i is not None and not _is_mask(i) for i in indices) and count > 1:
                # A mask with one element set broadcasts against the other indices.
                one = lax.eq(lax.reduce(mask.astype(np.int32), np.int32(0), lax.add, (0,)), np.int32(1))
                found = lax.select(
                    lax.broadcast_in_dim(one, found.shape, ()), broadcast_to(found[:1], found.shape), found
                )
            entries.extend(unravel(found, index.shape))
            number += index.ndim
        else:
            n = shape[dim]
            context().check(
                in_range(index, -n, n),
                IndexError,
                f"index {{value}} is out of bounds for dimension {number} with size {n}",
                index,
            )
            entries.append(wrap(index, n))
            number += 1
    return entries


def _together(entries: Sequence[jax.Array | None]) -> jax.Array:
    """The index arrays broadcast and stacked on a last dimension."""
    arrays = [e for e in entries if e is not None]
    shape = np.broadcast_shapes(*[a.shape for a in arrays])
    dtype = np.result_type(*[a.dtype for a in arrays])
    arrays = [lax.expand_dims(broadcast_to(a.astype(dtype), shape), (len(shape),)) for a in arrays]
    return arrays[0] if len(arrays) == 1 else lax.concatenate(arrays, len(shape))


def _read(self: jax.Array, entries: Sequence[jax.Array | None]) -> jax.Array:
    dims, place = _where_placed(entries)
    start = _together(entries)
    rank, kept = start.ndim - 1, self.ndim - len(dims)
    offset = tuple(i if i < place else i + rank for i in range(kept))
    numbers = lax.GatherDimensionNumbers(
        offset_dims=offset, collapsed_slice_dims=tuple(dims), start_index_map=tuple(dims)
    )
    sizes = [1 if d in dims else n for d, n in enumerate(self.shape)]
    return lax.gather(self, start, numbers, sizes, mode=IN_BOUNDS)


def _write(
    self: jax.Array,
    entries: Sequence[jax.Array | None],
    values: jax.Array,
    accumulate: bool,
    drop: bool = False,
) -> jax.Array:
    dims, place = _where_placed(entries)
    start = _together(entries)
    rank = start.ndim - 1
    kept = [n for d, n in enumerate(self.shape) if d not in dims]
    shape = (*kept[:place], *start.shape[:-1], *kept[place:])
    values = broadcast_to(_fit(values, len(shape)), shape)
    window = tuple(i if i < place else i + rank for i in range(len(kept)))
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=window, inserted_window_dims=tuple(dims), scatter_dims_to_operand_dims=tuple(dims)
    )
    return scatter("add" if accumulate else "set", self, start, values, numbers, drop=drop)


def _fit(values: jax.Array, ndim: int) -> jax.Array:
    """PyTorch drops surplus leading dimensions of size 1."""
    while values.ndim > ndim:
        values = lax.squeeze(values, (0,))
    return values


@lower("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(self, indices):
    if all(i is None for i in indices):
        return self
    out = context().out_shape
    count = 0
    if any(i is not None and _is_mask(i) for i in indices):
        rank, place = _layout(indices)
        count = out[place + rank - 1] if rank else 1
    if 0 in out:
        if 0 not in self.shape:
            _expand(indices, self.shape, count)  # for the checks
        return zeros(out, self.dtype)
    entries = _expand(indices, self.shape, count)
    return _read(self, entries) if any(e is not None for e in entries) else lax.reshape(self, out)


def _put_mask(self: jax.Array, before: int, mask: jax.Array, values: jax.Array, accumulate: bool) -> jax.Array:
    """Writes where a mask over dimensions before, before + 1, … is set; how many those are is not known."""
    mask = cast(mask, np.dtype(np.bool_))
    inner = self.ndim - before - mask.ndim
    wide = lax.broadcast_in_dim(mask, self.shape, tuple(range(before, before + mask.ndim)))
    values = _fit(values, before + 1 + inner)
    values = lax.reshape(values, (1,) * (before + 1 + inner - values.ndim) + values.shape)
    n = values.shape[before]
    ones = (1,) * mask.ndim
    if n != 1:
        flat = lax.reshape(mask, (mask.size,))
        set_ = lax.reduce(flat.astype(np.int64), np.int64(0), lax.add, (0,))
        context().check(
            lax.eq(set_, np.int64(n)),
            RuntimeError,
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of shape "
            "[{value}]",
            set_,
        )
        if n == 0:
            return self
        ranks = lax.min(mask_ranks(flat), np.asarray(n - 1, index_dtype(mask.size)))
        values, ones = take_rows(values, before, ranks), mask.shape
    values = lax.reshape(values, (*values.shape[:before], *ones, *values.shape[before + 1 :]))
    values = broadcast_to(values, self.shape)
    if accumulate:
        values = lax.bitwise_or(self, values) if self.dtype == np.bool_ else lax.add(self, values)
    return lax.select(wide, values, self)


@lower("index_put", "_index_put_impl", "_unsafe_index_put")
def index_put(self, indices, values, accumulate=False, unsafe=False):
    values = cast(values, self.dtype)
    given = [i for i in indices if i is not None]
    if 0 in self.shape or not given or any(i.size == 0 for i in given if not _is_mask(i)):
        if not given:
            values = broadcast_to(_fit(values, self.ndim), self.shape)
            return lax.add(self, values) if accumulate else values
        return self
    masks = [i for i in given if _is_mask(i)]
    if len(given) == 1 and masks:
        return _put_mask(self, _leading(indices), masks[0], values, accumulate)
    if not masks:
        return _write(self, _expand(indices, self.shape, 0), values, accumulate)
    # A mask beside other indices: its count is another index's size or the values', else at most all of it,
    # with the surplus positions out of range and dropped.
    rank, place = _layout(indices)
    behind = self.ndim - sum(i.ndim if _is_mask(i) else 1 for i in given) - place
    count = max([i.shape[-1] for i in given if not _is_mask(i) and i.ndim] + [1])
    at = values.ndim - 1 - behind
    if count == 1 and 0 <= at and values.shape[at] > 1:
        count = values.shape[at]
    if count == 1:
        count = min(m.size for m in masks)
    return _write(self, _expand(indices, self.shape, count), values, accumulate, drop=True)


def _leading(indices: Sequence[jax.Array | None]) -> int:
    return next(i for i, index in enumerate(indices) if index is not None)


def _clamped(self: jax.Array, indices: Sequence[jax.Array | None]) -> list[jax.Array | None]:
    out: list[jax.Array | None] = []
    for dim, index in enumerate(indices):
        n = self.shape[dim]
        out.append(
            None
            if index is None
            else wrap(lax.clamp(np.asarray(-n, index.dtype), index, np.asarray(n - 1, index.dtype)), n)
        )
    return out


@lower("_unsafe_masked_index")
def unsafe_masked_index(self, mask, indices, fill):
    out = context().out_shape
    filler = lax.broadcast_in_dim(cast(jnp.asarray(fill), self.dtype), out, ())
    if self.size == 0 or 0 in out:
        return filler
    read = broadcast_to(_read(self, _clamped(self, indices)), out)
    return lax.select(broadcast_to(cast(mask, np.dtype(np.bool_)), out), read, filler)


@lower("_unsafe_masked_index_put_accumulate")
def unsafe_masked_index_put_accumulate(self, mask, indices, values):
    if self.size == 0 or 0 in values.shape:
        return self
    mask = broadcast_to(cast(mask, np.dtype(np.bool_)), values.shape)
    values = lax.select(mask, values, zeros(values.shape, values.dtype))
    return _write(self, _clamped(self, indices), values, True)


def as_dims(self: jax.Array, dim: int, index: jax.Array) -> tuple[jax.Array, int, jax.Array]:
    """A 0-d tensor taken as 1-d, the dimension from the front, the index as 1-d."""
    self = lax.reshape(self, (1,)) if self.ndim == 0 else self
    return self, axis(dim, self.ndim), lax.reshape(index, (index.size,))


@lower("index_select")
def index_select(self, dim, index):
    self, dim, index = as_dims(self, dim, index)
    n = self.shape[dim]
    if self.ndim > 1:
        kind, message = RuntimeError, f"INDICES element is out of DATA bounds, id={{value}} axis_dim={n}"
    else:
        kind, message = IndexError, "index out of range in self"
    context().check(in_range(index, 0, n), kind, message, index)
    if 0 in context().out_shape:
        return zeros(context().out_shape, self.dtype)
    return lax.reshape(take_rows(self, dim, index.astype(index_dtype(n))), context().out_shape)


def _source(source: jax.Array, self: jax.Array, dim: int, count: int) -> jax.Array:
    return lax.reshape(cast(source, self.dtype), (*self.shape[:dim], count, *self.shape[dim + 1 :]))


@lower("index_add")
def index_add(self, dim, index, source, *, alpha=1):
    shape = self.shape
    self, dim, index = as_dims(self, dim, index)
    n = self.shape[dim]
    message = (
        "index out of range in self"
        if self.ndim == 1
        else (f"index {{value}} is out of bounds for dimension {dim} with size {n}")
    )
    context().check(in_range(index, 0, n), IndexError if self.ndim == 1 else RuntimeError, message, index)
    if self.size == 0 or index.size == 0:
        return lax.reshape(self, shape)
    source = _source(source, self, dim, index.size)
    alpha = broadcast_to(cast(jnp.asarray(alpha), self.dtype), source.shape)
    source = lax.bitwise_and(source, alpha) if self.dtype == np.bool_ else lax.mul(source, alpha)
    return lax.reshape(put_rows("add", self, dim, index.astype(index_dtype(n)), source), shape)


@lower("index_copy")
def index_copy(self, dim, index, source):
    shape = self.shape
    self, dim, index = as_dims(self, dim, index)
    n = self.shape[dim]
    message = f"index_copy_(): index {{value}} is out of bounds for dimension {dim} with size {n}"
    context().check(in_range(index, 0, n), IndexError, message, index)
    if self.size == 0 or index.size == 0:
        return lax.reshape(self, shape)
    source = _source(source, self, dim, index.size)
    return lax.reshape(put_rows("set", self, dim, index.astype(index_dtype(n)), source), shape)


@lower("index_fill")
def index_fill(self, dim, index, value):
    shape = self.shape
    self, dim, index = as_dims(self, dim, index)
    n = self.shape[dim]
    message = f"index {{value}} is out of bounds for dimension {dim} with size {n}"
    context().check(in_range(index, -n, n), IndexError, message, index)
    if self.size == 0 or index.size == 0:
        return lax.reshape(self, shape)
    value = filler(value, self.dtype)
    source = broadcast_to(lax.reshape(value, ()), (*self.shape[:dim], index.size, *self.shape[dim + 1 :]))
    return lax.reshape(put_rows("set", self, dim, wrap(index, n), source), shape)


@lower("gather")
def gather(self, dim, index, *, sparse_grad=False):
    shape = index.shape
    if self.ndim == 0:
        self = lax.reshape(self, (1,))
    if index.ndim == 0:
        index = lax.reshape(index, (1,))
    if index.size == 0:
        return zeros(shape, self.dtype)
    dim = axis(dim, self.ndim)
    n = self.shape[dim]
    message = f"index {{value}} is out of bounds for dimension {dim} with size {n}"
    context().check(in_range(index, 0, n), RuntimeError, message, index)
    self = lax.slice(self, [0] * self.ndim, [n if d == dim else m for d, m in enumerate(index.shape)])
    return lax.reshape(take_along(self, dim, index.astype(index_dtype(n))), shape)


def _flat_index(index: jax.Array, size: int) -> jax.Array:
    message = f"out of range: tried to access index {{value}} on a tensor of {size} elements."
    context().check(in_range(index, -size, size), IndexError, message, index)
    return wrap(lax.reshape(index, (index.size,)), size)


@lower("take")
def take(self, index):
    if index.size == 0 or self.size == 0:
        return zeros(index.shape, self.dtype)
    flat = _flat_index(index, self.size)
    return lax.reshape(take_flat(lax.reshape(self, (self.size,)), flat), index.shape)


@lower("put")
def put(self, index, source, accumulate=False):
    if index.size == 0 or self.size == 0:
        return self
    flat = _flat_index(index, self.size)
    source = lax.reshape(cast(source, self.dtype), (source.size,))
    out = put_rows("add" if accumulate else "set", lax.reshape(self, (self.size,)), 0, flat, source)
    return lax.reshape(out, self.shape)


@lower("masked_scatter")
def masked_scatter(self, mask, source):
    shape = context().out_shape
    self = broadcast_to(self, shape)
    mask = broadcast_to(cast(mask, np.dtype(np.bool_)), shape)
    if self.size == 0:
        return self
    flat = lax.reshape(mask, (self.size,))
    count = lax.reduce(flat.astype(np.int64), np.int64(0), lax.add, (0,))
    context().check(
        lax.le(count, np.int64(source.size)), RuntimeError, "Number of elements of source < number of ones in mask"
    )
    if source.size == 0:
        return self
    ranks = lax.min(mask_ranks(flat), np.asarray(source.size - 1, index_dtype(self.size)))
    values = take_flat(lax.reshape(cast(source, self.dtype), (source.size,)), ranks)
    return lax.select(mask, lax.reshape(values, shape), self)


@lower("masked_scatter_backward")
def masked_scatter_backward(grad_output, mask, sizes):
    size = math.prod(sizes)
    mask = broadcast_to(cast(mask, np.dtype(np.bool_)), grad_output.shape)
    if size == 0 or mask.size == 0:
        return zeros(sizes, grad_output.dtype)
    flat = lax.reshape(mask, (mask.size,))
    ranks = lax.select(flat, mask_ranks(flat), lax.full(flat.shape, size, index_dtype(mask.size)))
    out = put_rows("set", zeros((size,), grad_output.dtype), 0, ranks, lax.reshape(grad_output, flat.shape), drop=True)
    return lax.reshape(out, tuple(sizes))


@lower("nonzero_static")
def nonzero_static(self, *, size, fill_value=-1):
    count, ndim = context().out_shape
    if count == 0 or ndim == 0 or self.size == 0:
        return lax.full((count, ndim), fill_value, np.dtype(np.int64))
    mask = lax.reshape(cast(self, np.dtype(np.bool_)), (self.size,))
    positions = mask_positions(mask, count)
    found = lax.concatenate([lax.expand_dims(f, (1,)) for f in unravel(positions, self.shape)], 1).astype(np.int64)
    missing = lax.ge(positions, np.asarray(self.size, positions.dtype))
    return lax.select(
        lax.broadcast_in_dim(missing, found.shape, (0,)), lax.full(found.shape, fill_value, np.dtype(np.int64)), found
    )
