"""Reductions: sums, products, extrema with and without indices, moments, norms and medians."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import cast, context
from torchtpu.lowering.numeric import (
    axes,
    count,
    expand,
    is_bool,
    is_complex,
    is_float,
    keep,
    literal,
    nonzero,
    select,
    up,
)
from torchtpu.lowering.registry import lower


def _accumulator(x, dtype=None):
    """The operand in the type that a sum is computed in: the result's, but float32 for half types."""
    out = context().out_dtype if dtype is None else dtypes.to_numpy_dtype(dtype)
    if out == np.bool_:
        return x.astype(np.int64)
    return cast(x, dtypes.opmath(out))


def _reduce(fn, x, dim, keepdim):
    dims = axes(dim, x.ndim)
    if not dims:
        return x
    out = fn(x, dims)
    return keep(out, dims) if keepdim else out


def _sum(x, dims, keepdim=False):
    """Sum over normalized dimensions."""
    if not dims:
        return x
    out = lax.reduce_sum(x, dims)
    return keep(out, dims) if keepdim else out


@lower("sum")
def sum_(self, dim=None, keepdim=False, dtype=None):
    return _reduce(lax.reduce_sum, _accumulator(self, dtype), dim, keepdim)


@lower("nansum")
def nansum(self, dim=None, keepdim=False, dtype=None):
    x = _accumulator(self, dtype)
    if is_float(x):
        x = select(x != x, 0, x)
    return _reduce(lax.reduce_sum, x, dim, keepdim)


@lower("mean")
def mean(self, dim=None, keepdim=False, dtype=None):
    x = _accumulator(self, dtype)
    n = count(x.shape, axes(dim, x.ndim))
    return _reduce(lax.reduce_sum, x, dim, keepdim) / literal(x, n)


@lower("prod")
def prod(self, dim=None, keepdim=False, dtype=None):
    return _reduce(lax.reduce_prod, _accumulator(self, dtype), dim, keepdim)


@lower("any")
def any_(self, dim=None, keepdim=False):
    return _reduce(lax.reduce_or, nonzero(self), dim, keepdim)


@lower("all")
def all_(self, dim=None, keepdim=False):
    return _reduce(lax.reduce_and, nonzero(self), dim, keepdim)


@lower("any.dims")
def any_dims(self, dim=None, keepdim=False):
    """An explicit empty list reduces nothing."""
    return nonzero(self) if dim == [] or dim == () else any_(self, dim, keepdim)


@lower("all.dims")
def all_dims(self, dim=None, keepdim=False):
    return nonzero(self) if dim == [] or dim == () else all_(self, dim, keepdim)


lower("_is_any_true")(lambda self: any_(self))
lower("_is_all_true")(lambda self: all_(self))


@lower("count_nonzero")
def count_nonzero(self, dim=None):
    return _reduce(lax.reduce_sum, nonzero(self).astype(np.int64), dim, False)


# --- extrema ---


def _extremum(x, dims, largest):
    if not dims:
        return x
    if is_bool(x):
        return (lax.reduce_or if largest else lax.reduce_and)(x, dims)
    return (lax.reduce_max if largest else lax.reduce_min)(x, dims)


@lower("amax")
def amax(self, dim=None, keepdim=False):
    return _reduce(lambda x, dims: _extremum(x, dims, True), self, dim, keepdim)


@lower("amin")
def amin(self, dim=None, keepdim=False):
    return _reduce(lambda x, dims: _extremum(x, dims, False), self, dim, keepdim)


lower("max")(lambda self: amax(self))
lower("min")(lambda self: amin(self))


def _arg_extremum(x, dim, keepdim, largest):
    """Index of the first extremum; NaN wins over every number."""
    if x.ndim == 0:
        return expand(np.int64(0), ())
    if is_bool(x):
        x = x.astype(np.int8)
    dim %= x.ndim
    wide = x.shape[dim] > np.iinfo(np.int32).max
    out = (lax.argmax if largest else lax.argmin)(x, dim, np.int64 if wide else np.int32)
    return keep(out, (dim,)) if keepdim else out


@lower("max.dim")
def max_dim(self, dim, keepdim=False):
    return amax(self, dim, keepdim), _arg_extremum(self, dim, keepdim, True)


@lower("min.dim")
def min_dim(self, dim, keepdim=False):
    return amin(self, dim, keepdim), _arg_extremum(self, dim, keepdim, False)


def _arg(self, dim, keepdim, largest):
    if dim is not None:
        return _arg_extremum(self, dim, keepdim, largest)
    out = _arg_extremum(lax.reshape(self, (self.size,)), 0, False, largest)
    return lax.expand_dims(out, tuple(range(self.ndim))) if keepdim and self.ndim else out


lower("argmax")(lambda self, dim=None, keepdim=False: _arg(self, dim, keepdim, True))
lower("argmin")(lambda self, dim=None, keepdim=False: _arg(self, dim, keepdim, False))


@lower("aminmax")
def aminmax(self, dim=None, keepdim=False):
    return amin(self, dim, keepdim), amax(self, dim, keepdim)


@lower("_aminmax")
def aminmax_internal(self, dim=None, keepdim=False):
    return aminmax(self, dim, keepdim)


# --- moments ---


def _moments(x, dim, correction, keepdim):
    """Variance (two passes: the mean first, so that nothing cancels) and mean."""
    dims = axes(dim, x.ndim)
    n = count(x.shape, dims)
    center = _sum(x, dims, keepdim=True) / literal(x, n)
    deviation = x - center
    parts = [lax.real(deviation), lax.imag(deviation)] if is_complex(x) else [deviation]
    real = parts[0]
    correction = literal(real, 1) if correction is None else correction.astype(real.dtype)
    divisor = lax.max(literal(real, n) - correction, literal(real, 0))
    variances = [_sum(part * part, dims, keepdim) / divisor for part in parts]
    variance = variances[0] + variances[1] if is_complex(x) else variances[0]
    return variance, center if keepdim or not dims else lax.squeeze(center, dims)


@lower("var.correction")
def var(self, dim=None, correction=None, keepdim=False):
    return _moments(up(self), dim, correction, keepdim)[0]


@lower("std.correction")
def std(self, dim=None, correction=None, keepdim=False):
    return lax.sqrt(_moments(up(self), dim, correction, keepdim)[0])


@lower("var_mean.correction")
def var_mean(self, dim=None, correction=None, keepdim=False):
    return _moments(up(self), dim, correction, keepdim)


@lower("std_mean.correction")
def std_mean(self, dim=None, correction=None, keepdim=False):
    variance, center = _moments(up(self), dim, correction, keepdim)
    return lax.sqrt(variance), center


# --- norms ---


def _magnitude(x, dtype):
    if dtype is not None:
        x = cast(x, dtypes.to_numpy_dtype(dtype))
    x = up(x)
    if not (is_float(x) or is_complex(x)):
        x = x.astype(dtypes.opmath(context().out_dtype))
    return lax.abs(x)


def vector_norm(x, p, dims, keepdim=False):
    """The p-norm over normalized dimensions of non-negative magnitudes."""
    if p == np.inf:
        if count(x.shape, dims) == 0:
            out = _sum(x, dims)
        else:
            out = _extremum(x, dims, True)
    elif p == -np.inf:
        out = _extremum(x, dims, False)
    elif p == 0:
        out = _sum((x != 0).astype(x.dtype), dims)
    elif p == 1:
        out = _sum(x, dims)
    elif p == 2:
        out = lax.sqrt(_sum(x * x, dims)) if dims else x
    else:
        power = expand(literal(x, p), x.shape)
        out = _sum(lax.pow(x, power), dims)
        out = lax.pow(out, expand(literal(x, 1 / p), out.shape))
    return keep(out, dims) if keepdim else out


@lower("linalg_vector_norm", static=("ord",))
def linalg_vector_norm(self, ord=2, dim=None, keepdim=False, dtype=None):
    x = _magnitude(self, dtype)
    return vector_norm(x, float(ord), axes(dim, x.ndim), keepdim)


@lower("linalg__powsum", static=("ord",))
def powsum(self, ord=2, dim=None, keepdim=False, dtype=None):
    x = _magnitude(self, dtype)
    return _sum(_absolute_power(x, float(ord)), axes(dim, x.ndim), keepdim)


def _absolute_power(x, p):
    if p == 1:
        return x
    return x * x if p == 2 else lax.pow(x, expand(literal(x, p), x.shape))


def _norm(self, p, dim, keepdim, dtype):
    return linalg_vector_norm(self, 2 if p is None else p, dim, keepdim, dtype)


lower("norm.ScalarOpt_dim", static=("p",))(lambda self, p, dim, keepdim=False: _norm(self, p, dim, keepdim, None))
lower("norm.ScalarOpt_dim_dtype", static=("p",))(
    lambda self, p, dim, keepdim=False, dtype=None: _norm(self, p, dim, keepdim, dtype)
)
lower("norm.ScalarOpt_dtype", static=("p",))(lambda self, p, dtype=None: _norm(self, p, None, False, dtype))
lower("norm.Scalar", static=("p",))(lambda self, p=2: _norm(self, p, None, False, None))


@lower("dist", static=("p",))
def dist(self, other, p=2):
    x = _magnitude(cast(self, context().out_dtype if not is_complex(self) else self.dtype) - other, None)
    return vector_norm(x, float(p), axes(None, x.ndim))


@lower("logsumexp")
def logsumexp(self, dim=None, keepdim=False):
    x = up(self)
    if not (is_float(x) or is_complex(x)):
        x = x.astype(context().out_dtype)
    dims = axes(dim, x.ndim)
    if count(x.shape, dims) == 0:
        return lax.log(_sum(x, dims, keepdim))
    real = lax.real(x) if is_complex(x) else x
    top = keep(_extremum(real, dims, True), dims)
    top = select(lax.abs(top) == np.inf, 0, top)
    out = lax.log(_sum(lax.exp(x - top.astype(x.dtype)), dims, keepdim=True)) + top.astype(x.dtype)
    return out if keepdim or not dims else lax.squeeze(out, dims)


# --- order statistics ---


def _sorted_with_index(x, dim):
    index = lax.broadcasted_iota(np.int32, x.shape, dim)
    return lax.sort((x, index), dimension=dim, is_stable=True, num_keys=1)


def _median(x, dim, keepdim, ignore_nan):
    """The lower median and its index; NaN sorts last, so it wins when it is not ignored."""
    if x.ndim == 0:
        return x, expand(np.int64(0), ())
    dim %= x.ndim
    size = x.shape[dim]
    if size == 0:
        shape = [1 if d == dim else n for d, n in enumerate(x.shape)]
        value = expand(literal(x, np.nan if is_float(x) else np.iinfo(x.dtype).min), tuple(shape))
        index = expand(np.int64(0), tuple(shape))
    else:
        ordered, order = _sorted_with_index(x, dim)
        middle = (size - 1) // 2
        value = lax.slice_in_dim(ordered, middle, middle + 1, axis=dim)
        index = lax.slice_in_dim(order, middle, middle + 1, axis=dim)
        if is_float(x):
            numbers = keep(lax.reduce_sum((x == x).astype(np.int32), (dim,)), (dim,))
            if ignore_nan:
                position = lax.max((numbers - 1) // 2, np.int32(0))
            else:  # the first NaN stands right after the numbers
                position = select(numbers < size, numbers, np.int32(middle))
            value = jnp.take_along_axis(ordered, position, axis=dim)
            index = jnp.take_along_axis(order, position, axis=dim)
    if keepdim:
        return value, index
    return lax.squeeze(value, (dim,)), lax.squeeze(index, (dim,))


lower("median.dim")(lambda self, dim, keepdim=False: _median(self, dim, keepdim, False))
lower("nanmedian.dim")(lambda self, dim, keepdim=False: _median(self, dim, keepdim, True))
lower("median")(lambda self: _median(lax.reshape(self, (self.size,)), 0, False, False)[0])
lower("nanmedian")(lambda self: _median(lax.reshape(self, (self.size,)), 0, False, True)[0])


@lower("mode")
def mode(self, dim=-1, keepdim=False):
    """The smallest of the most frequent values, with the last of its positions."""
    if self.ndim == 0:
        return self, expand(np.int64(0), ())
    dim %= self.ndim
    ordered, order = _sorted_with_index(self, dim)
    size = self.shape[dim]
    place = lax.broadcasted_iota(np.int32, self.shape, dim)
    before = lax.slice_in_dim(ordered, 0, size - 1, axis=dim)
    after = lax.slice_in_dim(ordered, 1, size, axis=dim)
    first = lax.full_like(lax.slice_in_dim(place, 0, 1, axis=dim), True, np.bool_)
    starts = lax.concatenate([first, before != after], dim)
    run_start = lax.cummax(select(starts, place, 0), axis=dim)
    best = lax.argmax(place - run_start, dim, np.int32)
    best = keep(best, (dim,))
    value = jnp.take_along_axis(ordered, best, axis=dim)
    index = jnp.take_along_axis(order, best, axis=dim)
    if keepdim:
        return value, index
    return lax.squeeze(value, (dim,)), lax.squeeze(index, (dim,))


@lower("hash_tensor")
def hash_tensor(self, dim=(), *, keepdim=False, mode=0):
    """The exclusive or of the elements' bits, floats as float64 and integers as int64."""
    bits = self.astype(np.float64 if is_float(self) else np.int64)
    bits = lax.bitcast_convert_type(bits, np.dtype(np.uint64))
    dims = axes(dim, self.ndim)
    out = lax.reduce(bits, np.uint64(0), lax.bitwise_xor, dims)
    return keep(out, dims) if keepdim else out
