"""Pairwise distances."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import context
from torchtpu.lowering.matmul import contract
from torchtpu.lowering.norm import vector_norm
from torchtpu.lowering.registry import lower


def _up(x):
    return x.astype(dtypes.opmath(x.dtype))


def _euclidean(x1, x2):
    """Distances through a matrix product, as PyTorch does for large inputs."""
    lead = jnp.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    x1 = jnp.broadcast_to(x1, lead + x1.shape[-2:])
    x2 = jnp.broadcast_to(x2, lead + x2.shape[-2:])
    n = len(lead)
    batch = tuple(range(n))
    cross = contract(x1, x2, ((n + 1,), (n + 1,)), (batch, batch))
    squares = jnp.sum(x1 * x1, axis=-1)[..., :, None] + jnp.sum(x2 * x2, axis=-1)[..., None, :]
    return lax.sqrt(lax.max(squares - 2 * cross, jnp.zeros((), cross.dtype)))


@lower("_cdist_forward", static=("p",))
def cdist_forward(x1, x2, p, compute_mode):
    if 0 in context().out_shape or x1.shape[-1] == 0:
        return jnp.zeros(context().out_shape, x1.dtype)
    x1, x2 = _up(x1), _up(x2)
    large = x1.shape[-2] > 25 or x2.shape[-2] > 25
    if p == 2 and (compute_mode == 1 or (compute_mode in (None, 0) and large)):
        return _euclidean(x1, x2)
    return vector_norm(x1[..., :, None, :] - x2[..., None, :, :], p, (-1,))


@lower("_euclidean_dist")
def euclidean_dist(x1, x2):
    return _euclidean(_up(x1), _up(x2))


def _slope(difference, distance, grad, p):
    """d distance / d difference times grad, with PyTorch's zeros where it is undefined."""
    zero = jnp.zeros((), difference.dtype)
    size = lax.abs(difference)
    if p == 0:
        return jnp.zeros_like(difference)
    if p == 1:
        return grad * lax.sign(difference)
    if p == math.inf:
        return jnp.where(size == distance, grad * lax.sign(difference), zero)
    if p == 2:
        return jnp.where(distance == 0, zero, grad * difference / distance)
    power = distance ** (p - 1)
    if p < 2:
        undefined = (distance == 0) | ((difference == 0) & (p < 1))
        return jnp.where(undefined, zero, lax.sign(difference) * size ** (p - 1) * grad / power)
    return jnp.where(distance == 0, zero, difference * size ** (p - 2) * grad / power)


@lower("_cdist_backward", static=("p",))
def cdist_backward(grad, x1, x2, p, cdist):
    shape = context().out_shape
    if 0 in grad.shape or 0 in shape:
        return jnp.zeros(shape, x1.dtype)
    a, b = _up(x1)[..., :, None, :], _up(x2)[..., None, :, :]
    out = jnp.sum(_slope(a - b, _up(cdist)[..., None], _up(grad)[..., None], p), axis=-2)
    return out if out.shape == shape else jnp.sum(out.reshape(-1, *shape), axis=0)


@lower("_pdist_forward", static=("p",))
def pdist_forward(self, p=2.0):
    first, second = np.triu_indices(self.shape[0], 1)
    if first.size == 0 or self.shape[1] == 0:
        return jnp.zeros(first.shape, self.dtype)
    x = _up(self)
    return vector_norm(jnp.take(x, first, axis=0) - jnp.take(x, second, axis=0), p, (-1,))


@lower("_pdist_backward", static=("p",))
def pdist_backward(grad, self, p, pdist):
    n = self.shape[0]
    first, second = np.triu_indices(n, 1)
    if first.size == 0 or self.shape[1] == 0:
        return jnp.zeros(self.shape, self.dtype)
    # Every pair as an entry of a full matrix, so that the sum over pairs is a plain reduction.
    pair = np.zeros((n, n), np.int32)
    pair[first, second] = pair[second, first] = np.arange(first.size)
    off = ~np.eye(n, dtype=bool)
    x = _up(self)
    full = [jnp.where(off, _up(t)[pair], jnp.zeros((), x.dtype))[:, :, None] for t in (pdist, grad)]
    slopes = _slope(x[:, None, :] - x[None, :, :], *full, p)
    return jnp.sum(jnp.where(off[:, :, None], slopes, jnp.zeros((), x.dtype)), axis=1)
