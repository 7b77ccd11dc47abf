"""Losses and pairwise distances."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import context
from torchtpu.lowering.registry import lower

NONE, MEAN, SUM = 0, 1, 2


def up(x):
    """A tensor in the type that PyTorch computes in; None stays None."""
    return None if x is None else x.astype(dtypes.opmath(x.dtype))


def _together(*tensors):
    """Tensors in the type that the result is computed in."""
    compute = dtypes.opmath(context().out_dtype)
    return [None if t is None else t.astype(compute) for t in tensors]


def reduce(loss, reduction):
    """PyTorch's reduction codes."""
    if reduction == NONE:
        return loss
    total = lax.reduce_sum(loss, tuple(range(loss.ndim)))
    return total / loss.size if reduction == MEAN and loss.size else (
        jnp.full((), jnp.nan, loss.dtype) if reduction == MEAN else total
    )


def _mean_of(grad, size, reduction):
    return grad / size if reduction == MEAN and size else grad


def pick(x, index):
    """x[n, index[n, ...], ...]: one class for each position. The index is clamped."""
    others = tuple(i for i in range(x.ndim) if i != 1)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(), collapsed_slice_dims=(1,), start_index_map=(1,),
        operand_batching_dims=others, start_indices_batching_dims=tuple(range(index.ndim)),
    )
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS  # XLA clamps
    return lax.gather(x, index[..., None], numbers, (1,) * x.ndim, mode=mode)


def _class_weight(weight, target, dtype):
    """weight[target] for clamped targets."""
    numbers = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,))
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.gather(weight.astype(dtype), target[..., None], numbers, (1,), mode=mode)


def _nll(x, target, weight, reduction, ignore_index):
    """Loss and total weight; x is (N, C, ...), target (N, ...)."""
    valid = target != ignore_index
    inside = ~valid | ((target >= 0) & (target < x.shape[1]))
    context().check(inside, IndexError, "Target {value} is out of bounds.", target)
    x = up(x)
    zero, one = jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
    if x.size:
        picked = pick(x, target)
        each = one if weight is None else _class_weight(weight, target, x.dtype)
    else:
        picked, each = jnp.zeros(target.shape, x.dtype), one
    loss = jnp.where(valid, -(picked * each), zero)
    if reduction == NONE:
        return loss, zero
    total = jnp.sum(jnp.where(valid, each, zero))
    loss = jnp.sum(loss)
    return (loss / total if reduction == MEAN else loss), total


@lower("nll_loss_forward")
def nll_loss_forward(self, target, weight, reduction, ignore_index):
    if self.ndim > 1:
        return _nll(self, target, weight, reduction, ignore_index)
    loss, total = _nll(self[None], target.reshape(1), weight, MEAN if reduction == MEAN else SUM, ignore_index)
    return loss.reshape(context().out_shape), total


@lower("nll_loss2d_forward")
def nll_loss2d_forward(self, target, weight, reduction, ignore_index):
    return _nll(self, target, weight, reduction, ignore_index)


def _nll_backward(grad, x, target, weight, reduction, ignore_index, total_weight):
    shape, compute = x.shape, dtypes.opmath(x.dtype)
    zero = jnp.zeros((), compute)
    scale = -grad.astype(compute)
    if reduction == MEAN:
        scale = scale / total_weight.astype(compute)
    if scale.ndim == 0:
        scale = jnp.broadcast_to(scale, target.shape)
    if weight is not None and x.size:
        scale = scale * _class_weight(weight, target, compute)
    scale = jnp.where(target != ignore_index, scale, zero)
    others = tuple(i for i in range(x.ndim) if i != 1)
    hit = lax.broadcasted_iota(target.dtype, shape, 1) == lax.broadcast_in_dim(target, shape, others)
    return jnp.where(hit, lax.broadcast_in_dim(scale, shape, others), zero)


@lower("nll_loss_backward")
def nll_loss_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight):
    if self.ndim > 1:
        return _nll_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight)
    grad, target = grad_output.reshape(()), target.reshape(1)
    return _nll_backward(grad, self[None], target, weight, reduction, ignore_index, total_weight)[0]


@lower("nll_loss2d_backward")
def nll_loss2d_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight):
    return _nll_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight)


@lower("mse_loss")
def mse_loss(self, target, reduction=MEAN):
    self, target = _together(self, target)
    difference = self - target
    return reduce(difference * difference, reduction)


@lower("mse_loss_backward")
def mse_loss_backward(grad_output, self, target, reduction):
    grad, self, target = _together(grad_output, self, target)
    difference = self - target
    return _mean_of(2 * grad, difference.size, reduction) * difference


@lower("l1_loss")
def l1_loss(self, target, reduction=MEAN):
    self, target = _together(self, target)
    return reduce(lax.abs(self - target), reduction)


@lower("smooth_l1_loss")
def smooth_l1_loss(self, target, reduction=MEAN, beta=1.0):
    self, target, beta = _together(self, target, jnp.asarray(beta))
    z = lax.abs(self - target)
    return reduce(jnp.where(z < beta, 0.5 * z * z / beta, z - 0.5 * beta), reduction)


@lower("smooth_l1_loss_backward")
def smooth_l1_loss_backward(grad_output, self, target, reduction, beta):
    grad, self, target, beta = _together(grad_output, self, target, jnp.asarray(beta))
    x = self - target
    grad = _mean_of(grad, x.size, reduction)
    return jnp.where(x <= -beta, -grad, jnp.where(x >= beta, grad, grad * x / beta))


@lower("huber_loss")
def huber_loss(self, target, reduction=MEAN, delta=1.0):
    self, target, delta = _together(self, target, jnp.asarray(delta))
    z = lax.abs(self - target)
    return reduce(jnp.where(z <= delta, 0.5 * z * z, delta * (z - 0.5 * delta)), reduction)


@lower("huber_loss_backward")
def huber_loss_backward(grad_output, self, target, reduction, delta):
    grad, self, target, delta = _together(grad_output, self, target, jnp.asarray(delta))
    x = self - target
    grad = _mean_of(grad, x.size, reduction)
    return jnp.where(x <= -delta, -grad * delta, jnp.where(x >= delta, grad * delta, grad * x))


@lower("binary_cross_entropy")
def binary_cross_entropy(self, target, weight=None, reduction=MEAN):
    x, target, weight = _together(self, target, weight)
    message = "all elements of input should be between 0 and 1"
    context().check((x >= 0) & (x <= 1), RuntimeError, message)
    floor = jnp.asarray(-100, x.dtype)
    loss = (target - 1) * lax.max(lax.log1p(-x), floor) - target * lax.max(lax.log(x), floor)
    return reduce(loss if weight is None else loss * weight, reduction)


@lower("binary_cross_entropy_backward")
def binary_cross_entropy_backward(grad_output, self, target, weight=None, reduction=MEAN):
    grad, x, target, weight = _together(grad_output, self, target, weight)
    out = grad * (x - target) / lax.max((1 - x) * x, jnp.asarray(1e-12, x.dtype))
    return _mean_of(out if weight is None else out * weight, x.size, reduction)


@lower("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(self, target, weight=None, pos_weight=None, reduction=MEAN):
    x, target, weight, pos_weight = _together(self, target, weight, pos_weight)
    log_sigmoid = lax.min(x, jnp.zeros((), x.dtype)) - lax.log1p(lax.exp(-lax.abs(x)))
    if pos_weight is None:
        loss = (1 - target) * x - log_sigmoid
    else:
        loss = (1 - target) * x - ((pos_weight - 1) * target + 1) * log_sigmoid
    return reduce(loss if weight is None else loss * weight, reduction)


@lower("soft_margin_loss")
def soft_margin_loss(self, target, reduction=MEAN):
    x, target = _together(self, target)
    return reduce(lax.log1p(lax.exp(-target * x)), reduction)


@lower("soft_margin_loss_backward")
def soft_margin_loss_backward(grad_output, self, target, reduction):
    grad, x, target = _together(grad_output, self, target)
    z = lax.exp(-target * x)
    return _mean_of(-target * z / (z + 1), x.size, reduction) * grad


def _margin_terms(x, target, p, margin, weight):
    """margin - x[target] + x where positive, zero at the target; with the mask of targets and the class weights."""
    inside = (target >= 0) & (target < x.shape[1])
    context().check(inside, RuntimeError, "target out of range")
    hit = lax.broadcasted_iota(target.dtype, x.shape, 1) == target[:, None]
    z = jnp.asarray(margin).astype(x.dtype) - pick(x, target)[:, None] + x
    z = jnp.where(hit | (z <= 0), jnp.zeros((), x.dtype), z)
    scale = None if weight is None else _class_weight(weight, target, x.dtype)[:, None]
    return z, hit, scale


@lower("multi_margin_loss", static=("p",))
def multi_margin_loss(self, target, p=1, margin=1, weight=None, reduction=MEAN):
    x = up(self).reshape((1, -1) if self.ndim < 2 else self.shape)
    if x.size == 0:
        return jnp.zeros(context().out_shape, x.dtype)
    z, _, scale = _margin_terms(x, target.reshape(-1), p, margin, weight)
    z = z if p == 1 else z * z
    z = z if scale is None else z * scale
    return reduce(jnp.sum(z, axis=1) / x.shape[1], reduction).reshape(context().out_shape)


@lower("multi_margin_loss_backward", static=("p",))
def multi_margin_loss_backward(grad_output, self, target, p, margin, weight=None, reduction=MEAN):
    x = up(self).reshape((1, -1) if self.ndim < 2 else self.shape)
    if x.size == 0:
        return jnp.zeros(self.shape, x.dtype)
    z, hit, scale = _margin_terms(x, target.reshape(-1), p, margin, weight)
    h = (z > 0).astype(x.dtype) if p == 1 else 2 * z
    h = h if scale is None else h * scale
    grad = up(grad_output).reshape((-1, 1) if grad_output.ndim else ()) / x.shape[1]
    h = _mean_of(h * grad, x.shape[0], reduction)
    out = jnp.where(hit, -jnp.sum(h, axis=1, keepdims=True), h)
    return out.reshape(self.shape).astype(self.dtype)


def _label_rows(x, target):
    """Rows of labels up to the first negative one: clamped labels, which of them count, and the classes they hit."""
    context().check((target >= -1) & (target < x.shape[1]), RuntimeError, "argument #2 'target' is out of range")
    counts = lax.cumsum((target < 0).astype(jnp.int32), axis=1) == 0
    labels = jnp.clip(target, 0, x.shape[1] - 1)
    classes = lax.broadcasted_iota(labels.dtype, (*labels.shape, x.shape[1]), 2)
    hits = (classes == labels[:, :, None]) & counts[:, :, None]
    return labels, counts, hits


@lower("multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(self, target, reduction):
    x = up(self).reshape((1, -1) if self.ndim < 2 else self.shape)
    shape = context().out_shape
    if x.size == 0:
        return jnp.zeros(shape, x.dtype), jnp.zeros(target.shape, x.dtype)
    labels, counts, hits = _label_rows(x, target.reshape(x.shape))
    is_target = jnp.any(hits, axis=1)
    z = 1 - jnp.take_along_axis(x, labels, axis=1)[:, :, None] + x[:, None, :]
    z = jnp.where(counts[:, :, None] & ~is_target[:, None, :] & (z > 0), z, jnp.zeros((), x.dtype))
    loss = jnp.sum(z, axis=(1, 2)) / x.shape[1]
    return reduce(loss, reduction).reshape(shape), is_target.reshape(target.shape)


@lower("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(grad_output, self, target, reduction, is_target):
    x = up(self).reshape((1, -1) if self.ndim < 2 else self.shape)
    if x.size == 0:
        return jnp.zeros(self.shape, x.dtype)
    labels, counts, hits = _label_rows(x, target.reshape(x.shape))
    free = is_target.reshape(x.shape)[:, None, :] == 0
    z = 1 - jnp.take_along_axis(x, labels, axis=1)[:, :, None] + x[:, None, :]
    active = (counts[:, :, None] & free & (z > 0)).astype(x.dtype)
    per_label = jnp.sum(active, axis=2)
    out = jnp.sum(active, axis=1) - jnp.sum(per_label[:, :, None] * hits, axis=1)
    grad = up(grad_output).reshape((-1, 1) if grad_output.ndim else ())
    out = _mean_of(out * grad, x.shape[0], reduction) / x.shape[1]
    return out.reshape(self.shape).astype(self.dtype)
