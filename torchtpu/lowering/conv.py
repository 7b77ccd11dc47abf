"""Convolutions with their gradients.

Three linear maps cover everything: the convolution, its transpose along the input, and its transpose along the weight.
A transposed convolution is the second one, and its gradients are the first and the third.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.matmul import precision
from torchtpu.lowering.registry import lower


def _per_dim(values, n):
    values = list(values)
    return values * n if len(values) == 1 else values


def _numbers(n, lhs, rhs, out):
    """Dimension numbers from (batch, feature) of each operand; spatial dimensions follow."""
    spatial = tuple(range(2, n + 2))
    return lax.ConvDimensionNumbers((*lhs, *spatial), (*rhs, *spatial), (*out, *spatial))


def _dilated(lhs, rhs, strides, padding, lhs_dilation, rhs_dilation, numbers, groups=1, batch_groups=1):
    return lax.conv_general_dilated(
        lhs, rhs, strides, padding, lhs_dilation, rhs_dilation, numbers, groups, batch_groups,
        precision=precision(), preferred_element_type=dtypes.opmath(lhs.dtype),
    )


def _span(count, step):
    """Length of `count` points `step` apart."""
    return (count - 1) * step + 1


def forward(x, weight, stride, padding, dilation, groups, size):
    """out[n, o, i] = sum of weight[o, c, k] * x[n, c, i * stride + k * dilation - padding], of the given size."""
    n = x.ndim - 2
    kernel = weight.shape[2:]
    pads = [
        (p, _span(o, s) + (k - 1) * d - i - p)
        for p, o, s, k, d, i in zip(padding, size, stride, kernel, dilation, x.shape[2:], strict=True)
    ]
    return _dilated(x, weight, stride, pads, (1,) * n, dilation, _numbers(n, (0, 1), (0, 1), (0, 1)), groups)


def transpose_input(g, weight, stride, padding, dilation, groups, size):
    """The transpose of `forward` along x, which has the given size."""
    n = g.ndim - 2
    kernel = weight.shape[2:]
    pads = []
    for p, o, s, k, d, i in zip(padding, g.shape[2:], stride, kernel, dilation, size, strict=True):
        low = (k - 1) * d - p
        pads.append((low, i - _span(o, s) + (k - 1) * d - low))
    weight = lax.rev(weight, tuple(range(2, n + 2)))
    if groups == 1:
        kernel_dims = (1, 0)
    else:
        out_channels, per_group = weight.shape[:2]
        weight = weight.reshape(groups, out_channels // groups, per_group, *kernel)
        weight = jnp.swapaxes(weight, 1, 2).reshape(groups * per_group, out_channels // groups, *kernel)
        kernel_dims = (0, 1)
    return _dilated(g, weight, (1,) * n, pads, stride, dilation, _numbers(n, (0, 1), kernel_dims, (0, 1)), groups)


def transpose_weight(g, x, stride, padding, dilation, groups, kernel):
    """The transpose of `forward` along the weight, with the given kernel size."""
    n = x.ndim - 2
    pads = [
        (p, _span(o, s) + (k - 1) * d - i - p)
        for p, o, s, k, d, i in zip(padding, g.shape[2:], stride, kernel, dilation, x.shape[2:], strict=True)
    ]
    # Channels of x act as the batch and the batch as the contracted feature; the result has the weight's order.
    numbers = _numbers(n, (1, 0), (1, 0), (1, 0))
    return _dilated(x, g, dilation, pads, (1,) * n, stride, numbers, 1, groups)


def _zeros(*shape, like):
    return jnp.zeros(shape, dtypes.opmath(like.dtype))


def _empty(*tensors):
    return any(0 in t.shape for t in tensors)


def _bias(out, bias):
    if bias is None:
        return out
    return out + lax.broadcast_in_dim(bias.astype(out.dtype), out.shape, (1,))


def _convolve(x, weight, bias, stride, padding, dilation, transposed, groups, size):
    if _empty(x, weight) or 0 in size:
        channels = weight.shape[1] * groups if transposed else weight.shape[0]
        return _bias(_zeros(x.shape[0], channels, *size, like=x), bias)
    kernel = transpose_input if transposed else forward
    return _bias(kernel(x, weight, stride, padding, dilation, groups, size), bias)


def _out_size(x, weight, stride, padding, dilation, transposed, output_padding):
    n = weight.ndim - 2
    settings = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, _per_dim(output_padding, n), strict=True)
    if transposed:
        return tuple((i - 1) * s - 2 * p + d * (k - 1) + extra + 1 for i, k, s, p, d, extra in settings)
    return tuple((i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d, _ in settings)


@lower("convolution", "convolution_overrideable")
def convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    n = weight.ndim - 2
    batched = input.ndim == n + 2
    x = input if batched else input[None]
    stride, padding, dilation = (_per_dim(v, n) for v in (stride, padding, dilation))
    size = _out_size(x, weight, stride, padding, dilation, transposed, output_padding)
    out = _convolve(x, weight, bias, stride, padding, dilation, transposed, groups, size)
    out = out.astype(input.dtype)
    return out if batched else out[0]


@lower("_convolution")
def _convolution(
    input, weight, bias, stride, padding, dilation, transposed, output_padding, groups,
    benchmark=False, deterministic=False, cudnn_enabled=False, allow_tf32=False,
):
    return convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


def _backward(g, x, weight, stride, padding, dilation, transposed, groups, output_mask):
    n = weight.ndim - 2
    stride, padding, dilation = (_per_dim(v, n) for v in (stride, padding, dilation))
    empty = _empty(g, x, weight)
    grads = [None] * 3
    if output_mask[0]:
        if empty:
            grads[0] = _zeros(*x.shape, like=x)
        else:
            kernel = forward if transposed else transpose_input
            grads[0] = kernel(g, weight, stride, padding, dilation, groups, x.shape[2:])
    if output_mask[1]:
        if empty:
            grads[1] = _zeros(*weight.shape, like=weight)
        else:
            outer, inner = (x, g) if transposed else (g, x)
            grads[1] = transpose_weight(outer, inner, stride, padding, dilation, groups, weight.shape[2:])
    if output_mask[2]:
        wide = g.astype(dtypes.opmath(g.dtype))
        grads[2] = lax.reduce_sum(wide, tuple(i for i in range(g.ndim) if i != 1))
    return tuple(grads)


@lower("convolution_backward")
def convolution_backward(
    grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
):
    if input.ndim == weight.ndim:
        return _backward(grad_output, input, weight, stride, padding, dilation, transposed, groups, output_mask)
    grads = _backward(
        grad_output[None], input[None], weight, stride, padding, dilation, transposed, groups, output_mask
    )
    return None if grads[0] is None else grads[0][0], grads[1], grads[2]


@lower("convolution_backward_overrideable")
def convolution_backward_overrideable(
    grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups, output_mask
):
    grads = _backward(grad_output, input, weight, stride, padding, dilation, transposed, groups, output_mask)
    return tuple(None if x is None else x.astype(input.dtype) for x in grads)


def _tbc(x):
    return jnp.transpose(x, (1, 2, 0))


@lower("conv_tbc")
def conv_tbc(self, weight, bias, pad=0):
    size = (self.shape[0] + 2 * pad - weight.shape[0] + 1,)
    out = _convolve(_tbc(self), jnp.transpose(weight, (2, 1, 0)), bias, [1], [pad], [1], False, 1, size)
    return jnp.transpose(out, (2, 0, 1)).astype(self.dtype)


@lower("conv_tbc_backward")
def conv_tbc_backward(self, input, weight, bias, pad):
    g, x, w = _tbc(self), _tbc(input), jnp.transpose(weight, (2, 1, 0))
    grad_x, grad_w, grad_b = _backward(g, x, w, [1], [pad], [1], False, 1, [True] * 3)
    grads = jnp.transpose(grad_x, (2, 0, 1)), jnp.transpose(grad_w, (2, 1, 0)), grad_b
    return tuple(x.astype(self.dtype) for x in grads)
