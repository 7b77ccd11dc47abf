"""Bessel functions J, Y and K, and Airy's Ai: Chebyshev series on the intervals of bessel_tables.py."""

from __future__ import annotations

import math

import numpy as np
from jax import lax

from torchtpu.lowering import bessel_tables as tables
from torchtpu.lowering.numeric import select
from torchtpu.lowering.registry import pointwise


def _series(t, coefficients):
    """Clenshaw's sum at t in [-1, 1]; single precision leaves out what it cannot see."""
    floor = 1e-9 * max(map(abs, coefficients)) if t.dtype == np.float32 else 0.0
    terms = list(coefficients)
    while len(terms) > 1 and abs(terms[-1]) < floor:
        terms.pop()
    twice = 2 * t
    ahead, after = t * 0 + terms[-1], t * 0
    for c in reversed(terms[1:-1]):
        ahead, after = twice * ahead - after + c, ahead
    return t * ahead - after + terms[0]


def _over(x, low, high, coefficients):
    """The series of a function on [low, high]; x outside is clamped (another branch holds there)."""
    scale = 2 / (high - low)
    t = (x - (low + high) / 2) * scale
    one = np.asarray(1, x.dtype)[()]
    return _series(lax.max(lax.min(t, one), -one), coefficients)


def _hankel(x, order):
    """sqrt(2 / (pi x)), P, Q and the phase for x >= 8."""
    ratio = 8 / x
    s = ratio * ratio
    p = _over(s, 0.0, 1.0, getattr(tables, f"HANKEL{order}_P"))
    q = ratio * _over(s, 0.0, 1.0, getattr(tables, f"HANKEL{order}_Q"))
    chi = x - (2 * order + 1) * (math.pi / 4)
    return lax.sqrt((2 / math.pi) / x), p, q, chi


def _bessel_j(x, order):
    a = lax.abs(x)
    near = _over(a * a, 0.0, 64.0, getattr(tables, f"J{order}_SMALL"))
    far_a = select(a < 8, 8, a)
    scale, p, q, chi = _hankel(far_a, order)
    far = scale * (p * lax.cos(chi) - q * lax.sin(chi))
    if order == 1:
        near, far = near * x, select(x < 0, -far, far)
    out = select(a < 8, near, far)
    return select(x != x, x, out)


def _bessel_y(x, order):
    near_x = select((x > 0) & (x < 8), x, 1)
    rest = _over(near_x * near_x, 0.0, 64.0, getattr(tables, f"Y{order}_SMALL"))
    logarithm = (2 / math.pi) * lax.log(near_x) * _bessel_j(near_x, order)
    near = logarithm + (rest if order == 0 else near_x * rest - (2 / math.pi) / near_x)
    scale, p, q, chi = _hankel(select(x < 8, 8, x), order)
    far = scale * (p * lax.sin(chi) + q * lax.cos(chi))
    out = select(x < 8, near, far)
    return select(x > 0, out, select(x == 0, -np.inf, x * 0 + np.nan))


def _bessel_k(x, order, scaled):
    near_x = select((x > 0) & (x <= 2), x, 1)
    rest = _over(near_x * near_x, 0.0, 4.0, getattr(tables, f"K{order}_SMALL"))
    logarithm = lax.log(near_x / 2) * lax.exp(near_x)
    if order == 0:
        near = rest - logarithm * lax.bessel_i0e(near_x)
    else:
        near = near_x * rest + logarithm * lax.bessel_i1e(near_x) + 1 / near_x
    far_x = select(x > 2, x, 2)
    far = _over(1 / far_x, 0.0, 0.5, getattr(tables, f"K{order}_LARGE")) / lax.sqrt(far_x)
    if scaled:
        near = near * lax.exp(near_x)
    else:
        far = far * lax.exp(-far_x)
    out = select(x <= 2, near, far)
    return select(x > 0, out, select(x == 0, np.inf, x * 0 + np.nan))


for _order in (0, 1):
    pointwise(f"special_bessel_j{_order}", kind="int_to_float")(lambda self, n=_order: _bessel_j(self, n))
    pointwise(f"special_bessel_y{_order}", kind="int_to_float")(lambda self, n=_order: _bessel_y(self, n))
    pointwise(f"special_modified_bessel_k{_order}", kind="int_to_float")(
        lambda self, n=_order: _bessel_k(self, n, False)
    )
    pointwise(f"special_scaled_modified_bessel_k{_order}", kind="int_to_float")(
        lambda self, n=_order: _bessel_k(self, n, True)
    )


@pointwise("special_spherical_bessel_j0", kind="int_to_float")
def spherical_bessel_j0(self):
    x = select(self == 0, 1, self)
    ratio = select(self == 0, 1, lax.sin(x) / x)
    return select(lax.abs(self) == np.inf, 0, ratio)


@pointwise("special_airy_ai", kind="int_to_float")
def airy_ai(self):
    x = self
    middle = _over(x, -4.0, 2.0, tables.AIRY_MIDDLE)
    right_x = select(x > 2, x, 2)
    zeta = (2 / 3) * right_x * lax.sqrt(right_x)
    low = (2 / 3) * 2 ** 1.5
    right = _over(1 / zeta, 0.0, 1 / low, tables.AIRY_RIGHT) * lax.exp(-zeta) / lax.sqrt(lax.sqrt(right_x))
    left_x = select(x < -4, -x, 4)
    zeta = (2 / 3) * left_x * lax.sqrt(left_x)
    s = 1 / (zeta * zeta)
    end = (3 / 16) ** 2
    p = _over(s, 0.0, end, tables.AIRY_LEFT_P)
    q = _over(s, 0.0, end, tables.AIRY_LEFT_Q) / zeta
    chi = zeta - math.pi / 4
    left = (lax.cos(chi) * p + lax.sin(chi) * q) / (math.sqrt(math.pi) * lax.sqrt(lax.sqrt(left_x)))
    out = select(x > 2, right, select(x < -4, left, middle))
    return select(lax.abs(x) == np.inf, np.nan, out)
