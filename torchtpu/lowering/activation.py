"""Activation functions, softmax and their backward operators."""

from __future__ import annotations

import math

from jax import lax

from torchtpu.lowering.call import context
from torchtpu.lowering.numeric import is_complex, keep, literal, select, up
from torchtpu.lowering.registry import lower, pointwise

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


# --- piecewise linear ---


@pointwise("relu", opmath=False)
def relu(self):
    return lax.max(self, literal(self, 0))


@pointwise("threshold", promoting=())
def threshold(self, threshold, value):
    return select(self <= threshold, value, self)


@pointwise("threshold_backward", promoting=(), opmath=False)
def threshold_backward(grad_output, self, threshold):
    return select(self <= threshold, 0, grad_output)


@pointwise("leaky_relu", promoting=())
def leaky_relu(self, negative_slope=0.01):
    return select(self > 0, self, self * negative_slope)


@pointwise("leaky_relu_backward", promoting=())
def leaky_relu_backward(grad_output, self, negative_slope, self_is_result):
    return select(self > 0, grad_output, grad_output * negative_slope)


@pointwise("_prelu_kernel")
def prelu(self, weight):
    return select(self > 0, self, self * weight)


@pointwise("_prelu_kernel_backward")
def prelu_backward(grad_output, self, weight):
    positive = self > 0
    return select(positive, grad_output, grad_output * weight), select(positive, 0, grad_output * self)


@pointwise("hardtanh", promoting=(), opmath=False)
def hardtanh(self, min_val=-1, max_val=1):
    return lax.min(lax.max(self, min_val), max_val)


@pointwise("hardtanh_backward", promoting=())
def hardtanh_backward(grad_output, self, min_val, max_val):
    return select((self <= min_val) | (self >= max_val), 0, grad_output)


@pointwise("hardsigmoid")
def hardsigmoid(self):
    return lax.min(lax.max(self + 3, literal(self, 0)), literal(self, 6)) / 6


@pointwise("hardsigmoid_backward")
def hardsigmoid_backward(grad_output, self):
    return select((self > -3) & (self < 3), grad_output / 6, 0)


@pointwise("hardswish")
def hardswish(self):
    return self * lax.min(lax.max(self + 3, literal(self, 0)), literal(self, 6)) / 6


@pointwise("hardswish_backward")
def hardswish_backward(grad_output, self):
    middle = grad_output * (self / 3 + 0.5)
    return select(self <= -3, 0, select(self < 3, middle, grad_output))


@pointwise("hardshrink", promoting=())
def hardshrink(self, lambd=0.5):
    return select((self >= -lambd) & (self <= lambd), 0, self)


@pointwise("hardshrink_backward", promoting=())
def hardshrink_backward(grad_out, self, lambd):
    return select((self >= -lambd) & (self <= lambd), 0, grad_out)


@pointwise("softshrink", promoting=())
def softshrink(self, lambd=0.5):
    return select(self > lambd, self - lambd, select(self < -lambd, self + lambd, self * 0))


@pointwise("softshrink_backward", promoting=())
def softshrink_backward(grad_output, self, lambd):
    return select((self >= -lambd) & (self <= lambd), 0, grad_output)


# --- smooth ---


@pointwise("sigmoid_backward")
def sigmoid_backward(grad_output, output):
    output = lax.conj(output) if is_complex(output) else output
    return grad_output * (1 - output) * output


@pointwise("tanh_backward")
def tanh_backward(grad_output, output):
    output = lax.conj(output) if is_complex(output) else output
    return grad_output * (1 - output * output)


@pointwise("gelu")
def gelu(self, approximate="none"):
    if approximate == "tanh":
        inner = _SQRT_2_OVER_PI * (self + _CUBIC * self * self * self)
        return 0.5 * self * (1 + lax.tanh(inner))
    return 0.5 * self * (1 + lax.erf(self * _SQRT_HALF))


@pointwise("gelu_backward")
def gelu_backward(grad_output, self, approximate="none"):
    square = self * self
    if approximate == "tanh":
        t = lax.tanh(_SQRT_2_OVER_PI * self * (1 + _CUBIC * square))
        inner = _SQRT_2_OVER_PI * (1 + 3 * _CUBIC * square)
        return grad_output * (0.5 * (1 + t) + 0.5 * self * (1 - t * t) * inner)
    density = lax.exp(-0.5 * square) * (_SQRT_2_OVER_PI / 2)
    return grad_output * (0.5 * (1 + lax.erf(self * _SQRT_HALF)) + self * density)


@pointwise("silu")
def silu(self):
    return self * lax.logistic(self)


@pointwise("silu_backward")
def silu_backward(grad_output, self):
    s = lax.logistic(self)
    return grad_output * s * (1 + self * (1 - s))


@pointwise("mish")
def mish(self):
    return self * lax.tanh(_softplus(self))


@pointwise("mish_backward")
def mish_backward(grad_output, self):
    t = lax.tanh(_softplus(self))
    return grad_output * (t + self * lax.logistic(self) * (1 - t * t))


def _softplus(x):
    return lax.max(x, literal(x, 0)) + lax.log1p(lax.exp(-lax.abs(x)))


@pointwise("softplus", promoting=())
def softplus(self, beta=1, threshold=20):
    scaled = self * beta
    return select(scaled > threshold, self, _softplus(scaled) / beta)


@pointwise("softplus_backward", promoting=())
def softplus_backward(grad_output, self, beta, threshold):
    scaled = self * beta
    return select(scaled > threshold, grad_output, grad_output * lax.logistic(scaled))


@pointwise("elu", promoting=())
def elu(self, alpha=1, scale=1, input_scale=1):
    return select(self <= 0, lax.expm1(self * input_scale) * (alpha * scale), self * scale)


@pointwise("elu_backward", promoting=())
def elu_backward(grad_output, alpha, scale, input_scale, is_result, self_or_result):
    x = self_or_result
    if is_result:
        negative = grad_output * input_scale * (x + alpha * scale)
    else:
        negative = grad_output * input_scale * (alpha * scale) * lax.exp(x * input_scale)
    return select(x <= 0, negative, grad_output * scale)


@pointwise("celu", promoting=())
def celu(self, alpha=1):
    return select(self <= 0, lax.expm1(self / alpha) * alpha, self)


@lower("log_sigmoid_forward")
def log_sigmoid_forward(self):
    """The buffer is what the CPU's backward reads; a device without it declares it empty."""
    x = up(self)
    buffer = lax.exp(-lax.abs(x))
    out = lax.min(x, literal(x, 0)) - lax.log1p(buffer)
    if context().outs[1].shape != self.shape:
        return out, lax.slice_in_dim(lax.reshape(buffer, (buffer.size,)), 0, 0)
    return out, buffer


@lower("log_sigmoid_backward")
def log_sigmoid_backward(grad_output, self, buffer):
    """d/dx log σ(x) = σ(-x), from the input alone: the buffer may be empty."""
    return up(grad_output) * lax.logistic(-up(self))


@lower("glu")
def glu(self, dim=-1):
    a, b = _halves(up(self), dim)
    return a * lax.logistic(b)


def _halves(x, dim):
    dim %= x.ndim
    half = x.shape[dim] // 2
    return lax.slice_in_dim(x, 0, half, axis=dim), lax.slice_in_dim(x, half, 2 * half, axis=dim)


@lower("glu_backward")
def glu_backward(grad_output, self, dim):
    a, b = _halves(up(self), dim)
    s = lax.logistic(b)
    grad = up(grad_output) * s
    return lax.concatenate([grad, grad * a * (1 - s)], dim % self.ndim)


@lower("glu_jvp")
def glu_jvp(glu, x, dx, dim):
    _, b = _halves(up(x), dim)
    da, db = _halves(up(dx), dim)
    s = lax.logistic(b)
    return da * s + up(glu) * (db - s * db)


@lower("glu_backward_jvp")
def glu_backward_jvp(grad_x, grad_glu, x, dgrad_glu, dx, dim):
    """Tangent of glu_backward along (dgrad_glu, dx)."""
    a, b = _halves(up(x), dim)
    da, db = _halves(up(dx), dim)
    grad, dgrad = up(grad_glu), up(dgrad_glu)
    s = lax.logistic(b)
    ds = s * (1 - s) * db
    first = dgrad * s + grad * ds
    slope = s * (1 - s)
    dslope = ds * (1 - 2 * s)
    second = dgrad * a * slope + grad * (da * slope + a * dslope)
    return lax.concatenate([first, second], dim % x.ndim)


@lower("rrelu_with_noise", mutates=("noise",))
def rrelu_with_noise(self, noise, lower=0.125, upper=0.3333333333333333, training=False):
    """Training draws a slope for each non-positive entry and leaves it in `noise`."""
    from jax import random

    x = up(self)
    low, high = lower.astype(x.dtype), upper.astype(x.dtype)
    if not training:
        return select(x <= 0, x * ((low + high) / 2), x), noise
    draw = random.uniform(context().key(), x.shape, x.dtype) * (high - low) + low
    slope = select(x <= 0, draw, 1)
    return x * slope, slope.astype(noise.dtype)


@lower("rrelu_with_noise_functional")
def rrelu_with_noise_functional(self, noise, lower=0.125, upper=0.3333333333333333, training=False):
    return rrelu_with_noise(self, noise, lower, upper, training)


@lower("rrelu_with_noise_backward", static=("lower", "upper"))
def rrelu_with_noise_backward(grad_output, self, noise, lower, upper, training, self_is_result):
    if training and upper - lower > 1e-6:
        return up(grad_output) * up(noise)
    slope = (lower + upper) / 2
    grad = up(grad_output)
    return select(up(self) > 0, grad, grad * slope)


# --- softmax ---


def _axis(x, dim):
    """The input with at least one dimension, and the dimension as a tuple."""
    return (lax.reshape(x, (1,)), (0,)) if x.ndim == 0 else (x, (dim % x.ndim,))


def _shifted(x, dims):
    return x - keep(lax.reduce_max(x, dims), dims)


def softmax_of(x, dims):
    """Softmax over normalized dimensions, in the type of `x`."""
    e = lax.exp(_shifted(x, dims))
    return e / keep(lax.reduce_sum(e, dims), dims)


def _softmax_operand(self, dim):
    return _axis(up(self), dim)


@lower("_softmax")
def softmax(self, dim, half_to_float):
    x, dims = _softmax_operand(self, dim)
    return lax.reshape(softmax_of(x, dims), self.shape) if self.size else up(self)


@lower("_log_softmax")
def log_softmax(self, dim, half_to_float):
    if self.size == 0:
        return up(self)
    x, dims = _softmax_operand(self, dim)
    x = _shifted(x, dims)
    out = x - lax.log(keep(lax.reduce_sum(lax.exp(x), dims), dims))
    return lax.reshape(out, self.shape)


@lower("_softmax_backward_data")
def softmax_backward(grad_output, output, dim, input_dtype):
    grad, dims = _softmax_operand(grad_output, dim)
    out, _ = _softmax_operand(output, dim)
    product = grad * out
    return lax.reshape(product - out * keep(lax.reduce_sum(product, dims), dims), output.shape)


@lower("_log_softmax_backward_data")
def log_softmax_backward(grad_output, output, dim, input_dtype):
    grad, dims = _softmax_operand(grad_output, dim)
    out, _ = _softmax_operand(output, dim)
    return lax.reshape(grad - lax.exp(out) * keep(lax.reduce_sum(grad, dims), dims), output.shape)
