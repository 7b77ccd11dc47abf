"""Reading and writing strided views of a value, inside the consumer's program.

A value is a row-major array. A tensor is a view (sizes, strides, offset, dtype) of it. Most views are a slice of the
value under a finer or coarser shape: `plan` finds that shape, so that reading is reshape + slice + transpose and
writing its inverse. Only what fits no such shape (overlapping windows, odd diagonals) becomes a gather or a scatter.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclasses.dataclass(frozen=True)
class View:
    """A tensor's view of its storage; strides and offset count elements of `dtype`.

    conj, neg: PyTorch's lazy conjugate and negative, part of the view.
    """

    dtype: np.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    conj: bool = False
    neg: bool = False

    def bits(self, value: jax.Array) -> jax.Array:
        """The stored elements as the tensor's, or the reverse."""
        if self.conj:
            value = lax.conj(value)
        return lax.neg(value) if self.neg else value


@dataclasses.dataclass(frozen=True)
class Plan:
    """A view as a strided slice of the value under the shape `factors`."""

    padded: int  # elements after padding the flat value, or its own number
    factors: tuple[int, ...]
    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]
    core: tuple[int, ...]  # dimensions of the view that select elements, by descending stride


def _row_major(shape: tuple[int, ...]) -> list[int]:
    strides = [1]
    for n in reversed(shape[1:]):
        strides.append(strides[-1] * n)
    return strides[::-1] if shape else []


def _try(total: int, cuts: list[int], core: list[tuple[int, int, int]], offset: int) -> Plan | None:
    """Fits the view onto the dimensions whose strides are `cuts` (descending, ending in 1)."""
    for outer, inner in zip(cuts, cuts[1:], strict=False):
        if outer % inner:
            return None
    padded = -(-total // cuts[0]) * cuts[0]
    factors = [padded // cuts[0]] + [a // b for a, b in zip(cuts, cuts[1:], strict=False)]
    digits, rest = [], offset
    for cut in cuts:
        digits.append(rest // cut)
        rest %= cut
    if digits[0] >= factors[0]:
        return None
    starts, stops, steps = list(digits), [d + 1 for d in digits], [1] * len(cuts)
    used = [False] * len(cuts)
    for size, stride, _ in core:
        at = next((i for i, cut in enumerate(cuts) if cut <= stride), None)
        if at is None or used[at] or stride % cuts[at]:
            return None
        step = stride // cuts[at]
        if digits[at] + (size - 1) * step >= factors[at]:
            return None
        used[at] = True
        stops[at] = digits[at] + (size - 1) * step + 1
        steps[at] = step
    return Plan(padded, tuple(factors), tuple(starts), tuple(stops), tuple(steps), tuple(d for _, _, d in core))


@functools.lru_cache(maxsize=65536)
def plan(base: tuple[int, ...], sizes: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Plan | None:
    """The view as a slice of a reshaped value, or None when only a gather can read it."""
    total = math.prod(base)
    core = [(n, s, d) for d, (n, s) in enumerate(zip(sizes, strides, strict=True)) if n != 1 and s != 0]
    core.sort(key=lambda item: -item[1])
    own = [s for s, n in zip(_row_major(base), base, strict=True) if n != 1]
    wanted = [s for _, s, _ in core]
    candidates = [own, wanted, own + wanted]
    # Only the strides below the view's own matter when the value's shape is finer than the view needs.
    for cuts in candidates:
        found = _try(total, sorted({1, *cuts}, reverse=True), core, offset)
        if found is not None:
            return found
    return None


def reinterpret(flat: jax.Array, dtype: np.dtype) -> jax.Array:
    """The bytes of a flat array as another dtype (little endian); the tail is zero when the sizes do not divide."""
    if flat.dtype == dtype:
        return flat
    if np.issubdtype(flat.dtype, np.complexfloating):
        flat = jnp.stack([flat.real, flat.imag], -1).reshape(-1)
    elif flat.dtype == np.bool_:
        flat = flat.astype(np.uint8)
    if np.issubdtype(dtype, np.complexfloating):
        part = np.dtype(np.float32 if dtype == np.complex64 else np.float64)
        pairs = reinterpret(flat, part)
        pairs = jnp.pad(pairs, (0, pairs.size % 2)).reshape(-1, 2)
        return lax.complex(pairs[:, 0], pairs[:, 1])
    if dtype == np.bool_:
        return reinterpret(flat, np.dtype(np.uint8)) != 0
    wide, narrow = flat.dtype.itemsize, dtype.itemsize
    if narrow > wide:
        ratio = narrow // wide
        flat = jnp.pad(flat, (0, -flat.size % ratio)).reshape(-1, ratio)
    return lax.bitcast_convert_type(flat, dtype).reshape(-1)


def _gather_index(view: View) -> jax.Array:
    index = jnp.full(view.sizes, view.offset, jnp.int64)
    for d, stride in enumerate(view.strides):
        if stride and view.sizes[d] > 1:
            index = index + lax.broadcasted_iota(jnp.int64, view.sizes, d) * stride
    return index


def _extend(flat: jax.Array, length: int) -> jax.Array:
    return flat if flat.size >= length else lax.pad(flat, jnp.zeros((), flat.dtype), [(0, length - flat.size, 0)])


def read(base: jax.Array | None, view: View) -> jax.Array:
    """The tensor's elements as an array of its own shape. `base` is None for memory that was never written (zeros)."""
    return view.bits(_read(base, view))


def _read(base: jax.Array | None, view: View) -> jax.Array:
    if base is None or 0 in view.sizes:
        return jnp.zeros(view.sizes, view.dtype)
    if base.dtype != view.dtype:
        base = reinterpret(base.reshape(-1), view.dtype)
    if base.shape == view.sizes and view.offset == 0 and list(view.strides) == _row_major(base.shape):
        return base
    found = plan(base.shape, view.sizes, view.strides, view.offset)
    if found is None:
        flat = base.reshape(-1)
        need = view.offset + sum((n - 1) * s for n, s in zip(view.sizes, view.strides, strict=True)) + 1
        return jnp.take(_extend(flat, need), _gather_index(view), axis=0, mode="clip")
    x = base
    if x.shape != found.factors:
        if found.padded != base.size:
            x = _extend(x.reshape(-1), found.padded)
        x = x.reshape(found.factors)
    if found.starts != (0,) * len(found.factors) or found.stops != found.factors or any(s != 1 for s in found.steps):
        x = lax.slice(x, found.starts, found.stops, found.steps)
    x = x.reshape([view.sizes[d] for d in found.core])
    order = sorted(range(len(found.core)), key=lambda i: found.core[i])
    if order != list(range(len(order))):
        x = lax.transpose(x, order)
    if x.shape != view.sizes:
        kept = sorted(found.core)
        x = lax.broadcast_in_dim(x, view.sizes, kept)
    return x


def to_memory(value: jax.Array, view: View, shape: tuple[int, ...]) -> jax.Array:
    """A whole tensor's elements in the order of memory, as an array of `shape`."""
    core = [(s, d) for d, (n, s) in enumerate(zip(view.sizes, view.strides, strict=True)) if n != 1]
    if all(a[0] >= b[0] for a, b in zip(core, core[1:], strict=False)):
        return value.reshape(shape)
    order = [d for _, d in sorted(core, key=lambda item: -item[0])]
    rest = [d for d in range(value.ndim) if d not in order]
    return lax.transpose(value, order + rest).reshape(shape)


def write(
    base: jax.Array | None, view: View, value: jax.Array, dtype: np.dtype, shape: tuple[int, ...], whole: bool
) -> jax.Array:
    """The storage's value after `value` was written through the view; an array of `dtype` and `shape`.

    whole: the view covers the storage exactly once, so nothing of `base` remains.
    """
    return _write(base, view, view.bits(value), dtype, shape, whole)


def _write(
    base: jax.Array | None, view: View, value: jax.Array, dtype: np.dtype, shape: tuple[int, ...], whole: bool
) -> jax.Array:
    if whole:
        return to_memory(value, view, shape)
    if base is None:
        base = jnp.zeros(shape, dtype)
    if 0 in view.sizes:
        return base if base.size else jnp.zeros(shape, dtype)  # an empty storage takes the shape that was written last
    if base.dtype != view.dtype:
        flat = reinterpret(base.reshape(-1), view.dtype)
        flat = _write(flat, view, value, view.dtype, flat.shape, False)
        return reinterpret(flat, dtype)[: math.prod(shape)].reshape(shape)
    overlapping = any(s == 0 and n > 1 for n, s in zip(view.sizes, view.strides, strict=True))
    found = None if overlapping else plan(base.shape, view.sizes, view.strides, view.offset)
    if found is None:
        flat = base.reshape(-1)
        return flat.at[_gather_index(view)].set(value, mode="drop").reshape(shape)
    kept = list(found.core)
    update = lax.transpose(value.reshape(view.sizes), kept + [d for d in range(value.ndim) if d not in kept])
    x = base
    if found.padded != base.size:
        x = _extend(x.reshape(-1), found.padded)
    x = x.reshape(found.factors)
    counts = [-(-(stop - start) // step) for start, stop, step in zip(found.starts, found.stops, found.steps, strict=True)]
    update = update.reshape(counts)
    if all(step == 1 for step in found.steps):
        x = update if x.shape == update.shape else lax.dynamic_update_slice(x, update, found.starts)
    else:
        edges = [(a, n - b, s - 1) for a, b, s, n in zip(found.starts, found.stops, found.steps, found.factors, strict=True)]
        spread = lax.pad(update, jnp.zeros((), update.dtype), edges)
        mask = lax.pad(jnp.ones(update.shape, np.bool_), np.bool_(False), edges)
        x = jnp.where(mask, spread, x)
    if found.padded != math.prod(shape):
        x = lax.slice(x.reshape(-1), (0,), (math.prod(shape),))
    return x.reshape(shape)


