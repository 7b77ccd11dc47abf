"""Pooling: maximum, average, adaptive, fractional, and unpooling.

A maximum with its index goes dimension by dimension: a window is the elementwise best of its shifted strided slices,
which XLA fuses into one loop. Along each dimension the first maximum wins and the last NaN, as on the CPU.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import context
from torchtpu.lowering.registry import lower

_MANY_WINDOWS = 64  # beyond this many kernel positions a scatter is smaller than one term for each


def _per_dim(values, n, default=None):
    values = list(values)
    if not values:
        return list(default)
    return values * n if len(values) == 1 else values


def _lowest(dtype):
    if np.issubdtype(dtype, np.integer):
        return jnp.asarray(np.iinfo(dtype).min, dtype)
    return jnp.asarray(-jnp.inf, dtype)


def _is_float(x):
    return jnp.issubdtype(x.dtype, jnp.floating)


def _better(value, best):
    """Whether a later value replaces the best so far."""
    return (value > best) | (value != value) if _is_float(value) else value > best


def _strided(x, axis, start, count, stride):
    """`count` places along an axis, `stride` apart."""
    return lax.slice_in_dim(x, start, start + (count - 1) * stride + 1, stride, axis)


def _pad(x, axis, low, high, value):
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (low, high, 0)
    return lax.pad(x, value, config)


def _along(values, ndim, axis):
    """A 1-d array spread along one dimension of many."""
    shape = [1] * ndim
    shape[axis] = -1
    return jnp.asarray(values).reshape(shape)


def _max_along(value, index, axis, kernel, stride, padding, dilation, out):
    """The best value of each window along an axis, with its index (int32 places carried along)."""
    size = value.shape[axis]
    high = max(0, (out - 1) * stride + (kernel - 1) * dilation + 1 - size - padding)
    # The first valid place of each window: what remains when everything is the lowest value.
    first = np.array([next((o * stride - padding + k * dilation for k in range(kernel)
                            if 0 <= o * stride - padding + k * dilation < size), 0) for o in range(out)])
    if padding or high:
        value = _pad(value, axis, padding, high, _lowest(value.dtype))
        index = _pad(index, axis, padding, high, jnp.zeros((), index.dtype))
    shape = list(value.shape)
    shape[axis] = out
    if kernel == 1:
        return _strided(value, axis, 0, out, stride), _strided(index, axis, 0, out, stride)
    best = place = None
    if padding:
        best = jnp.broadcast_to(_lowest(value.dtype), shape)
        place = jnp.take(index, jnp.asarray(first + padding), axis=axis)
    for k in range(kernel):
        v = _strided(value, axis, k * dilation, out, stride)
        i = _strided(index, axis, k * dilation, out, stride)
        if best is None:
            best, place = v, i
            continue
        better = _better(v, best)
        best, place = jnp.where(better, v, best), jnp.where(better, i, place)
    return best, place


def _flat_places(shape, n):
    """The flat index of each place within the last n dimensions."""
    spatial = shape[-n:]
    flat = lax.iota(jnp.int32, math.prod(spatial)).reshape(spatial)
    return jnp.broadcast_to(flat, shape)


def _max_pool(x, kernel, stride, padding, dilation, n):
    kernel = _per_dim(kernel, n)
    stride = _per_dim(stride, n, kernel)
    padding, dilation = _per_dim(padding, n), _per_dim(dilation, n)
    shape = context().out_shape
    if 0 in shape:
        return jnp.zeros(shape, x.dtype), jnp.zeros(shape, jnp.int64)
    value, place = x, _flat_places(x.shape, n)
    for i in reversed(range(n)):
        axis = x.ndim - n + i
        value, place = _max_along(value, place, axis, kernel[i], stride[i], padding[i], dilation[i], shape[axis])
    return value, place.astype(jnp.int64)


@lower("max_pool2d_with_indices")
def max_pool2d(self, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False):
    return _max_pool(self, kernel_size, stride, padding, dilation, 2)


@lower("max_pool3d_with_indices")
def max_pool3d(self, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False):
    return _max_pool(self, kernel_size, stride, padding, dilation, 3)


def _scatter_flat(values, places, shape, n, add=True):
    """values put (or added) at flat places within the last n dimensions of zeros of the given shape."""
    lead = shape[: len(shape) - n]
    rows, width = math.prod(lead), math.prod(shape[-n:])
    if rows == 0 or width == 0 or values.size == 0:
        return jnp.zeros(shape, values.dtype)
    values, places = values.reshape(rows, -1), places.reshape(rows, -1)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(), inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,),
        operand_batching_dims=(0,), scatter_indices_batching_dims=(0,),
    )
    scatter = lax.scatter_add if add else lax.scatter
    zeros = jnp.zeros((rows, width), values.dtype)
    return scatter(zeros, places[..., None], values, numbers, mode=lax.GatherScatterMode.FILL_OR_DROP).reshape(shape)


def _max_pool_backward(grad, x, kernel, stride, padding, dilation, indices, n):
    kernel = _per_dim(kernel, n)
    stride = _per_dim(stride, n, kernel)
    padding, dilation = _per_dim(padding, n), _per_dim(dilation, n)
    grad = grad.astype(dtypes.opmath(grad.dtype))
    if grad.size == 0:
        return jnp.zeros(x.shape, grad.dtype)
    if math.prod(kernel) > _MANY_WINDOWS:
        return _scatter_flat(grad, indices, x.shape, n)
    # One term for each kernel position: the gradients of the windows whose maximum sits there, spread by the stride.
    first = x.ndim - n
    sizes, outs = x.shape[first:], grad.shape[first:]
    indices = indices.astype(jnp.int32)
    zero = jnp.zeros((), grad.dtype)
    total = None
    for position in np.ndindex(*kernel):
        flat = jnp.zeros((), jnp.int32)
        config = [(0, 0, 0)] * first
        for i in range(n):
            start = position[i] * dilation[i] - padding[i]
            coordinate = np.arange(outs[i], dtype=np.int32) * stride[i] + start
            flat = flat * sizes[i] + _along(coordinate, x.ndim, first + i)
            high = sizes[i] - (start + (outs[i] - 1) * stride[i] + 1)
            config.append((start, high, stride[i] - 1))
        term = lax.pad(jnp.where(indices == flat, grad, zero), zero, config)
        total = term if total is None else total + term
    return total


@lower("max_pool2d_with_indices_backward")
def max_pool2d_backward(grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices):
    return _max_pool_backward(grad_output, self, kernel_size, stride, padding, dilation, indices, 2)


@lower("max_pool3d_with_indices_backward")
def max_pool3d_backward(grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices):
    return _max_pool_backward(grad_output, self, kernel_size, stride, padding, dilation, indices, 3)


# Adaptive pooling


def _adaptive_windows(size, out):
    """Places of each adaptive window, (out, longest), and which of them count."""
    i = np.arange(out)
    start, end = (i * size) // out, -((-(i + 1) * size) // out)
    places = start[:, None] + np.arange((end - start).max(initial=1))[None, :]
    return np.minimum(places, size - 1), places < end[:, None]


def _adaptive_max(x, output_size, n):
    shape = context().out_shape
    if 0 in shape:
        return jnp.zeros(shape, x.dtype), jnp.zeros(shape, jnp.int64)
    value, place = x, _flat_places(x.shape, n)
    for axis in reversed(range(x.ndim - n, x.ndim)):
        size, out = value.shape[axis], shape[axis]
        if size % out == 0:
            step = size // out
            value, place = _max_along(value, place, axis, step, step, 0, 1, out)
            continue
        places, counts = _adaptive_windows(size, out)
        best = spot = None
        for k in range(places.shape[1]):
            v, i = (jnp.take(t, places[:, k], axis=axis) for t in (value, place))
            if best is None:
                best, spot = v, i
                continue
            better = _better(v, best) & _along(counts[:, k], x.ndim, axis)
            best, spot = jnp.where(better, v, best), jnp.where(better, i, spot)
        value, place = best, spot
    return value, place.astype(jnp.int64)


@lower("adaptive_max_pool2d")
def adaptive_max_pool2d(self, output_size):
    return _adaptive_max(self, output_size, 2)


@lower("adaptive_max_pool3d")
def adaptive_max_pool3d(self, output_size):
    return _adaptive_max(self, output_size, 3)


@lower("adaptive_max_pool2d_backward")
def adaptive_max_pool2d_backward(grad_output, self, indices):
    return _scatter_flat(grad_output.astype(dtypes.opmath(grad_output.dtype)), indices, self.shape, 2)


@lower("adaptive_max_pool3d_backward")
def adaptive_max_pool3d_backward(grad_output, self, indices):
    return _scatter_flat(grad_output.astype(dtypes.opmath(grad_output.dtype)), indices, self.shape, 3)


def _adaptive_avg(x, n):
    shape = context().out_shape
    wide = x.astype(dtypes.opmath(x.dtype))
    if 0 in shape:
        return jnp.zeros(shape, wide.dtype)
    for axis in range(x.ndim - n, x.ndim):
        size, out = wide.shape[axis], shape[axis]
        if size % out == 0:
            split = wide.reshape(*wide.shape[:axis], out, size // out, *wide.shape[axis + 1 :])
            wide = lax.reduce_sum(split, (axis + 1,)) / (size // out)
            continue
        places, counts = _adaptive_windows(size, out)
        total = sum(
            jnp.where(_along(counts[:, k], x.ndim, axis), jnp.take(wide, places[:, k], axis=axis), 0)
            for k in range(places.shape[1])
        )
        wide = total / _along(counts.sum(1).astype(wide.dtype), x.ndim, axis)
    return wide


def _adaptive_avg_backward(grad, x, n):
    wide = grad.astype(dtypes.opmath(grad.dtype))
    if wide.size == 0 or x.size == 0:
        return jnp.zeros(x.shape, wide.dtype)
    for axis in range(x.ndim - n, x.ndim):
        size, out = x.shape[axis], wide.shape[axis]
        if size % out == 0:
            shape = (*wide.shape[: axis + 1], size // out, *wide.shape[axis + 1 :])
            wide = lax.broadcast_in_dim(wide / (size // out), shape, [i for i in range(len(shape)) if i != axis + 1])
            wide = wide.reshape(*shape[:axis], size, *shape[axis + 2 :])
            continue
        places, counts = _adaptive_windows(size, out)
        member = np.zeros((out, size), bool)
        member[np.repeat(np.arange(out), counts.sum(1)), places[counts]] = True
        share = wide / _along(counts.sum(1).astype(wide.dtype), x.ndim, axis)
        # For each place, the windows that cover it are consecutive.
        low, many = member.argmax(0), member.sum(0)
        wide = sum(
            jnp.where(_along(k < many, x.ndim, axis), jnp.take(share, np.minimum(low + k, out - 1), axis=axis), 0)
            for k in range(many.max())
        )
    return wide


@lower("_adaptive_avg_pool2d", "adaptive_avg_pool2d")
def adaptive_avg_pool2d(self, output_size):
    return _adaptive_avg(self, 2)


@lower("_adaptive_avg_pool3d", "adaptive_avg_pool3d")
def adaptive_avg_pool3d(self, output_size):
    return _adaptive_avg(self, 3)


@lower("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(grad_output, self):
    return _adaptive_avg_backward(grad_output, self, 2)


@lower("_adaptive_avg_pool3d_backward", "adaptive_avg_pool3d_backward")
def adaptive_avg_pool3d_backward(grad_output, self):
    return _adaptive_avg_backward(grad_output, self, 3)


# Average pooling


def _divisor(sizes, outs, kernel, stride, padding, count_include_pad, divisor_override):
    """How many elements each window counts, as an array over the output's spatial dimensions or one number."""
    if divisor_override is not None:
        return divisor_override
    counts = np.ones((), np.int64)
    for size, out, k, s, p in zip(sizes, outs, kernel, stride, padding, strict=True):
        start = np.arange(out) * s - p
        end = np.minimum(start + k, size + p)
        length = end - start if count_include_pad else np.minimum(end, size) - np.maximum(start, 0)
        counts = counts[..., None] * length
    return int(counts.flat[0]) if counts.size and (counts == counts.flat[0]).all() else counts


def _divide(x, divisor):
    if isinstance(divisor, np.ndarray):
        divisor = jnp.broadcast_to(jnp.asarray(divisor, x.dtype), x.shape)
    else:
        divisor = jnp.full(x.shape, divisor, x.dtype)
    return lax.div(x, divisor)


def _avg_settings(kernel, stride, padding, n):
    kernel = _per_dim(kernel, n)
    return kernel, _per_dim(stride, n, kernel), _per_dim(padding, n)


def _avg_pool(x, kernel, stride, padding, count_include_pad, divisor_override, n):
    kernel, stride, padding = _avg_settings(kernel, stride, padding, n)
    shape = context().out_shape
    wide = x.astype(dtypes.opmath(x.dtype))
    if 0 in shape:
        return jnp.zeros(shape, wide.dtype)
    first = x.ndim - n
    sizes, outs = x.shape[first:], shape[first:]
    pads = [(0, 0)] * first + [
        (p, max(0, (o - 1) * s + k - size - p)) for p, o, s, k, size in zip(padding, outs, stride, kernel, sizes, strict=True)
    ]
    spread = [1] * first
    total = lax.reduce_window(wide, np.zeros((), wide.dtype), lax.add, spread + kernel, spread + stride, pads)
    total = lax.slice(total, [0] * x.ndim, shape)
    return _divide(total, _divisor(sizes, outs, kernel, stride, padding, count_include_pad, divisor_override))


def _avg_pool_backward(grad, x, kernel, stride, padding, count_include_pad, divisor_override, n):
    kernel, stride, padding = _avg_settings(kernel, stride, padding, n)
    wide = grad.astype(dtypes.opmath(grad.dtype))
    if wide.size == 0:
        return jnp.zeros(x.shape, wide.dtype)
    first = x.ndim - n
    sizes, outs = x.shape[first:], grad.shape[first:]
    wide = _divide(wide, _divisor(sizes, outs, kernel, stride, padding, count_include_pad, divisor_override))
    config = [(0, 0, 0)] * first + [
        (k - 1 - p, size + p - ((o - 1) * s + 1), s - 1)
        for p, o, s, k, size in zip(padding, outs, stride, kernel, sizes, strict=True)
    ]
    zero = jnp.zeros((), wide.dtype)
    spread = lax.pad(wide, zero, config)
    ones = [1] * x.ndim
    window = [1] * first + kernel
    return lax.reduce_window(spread, np.zeros((), wide.dtype), lax.add, window, ones, [(0, 0)] * x.ndim)


@lower("avg_pool2d")
def avg_pool2d(self, kernel_size, stride=(), padding=(0,), ceil_mode=False, count_include_pad=True, divisor_override=None):
    return _avg_pool(self, kernel_size, stride, padding, count_include_pad, divisor_override, 2)


@lower("avg_pool3d")
def avg_pool3d(self, kernel_size, stride=(), padding=(0,), ceil_mode=False, count_include_pad=True, divisor_override=None):
    return _avg_pool(self, kernel_size, stride, padding, count_include_pad, divisor_override, 3)


@lower("avg_pool2d_backward")
def avg_pool2d_backward(grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    return _avg_pool_backward(grad_output, self, kernel_size, stride, padding, count_include_pad, divisor_override, 2)


@lower("avg_pool3d_backward")
def avg_pool3d_backward(grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    return _avg_pool_backward(grad_output, self, kernel_size, stride, padding, count_include_pad, divisor_override, 3)


# Unpooling and fractional pooling


def _unpool(x, indices, n):
    shape = context().out_shape
    width = math.prod(shape[-n:])
    message = "Found an invalid max index: {value} (output volumes are of size " + "x".join(map(str, shape[-n:])) + ")"
    context().check((indices >= 0) & (indices < width), RuntimeError, message, indices)
    return _scatter_flat(x, indices, shape, n, add=False)


@lower("max_unpool2d")
def max_unpool2d(self, indices, output_size):
    return _unpool(self, indices, 2)


@lower("max_unpool3d")
def max_unpool3d(self, indices, output_size, stride, padding):
    return _unpool(self, indices, 3)


def _fractional_starts(samples, size, out, kernel):
    """Where each window of a fractional pool begins, for one dimension's samples: (..., out)."""
    last = jnp.full((*samples.shape, 1), size - kernel, jnp.int64)
    if out == 1:
        return last
    alpha = jnp.asarray(size - kernel, samples.dtype) / jnp.asarray(out - 1, samples.dtype)
    steps = jnp.arange(out - 1).astype(samples.dtype)
    shifted = ((steps + samples[..., None]) * alpha).astype(jnp.int64)
    return jnp.concatenate([shifted - (samples[..., None] * alpha).astype(jnp.int64), last], axis=-1)


def _fractional(x, kernel, output_size, samples, n):
    shape = context().out_shape
    if 0 in shape:
        return jnp.zeros(shape, x.dtype), jnp.zeros(shape, jnp.int64)
    kernel, outs = _per_dim(kernel, n), _per_dim(output_size, n)
    batched = x if x.ndim == n + 2 else x[None]
    samples = samples[: batched.shape[0]]  # without a batch dimension the first samples count
    sizes = x.shape[-n:]
    flat = batched.reshape(*batched.shape[:2], -1)
    place = jnp.zeros((), jnp.int64)
    for i in range(n):
        # The last sample belongs to the first spatial dimension.
        starts = _fractional_starts(samples[..., n - 1 - i if n == 2 else i], sizes[i], outs[i], kernel[i])
        window = starts[..., :, None] + jnp.arange(kernel[i])
        expand = [1] * (2 * n)
        expand[2 * i], expand[2 * i + 1] = outs[i], kernel[i]
        place = place * sizes[i] + window.reshape(*window.shape[:-2], *expand)
    order = [0, 1] + [2 + 2 * i for i in range(n)] + [3 + 2 * i for i in range(n)]
    full = jnp.broadcast_to(place, (*flat.shape[:2], *place.shape[2:]))
    places = jnp.transpose(full, order).reshape(*flat.shape[:2], -1)
    values = jnp.take_along_axis(flat, places, axis=2).reshape(*flat.shape[:2], math.prod(outs), -1)
    places = places.reshape(values.shape)
    best, spot = values[..., 0], places[..., 0]
    for k in range(1, values.shape[-1]):
        better = _better(values[..., k], best)
        best, spot = jnp.where(better, values[..., k], best), jnp.where(better, places[..., k], spot)
    return best.reshape(shape), spot.reshape(shape)


@lower("fractional_max_pool2d")
def fractional_max_pool2d(self, kernel_size, output_size, random_samples):
    return _fractional(self, kernel_size, output_size, random_samples, 2)


@lower("fractional_max_pool3d")
def fractional_max_pool3d(self, kernel_size, output_size, random_samples):
    return _fractional(self, kernel_size, output_size, random_samples, 3)


@lower("fractional_max_pool2d_backward")
def fractional_max_pool2d_backward(grad_output, self, kernel_size, output_size, indices):
    return _scatter_flat(grad_output.astype(dtypes.opmath(grad_output.dtype)), indices, self.shape, 2)


@lower("fractional_max_pool3d_backward")
def fractional_max_pool3d_backward(grad_output, self, kernel_size, output_size, indices):
    wide = grad_output.astype(dtypes.opmath(grad_output.dtype))
    return _scatter_flat(wide, indices, self.shape, 3).astype(grad_output.dtype)
