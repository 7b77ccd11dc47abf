"""Views in functional form with their copies, scatters and backwards, and operators that join or rearrange tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax import lax

from torchtpu.lowering.call import cast, context
from torchtpu.lowering.registry import lower


def axis(dim: int, ndim: int) -> int:
    """A dimension counted from the front; a 0-d tensor has one."""
    return dim + max(ndim, 1) if dim < 0 else dim


def axes(dims: int | Sequence[int], ndim: int) -> list[int]:
    """Dimensions counted from the front."""
    return [axis(d, ndim) for d in ([dims] if isinstance(dims, int) else dims)]


def zero(dtype: np.dtype) -> np.ndarray:
    """A constant 0 of a dtype."""
    return np.zeros((), dtype)


def zeros(shape: Sequence[int], dtype: np.dtype) -> jax.Array:
    """A constant array of zeros."""
    return lax.full(tuple(shape), 0, dtype)


def iota(dtype: np.dtype | type, shape: Sequence[int], dim: int) -> jax.Array:
    """Positions along one dimension."""
    return lax.broadcasted_iota(dtype, tuple(shape), dim)


def along(x: jax.Array, dim: int, start: int, stop: int, step: int = 1) -> jax.Array:
    """A slice along one dimension, with bounds that are already in range."""
    if start == 0 and stop == x.shape[dim] and step == 1:
        return x
    lower_bounds, upper, strides = [0] * x.ndim, list(x.shape), [1] * x.ndim
    lower_bounds[dim], upper[dim], strides[dim] = start, max(stop, start), step
    return lax.slice(x, lower_bounds, upper, strides)


def pad_dim(x: jax.Array, dim: int, low: int, high: int, interior: int = 0) -> jax.Array:
    """Zeros before, after and between the elements of one dimension."""
    if low == high == interior == 0:
        return x
    config = [(0, 0, 0)] * x.ndim
    config[dim] = (low, high, interior)
    return lax.pad(x, zero(x.dtype), config)


def broadcast_to(x: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Broadcasting by PyTorch's rules, as one primitive (and none if nothing changes)."""
    shape = tuple(shape)
    if x.shape == shape:
        return x
    offset = len(shape) - x.ndim
    keep = [i for i, n in enumerate(x.shape) if n == shape[i + offset]]
    dropped = [i for i in range(x.ndim) if i not in keep]
    if dropped:
        x = lax.squeeze(x, dropped)
    return lax.broadcast_in_dim(x, shape, [i + offset for i in keep])


# Views


@lower("view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy", "_reshape_copy", "_reshape_alias_copy")
def view(self, size, stride=None):
    return lax.reshape(self, context().out_shape)


@lower("squeeze", "unsqueeze", "squeeze_copy", "unsqueeze_copy")
def squeeze(self, dim=None):
    return lax.reshape(self, context().out_shape)


@lower("alias", "detach", "_fw_primal", "_fw_primal_copy")
def alias(self, *args):
    return self


@lower("view.dtype", "view_copy.dtype")
def view_dtype(self, dtype):
    target = context().out_dtype
    if self.dtype == target:
        return self
    if self.dtype == np.bool_:
        self = self.astype(np.uint8)
    if np.issubdtype(self.dtype, np.complexfloating):
        parts = lax.concatenate([lax.real(self)[..., None], lax.imag(self)[..., None]], self.ndim)
        self = lax.reshape(parts, self.shape[:-1] + (2 * self.shape[-1],)) if self.ndim else parts
    inner = target
    if np.issubdtype(target, np.complexfloating):
        inner = np.dtype(np.float32 if target == np.complex64 else np.float64)
    elif target == np.bool_:
        inner = np.dtype(np.uint8)
    have, want = self.dtype.itemsize, inner.itemsize
    if have < want and self.ndim:
        self = lax.reshape(self, self.shape[:-1] + (self.shape[-1] * have // want, want // have))
    grown = self.ndim + 1 if have > want else 0
    self = lax.bitcast_convert_type(self, inner)
    if grown:
        self = lax.reshape(self, self.shape[:-2] + (self.shape[-2] * self.shape[-1],))
    if inner is not target and np.issubdtype(target, np.complexfloating):
        pairs = lax.reshape(self, self.shape[:-1] + (self.shape[-1] // 2, 2))
        self = lax.complex(pairs[..., 0], pairs[..., 1])
    return lax.reshape(self.astype(target), context().out_shape)


@lower("expand", "expand_copy")
def expand(self, size, *, implicit=False):
    return broadcast_to(self, context().out_shape)


@lower("permute", "permute_copy")
def permute(self, dims):
    return lax.transpose(self, axes(dims, self.ndim))


@lower("transpose", "transpose_copy")
def transpose(self, dim0, dim1):
    if self.ndim == 0:
        return self
    perm = list(range(self.ndim))
    a, b = axis(dim0, self.ndim), axis(dim1, self.ndim)
    perm[a], perm[b] = b, a
    return lax.transpose(self, perm)


@lower("t", "t_copy")
def t(self):
    return self if self.ndim < 2 else lax.transpose(self, (1, 0))


@lower("select.int", "select_copy.int")
def select(self, dim, index):
    dim = axis(dim, self.ndim)
    index += self.shape[dim] if index < 0 else 0
    return lax.squeeze(along(self, dim, index, index + 1), (dim,))


def slice_bounds(n: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Start and end of a slice, clamped as Python's."""
    start = 0 if start is None else start
    end = n if end is None else end
    start = min(max(start + n if start < 0 else start, 0), n)
    end = min(max(end + n if end < 0 else end, start), n)
    return start, end


@lower("slice.Tensor", "slice_copy.Tensor")
def slice_tensor(self, dim=0, start=None, end=None, step=1):
    dim = axis(dim, self.ndim)
    start, end = slice_bounds(self.shape[dim], start, end)
    return along(self, dim, start, end, step)


@lower("narrow", "narrow_copy")
def narrow(self, dim, start, length):
    dim = axis(dim, self.ndim)
    start += self.shape[dim] if start < 0 else 0
    return along(self, dim, start, start + length)


@lower("split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes")
def split_with_sizes(self, split_sizes, dim=0):
    dim = axis(dim, self.ndim)
    ends = np.cumsum(split_sizes).tolist()
    return [along(self, dim, end - size, end) for end, size in zip(ends, split_sizes, strict=True)]


@lower("split", "split_copy", "unsafe_split")
def split(self, split_size, dim=0):
    if not isinstance(split_size, int):
        return split_with_sizes(self, split_size, dim)
    dim = axis(dim, self.ndim)
    n = self.shape[dim]
    starts = range(0, n, split_size) if n and split_size else [0]
    return [along(self, dim, s, min(s + split_size, n)) for s in starts]


@lower("unbind", "unbind_copy")
def unbind(self, dim=0):
    dim = axis(dim, self.ndim)
    return [lax.squeeze(along(self, dim, i, i + 1), (dim,)) for i in range(self.shape[dim])]


def strided_positions(size: Sequence[int], stride: Sequence[int], offset: int) -> jax.Array:
    """Position in the storage of each element of a strided view."""
    wide = offset + sum((n - 1) * abs(s) for n, s in zip(size, stride, strict=True) if n) >= 2**31
    dtype = np.int64 if wide else np.int32
    out = lax.full(tuple(size), offset, dtype)
    for d, s in enumerate(stride):
        if s and size[d] > 1:
            out = lax.add(out, lax.mul(iota(dtype, size, d), np.asarray(s, dtype)))
    return out


def take_flat(flat: jax.Array, positions: jax.Array) -> jax.Array:
    """Elements of a 1-d array at positions in range."""
    dims = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,))
    return lax.gather(flat, positions[..., None], dims, (1,), mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)


@lower("as_strided", "as_strided_copy")
def as_strided(self, size, stride, storage_offset=None):
    offset = storage_offset or 0
    flat = lax.reshape(self, (self.size,))
    if 0 in size:
        return zeros(size, self.dtype)
    # A permuted dense block, perhaps broadcast, is a slice, a reshape, a transpose and a broadcast.
    real = [d for d in range(len(size)) if size[d] > 1 and stride[d]]
    order = sorted(real, key=lambda d: -stride[d])
    expected = 1
    for d in reversed(order):
        if stride[d] != expected:
            break
        expected *= size[d]
    else:
        block = lax.reshape(along(flat, 0, offset, offset + expected), [size[d] for d in order])
        block = lax.transpose(block, [order.index(d) for d in real])
        return lax.broadcast_in_dim(block, tuple(size), real)
    return take_flat(flat, strided_positions(size, stride, offset))


@lower("as_strided_scatter")
def as_strided_scatter(self, src, size, stride, storage_offset=None):
    if 0 in size:
        return self
    flat = lax.reshape(self, (self.size,))
    positions = strided_positions(size, stride, storage_offset or 0)
    dims = lax.ScatterDimensionNumbers(
        update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    flat = lax.scatter(flat, positions[..., None], cast(src, self.dtype), dims, mode=mode)
    return lax.reshape(flat, self.shape)


def _diagonal_span(n: int, m: int, offset: int) -> tuple[int, int]:
    """First position in the flattened (n, m) matrix and length of a diagonal."""
    if offset >= 0:
        return offset, max(min(n, m - offset), 0)
    return -offset * m, max(min(n + offset, m), 0)


def _last_two(ndim: int, dim1: int, dim2: int) -> list[int]:
    a, b = axis(dim1, ndim), axis(dim2, ndim)
    return [d for d in range(ndim) if d not in (a, b)] + [a, b]


@lower("diagonal", "diagonal_copy")
def diagonal(self, offset=0, dim1=0, dim2=1):
    x = lax.transpose(self, _last_two(self.ndim, dim1, dim2))
    n, m = x.shape[-2:]
    start, length = _diagonal_span(n, m, offset)
    if length == 0:
        return zeros((*x.shape[:-2], 0), x.dtype)
    flat = lax.reshape(x, (*x.shape[:-2], n * m))
    return along(flat, flat.ndim - 1, start, start + (length - 1) * (m + 1) + 1, m + 1)


@lower("diagonal_backward")
def diagonal_backward(grad_output, input_sizes, offset, dim1, dim2):
    order = _last_two(len(input_sizes), dim1, dim2)
    n, m = (input_sizes[d] for d in order[-2:])
    start, length = _diagonal_span(n, m, offset)
    if length == 0:
        return zeros(input_sizes, grad_output.dtype)
    end = start + (length - 1) * (m + 1) + 1
    flat = pad_dim(grad_output, grad_output.ndim - 1, start, n * m - end, m)
    x = lax.reshape(flat, (*grad_output.shape[:-1], n, m))
    return lax.transpose(x, np.argsort(order).tolist())


@lower("diagonal_scatter")
def diagonal_scatter(self, src, offset=0, dim1=0, dim2=1):
    a, b = axis(dim1, self.ndim), axis(dim2, self.ndim)
    placed = diagonal_backward(cast(src, self.dtype), self.shape, offset, dim1, dim2)
    mask = lax.eq(iota(np.int32, self.shape, b), lax.add(iota(np.int32, self.shape, a), np.int32(offset)))
    return lax.select(mask, placed, self)


@lower("diag_embed")
def diag_embed(self, offset=0, dim1=-2, dim2=-1):
    return diagonal_backward(self, context().out_shape, offset, dim1, dim2)


@lower("unfold", "unfold_copy")
def unfold(self, dimension, size, step):
    if self.ndim == 0:
        return lax.reshape(self, context().out_shape)
    dim = axis(dimension, self.ndim)
    count = context().out_shape[dim]
    if count == 0 or size == 0:
        return zeros(context().out_shape, self.dtype)
    span = (count - 1) * step + 1
    if size <= 8:
        return lax.concatenate([along(self, dim, i, i + span, step)[..., None] for i in range(size)], self.ndim)
    if step == size:
        head, tail = self.shape[:dim], self.shape[dim + 1 :]
        x = lax.reshape(along(self, dim, 0, count * size), (*head, count, size, *tail))
        order = [d for d in range(x.ndim) if d != dim + 1] + [dim + 1]
        return lax.transpose(x, order)
    positions = lax.add(lax.mul(iota(np.int32, (count, size), 0), np.int32(step)), iota(np.int32, (count, size), 1))
    dims = lax.GatherDimensionNumbers(
        offset_dims=tuple(d for d in range(self.ndim) if d != dim), collapsed_slice_dims=(dim,), start_index_map=(dim,)
    )
    sizes = [1 if d == dim else n for d, n in enumerate(self.shape)]
    # The two index dimensions land at (dim, last).
    return lax.gather(self, positions[..., None], dims, sizes, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)


@lower("unfold_backward")
def unfold_backward(grad_in, input_sizes, dim, size, step):
    if not input_sizes:
        return lax.reshape(grad_in, ())
    dim = axis(dim, len(input_sizes))
    total, count = input_sizes[dim], grad_in.shape[dim]
    if 0 in grad_in.shape:
        return zeros(input_sizes, grad_in.dtype)
    last = grad_in.ndim - 1
    if step >= size:
        x = pad_dim(grad_in, last, 0, step - size)
        order = list(range(last))
        x = lax.transpose(x, [*order[: dim + 1], last, *order[dim + 1 :]])
        x = lax.reshape(x, (*input_sizes[:dim], count * step, *input_sizes[dim + 1 :]))
        # The padding of the last window may reach past the end.
        return pad_dim(x, dim, 0, total - count * step)
    if size <= 32:
        span = (count - 1) * step + 1
        out = None
        for i in range(size):
            piece = lax.squeeze(along(grad_in, last, i, i + 1), (last,))
            piece = pad_dim(piece, dim, i, total - span - i, step - 1)
            out = piece if out is None else lax.add(out, piece)
        return out
    positions = lax.add(lax.mul(iota(np.int32, (count, size), 0), np.int32(step)), iota(np.int32, (count, size), 1))
    dims = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(d for d in range(len(input_sizes)) if d != dim),
        inserted_window_dims=(dim,),
        scatter_dims_to_operand_dims=(dim,),
    )
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.scatter_add(zeros(input_sizes, grad_in.dtype), positions[..., None], grad_in, dims, mode=mode)


@lower("slice_backward")
def slice_backward(grad_output, input_sizes, dim, start, end, step):
    dim = axis(dim, len(input_sizes))
    n, count = input_sizes[dim], grad_output.shape[dim]
    start, _ = slice_bounds(n, start, end)
    if count == 0:
        return zeros(input_sizes, grad_output.dtype)
    return pad_dim(grad_output, dim, start, n - start - (count - 1) * step - 1, step - 1)


@lower("select_backward")
def select_backward(grad_output, input_sizes, dim, index):
    dim = axis(dim, len(input_sizes))
    n = input_sizes[dim]
    index += n if index < 0 else 0
    return pad_dim(lax.expand_dims(grad_output, (dim,)), dim, index, n - index - 1)


def place(self: jax.Array, src: jax.Array, dim: int, start: int) -> jax.Array:
    """`self` with `src` written at a static position of one dimension."""
    src = cast(src, self.dtype)
    if src.size == 0:
        return self
    if src.shape == self.shape:
        return src
    starts = [np.int32(0)] * self.ndim
    starts[dim] = np.int32(start)
    return lax.dynamic_update_slice(self, src, starts)


@lower("slice_scatter")
def slice_scatter(self, src, dim=0, start=None, end=None, step=1):
    dim = axis(dim, self.ndim)
    n = self.shape[dim]
    start, end = slice_bounds(n, start, end)
    count = -((start - end) // step)
    want = (*self.shape[:dim], count, *self.shape[dim + 1 :])
    src = broadcast_to(src, want)
    if step == 1 or count <= 1:
        return place(self, src, dim, start)
    placed = pad_dim(cast(src, self.dtype), dim, start, n - start - (count - 1) * step - 1, step - 1)
    mask = np.zeros(n, np.bool_)
    mask[start:end:step] = True
    return lax.select(lax.broadcast_in_dim(mask, self.shape, (dim,)), placed, self)


@lower("select_scatter")
def select_scatter(self, src, dim, index):
    dim = axis(dim, self.ndim)
    index += self.shape[dim] if index < 0 else 0
    src = broadcast_to(src, self.shape[:dim] + self.shape[dim + 1 :])
    return place(self, lax.expand_dims(src, (dim,)), dim, index)


# Joining


@lower("cat", "concat", "concatenate")
def cat(tensors, dim=0):
    # PyTorch lets an empty 1-d tensor join anything.
    real = [x for x in tensors if x.shape != (0,)] or list(tensors)
    dtype = context().out_dtype
    parts = [cast(x, dtype) for x in real]
    return parts[0] if len(parts) == 1 else lax.concatenate(parts, axis(dim, parts[0].ndim))


@lower("stack", "_stack")
def stack(tensors, dim=0):
    dtype = context().out_dtype
    dim = axis(dim, tensors[0].ndim + 1)
    return lax.concatenate([lax.expand_dims(cast(x, dtype), (dim,)) for x in tensors], dim)


@lower("_chunk_cat")
def chunk_cat(tensors, dim, num_chunks):
    parts = []
    for x in tensors:
        d = axis(dim, x.ndim)
        x = pad_dim(x, d, 0, -x.shape[d] % num_chunks)
        parts.append(lax.reshape(x, (*x.shape[:d], num_chunks, math.prod(x.shape[d:]) // num_chunks)))
    dtype = context().out_dtype
    return lax.concatenate([cast(x, dtype) for x in parts], parts[0].ndim - 1)


@lower("block_diag")
def block_diag(tensors):
    rows, done = [], 0
    width, dtype = context().out_shape[1], context().out_dtype
    for x in tensors:
        x = lax.reshape(cast(x, dtype), x.shape if x.ndim == 2 else (1, x.size))
        rows.append(pad_dim(x, 1, done, width - done - x.shape[1]))
        done += x.shape[1]
    return lax.concatenate(rows, 0)


# Rearranging


@lower("flip")
def flip(self, dims):
    return lax.rev(self, axes(dims, self.ndim)) if self.ndim else self


@lower("roll")
def roll(self, shifts, dims=()):
    shape = self.shape
    if not dims:
        self, dims = lax.reshape(self, (self.size,)), [0]
    for shift, dim in zip([shifts] if isinstance(shifts, int) else shifts, axes(dims, self.ndim), strict=True):
        n = self.shape[dim] if self.ndim else 0
        shift = shift % n if n else 0
        if shift:
            self = lax.concatenate([along(self, dim, n - shift, n), along(self, dim, 0, n - shift)], dim)
    return lax.reshape(self, shape)


@lower("rot90")
def rot90(self, k=1, dims=(0, 1)):
    a, b = axes(dims, self.ndim)
    k %= 4
    if k == 2:
        return lax.rev(self, (a, b))
    if k == 0:
        return self
    perm = list(range(self.ndim))
    perm[a], perm[b] = b, a
    return lax.transpose(lax.rev(self, (b,)), perm) if k == 1 else lax.rev(lax.transpose(self, perm), (b,))


@lower("repeat")
def repeat(self, repeats):
    shape = (1,) * (len(repeats) - self.ndim) + self.shape
    if 0 in shape or 0 in repeats:
        return zeros(context().out_shape, self.dtype)
    wide, dims = [], []
    for r, n in zip(repeats, shape, strict=True):
        wide += [r, n]
        dims.append(len(wide) - 1)
    return lax.reshape(lax.broadcast_in_dim(lax.reshape(self, shape), wide, dims), context().out_shape)


@lower("repeat_interleave.Tensor")
def repeat_interleave(repeats, output_size=None):
    total = context().out_shape[0]
    context().check(repeats >= 0, RuntimeError, "repeats can not be negative")
    # Each element starts where the elements before it end; counting the starts up to a position names its element.
    ends = lax.cumsum(repeats)
    dims = lax.ScatterDimensionNumbers(
        update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )
    marks = lax.scatter_add(
        zeros((total,), repeats.dtype),
        ends[:-1, None],
        lax.full((max(repeats.size - 1, 0),), 1, repeats.dtype),
        dims,
        indices_are_sorted=True,
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )
    return lax.cumsum(marks)
