"""Interpolation, sampling on a grid, sliding blocks.

Every interpolation is one small static table for each dimension: which places an output reads, with which weights. A
gradient is the same with the transposed table. Tables gather, never multiply by a dense matrix: a NaN must not spread.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import context
from torchtpu.lowering.registry import lower

_SCALES = ("scales", "scales_d", "scales_h", "scales_w")


def _step(size, out, scale, align_corners, kind):
    """How far the input moves for each output, in the precision that PyTorch uses."""
    if align_corners:
        return kind((size - 1) / (out - 1)) if out > 1 else kind(0)
    if scale is not None and scale > 0:
        return kind(1) / kind(scale) if kind is np.float32 else kind(1.0 / scale)
    return kind(size) / kind(out)


def nearest_table(size, out, scale, exact):
    """Places and weights of nearest interpolation: (out, 1)."""
    step = _step(size, out, scale, False, np.float32)
    position = np.arange(out, dtype=np.float32) + np.float32(0.5 if exact else 0)
    places = np.minimum(np.floor(position * step).astype(np.int64), size - 1)
    return places[:, None], np.ones((out, 1))


def _source(size, out, scale, align_corners, kind, clamp):
    step = _step(size, out, scale, align_corners, kind)
    position = np.arange(out).astype(kind)
    if align_corners:
        return position * step
    position = (position + kind(0.5)) * step - kind(0.5)
    return np.maximum(position, kind(0)) if clamp else position


def linear_table(size, out, scale, align_corners, kind):
    """Places and weights of linear interpolation: (out, 2)."""
    position = _source(size, out, scale, align_corners, kind, True)
    low = np.minimum(position.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    part = np.clip(position - low.astype(kind), 0, 1)
    return np.stack([low, high], 1), np.stack([1 - part, part], 1).astype(np.float64)


def _cubic_weights(t, a):
    def near(x):
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x):
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return np.stack([far(t + 1), near(t), near(1 - t), far(2 - t)], -1)


def cubic_table(size, out, scale, align_corners, kind):
    """Places and weights of cubic interpolation: (out, 4)."""
    position = _source(size, out, scale, align_corners, kind, False)
    low = np.floor(position)
    weights = _cubic_weights((position - low).astype(np.float64), -0.75)
    places = low.astype(np.int64)[:, None] + np.arange(-1, 3)
    return np.clip(places, 0, size - 1), weights


def _filter(name):
    if name == "linear":
        return lambda x: np.maximum(1 - np.abs(x), 0), 1.0

    def cubic(x):
        x, a = np.abs(x), -0.5
        inner = ((a + 2) * x - (a + 3)) * x * x + 1
        outer = (((x - 5) * x + 8) * x - 4) * a
        return np.where(x < 1, inner, np.where(x < 2, outer, 0))

    def lanczos(x):
        return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)

    return (cubic, 2.0) if name == "cubic" else (lanczos, 3.0)


def antialias_table(size, out, scale, align_corners, name):
    """Places and weights of an antialiased filter: (out, longest)."""
    step = float(_step(size, out, scale, align_corners, np.float64))
    weigh, reach = _filter(name)
    support = reach * step if step >= 1 else reach
    stretch = 1 / step if step >= 1 else 1.0
    centre = step * (np.arange(out) + 0.5)
    low = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    count = np.minimum((centre + support + 0.5).astype(np.int64), size) - low
    count = np.clip(count, 0, math.ceil(support) * 2 + 1)
    taps = np.arange(max(count.max(initial=1), 1))
    weights = weigh((taps + low[:, None] - centre[:, None] + 0.5) * stretch)
    weights = np.where(taps < count[:, None], weights, 0)
    total = weights.sum(1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    return np.minimum(low[:, None] + taps, size - 1), weights


def transposed(places, weights, size):
    """The table of the transpose: for each of `size` inputs the outputs that read it."""
    out, taps = places.shape
    flat, value = places.reshape(-1), weights.reshape(-1)
    owner = np.repeat(np.arange(out), taps)
    used = value != 0
    flat, value, owner = flat[used], value[used], owner[used]
    order = np.argsort(flat, kind="stable")
    flat, value, owner = flat[order], value[order], owner[order]
    count = np.bincount(flat, minlength=size)
    rank = np.arange(flat.size) - np.repeat(np.cumsum(count) - count, count)
    longest = max(int(count.max(initial=0)), 1)
    back, share = np.zeros((size, longest), np.int64), np.zeros((size, longest))
    back[flat, rank], share[flat, rank] = owner, value
    return back, share


def _spread(values, ndim, axis):
    shape = [1] * ndim
    shape[axis] = -1
    return jnp.asarray(values).reshape(shape)


def apply_table(x, axis, places, weights):
    """out[..., i, ...] = sum over k of weights[i, k] * x[..., places[i, k], ...]; absent taps add nothing."""
    terms = []
    for k in range(places.shape[1]):
        if not weights[:, k].any():
            continue
        term = x if np.array_equal(places[:, k], np.arange(x.shape[axis])) else jnp.take(x, places[:, k], axis=axis)
        if not (weights[:, k] == 1).all():
            factor = _spread(weights[:, k].astype(x.dtype), x.ndim, axis)
            term = jnp.where(factor != 0, term * factor, jnp.zeros((), x.dtype)) if (
                weights[:, k] == 0).any() else term * factor
        terms.append(term)
    if not terms:
        shape = list(x.shape)
        shape[axis] = places.shape[0]
        return jnp.zeros(shape, x.dtype)
    return sum(terms[1:], terms[0])


def _fixed_point(x, axis, places, weights):
    """`apply_table` on uint8 as the CPU does it: 16-bit weights, a rounded and saturated uint8 after each dimension."""
    weights = weights.copy()
    for k in range(1, weights.shape[1]):  # taps that the border moved to one place count as one, before they are rounded
        for j in range(k):
            same = places[:, j] == places[:, k]
            weights[:, j] += np.where(same, weights[:, k], 0)
            weights[:, k] = np.where(same, 0, weights[:, k])
    largest, precision = weights.max(initial=0), 0
    while precision < 22 and int(0.5 + largest * 2 ** (precision + 1)) < 2**15:
        precision += 1
    whole = np.trunc(weights * 2.0**precision + np.copysign(0.5, weights)).astype(np.int32)
    total = apply_table(x.astype(jnp.int32), axis, places, whole)
    return jnp.clip((total + (1 << precision >> 1)) >> precision, 0, 255).astype(x.dtype)


def _wide(x):
    return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.integer) else x.astype(dtypes.opmath(x.dtype))


def _kind(x):
    """The type that positions are computed in: doubles for uint8 as well, whose weights are rounded once."""
    return np.float64 if x.dtype in (jnp.float64, jnp.uint8) else np.float32


def _resample(x, output_size, tables):
    first = x.ndim - len(tables)
    if 0 in context().out_shape:
        return jnp.zeros(context().out_shape, x.dtype)
    integral = jnp.issubdtype(x.dtype, jnp.integer)
    selects = all((w == 1).all() and w.shape[1] == 1 for _, w in tables)
    if x.dtype == jnp.uint8 and len(tables) == 2 and not selects:
        for i, (places, weights) in reversed(list(enumerate(tables))):
            x = _fixed_point(x, first + i, places, weights)
        return x
    out = x if selects else _wide(x)
    for i, (places, weights) in reversed(list(enumerate(tables))):
        out = apply_table(out, first + i, places, weights)
    if integral and not selects:
        info = jnp.iinfo(x.dtype)
        out = jnp.clip(jnp.round(out), info.min, info.max)
    return out


def _resample_backward(grad, input_size, tables):
    out = _wide(grad)
    if grad.size == 0:
        return jnp.zeros(tuple(input_size), out.dtype)
    first = grad.ndim - len(tables)
    for i, (places, weights) in enumerate(tables):
        out = apply_table(out, first + i, *transposed(places, weights, input_size[first + i]))
    return out


def _register(name, n, table, aligned):
    """Registers an interpolation over n dimensions and its gradient."""

    def split(arguments):
        align = arguments[0] if aligned else False
        scales = list(arguments[1:] if aligned else arguments)
        return align, scales + [None] * (n - len(scales))

    def tables(sizes, output_size, arguments, kind):
        align, scales = split(arguments)
        return [table(s, o, f, align, kind) for s, o, f in zip(sizes, output_size, scales, strict=True)]

    @lower(name, static=_SCALES)
    def upsample(self, output_size, *arguments):
        return _resample(self, output_size, tables(self.shape[-n:], output_size, arguments, _kind(self)))

    @lower(name + "_backward", static=_SCALES)
    def upsample_backward(grad_output, output_size, input_size, *arguments):
        made = tables(input_size[-n:], output_size, arguments, _kind(grad_output))
        return _resample_backward(grad_output, input_size, made)


for _n in (1, 2, 3):
    _register(f"upsample_nearest{_n}d", _n, lambda s, o, f, a, kind: nearest_table(s, o, f, False), False)
    _register(f"_upsample_nearest_exact{_n}d", _n, lambda s, o, f, a, kind: nearest_table(s, o, f, True), False)
for _name, _n in (("upsample_linear1d", 1), ("upsample_bilinear2d", 2), ("upsample_trilinear3d", 3)):
    _register(_name, _n, linear_table, True)
_register("upsample_bicubic2d", 2, cubic_table, True)
for _name, _kernel in (("bilinear", "linear"), ("bicubic", "cubic"), ("lanczos", "lanczos")):
    _register(
        f"_upsample_{_name}2d_aa", 2,
        lambda s, o, f, a, kind, _kernel=_kernel: antialias_table(s, o, f, a, _kernel), True,
    )


# Sliding blocks


def _blocks(height_width, kernel, dilation, padding, stride):
    return [
        (s + 2 * p - d * (k - 1) - 1) // t + 1
        for s, k, d, p, t in zip(height_width, kernel, dilation, padding, stride, strict=True)
    ]


def _pair(values):
    values = list(values)
    return values * 2 if len(values) == 1 else values


@lower("im2col")
def im2col(self, kernel_size, dilation, padding, stride):
    kernel, dilation, padding, stride = (_pair(v) for v in (kernel_size, dilation, padding, stride))
    x = self if self.ndim == 4 else self[None]
    n, c, *size = x.shape
    if x.size == 0:
        return jnp.zeros(context().out_shape, x.dtype)
    outs = _blocks(size, kernel, dilation, padding, stride)
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *((p, p, 0) for p in padding)])
    pieces = []
    for position in np.ndindex(*kernel):
        start = [0, 0, *(i * d for i, d in zip(position, dilation, strict=True))]
        stop = [n, c, *(b + (o - 1) * t + 1 for b, o, t in zip(start[2:], outs, stride, strict=True))]
        pieces.append(lax.slice(x, start, stop, [1, 1, *stride])[:, :, None])
    return lax.concatenate(pieces, 2).reshape(context().out_shape)


@lower("col2im")
def col2im(self, output_size, kernel_size, dilation, padding, stride):
    kernel, dilation, padding, stride = (_pair(v) for v in (kernel_size, dilation, padding, stride))
    shape = context().out_shape
    wide = self.astype(dtypes.opmath(self.dtype))
    if 0 in shape or self.size == 0:
        return jnp.zeros(shape, wide.dtype)
    outs = _blocks(output_size, kernel, dilation, padding, stride)
    x = wide.reshape(-1, math.prod(kernel), *outs)
    zero = jnp.zeros((), wide.dtype)
    total = None
    for number, position in enumerate(np.ndindex(*kernel)):
        config = [(0, 0, 0)]
        for i, d, p, t, o, size in zip(position, dilation, padding, stride, outs, output_size, strict=True):
            start = i * d - p
            config.append((start, size - (start + (o - 1) * t + 1), t - 1))
        term = lax.pad(x[:, number], zero, config)
        total = term if total is None else total + term
    return total.reshape(shape)


@lower("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(self, groups):
    n, c, *rest = self.shape
    return jnp.swapaxes(self.reshape(n, groups, c // groups, *rest), 1, 2).reshape(self.shape)


@lower("pixel_shuffle")
def pixel_shuffle(self, upscale_factor):
    r = upscale_factor
    *lead, c, h, w = self.shape
    x = self.reshape(*lead, c // (r * r), r, r, h, w)
    b = len(lead)
    order = [*range(b), b, b + 3, b + 1, b + 4, b + 2]
    return lax.transpose(x, order).reshape(*lead, c // (r * r), h * r, w * r)


@lower("pixel_unshuffle")
def pixel_unshuffle(self, downscale_factor):
    r = downscale_factor
    *lead, c, h, w = self.shape
    x = self.reshape(*lead, c, h // r, r, w // r, r)
    b = len(lead)
    order = [*range(b), b, b + 2, b + 4, b + 1, b + 3]
    return lax.transpose(x, order).reshape(*lead, c * r * r, h // r, w // r)
