"""Arithmetic, comparison, logical and bitwise operators, conversions, fills and selection."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import cast, context, filler
from torchtpu.lowering.numeric import (
    expand,
    is_bool,
    is_complex,
    is_float,
    is_unsigned,
    literal,
    nonzero,
    rounded,
    select,
    sign_bit,
    trunc,
    up,
)
from torchtpu.lowering.registry import lower, pointwise

# --- arithmetic ---


@pointwise("add")
def add(self, other, alpha=1):
    return self + other * alpha


@pointwise("sub")
def sub(self, other, alpha=1):
    return self - other * alpha


@pointwise("rsub")
def rsub(self, other, alpha=1):
    return other - self * alpha


@pointwise("_add_relu")
def add_relu(self, other, alpha=1):
    out = self + other * alpha
    return lax.max(out, literal(out, 0))


@pointwise("mul")
def mul(self, other):
    return self * other


@pointwise("div", kind="int_to_float")
def div(self, other):
    return self / other


def _check_divisor(divisor):
    context().check(divisor != 0, RuntimeError, "ZeroDivisionError")


def floor_quotient(a, b):
    """Floor division with the CPU's rounding: from the exact remainder, not from a rounded quotient."""
    if not is_float(a):
        _check_divisor(b)
        a, b = _same_shape(a, b)
        quotient = lax.div(a, b)
        if is_unsigned(a):
            return quotient
        remainder = lax.rem(a, b)
        return quotient - ((remainder != 0) & ((remainder < 0) != (b < 0))).astype(a.dtype)
    a, b = _same_shape(a, b)
    remainder = lax.rem(a, b)
    quotient = (a - remainder) / b
    quotient = select((remainder != 0) & ((b < 0) != (remainder < 0)), quotient - 1, quotient)
    floored = lax.floor(quotient)
    floored = select(quotient - floored > 0.5, floored + 1, floored)
    ratio = a / b
    zero = select(sign_bit(ratio), literal(a, -0.0), literal(a, 0.0))
    return select(b == 0, ratio, select(quotient == 0, expand(zero, a.shape), floored))


def _same_shape(a, b):
    shape = np.broadcast_shapes(a.shape, b.shape)
    return expand(a, shape), expand(b, shape)


@pointwise("div.Tensor_mode", "div.Scalar_mode", opmath=False)
def div_mode(self, other, rounding_mode=None):
    if rounding_mode is None:
        if not (is_float(self) or is_complex(self)):
            float_type = dtypes.to_numpy_dtype(context().default_float)
            self, other = self.astype(float_type), other.astype(float_type)
        return up(self) / up(other)
    if rounding_mode == "floor":
        return floor_quotient(up(self), up(other))
    if is_float(self):
        # XLA turns division by a broadcast into a product with the reciprocal: 41 / 41 would be cut to 0.
        a, b = _same_shape(up(self), up(other))
        return trunc(rounded(a / lax.optimization_barrier(b), self.dtype))
    _check_divisor(other)
    return lax.div(*_same_shape(self, other))


@pointwise("floor_divide", opmath=False)
def floor_divide(self, other):
    return floor_quotient(up(self), up(other))


@pointwise("fmod", opmath=False)
def fmod(self, other):
    if not is_float(self):
        _check_divisor(other)
    return lax.rem(*_same_shape(up(self), up(other)))


@pointwise("remainder", opmath=False)
def remainder(self, other):
    if not is_float(self):
        _check_divisor(other)
    a, b = _same_shape(up(self), up(other))
    out = lax.rem(a, b)
    if is_unsigned(a):
        return out
    return select((out != 0) & ((out < 0) != (b < 0)), out + b, out)


@pointwise("neg")
def neg(self):
    return lax.neg(self)


lower("_neg_view", "_neg_view_copy")(lambda self: lax.neg(self))


@pointwise("abs")
def absolute(self):
    return self if is_bool(self) or is_unsigned(self) else lax.abs(self)


@pointwise("reciprocal", kind="int_to_float")
def reciprocal(self):
    return 1 / self


@pointwise("addcmul")
def addcmul(self, tensor1, tensor2, value=1):
    return self + value * tensor1 * tensor2


@pointwise("addcdiv")
def addcdiv(self, tensor1, tensor2, value=1):
    return self + value * tensor1 / tensor2


def _integer_power(base, exponent):
    """Wrapping integer power; a negative exponent leaves only the powers of 1 and -1."""
    base, exponent = _same_shape(base, exponent)
    bits = base.dtype.itemsize * 8

    def step(_, state):
        out, square, rest = state
        out = select((rest & 1) != 0, out * square, out)
        return out, square * square, lax.shift_right_logical(rest, literal(rest, 1))

    one = lax.full_like(base, 1)
    out, _, _ = lax.fori_loop(0, bits, step, (one, base, exponent))
    if is_unsigned(base):
        return out
    odd = (exponent & 1) != 0
    inverse = select(base == 1, one, select(base == -1, select(odd, -one, one), 0))
    return select(exponent < 0, inverse, out)


@pointwise("pow", opmath=False)
def power(self, exponent):
    self, exponent = up(self), up(exponent)
    if is_bool(self):
        return self | ~exponent
    if not (is_float(self) or is_complex(self)):
        return _integer_power(self, exponent)
    self, exponent = _same_shape(self, exponent)
    out = lax.pow(self, exponent)
    if is_complex(self):
        return select((self == 0) & (lax.real(exponent) > 0), 0, out)
    return out


@pointwise("pow.Tensor_Scalar", static=("exponent",), opmath=False)
def power_static(self, exponent):
    """The value of the exponent decides what is computed, as on the CPU."""
    if is_float(self) and self.dtype.itemsize == 2:
        exponent = float(np.asarray(exponent, self.dtype))
    self = up(self)
    whole = not isinstance(exponent, complex) and float(exponent).is_integer() and abs(exponent) <= 64
    if not (is_float(self) or is_complex(self)):
        if whole and exponent >= 0 and not is_bool(self):
            return lax.integer_pow(self, int(exponent))
        return power(self, jax.numpy.asarray(exponent, self.dtype))
    if exponent == 0.5:
        return lax.sqrt(self)
    if exponent == -0.5 and not is_complex(self):
        return lax.rsqrt(self)
    if whole and abs(exponent) <= 4:
        return lax.integer_pow(self, int(exponent))
    return power(self, literal(self, exponent))


# --- comparison and logic ---


@pointwise("eq", opmath=False)
def eq(self, other):
    return self == other


@pointwise("ne", opmath=False)
def ne(self, other):
    return self != other


@pointwise("lt", opmath=False)
def lt(self, other):
    return self < other


@pointwise("le", opmath=False)
def le(self, other):
    return self <= other


@pointwise("gt", opmath=False)
def gt(self, other):
    return self > other


@pointwise("ge", opmath=False)
def ge(self, other):
    return self >= other


@lower("logical_and")
def logical_and(self, other):
    return nonzero(self) & nonzero(other)


@lower("logical_or")
def logical_or(self, other):
    return nonzero(self) | nonzero(other)


@lower("logical_xor")
def logical_xor(self, other):
    return nonzero(self) ^ nonzero(other)


@lower("logical_not")
def logical_not(self):
    return ~nonzero(self)


def _is_inexact(x):
    return is_float(x) or is_complex(x)


def _false(x):
    return expand(np.bool_(False), x.shape)


@lower("isnan")
def isnan(self):
    return self != self if _is_inexact(self) else _false(self)


@lower("isfinite")
def isfinite(self):
    if is_complex(self):
        return lax.is_finite(lax.real(self)) & lax.is_finite(lax.imag(self))
    return lax.is_finite(self) if is_float(self) else ~_false(self)


@lower("isinf")
def isinf(self):
    if is_complex(self):
        return isinf(lax.real(self)) | isinf(lax.imag(self))
    return lax.abs(self) == np.inf if is_float(self) else _false(self)


@lower("isposinf")
def isposinf(self):
    return self == np.inf if is_float(self) else _false(self)


@lower("isneginf")
def isneginf(self):
    return self == -np.inf if is_float(self) else _false(self)


@pointwise("maximum", "max.other", opmath=False)
def maximum(self, other):
    return lax.max(*_same_shape(self, other))


@pointwise("minimum", "min.other", opmath=False)
def minimum(self, other):
    return lax.min(*_same_shape(self, other))


@pointwise("fmax", opmath=False)
def fmax(self, other):
    a, b = _same_shape(self, other)
    out = lax.max(a, b)
    return select(a != a, b, select(b != b, a, out)) if is_float(a) else out


@pointwise("fmin", opmath=False)
def fmin(self, other):
    a, b = _same_shape(self, other)
    out = lax.min(a, b)
    return select(a != a, b, select(b != b, a, out)) if is_float(a) else out


@pointwise("clamp", opmath=False)
def clamp(self, min=None, max=None):
    out = self
    if min is not None:
        out = maximum(out, min)
    return out if max is None else minimum(out, max)


pointwise("clamp_min", opmath=False)(lambda self, min: maximum(self, min))
pointwise("clamp_max", opmath=False)(lambda self, max: minimum(self, max))

# --- bits ---


@pointwise("bitwise_and", "__and__")
def bitwise_and(self, other):
    return self & other


@pointwise("bitwise_or", "__or__")
def bitwise_or(self, other):
    return self | other


@pointwise("bitwise_xor", "__xor__")
def bitwise_xor(self, other):
    return self ^ other


@pointwise("bitwise_not")
def bitwise_not(self):
    return ~self


@pointwise("bitwise_left_shift", "__lshift__", opmath=False)
def left_shift(self, other):
    """A shift by a negative count or by the width gives 0."""
    a, b = _same_shape(self, other)
    bits = a.dtype.itemsize * 8
    return select((b < 0) | (b >= bits), 0, lax.shift_left(a, b))


@pointwise("bitwise_right_shift", "__rshift__", opmath=False)
def right_shift(self, other):
    """A shift by a negative count or by the width leaves only the sign."""
    a, b = _same_shape(self, other)
    bits = a.dtype.itemsize * 8
    if is_unsigned(a):
        return select(b >= bits, 0, lax.shift_right_logical(a, b))
    return lax.shift_right_arithmetic(a, select((b < 0) | (b >= bits), bits - 1, b))


@pointwise("gcd")
def gcd(self, other):
    return _gcd(self, other)


def _gcd(a, b):
    a, b = _same_shape(a, b)
    if not is_unsigned(a):
        a, b = lax.abs(a), lax.abs(b)

    def step(state):
        x, y = state
        divisor = select(y == 0, 1, y)
        return select(y == 0, x, y), select(y == 0, y, lax.rem(x, divisor))

    return lax.while_loop(lambda state: (state[1] != 0).any(), step, (a, b))[0]


@pointwise("lcm")
def lcm(self, other):
    a, b = _same_shape(self, other)
    if a.dtype.itemsize < 4:
        a, b = a.astype(np.int32), b.astype(np.int32)  # the CPU wraps only at the end
    divisor = _gcd(a, b)
    out = lax.div(a, select(divisor == 0, 1, divisor)) * b
    out = out if is_unsigned(out) else lax.abs(out)
    return select(divisor == 0, 0, out)


# --- fused arithmetic and selection ---


@lower("where")
def where(condition, self, other):
    dtype = context().out_dtype
    return select(nonzero(condition), cast(self, dtype), cast(other, dtype))


@pointwise("lerp")
def lerp(self, end, weight):
    """From the nearer end, so that weight 1 gives exactly `end`."""
    step = end - self
    return select(lax.abs(weight) < 0.5, self + weight * step, end - step * (1 - weight))


@pointwise("heaviside", opmath=False)
def heaviside(self, values):
    return select(self == 0, values, (self > 0).astype(values.dtype))


@lower("masked_fill")
def masked_fill(self, mask, value):
    return select(nonzero(mask), filler(value, self.dtype), self)


@lower("fill")
def fill(self, value):
    return expand(filler(value, self.dtype), self.shape)


@lower("fill.Tensor")
def fill_tensor(self, value):
    """A copy, which converts as copies do."""
    return expand(cast(value, self.dtype), self.shape)


@lower("zero")
def zero(self):
    return expand(np.zeros((), self.dtype)[()], self.shape)


@lower("copy")
def copy(self, src, non_blocking=False):
    return expand(cast(src, self.dtype), self.shape)


@lower("clone")
def clone(self, memory_format=None):
    return self


@lower("lift", "lift_fresh", "lift_fresh_copy", "alias_copy", "detach_copy", "_lazy_clone")
def identity(self):
    return self


@lower("_to_copy")
def to_copy(self, dtype=None, non_blocking=False, memory_format=None):
    return self if dtype is None else cast(self, dtypes.to_numpy_dtype(dtype))
