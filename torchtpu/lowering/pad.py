"""Padding. Reflection and replication read a dimension in a few runs: forwards, backwards, or one element repeated."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import cast, context
from torchtpu.lowering.registry import lower
from torchtpu.lowering.shape import along, broadcast_to, pad_dim, zero, zeros


@lower("constant_pad_nd", "constant_pad_nd.Scalar")
def constant_pad_nd(self, pad, value=0):
    config = [(0, 0, 0)] * self.ndim
    for i in range(len(pad) // 2):
        config[self.ndim - 1 - i] = (pad[2 * i], pad[2 * i + 1], 0)
    return lax.pad(self, cast(jnp.asarray(value), self.dtype), config)


def _runs(index: np.ndarray) -> list[tuple[int, int, int]]:
    """An index sequence as runs (first, length, step) with steps 1, -1 and 0."""
    out: list[tuple[int, int, int]] = []
    i = 0
    while i < len(index):
        j, step = i + 1, 0
        if j < len(index) and abs(int(index[j]) - int(index[i])) <= 1:
            step = int(index[j]) - int(index[i])
            while j < len(index) and index[j] - index[j - 1] == step:
                j += 1
            # A run's last element may begin the next one, which is then longer.
            if j < len(index) and step == 0 and j - i > 1 and abs(int(index[j]) - int(index[j - 1])) == 1:
                j -= 1
        out.append((int(index[i]), j - i, step if j - i > 1 else 1))
        i = j
    return out


def _read_runs(x: jax.Array, dim: int, index: np.ndarray) -> jax.Array:
    parts = []
    for first, length, step in _runs(index):
        if step == 0:
            shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
            parts.append(broadcast_to(along(x, dim, first, first + 1), shape))
        elif step == 1:
            parts.append(along(x, dim, first, first + length))
        else:
            parts.append(lax.rev(along(x, dim, first - length + 1, first + 1), (dim,)))
    return lax.concatenate(parts, dim) if len(parts) > 1 else parts[0]


def _add_runs(g: jax.Array, dim: int, index: np.ndarray, n: int) -> jax.Array:
    out: jax.Array | None = None
    done = 0
    for first, length, step in _runs(index):
        piece = along(g, dim, done, done + length)
        done += length
        low = first
        if step == 0:
            total = lax.reduce(piece, zero(g.dtype), lax.add, (dim,))
            piece, length = lax.expand_dims(total, (dim,)), 1
        elif step == -1:
            piece, low = lax.rev(piece, (dim,)), first - length + 1
        piece = pad_dim(piece, dim, low, n - low - length)
        out = piece if out is None else lax.add(out, piece)
    assert out is not None  # an index has at least one run
    return out


def _pad_index(n: int, low: int, high: int, reflect: bool) -> np.ndarray:
    position = np.arange(-low, n + high)
    if reflect:
        # Negative padding crops first, and what is left reflects at its own ends.
        left, right = max(0, -low), n - 1 - max(0, -high)
        position = np.where(position < left, 2 * left - position, position)
        return np.where(position > right, 2 * right - position, position)
    return np.clip(position, 0, n - 1)


def _padded_dims(ndim: int, padding: Sequence[int]) -> list[tuple[int, int, int]]:
    return [(ndim - 1 - i, padding[2 * i], padding[2 * i + 1]) for i in range(len(padding) // 2)]


def _pad_by_index(self: jax.Array, padding: Sequence[int], reflect: bool) -> jax.Array:
    if 0 in context().out_shape:
        return zeros(context().out_shape, self.dtype)
    for dim, low, high in _padded_dims(self.ndim, padding):
        self = _read_runs(self, dim, _pad_index(self.shape[dim], low, high, reflect))
    return self


def _pad_by_index_backward(grad: jax.Array, self: jax.Array, padding: Sequence[int], reflect: bool) -> jax.Array:
    if 0 in grad.shape:
        return zeros(self.shape, self.dtype)
    grad = grad.astype(dtypes.opmath(grad.dtype))
    for dim, low, high in _padded_dims(self.ndim, padding):
        n = self.shape[dim]
        grad = _add_runs(grad, dim, _pad_index(n, low, high, reflect), n)
    return grad


@lower("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(self, padding):
    return _pad_by_index(self, padding, True)


@lower("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(self, padding):
    return _pad_by_index(self, padding, False)


@lower("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward")
def reflection_pad_backward(grad_output, self, padding):
    return _pad_by_index_backward(grad_output, self, padding, True)


@lower("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def replication_pad_backward(grad_output, self, padding):
    return _pad_by_index_backward(grad_output, self, padding, False)
