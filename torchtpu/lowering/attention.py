"""Attention: the fused scaled dot product with its gradient, and the parts of the multi-head fast path."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import context
from torchtpu.lowering.matmul import contract
from torchtpu.lowering.registry import lower


def _batch(x):
    return tuple(range(x.ndim - 2))


def _scores(query, key, bias, causal, scale):
    """scale * query @ key^T with the bias and the causal mask, in the type that products accumulate in."""
    n, batch = query.ndim, _batch(query)
    scores = contract(query, key, ((n - 1,), (n - 1,)), (batch, batch))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale.astype(scores.dtype)
    scores = scores * factor
    if bias is not None:
        if bias.dtype == jnp.bool_:
            scores = jnp.where(bias, scores, jnp.asarray(-jnp.inf, scores.dtype))
        else:
            scores = scores + bias.astype(scores.dtype)
    if causal:
        rows = lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 2)
        columns = lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
        scores = jnp.where(rows >= columns, scores, jnp.asarray(-jnp.inf, scores.dtype))
    return scores, factor


def _softmax(scores):
    """Probabilities and log-sum-exp; a row that sees nothing has probability zero everywhere."""
    last = scores.ndim - 1
    kept = tuple(range(last))
    top = lax.reduce_max(scores, (last,)) if scores.shape[last] else jnp.full(scores.shape[:-1], -jnp.inf, scores.dtype)
    safe = jnp.where(top == -jnp.inf, jnp.zeros((), top.dtype), top)
    weights = lax.exp(scores - lax.broadcast_in_dim(safe, scores.shape, kept))
    total = lax.reduce_sum(weights, (last,))
    inverse = 1 / jnp.where(total == 0, jnp.ones((), total.dtype), total)
    return weights * lax.broadcast_in_dim(inverse, scores.shape, kept), safe + lax.log(total)


def _keep(key, shape, dropout_p, dtype):
    """The dropout mask times its scale."""
    if dropout_p >= 1:
        return jnp.zeros(shape, dtype)
    threshold = min(int(dropout_p * 2**32), 2**32 - 1)
    kept = jax.random.bits(key, shape, jnp.uint32) >= jnp.uint32(threshold)
    return kept.astype(dtype) * jnp.asarray(1 / (1 - dropout_p), dtype)


def _pack(key):
    """A key as two 0-d int64, by arithmetic: not every platform can bitcast 64-bit types."""
    words = jax.random.key_data(key).astype(jnp.int64)
    return words[0] | (words[1] << 32), words[2] | (words[3] << 32)


def _unpack(seed, offset):
    low = [(x & 0xFFFFFFFF).astype(jnp.uint32) for x in (seed, offset)]
    high = [((x >> 32) & 0xFFFFFFFF).astype(jnp.uint32) for x in (seed, offset)]
    words = jnp.stack([low[0], high[0], low[1], high[1]])
    return jax.random.wrap_key_data(words, impl="rbg")


def _grouped(query, x):
    """Keys or values repeated for the heads of the query (grouped-query attention)."""
    heads = query.shape[-3]
    if query.ndim < 3 or x.shape[-3] == heads:
        return x
    groups = heads // x.shape[-3]
    shape = (*x.shape[:-2], groups, *x.shape[-2:])
    x = lax.broadcast_in_dim(x, shape, tuple(i for i in range(len(shape)) if i != len(shape) - 3))
    return x.reshape(*shape[:-4], heads, *shape[-2:])


def _ungrouped(grad, like):
    """The gradient of `_grouped`."""
    if grad.shape == like.shape:
        return grad
    heads = like.shape[-3]
    return jnp.sum(grad.reshape(*grad.shape[:-3], heads, -1, *grad.shape[-2:]), axis=-3)


@lower("_scaled_dot_product_fused_attention_overrideable", static=("dropout_p",))
def sdpa(query, key, value, attn_bias=None, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    """Gives the tensors of the schema only: max_q and max_k are sizes, not results of the program."""
    key, value = _grouped(query, key), _grouped(query, value)
    scores, _ = _scores(query, key, attn_bias, is_causal, scale)
    weights, logsumexp = _softmax(scores)
    seed = offset = jnp.zeros((), jnp.int64)
    if dropout_p > 0:
        random = context().key()
        weights = weights * _keep(random, weights.shape, dropout_p, weights.dtype)
        seed, offset = _pack(random)
    n, batch = query.ndim, _batch(query)
    out = contract(weights.astype(value.dtype), value, ((n - 1,), (n - 2,)), (batch, batch))
    return out, logsumexp, None, None, seed, offset, None


@lower("_scaled_dot_product_fused_attention_overrideable_backward", static=("dropout_p",))
def sdpa_backward(
    grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k,
    dropout_p, is_causal, philox_seed, philox_offset, *, scale=None,
):
    n, batch = query.ndim, _batch(query)
    full_key, full_value = _grouped(query, key), _grouped(query, value)
    scores, factor = _scores(query, full_key, attn_bias, is_causal, scale)
    if scores.dtype == jnp.float64:
        weights, _ = _softmax(scores)  # logsumexp is only a float32
    else:
        lse = logsumexp.reshape(scores.shape[:-1])
        seen = lax.broadcast_in_dim(jnp.where(lse == -jnp.inf, jnp.inf, lse), scores.shape, tuple(range(n - 1)))
        weights = lax.exp(scores - seen.astype(scores.dtype))
    kept = weights
    grad = contract(grad_out, full_value, ((n - 1,), (n - 1,)), (batch, batch))
    if dropout_p > 0:
        mask = _keep(_unpack(philox_seed, philox_offset), weights.shape, dropout_p, weights.dtype)
        kept, grad = weights * mask, grad * mask
    wide = dtypes.opmath(out.dtype)
    delta = lax.reduce_sum(grad_out.astype(wide) * out.astype(wide), (n - 1,))
    grad_scores = weights * (grad - lax.broadcast_in_dim(delta, scores.shape, tuple(range(n - 1))))
    grads = [None] * 4
    if grad_input_mask[3] and attn_bias is not None:
        grads[3] = _sum_to(grad_scores, attn_bias.shape)
    scaled = (grad_scores * factor).astype(query.dtype)
    if grad_input_mask[0]:
        grads[0] = contract(scaled, full_key, ((n - 1,), (n - 2,)), (batch, batch))
    if grad_input_mask[1]:
        grads[1] = _ungrouped(contract(scaled, query, ((n - 2,), (n - 2,)), (batch, batch)), key)
    if grad_input_mask[2]:
        grads[2] = _ungrouped(contract(kept.astype(value.dtype), grad_out, ((n - 2,), (n - 2,)), (batch, batch)), value)
    # PyTorch's meta kernel promises also the gradients that nobody asked for.
    return tuple(
        jnp.zeros(spec.shape, query.dtype) if g is None and spec is not None else g
        for g, spec in zip(grads, context().outs or [None] * 4)
    )


def _sum_to(x, shape):
    """The gradient of a broadcast from `shape`."""
    extra = x.ndim - len(shape)
    axes = tuple(i for i in range(x.ndim) if i < extra or (shape[i - extra] == 1 and x.shape[i] != 1))
    return lax.reduce_sum(x, axes).reshape(shape) if axes else x.reshape(shape)


def _expanded(mask, shape, mask_type):
    """A mask of the multi-head fast path: 0 is (L, L), 1 is (B, L) of padded keys, 2 has all dimensions."""
    if mask_type == 1 and mask.shape != shape:
        return jnp.broadcast_to(mask.reshape(mask.shape[0], *([1] * (len(shape) - 2)), mask.shape[-1]), shape)
    return jnp.broadcast_to(mask, shape)


@lower("_masked_softmax")
def masked_softmax(self, mask, dim=None, mask_type=None):
    x = self.astype(dtypes.opmath(self.dtype))
    if x.ndim == 0:
        return jnp.where(mask, jnp.asarray(jnp.nan, self.dtype), jnp.ones((), self.dtype))
    x = jnp.where(_expanded(mask, x.shape, mask_type), jnp.asarray(-jnp.inf, x.dtype), x)
    return jax.nn.softmax(x, axis=-1 if dim is None else dim).astype(self.dtype)


@lower("_masked_softmax_backward")
def masked_softmax_backward(grad_output, output, mask, dim=None):
    wide = dtypes.opmath(output.dtype)
    grad, out, zero = grad_output.astype(wide), output.astype(wide), jnp.zeros((), wide)
    mask = jnp.broadcast_to(mask, out.shape)
    axis = -1 if dim is None else dim
    product = jnp.where(mask, zero, grad * out)
    total = jnp.sum(product, axis=axis, keepdims=True) if out.ndim else product
    return jnp.where(mask, zero, product - out * total).astype(output.dtype)


@lower("_safe_softmax")
def safe_softmax(self, dim, dtype=None):
    x = self if dtype is None else self.astype(dtypes.to_numpy_dtype(dtype))
    x = x.astype(dtypes.opmath(x.dtype))
    if x.ndim == 0:
        return _softmax(x[None])[0][0]
    return jnp.moveaxis(_softmax(jnp.moveaxis(x, dim, -1))[0], -1, dim)


def _split_heads(x, heads):
    b, t, d = x.shape
    return jnp.transpose(x.reshape(b, t, heads, d // heads), (0, 2, 1, 3))


@lower("_transform_bias_rescale_qkv")
def transform_bias_rescale_qkv(qkv, qkv_bias, num_heads):
    x = qkv.astype(dtypes.opmath(qkv.dtype)) + qkv_bias.astype(dtypes.opmath(qkv.dtype))
    q, k, v = (_split_heads(part, num_heads) for part in jnp.split(x, 3, axis=2))
    return tuple(part.astype(qkv.dtype) for part in (q / math.sqrt(q.shape[-1]), k, v))


def _project(x, weight, bias):
    out = contract(x, weight, ((x.ndim - 1,), (1,)))
    return (out + bias.astype(out.dtype)).astype(x.dtype)


def _multi_head(query, key, value, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type):
    if query is key and key is value:
        parts = jnp.split(_project(query, qkv_weight, qkv_bias), 3, axis=2)
    else:
        weights, biases = jnp.split(qkv_weight, 3), jnp.split(qkv_bias, 3)
        parts = [_project(*args) for args in zip((query, key, value), weights, biases, strict=True)]
    q, k, v = (_split_heads(part, heads) for part in parts)
    scores, _ = _scores(q, k, None, False, None)
    if mask is not None:
        hidden = _expanded(mask, scores.shape, mask_type)
        scores = jnp.where(hidden.astype(jnp.bool_), jnp.asarray(-jnp.inf, scores.dtype), scores)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    out = contract(weights, v, ((3,), (2,)), ((0, 1), (0, 1))).astype(query.dtype)
    b, _, t, _ = out.shape
    merged = jnp.transpose(out, (0, 2, 1, 3)).reshape(b, t, -1)
    return _project(merged, proj_weight, proj_bias), weights


@lower("_native_multi_head_attention")
def native_multi_head_attention(
    query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask=None,
    need_weights=True, average_attn_weights=True, mask_type=None,
):
    out, weights = _multi_head(
        query, key, value, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type
    )
    if not need_weights:
        return out, None
    if average_attn_weights:
        weights = jnp.mean(weights.astype(dtypes.opmath(weights.dtype)), axis=1)
    return out, weights


def _layer_norm(x, weight, bias, eps):
    wide = x.astype(dtypes.opmath(x.dtype))
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    var = jnp.mean(centred * centred, axis=-1, keepdims=True)
    y = centred * lax.rsqrt(var + eps.astype(wide.dtype))
    return (y * weight.astype(wide.dtype) + bias.astype(wide.dtype)).astype(x.dtype)


@lower("_transformer_encoder_layer_fwd")
def transformer_encoder_layer(
    src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps,
    norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2,
    ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, mask=None, mask_type=None,
):
    def attend(x):
        return _multi_head(x, x, x, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type)[0]

    def feed(x):
        hidden = _project(x, ffn_weight_1, ffn_bias_1)
        hidden = jax.nn.gelu(hidden, approximate=False) if use_gelu else lax.max(hidden, jnp.zeros((), hidden.dtype))
        return _project(hidden, ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attend(_layer_norm(src, norm_weight_1, norm_bias_1, eps))
        return x + feed(_layer_norm(x, norm_weight_2, norm_bias_2, eps))
    x = _layer_norm(src + attend(src), norm_weight_1, norm_bias_1, eps)
    return _layer_norm(x + feed(x), norm_weight_2, norm_bias_2, eps)
