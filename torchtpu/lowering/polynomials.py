"""Orthogonal polynomials: a recurrence whose degree is an operand, with closed forms where the CPU uses them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowering.numeric import select
from torchtpu.lowering.registry import pointwise


def _recurrence(x, n, first, step, stop=None):
    """p(0) = 1, p(1) = first, p(k+1) = step(k, p(k), p(k-1)); elements stop at their own degree n."""
    one = jnp.ones_like(x)
    stop = jnp.zeros(x.shape, np.bool_) if stop is None else stop

    def active(k, value):
        return (k < n) & (value == value) & ~stop

    def body(state):
        k, previous, value = state
        go = active(k, value)
        following = step(k.astype(x.dtype), value, previous)
        return k + 1, select(go, value, previous), select(go, following, value)

    start = (np.int64(1), one, first)
    value = lax.while_loop(lambda s: active(s[0], s[2]).any(), body, start)[2]
    return select(n < 0, 0, select(n == 0, 1, value))


def _degree(n):
    """The CPU cuts a fractional degree towards zero."""
    return n.astype(np.int64)


def _even(n):
    return (n & 1) == 0


def _chebyshev_t(x, n):
    closed = (n > 6) & (lax.abs(x) < 1)
    out = _recurrence(x, n, x, lambda k, q, p: 2 * x * q - p, stop=closed | (lax.abs(x) == 1))
    degree = n.astype(x.dtype)
    out = select(closed, lax.cos(degree * lax.acos(x)), out)
    end = select((x > 0) | _even(n), 1, out * 0 - 1)
    return select(n < 0, 0, select(lax.abs(x) == 1, end, out))


def _chebyshev_u(x, n):
    closed = (n > 8) & (lax.abs(x) < 1)
    out = _recurrence(x, n, 2 * x, lambda k, q, p: 2 * x * q - p, stop=closed | (lax.abs(x) == 1))
    degree = n.astype(x.dtype) + 1
    angle = lax.acos(x)
    out = select(closed, lax.sin(degree * angle) / lax.sin(angle), out)
    end = select((x > 0) | _even(n), degree, -degree)
    return select(n < 0, 0, select(lax.abs(x) == 1, end, out))


def _chebyshev_v(x, n):
    closed = (n > 8) & (lax.abs(x) < 1)
    out = _recurrence(x, n, 2 * x - 1, lambda k, q, p: 2 * x * q - p, stop=closed | (lax.abs(x) == 1))
    degree = n.astype(x.dtype)
    angle = lax.acos(x)
    out = select(closed, lax.cos((degree + 0.5) * angle) / lax.cos(angle / 2), out)
    double = 2 * degree + 1
    end = select(x > 0, 1, select(_even(n), double, -double))
    return select(n < 0, 0, select(lax.abs(x) == 1, end, out))


def _chebyshev_w(x, n):
    closed = (n > 8) & (lax.abs(x) < 1)
    out = _recurrence(x, n, 2 * x + 1, lambda k, q, p: 2 * x * q - p, stop=closed | (lax.abs(x) == 1))
    degree = n.astype(x.dtype)
    angle = lax.acos(x)
    out = select(closed, lax.sin((degree + 0.5) * angle) / lax.sin(angle / 2), out)
    double = 2 * degree + 1
    end = select(x > 0, double, select(_even(n), 1, double * 0 - 1))
    return select(n < 0, 0, select(lax.abs(x) == 1, end, out))


def _hermite_h(x, n):
    limit = 128 if x.dtype == np.float32 else 512
    out = _recurrence(x, n, 2 * x, lambda k, q, p: 2 * x * q - 2 * k * p, stop=n > limit)
    return select(n > limit, np.nan, out)


def _hermite_he(x, n):
    limit = 128 if x.dtype == np.float32 else 512
    out = _recurrence(x, n, x, lambda k, q, p: x * q - k * p, stop=n > limit)
    return select(n > limit, np.nan, out)


def _laguerre(x, n):
    at_zero = x == 0
    out = _recurrence(x, n, 1 - x, lambda k, q, p: ((2 * k + 1 - x) * q - k * p) / (k + 1), stop=at_zero)
    return select(n < 0, 0, select(at_zero, 1, out))


def _legendre(x, n):
    at_end = lax.abs(x) == 1
    out = _recurrence(x, n, x, lambda k, q, p: ((2 * k + 1) * x * q - k * p) / (k + 1), stop=at_end)
    end = select((x > 0) | _even(n), 1, out * 0 - 1)
    return select(n < 0, 0, select(at_end, end, out))


def _register(name, fn, shift=False):
    def run(x, n):
        x, n = jnp.broadcast_arrays(x, n)
        return fn(2 * x - 1 if shift else x, _degree(n))

    pointwise(f"special_{name}", kind="int_to_float", promoting=("x", "n"))(run)


for _letter, _fn in {"t": _chebyshev_t, "u": _chebyshev_u, "v": _chebyshev_v, "w": _chebyshev_w}.items():
    _register(f"chebyshev_polynomial_{_letter}", _fn)
    _register(f"shifted_chebyshev_polynomial_{_letter}", _fn, shift=True)
_register("hermite_polynomial_h", _hermite_h)
_register("hermite_polynomial_he", _hermite_he)
_register("laguerre_polynomial_l", _laguerre)
_register("legendre_polynomial_p", _legendre)
