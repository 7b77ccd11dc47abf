"""Special functions: error functions, gamma family, Bessel functions I, logarithmic forms."""

from __future__ import annotations

import math

import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
from jax import lax

from torchtpu.lowering.numeric import expand, literal, rint, select
from torchtpu.lowering.registry import pointwise

for _names, _fn in {
    ("erf", "special_erf"): lax.erf,
    ("erfc", "special_erfc"): lax.erfc,
    ("erfinv", "special_erfinv"): lax.erf_inv,
    ("special_i0e",): lax.bessel_i0e,
    ("special_i1e",): lax.bessel_i1e,
    ("lgamma",): lax.lgamma,
    ("special_ndtri",): jsp.ndtri,
    ("special_log_ndtr",): jsp.log_ndtr,
}.items():
    pointwise(*_names, kind="int_to_float")(lambda self, fn=_fn: fn(self))


@pointwise("i0", "special_modified_bessel_i0", kind="int_to_float")
def i0(self):
    return lax.exp(lax.abs(self)) * lax.bessel_i0e(self)


@pointwise("special_i1", "special_modified_bessel_i1", kind="int_to_float")
def i1(self):
    return lax.exp(lax.abs(self)) * lax.bessel_i1e(self)


@pointwise("digamma", kind="int_to_float")
def digamma(self):
    """At 0 the sign of the zero decides; negative integers are poles without a sign."""
    out = lax.digamma(self)
    pole = select(self == 0, lax.neg(expand(literal(self, np.inf), self.shape) * _sign_of(self)), np.nan)
    return select((self <= 0) & (self == lax.floor(self)), pole, out)


def _sign_of(x):
    """1 or -1, looking at the sign of zero as well."""
    return lax.sign(1 / x)


@pointwise("polygamma", kind="int_to_float", promoting=())
def polygamma(n, self):
    if not isinstance(n, int):  # polygamma_(self, n) has them the other way round
        n, self = self, n
    if n == 0:
        return digamma(self)
    if n == 1:
        return _trigamma(self)
    order = literal(self, n + 1)
    scale = math.gamma(n + 1) * (1 if n % 2 else -1)
    return literal(self, scale) * _zeta(expand(order, self.shape), self)


def _trigamma(x):
    """Reflection below 1/2, as the CPU does; the poles at 0, -1, ... come out infinite."""
    reflect = x < 0.5
    positive = lax.zeta(expand(literal(x, 2), x.shape), select(reflect, 1 - x, x))
    # From the nearest integer the distance is exact, and the sine of a small angle is as exact as the angle.
    sine = lax.sin(math.pi * (x - rint(x)))
    return select(reflect, (math.pi / sine) ** 2 - positive, positive)


@pointwise("special_zeta", kind="int_to_float")
def zeta(self, other):
    return _zeta(*jnp.broadcast_arrays(self, other))


def _zeta(s, q):
    """Hurwitz zeta; terms with a negative base are summed first, XLA's expansion needs the rest.

    In double precision, as on the CPU: odd powers of negative and positive bases cancel nearly all digits. For the same
    reason the terms are added up to well beyond the cancellation.
    """
    out_dtype = q.dtype
    s, q = s.astype(np.float64), q.astype(np.float64)
    negative = (q < 0) & (q != lax.floor(q))

    def pending(base):
        return negative & (base < 9)

    def step(state):
        base, total = state
        todo = pending(base)
        return select(todo, base + 1, base), select(todo, total + lax.pow(base, -s), total)

    start = (q, expand(literal(q, 0), q.shape))
    base, total = lax.while_loop(lambda state: pending(state[0]).any(), step, start)
    out = total + lax.zeta(s, base)
    pole = (q <= 0) & (q == lax.floor(q))
    out = select(pole, np.inf, select((q < 0) & (s != lax.floor(s)), np.nan, out))
    out = select(s == np.inf, select(q == 1, 1, select(q < 1, literal(q, np.inf), np.nan)), out)
    return select(s == 1, np.inf, select(s < 1, np.nan, out)).astype(out_dtype)


@pointwise("igamma", "special_gammainc")
def igamma(self, other):
    a, x = jnp.broadcast_arrays(self, other)
    return _gamma_limits(a, x, lax.igamma(a, x), lower=1)


@pointwise("igammac", "special_gammaincc")
def igammac(self, other):
    a, x = jnp.broadcast_arrays(self, other)
    return _gamma_limits(a, x, lax.igammac(a, x), lower=0)


def _gamma_limits(a, x, out, lower):
    """The limits a → 0 and a → ∞, where XLA's series have none; `lower` is the value of the first."""
    out = select((a == 0) & (x > 0), lower, out)
    return select((a == np.inf) & (x >= 0), select(x == np.inf, literal(x, np.nan), 1 - lower), out)


@pointwise("xlogy", kind="int_to_float")
def xlogy(self, other):
    return _x_times(self, other, lax.log)


@pointwise("special_xlog1py", kind="int_to_float")
def xlog1py(self, other):
    return _x_times(self, other, lax.log1p)


def _x_times(x, y, log):
    """x * log(y), zero where x is zero unless y is NaN."""
    return select(y != y, np.nan, select(x == 0, 0, x * log(y)))


@pointwise("special_entr", kind="int_to_float")
def entr(self):
    inside = -self * lax.log(self)
    return select(self != self, self, select(self > 0, inside, select(self == 0, 0, literal(self, -np.inf))))


@pointwise("logit", "special_logit", kind="int_to_float", promoting=())
def logit(self, eps=None):
    x = self
    if eps is not None:
        x = lax.min(lax.max(x, eps), 1 - eps)
    return lax.log(x / (1 - x))


@pointwise("logit_backward", promoting=())
def logit_backward(grad_output, self, eps=None):
    grad = grad_output / (self * (1 - self))
    if eps is None:
        return select((self < 0) | (self > 1), np.nan, grad)
    return select((self < eps) | (self > 1 - eps), 0, grad)


@pointwise("mvlgamma", kind="int_to_float")
def mvlgamma(self, p):
    out = expand(literal(self, p * (p - 1) / 4 * math.log(math.pi)), self.shape)
    for j in range(p):
        out = out + lax.lgamma(self - j / 2)
    return out


@pointwise("special_erfcx", kind="int_to_float")
def erfcx(self):
    """exp(x²)·erfc(x): directly where that is safe, a continued fraction beyond."""
    x = self
    large = x > 4
    small = select(large, 0, x)
    direct = lax.exp(small * small) * lax.erfc(small)
    far = select(large, x, 8)
    # Lentz-free evaluation from the tail: 60 levels reach double precision for x > 4.
    fraction = far
    for level in range(60, 0, -1):
        fraction = far + (level / 2) / fraction
    return select(large, (1 / math.sqrt(math.pi)) / fraction, direct)
