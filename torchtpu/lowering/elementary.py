"""Elementary functions of one or two real or complex numbers: roots, exponentials, trigonometry, rounding."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowering.numeric import (
    expand,
    is_complex,
    is_float,
    literal,
    rint,
    select,
    sign_bit,
    trunc,
    up,
)
from torchtpu.lowering.registry import lower, pointwise


def _scaled_log(factor):
    def run(x):
        out = lax.log(x)
        if is_complex(x):  # part by part: a complex product makes NaN of infinities
            return lax.complex(lax.real(out) * factor, lax.imag(out) * factor)
        return out * factor

    return run


def _power_of_two(n):
    """2^n for whole n, exactly: two factors built from exponent bits, so that no half of the range is lost."""
    info = np.finfo(n.dtype)
    integer = np.dtype(f"int{info.bits}")
    half = lax.floor(n * 0.5)

    def build(k):
        bits = (k.astype(integer) + (1 - info.minexp)) << info.nmant
        return lax.bitcast_convert_type(bits, n.dtype)

    return build(half) * build(n - half)


def exp2(x):
    """exp of the fraction times an exact power: XLA's own loses digits as x grows."""
    if is_complex(x):
        return lax.exp(x * math.log(2))
    bound = literal(x, 2 * np.finfo(x.dtype).maxexp - 4)
    x = lax.max(lax.min(x, bound), -bound)
    whole = rint(x)
    return lax.exp((x - whole) * math.log(2)) * _power_of_two(whole)


for _name, _fn in {
    "exp": lax.exp,
    "exp2": exp2,
    "expm1": lax.expm1,
    "log": lax.log,
    "log1p": lax.log1p,
    "sqrt": lax.sqrt,
    "rsqrt": lax.rsqrt,
    "sin": lax.sin,
    "cos": lax.cos,
    "tan": lax.tan,
    "sinh": lax.sinh,
    "cosh": lax.cosh,
    "tanh": lax.tanh,
    "asin": lax.asin,
    "acos": lax.acos,
    "atan": lax.atan,
    "asinh": lax.asinh,
    "acosh": lax.acosh,
    "atanh": lax.atanh,
    "sigmoid": lax.logistic,
    # Angles: PyTorch multiplies by the rounded constant as well.
    "deg2rad": lambda x: x * (math.pi / 180),
    "rad2deg": lambda x: x * (180 / math.pi),
    "log2": _scaled_log(1 / math.log(2)),
    "log10": _scaled_log(1 / math.log(10)),
}.items():
    pointwise(_name, kind="int_to_float")(lambda self, fn=_fn: fn(self))


@pointwise("sinc", kind="int_to_float")
def sinc(self):
    x = self * math.pi
    return select(self == 0, 1, lax.sin(x) / select(self == 0, 1, x))


@pointwise("atan2", kind="int_to_float")
def atan2(self, other):
    return jnp.arctan2(self, other)


@pointwise("hypot")
def hypot(self, other):
    """Scaled by the larger side, so that squares neither overflow nor vanish."""
    a, b = lax.abs(self), lax.abs(other)
    large = lax.max(*jnp.broadcast_arrays(a, b))
    small = lax.min(*jnp.broadcast_arrays(a, b))
    ratio = small / select(large == 0, 1, large)
    out = large * lax.sqrt(1 + ratio * ratio)
    return select((a == np.inf) | (b == np.inf), np.inf, out)


def _log_add(self, other, exp, log1p):
    shape = np.broadcast_shapes(self.shape, other.shape)
    a, b = expand(self, shape), expand(other, shape)
    real_a, real_b = (lax.real(a), lax.real(b)) if is_complex(a) else (a, b)
    swap = real_a < real_b
    high, low = select(swap, b, a), select(swap, a, b)
    out = high + log1p(exp(low - high))
    return select((a == b) & (lax.abs(real_a) == np.inf), a, out)


@pointwise("logaddexp")
def logaddexp(self, other):
    return _log_add(self, other, lax.exp, lax.log1p)


@pointwise("logaddexp2")
def logaddexp2(self, other):
    return _log_add(self, other, exp2, lambda x: lax.log1p(x) * (1 / math.log(2)))


# --- rounding: integers are their own result ---


def _rounding(name, fn):
    pointwise(name)(lambda self: fn(self) if is_float(self) else self)


_rounding("floor", lax.floor)
_rounding("ceil", lax.ceil)
_rounding("trunc", trunc)
_rounding("round", rint)


@pointwise("frac")
def frac(self):
    return self - trunc(self)


@pointwise("round.decimals")
def round_decimals(self, decimals=0):
    if not is_float(self):
        return self
    if decimals == 0:
        return rint(self)
    power = 10.0 ** abs(decimals)
    if decimals < 0:
        return rint(self / power) * power
    return rint(self * power) / power


# --- signs and the parts of a float ---


@pointwise("sign")
def sign(self):
    """NaN has sign 0, as on the CPU."""
    if self.dtype == np.bool_:
        return self
    if is_float(self):
        return (self > 0).astype(self.dtype) - (self < 0).astype(self.dtype)
    return lax.sign(self)


@pointwise("sgn")
def sgn(self):
    return lax.sign(self) if is_complex(self) else sign(self)


@lower("signbit")
def signbit(self):
    return sign_bit(self)


@pointwise("copysign", kind="int_to_float", opmath=False)
def copysign(self, other):
    return select(sign_bit(self) != sign_bit(other), -self, self)


@pointwise("nextafter", opmath=False)
def nextafter(self, other):
    return lax.nextafter(*jnp.broadcast_arrays(self, other))


@lower("frexp")
def frexp(self):
    mantissa, exponent = jnp.frexp(up(self))
    return mantissa, exponent


@pointwise("ldexp", kind="int_to_float")
def ldexp(self, other):
    return self * exp2(other)


@pointwise("nan_to_num", opmath=False)
def nan_to_num(self, nan=None, posinf=None, neginf=None):
    if is_complex(self):
        return lax.complex(
            nan_to_num(lax.real(self), nan, posinf, neginf), nan_to_num(lax.imag(self), nan, posinf, neginf)
        )
    if not is_float(self):
        return self
    limits = jnp.finfo(self.dtype)

    def value(given, default):
        return literal(self, default) if given is None else lax.real(given).astype(self.dtype) if is_complex(
            given
        ) else given.astype(self.dtype)

    out = select(self == np.inf, value(posinf, limits.max), self)
    out = select(self == -np.inf, value(neginf, limits.min), out)
    return select(self != self, value(nan, 0), out)
