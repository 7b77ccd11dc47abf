"""Normalization: layer, group, batch, RMS, weight norm and renorm."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import context
from torchtpu.lowering.registry import lower


def up(x):
    """A tensor in the type that PyTorch computes in; None stays None."""
    return None if x is None else x.astype(dtypes.opmath(x.dtype))


def bcast(x, shape, dims):
    """A tensor whose dimensions are the dimensions `dims` of a larger shape."""
    return lax.broadcast_in_dim(x, shape, dims)


def _sum(x, axes):
    return lax.reduce_sum(x, axes)


def _moments(x, axes):
    """Mean and (biased) variance over `axes`, in two passes: one pass cancels."""
    count = math.prod(x.shape[a] for a in axes)
    kept = tuple(a for a in range(x.ndim) if a not in axes)
    mean = _sum(x, axes) / count if count else jnp.zeros([x.shape[a] for a in kept], x.dtype)
    centred = x - bcast(mean, x.shape, kept)
    var = _sum(centred * centred, axes) / max(count, 1)
    return mean, var, centred, kept


def _affine(y, weight, bias, dims):
    if weight is not None:
        y = y * bcast(weight.astype(y.dtype), y.shape, dims)
    if bias is not None:
        y = y + bcast(bias.astype(y.dtype), y.shape, dims)
    return y


@lower("native_layer_norm")
def native_layer_norm(input, normalized_shape, weight, bias, eps):
    x = up(input)
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    mean, var, centred, kept = _moments(x, axes)
    rstd = lax.rsqrt(var + eps.astype(x.dtype))
    y = _affine(centred * bcast(rstd, x.shape, kept), weight, bias, axes)
    shape = mean.shape + (1,) * len(axes)
    return y, mean.reshape(shape), rstd.reshape(shape)


@lower("native_layer_norm_backward")
def native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask):
    x, g = up(input), up(grad_out)
    lead = x.ndim - len(normalized_shape)
    kept, axes = tuple(range(lead)), tuple(range(lead, x.ndim))
    count = math.prod(normalized_shape)
    mean, rstd = (jnp.broadcast_to(s.astype(x.dtype), x.shape) for s in (mean, rstd))
    normal = (x - mean) * rstd
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = g if weight is None else g * bcast(weight.astype(x.dtype), x.shape, axes)
        first = bcast(_sum(scaled, axes) / max(count, 1), x.shape, kept)
        second = bcast(_sum(scaled * normal, axes) / max(count, 1), x.shape, kept)
        grad_input = rstd * (scaled - first - normal * second)
    if output_mask[1]:
        grad_weight = _sum(g * normal, kept)
    if output_mask[2]:
        grad_bias = _sum(g, kept)
    return grad_input, grad_weight, grad_bias


@lower("_fused_rms_norm")
def fused_rms_norm(input, normalized_shape, weight, eps):
    x = up(input)
    lead = x.ndim - len(normalized_shape)
    axes = tuple(range(lead, x.ndim))
    if eps is None:
        eps = jnp.asarray(jnp.finfo(x.dtype).eps)
    square = _sum(x * x, axes) / math.prod(normalized_shape)
    rstd = lax.rsqrt(square + eps.astype(x.dtype))
    y = _affine(x * bcast(rstd, x.shape, tuple(range(lead))), weight, None, axes)
    return y, rstd.reshape(rstd.shape + (1,) * len(axes))


@lower("_fused_rms_norm_backward")
def fused_rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, output_mask):
    x, g = up(input), up(grad_out)
    lead = x.ndim - len(normalized_shape)
    kept, axes = tuple(range(lead)), tuple(range(lead, x.ndim))
    normal = x * jnp.broadcast_to(rstd.astype(x.dtype), x.shape)
    grad_input = grad_weight = None
    if output_mask[0]:
        scaled = g if weight is None else g * bcast(weight.astype(x.dtype), x.shape, axes)
        inner = bcast(_sum(scaled * normal, axes) / math.prod(normalized_shape), x.shape, kept)
        grad_input = jnp.broadcast_to(rstd.astype(x.dtype), x.shape) * (scaled - normal * inner)
    if output_mask[1] and weight is not None:
        grad_weight = _sum(g * normal, kept)
    return grad_input, grad_weight


@lower("native_group_norm")
def native_group_norm(input, weight, bias, N, C, HxW, group, eps):
    x = up(input).reshape(N, group, C // group, HxW)
    mean, var, centred, kept = _moments(x, (2, 3))
    rstd = lax.rsqrt(var + eps.astype(x.dtype))
    y = (centred * bcast(rstd, x.shape, kept)).reshape(N, C, HxW)
    return _affine(y, weight, bias, (1,)).reshape(input.shape), mean, rstd


@lower("native_group_norm_backward")
def native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask):
    shape = (N, group, C // group, HxW)
    x, g = up(input).reshape(shape), up(grad_out).reshape(shape)
    count = max(C // group * HxW, 1)
    mean, rstd = (bcast(s.astype(x.dtype), shape, (0, 1)) for s in (mean, rstd))
    normal = (x - mean) * rstd
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = g
        if weight is not None:
            scaled = g * bcast(weight.astype(x.dtype).reshape(shape[1:3]), shape, (1, 2))
        first = bcast(_sum(scaled, (2, 3)) / count, shape, (0, 1))
        second = bcast(_sum(scaled * normal, (2, 3)) / count, shape, (0, 1))
        grad_input = (rstd * (scaled - first - normal * second)).reshape(input.shape)
    if output_mask[1]:
        grad_weight = _sum(g * normal, (0, 3)).reshape(C)
    if output_mask[2]:
        grad_bias = _sum(g, (0, 3)).reshape(C)
    return grad_input, grad_weight, grad_bias


def _other_axes(x):
    return (0, *range(2, x.ndim))


def _running(old, new, momentum):
    if old is None:
        return None
    momentum = momentum.astype(new.dtype)
    return (momentum * new + (1 - momentum) * old.astype(new.dtype)).astype(old.dtype)


def _unbiased(var, x):
    count = x.size // x.shape[1] if x.shape[1] else 0
    # One element per channel divides by zero, as PyTorch does.
    return var * count / jnp.asarray(count - 1, var.dtype)


def _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    """Result, saved mean and saved inverse deviation, new running mean and variance."""
    x = up(input)
    eps = eps.astype(x.dtype)
    if training:
        mean, var, centred, _ = _moments(x, _other_axes(x))
        running_mean = _running(running_mean, mean, momentum)
        running_var = _running(running_var, _unbiased(var, x), momentum)
        invstd = lax.rsqrt(var + eps)
    else:
        mean = running_mean.astype(x.dtype)
        invstd = lax.rsqrt(running_var.astype(x.dtype) + eps)
        centred = x - bcast(mean, x.shape, (1,))
    scale = invstd if weight is None else invstd * weight.astype(x.dtype)
    return _affine(centred, scale, bias, (1,)), mean, invstd, running_mean, running_var


def _saved(mean, invstd, training):
    """What PyTorch saves for the backward; the CPU saves nothing (empty tensors) in evaluation."""
    outs = context().outs
    return tuple(
        s if training or outs[i] is None or outs[i].shape == s.shape else jnp.zeros(outs[i].shape, s.dtype)
        for i, s in ((1, mean), (2, invstd))
    )


@lower("native_batch_norm", mutates=("running_mean", "running_var"))
def native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    y, mean, invstd, *running = _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
    return y, *_saved(mean, invstd, training), *[r for r in running if r is not None]


@lower("_native_batch_norm_legit", "_native_batch_norm_legit_functional")
def native_batch_norm_legit(input, weight, bias, running_mean, running_var, training, momentum, eps):
    y, mean, invstd, *running = _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
    return y, *_saved(mean, invstd, training), *running


@lower("_native_batch_norm_legit.no_stats")
def native_batch_norm_no_stats(input, weight, bias, training, momentum, eps):
    return _batch_norm(input, weight, bias, None, None, True, momentum, eps)[:3]


@lower("_native_batch_norm_legit_no_training")
def native_batch_norm_no_training(input, weight, bias, running_mean, running_var, momentum, eps):
    y, mean, invstd, *_ = _batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
    return y, *_saved(mean, invstd, False)


@lower("_batch_norm_with_update", "_batch_norm_with_update_functional")
def batch_norm_with_update(input, weight, bias, running_mean, running_var, momentum, eps):
    y, mean, invstd, *running = _batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return y, mean, invstd, jnp.zeros((0,), jnp.uint8), *running


@lower("_batch_norm_no_update")
def batch_norm_no_update(input, weight, bias, running_mean, running_var, momentum, eps):
    training = running_mean is None
    y, mean, invstd, *_ = _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
    return y, *_saved(mean, invstd, training), jnp.zeros((0,), jnp.uint8)


def _batch_norm_backward(g, x, weight, running_mean, running_var, mean, invstd, training, eps, output_mask):
    g, x = up(g), up(x)
    if not training:
        mean = running_mean.astype(x.dtype)
        invstd = lax.rsqrt(running_var.astype(x.dtype) + eps.astype(x.dtype))
    mean, invstd = mean.astype(x.dtype), invstd.astype(x.dtype)
    axes = _other_axes(x)
    centred = x - bcast(mean, x.shape, (1,))
    sum_g = _sum(g, axes)
    dot = _sum(g * centred, axes)
    grad_input = None
    if output_mask[0]:
        scale = invstd if weight is None else invstd * weight.astype(x.dtype)
        grad_input = g
        if training:
            count = max(x.size // max(x.shape[1], 1), 1)
            slope = dot * invstd * invstd / count
            grad_input = g - bcast(sum_g / count, x.shape, (1,)) - centred * bcast(slope, x.shape, (1,))
        grad_input = grad_input * bcast(scale, x.shape, (1,))
    return grad_input, dot * invstd if output_mask[1] else None, sum_g if output_mask[2] else None


@lower("native_batch_norm_backward")
def native_batch_norm_backward(
    grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask
):
    return _batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask
    )


@lower("batch_norm_backward")
def batch_norm_backward(
    grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask, reserve
):
    return _batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


@lower("batch_norm_update_stats", mutates=("running_mean", "running_var"))
def batch_norm_update_stats(input, running_mean, running_var, momentum):
    x = up(input)
    mean, var, _, _ = _moments(x, _other_axes(x))
    running = _running(running_mean, mean, momentum), _running(running_var, _unbiased(var, x), momentum)
    return mean, var, *[r for r in running if r is not None]


@lower("batch_norm_stats")
def batch_norm_stats(input, eps):
    x = up(input)
    mean, var, _, _ = _moments(x, _other_axes(x))
    return mean, lax.rsqrt(var + eps.astype(x.dtype))


@lower("batch_norm_elemt")
def batch_norm_elemt(input, weight, bias, mean, invstd, eps):
    x = up(input)
    scale = invstd.astype(x.dtype) if weight is None else invstd.astype(x.dtype) * weight.astype(x.dtype)
    return _affine(x - bcast(mean.astype(x.dtype), x.shape, (1,)), scale, bias, (1,)).astype(input.dtype)


@lower("batch_norm_gather_stats_with_counts", mutates=("running_mean", "running_var"))
def batch_norm_gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts):
    mean, invstd, counts = up(mean), up(invstd), counts.astype(dtypes.opmath(mean.dtype))[:, None]
    eps = eps.astype(mean.dtype)
    total = jnp.sum(counts, axis=0)
    joint = jnp.sum(mean * counts, axis=0) / total
    var = 1 / (invstd * invstd) - eps
    sums = jnp.sum((var + (mean - joint) ** 2) * counts, axis=0)
    running = _running(running_mean, joint, momentum), _running(running_var, sums / (total - 1), momentum)
    return joint, lax.rsqrt(sums / total + eps), *[r for r in running if r is not None]


@lower("batch_norm_backward_reduce")
def batch_norm_backward_reduce(grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g):
    g, x = up(grad_out), up(input)
    axes = _other_axes(x)
    sum_dy = _sum(g, axes)
    sum_dy_xmu = _sum(g * (x - bcast(mean.astype(x.dtype), x.shape, (1,))), axes)
    return sum_dy, sum_dy_xmu, sum_dy_xmu * invstd.astype(x.dtype), sum_dy


@lower("batch_norm_backward_elemt")
def batch_norm_backward_elemt(grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
    g, x = up(grad_out), up(input)
    total = jnp.sum(count).astype(x.dtype)
    mean, invstd, sum_dy, sum_dy_xmu = (s.astype(x.dtype) for s in (mean, invstd, sum_dy, sum_dy_xmu))
    scale = invstd if weight is None else invstd * weight.astype(x.dtype)
    slope = bcast(sum_dy_xmu / total * invstd * invstd, x.shape, (1,))
    centred = x - bcast(mean, x.shape, (1,))
    out = (g - bcast(sum_dy / total, x.shape, (1,)) - centred * slope) * bcast(scale, x.shape, (1,))
    return out.astype(input.dtype)


def vector_norm(x, p, axes):
    """The p-norm of real magnitudes over `axes`; p is a Python number."""
    size = jnp.abs(x)
    if p == 0:
        return jnp.sum((size != 0).astype(size.dtype), axis=axes)
    if p == math.inf:
        return jnp.max(size, axis=axes, initial=0)
    if p == -math.inf:
        return jnp.min(size, axis=axes, initial=math.inf)
    if p == 1:
        return jnp.sum(size, axis=axes)
    if p == 2:
        return jnp.sqrt(jnp.sum(size * size, axis=axes))
    return jnp.sum(size**p, axis=axes) ** (1.0 / p)


@lower("renorm", static=("p",))
def renorm(self, p, dim, maxnorm):
    x = up(self)
    dim %= x.ndim
    norm = vector_norm(x, p, tuple(a for a in range(x.ndim) if a != dim))
    maxnorm = jnp.asarray(maxnorm).astype(norm.dtype)
    factor = jnp.where(norm > maxnorm, maxnorm / (norm + 1e-7), jnp.ones((), norm.dtype))
    return x * bcast(factor, x.shape, (dim,))


def _except_dim(x, dim):
    if dim == -1:
        return tuple(range(x.ndim))
    return tuple(a for a in range(x.ndim) if a != dim)


@lower("_weight_norm_interface")
def weight_norm_interface(v, g, dim=0):
    x = up(v)
    norms = jnp.sqrt(jnp.sum(x * x, axis=_except_dim(x, dim), keepdims=True)).reshape(g.shape)
    return x * (g.astype(x.dtype) / norms), norms


@lower("_weight_norm_interface_backward")
def weight_norm_interface_backward(grad_w, saved_v, saved_g, saved_norms, dim):
    grad, v, g = up(grad_w), up(saved_v), up(saved_g)
    norms = saved_norms.astype(v.dtype)
    per_dim = jnp.sum(grad * v, axis=_except_dim(v, dim), keepdims=True).reshape(g.shape)
    grad_v = (g / norms) * (grad - v * (per_dim / (norms * norms)))
    return grad_v, per_dim / norms
