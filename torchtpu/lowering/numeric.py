"""Small helpers that lowerings share: cheap broadcasting, selection, literals and dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from torchtpu.lowering import dtypes

Array = jax.Array


def literal(like: Array, value: Any) -> Any:
    """A constant of the dtype of `like`: lax operators take it as it is and trace no conversion."""
    return np.asarray(value).astype(like.dtype)[()]


def expand(x: Any, shape: tuple[int, ...]) -> Array:
    """Broadcasts to `shape` with one primitive (jnp.broadcast_to traces several)."""
    ndim = np.ndim(x)
    if np.shape(x) == tuple(shape) and not isinstance(x, np.generic):
        return x
    return lax.broadcast_in_dim(x, shape, tuple(range(len(shape) - ndim, len(shape))))


def select(condition: Array, on_true: Any, on_false: Any) -> Array:
    """`condition ? on_true : on_false` with broadcasting; Python numbers take the other branch's dtype."""
    if not hasattr(on_true, "dtype"):
        on_true = literal(on_false, on_true)
    if not hasattr(on_false, "dtype"):
        on_false = literal(on_true, on_false)
    shape = np.broadcast_shapes(np.shape(condition), np.shape(on_true), np.shape(on_false))
    if condition.ndim:
        condition = expand(condition, shape)
    return lax.select_n(condition, expand(on_false, shape), expand(on_true, shape))


def is_float(x: Any) -> bool:
    """Whether an array or a dtype is real floating (the half types included)."""
    return dtypes.category(dtypes.to_torch_dtype(getattr(x, "dtype", x))) == 2


def is_complex(x: Any) -> bool:
    """Whether an array or a dtype is complex."""
    return np.issubdtype(getattr(x, "dtype", x), np.complexfloating)


def is_bool(x: Array) -> bool:
    """Whether an array holds booleans."""
    return x.dtype == np.bool_


def is_unsigned(x: Array) -> bool:
    """Whether an array holds unsigned integers."""
    return np.issubdtype(x.dtype, np.unsignedinteger)


def nonzero(x: Array) -> Array:
    """`x != 0` as bool."""
    return x if is_bool(x) else x != 0


def sign_bit(x: Array) -> Array:
    """Whether the sign bit is set (true for -0.0 and negative NaN)."""
    if is_float(x):
        return lax.bitcast_convert_type(x, np.dtype(f"int{x.dtype.itemsize * 8}")) < 0
    return x < 0 if not (is_bool(x) or is_unsigned(x)) else lax.full_like(x, False, np.bool_)


def up(x: Array) -> Array:
    """Half types as float32, everything else unchanged."""
    return lax.convert_element_type(x, dtypes.opmath(x.dtype))


def axes(dim: Sequence[int] | int | None, ndim: int) -> tuple[int, ...]:
    """Reduced dimensions: None or an empty list means all; a 0-d tensor accepts 0 and -1."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(ndim))
    dims = [dim] if isinstance(dim, int) else dim
    return tuple(sorted({d % ndim for d in dims})) if ndim else ()


def keep(x: Array, dims: tuple[int, ...]) -> Array:
    """Puts reduced dimensions back with size 1."""
    return lax.expand_dims(x, dims) if dims else x


def count(shape: tuple[int, ...], dims: tuple[int, ...]) -> int:
    """How many elements one reduction over `dims` reads."""
    return math.prod(shape[d] for d in dims)


def rint(x: Array) -> Array:
    """Rounds half to even."""
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def trunc(x: Array) -> Array:
    """Rounds towards zero; -0.5 gives -0.0 as the CPU does."""
    return select(x < 0, lax.ceil(x), lax.floor(x))


def rounded(x: Array, dtype: Any) -> Array:
    """Rounds float32 values to a half type's precision; XLA may drop a plain conversion there and back."""
    if dtype == x.dtype:
        return x
    info = dtypes.ml_dtypes.finfo(dtype)
    return lax.reduce_precision(x, info.nexp, info.nmant)
