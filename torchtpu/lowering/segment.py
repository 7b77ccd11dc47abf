"""Reductions over segments of a dimension, and jagged tensors, whose rows are such segments."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import context
from torchtpu.lowering.index import index_dtype, put_rows
from torchtpu.lowering.registry import lower
from torchtpu.lowering.scatter import identity

_KINDS = {"sum": "add", "mean": "add", "prod": "mul", "max": "max", "amax": "max", "min": "min", "amin": "min"}


class _Segments:
    """Segments along one dimension of `data`, taken as (batch × n, rest), given by lengths or offsets (*batch, segments)."""

    def __init__(self, data: jax.Array, lengths: jax.Array | None, offsets: jax.Array | None, axis: int):
        axis %= data.ndim
        self.batch, n = math.prod(data.shape[:axis]), data.shape[axis]
        given = offsets if lengths is None else lengths
        assert given is not None  # the meta kernel has checked it
        if lengths is not None:
            ends = jnp.cumsum(lengths.astype(np.int64), -1)
            starts = ends - lengths
        else:
            starts, ends = given[..., :-1], given[..., 1:]
        self.shape = (*ends.shape, *data.shape[axis + 1 :])
        self.count, self.width = ends.shape[-1], math.prod(data.shape[axis + 1 :])
        starts, ends = (x.reshape(self.batch, self.count) for x in (starts, ends))
        self.lengths = ends - starts
        position = jnp.arange(n)
        # A position's segment is the number of segments that end before it or there.
        found = jax.vmap(lambda e: jnp.searchsorted(e, position, side="right"))(ends)
        inside = (found < self.count) & (position >= starts[:, :1])
        total = self.batch * self.count
        row = jnp.where(inside, found + self.count * jnp.arange(self.batch)[:, None], total)
        self.row = row.reshape(-1).astype(index_dtype(total + 1))
        self.inside = inside.reshape(-1, 1)

    def rows(self, data: jax.Array) -> jax.Array:
        """Data of the reduced dimension's shape as one row for each position."""
        return data.reshape(self.row.shape[0], self.width)

    def reduce(self, kind: str, rows: jax.Array) -> jax.Array:
        """Rows reduced by segment, (batch × segments, rest); empty segments give the reduction's identity."""
        start = jnp.full((self.batch * self.count, rows.shape[1]), identity(kind, rows.dtype), rows.dtype)
        return put_rows(kind, start, 0, self.row, rows, drop=True) if rows.size else start

    def spread(self, reduced: jax.Array, fill: float) -> jax.Array:
        """Each position's own segment's row; `fill` outside of all segments."""
        if reduced.shape[0] == 0:
            return jnp.full((self.row.shape[0], reduced.shape[1]), fill, reduced.dtype)
        return jnp.where(self.inside, jnp.take(reduced, self.row, axis=0, mode="clip"), jnp.asarray(fill, reduced.dtype))


@lower("segment_reduce")
def segment_reduce(data, reduce, *, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None):
    if lengths is not None and not unsafe and lengths.size:
        context().check(lengths >= 0, RuntimeError, "lengths contains negative value!")
        message = "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when !unsafe."
        context().check(lengths.sum(-1) == data.shape[axis], RuntimeError, message)
    segments, kind = _Segments(data, lengths, offsets, axis), _KINDS[reduce]
    compute = dtypes.opmath(data.dtype)
    out = segments.reduce(kind, segments.rows(data.astype(compute)))
    if initial is not None:
        combine = {"add": jnp.add, "mul": jnp.multiply, "max": jnp.maximum, "min": jnp.minimum}[kind]
        out = combine(out, initial.astype(compute))
    if reduce == "mean":
        length = segments.lengths.reshape(-1, 1)
        empty = jnp.nan if initial is None else out
        out = jnp.where(length > 0, out / jnp.maximum(length, 1).astype(compute), empty)
    return out.reshape(segments.shape).astype(data.dtype)


def _others_product(segments: _Segments, x: jax.Array, initial: jax.Array | None) -> jax.Array:
    """For each element that is 0 or NaN, the product of its segment's other elements."""
    zero, nan = x == 0, jnp.isnan(x)
    good = segments.spread(segments.reduce("mul", jnp.where(zero | nan, 1, x)), 1)
    good = good if initial is None else good * initial.astype(x.dtype)
    others = [segments.spread(segments.reduce("add", bad.astype(np.int32)), 0) - bad for bad in (zero, nan)]
    return jnp.where(others[1] > 0, jnp.nan, jnp.where(others[0] > 0, good * 0, good))


@lower("_segment_reduce_backward")
def segment_reduce_backward(grad, output, data, reduce, *, lengths=None, offsets=None, axis=0, initial=None):
    segments = _Segments(data, lengths, offsets, axis)
    compute = dtypes.opmath(data.dtype)
    x = segments.rows(data.astype(compute))
    total = segments.batch * segments.count
    flat = [jnp.reshape(a.astype(compute), (total, segments.width)) for a in (grad, output)]
    g, out = (segments.spread(a, 0) for a in flat)
    if reduce == "mean":
        g = g / segments.spread(jnp.maximum(segments.lengths.reshape(-1, 1), 1).astype(compute), 1)
    elif reduce == "prod":
        bad = (x == 0) | jnp.isnan(x)
        g = g * jnp.where(bad, _others_product(segments, x, initial), out / jnp.where(bad, 1, x))
        g = jnp.where(segments.inside, g, 0)
    elif reduce != "sum":
        # Equal extremes share a positive gradient; a negative one goes to each in full, as on the CPU.
        chosen = ((x == out) | jnp.isnan(x)) & segments.inside
        ties = segments.spread(segments.reduce("add", chosen.astype(np.int32)), 1)
        g = jnp.where(chosen, jnp.where(g > 0, g / jnp.maximum(ties, 1).astype(compute), g), 0)
    return g.reshape(data.shape).astype(data.dtype)


@lower("_jagged_to_padded_dense_forward")
def jagged_to_padded(values, offsets, max_lengths, padding_value=0.0):
    (offsets,), (width,) = offsets, max_lengths
    position = jnp.arange(width)
    inside = position < (offsets[1:] - offsets[:-1])[:, None]
    rest = (1,) * (values.ndim - 1)
    padding = jnp.asarray(padding_value).astype(values.dtype)
    if values.size == 0:
        return jnp.full((*inside.shape, *values.shape[1:]), padding)
    rows = jnp.take(values, offsets[:-1, None] + position, axis=0, mode="clip")
    return jnp.where(inside.reshape(*inside.shape, *rest), rows, padding)
