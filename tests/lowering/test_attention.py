"""Attention against PyTorch's math on the CPU."""

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F

from torchtpu.lowering.call import Context, OutSpec, call
from torchtpu.lowering.evaluate import compare, to_jax, to_torch

aten = torch.ops.aten
FORWARD = aten._scaled_dot_product_fused_attention_overrideable.default
BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default


def run(op, outs, arguments):
    """Calls a lowering that has no CPU kernel to compare with."""
    with jax.enable_x64(True):
        context = Context(outs, jnp.array([1, 2, 3, 4], jnp.uint32))
        values = [to_jax(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        return [None if r is None else to_torch(r) for r in call(op, values, context)]


def attention(q, k, v, bias, dropout, causal, scale, grad):
    """Result and gradients through the two lowerings."""
    lse = q.shape[:-1]
    int64 = OutSpec(torch.int64, ())
    shape = (*q.shape[:-1], v.shape[-1])
    outs = [OutSpec(q.dtype, shape), OutSpec(torch.float32, lse), None, None, int64, int64, None]
    out, logsumexp, _, _, seed, offset, _ = run(FORWARD, outs, [q, k, v, bias, dropout, causal, False, scale])
    outs = [OutSpec(t.dtype, tuple(t.shape)) for t in (q, k, v)] + [bias if bias is None else OutSpec(bias.dtype, bias.shape)]
    sizes = q.shape[-2], k.shape[-2]
    args = [grad, q, k, v, bias, [True] * 4, out, logsumexp, None, None, *sizes, dropout, causal, seed, offset, scale]
    return out, *run(BACKWARD, outs, args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_fused_attention(dtype, causal, masked, kv_heads):
    if causal and masked:
        pytest.skip("PyTorch allows only one of them")
    q = torch.randn(2, 4, 5, 8, dtype=dtype, requires_grad=True)
    k = torch.randn(2, kv_heads, 7, 8, dtype=dtype, requires_grad=True)
    v = torch.randn(2, kv_heads, 7, 6, dtype=dtype, requires_grad=True)
    bias = torch.randn(2, 1, 5, 7, dtype=dtype, requires_grad=True) if masked else None
    scale = 0.3 if masked else None
    wide = [None if t is None else t.detach().double().requires_grad_() for t in (q, k, v, bias)]
    want = F.scaled_dot_product_attention(*wide, is_causal=causal, scale=scale, enable_gqa=kv_heads != 4)
    grad = torch.randn(want.shape, dtype=dtype)
    want.backward(grad.double())
    details = [None if t is None else t.detach() for t in (q, k, v, bias)]
    got = attention(*details, 0.0, causal, scale, grad)
    tolerance = {torch.float64: 1e-9, torch.float32: 2e-5}.get(dtype, 5e-2)
    for a, b in zip(got, [want, *[None if w is None else w.grad for w in wide]], strict=True):
        if b is not None:
            torch.testing.assert_close(a.double(), b.detach(), rtol=tolerance, atol=tolerance)


def test_row_without_keys_is_zero():
    q = k = v = torch.randn(1, 1, 3, 4)
    bias = torch.zeros(3, 3)
    bias[1] = -float("inf")
    out, *grads = attention(q, k, v, bias, 0.0, False, None, torch.randn(1, 1, 3, 4))
    assert (out[0, 0, 1] == 0).all()
    assert all(g.isfinite().all() for g in grads)


def test_dropout_backward_draws_the_same_mask():
    q, k = torch.randn(1, 2, 6, 4, dtype=torch.float64), torch.randn(1, 2, 6, 4, dtype=torch.float64)
    v = torch.eye(6, dtype=torch.float64).expand(1, 2, 6, 6).contiguous()
    out, _, _, grad_v, _ = attention(q, k, v, None, 0.4, False, None, v)
    weights = torch.softmax(q @ k.mT / 2, -1)
    kept = out != 0
    assert 0.3 < kept.double().mean() < 0.9
    torch.testing.assert_close(out, weights * kept / 0.6)
    torch.testing.assert_close(grad_v, out.mT)
    # The result is linear in the values, so its derivative along the query shows in a finite difference.
    step = 1e-6
    grad = torch.randn_like(out)
    _, grad_q, *_ = attention(q, k, v, None, 0.4, False, None, grad)
    direction = torch.randn_like(q)
    plus = attention(q + step * direction, k, v, None, 0.4, False, None, grad)[0]
    minus = attention(q - step * direction, k, v, None, 0.4, False, None, grad)[0]
    want = ((plus - minus) / (2 * step) * grad).sum()
    torch.testing.assert_close((grad_q * direction).sum(), want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dim", [None, 0, 2, -1])
def test_masked_softmax(dim):
    x, mask = torch.randn(2, 2, 4, 4), torch.rand(2, 2, 4, 4) < 0.3
    mask[..., 0, :] = mask[:, :, :, 0] = False
    mask[0] = False
    compare(aten._masked_softmax.default, x, mask, dim, 2)
    out = aten._masked_softmax(x, mask, dim, 2)
    compare(aten._masked_softmax_backward.default, torch.randn_like(out), out, mask, dim)


def test_masked_softmax_mask_types():
    x = torch.randn(2, 3, 4, 4)
    compare(aten._masked_softmax.default, x, torch.tensor([[False] * 3 + [True]] * 2), 3, 1)
    compare(aten._masked_softmax.default, x, torch.ones(4, 4, dtype=torch.bool).triu(1), 3, 0)


def test_multi_head_pieces():
    qkv, bias = torch.randn(2, 3, 24), torch.randn(24)
    compare(aten._transform_bias_rescale_qkv.default, qkv, bias, 2)
    x, proj = torch.randn(2, 3, 8), torch.randn(8, 8)
    args = (x, x, x, 8, 2, torch.randn(24, 8), bias, proj, torch.randn(8))
    compare(aten._native_multi_head_attention.default, *args, rtol=1e-4, atol=1e-4)
    compare(aten._native_multi_head_attention.default, *args, None, True, False, rtol=1e-4, atol=1e-4)
    padded = torch.tensor([[False, False, True], [False, True, True]])
    compare(aten._native_multi_head_attention.default, *args, padded, True, True, 1, rtol=1e-4, atol=1e-4)
    compare(aten._native_multi_head_attention.default, *args, None, False, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("first", [False, True])
def test_encoder_layer(first):
    w = [torch.randn(s) for s in ((24, 8), (24,), (8, 8), (8,))]
    norms = [torch.randn(8) for _ in range(4)]
    ffn = [torch.randn(s) for s in ((16, 8), (16,), (8, 16), (8,))]
    args = (torch.randn(2, 3, 8), 8, 2, *w, first, first, 1e-5, *norms, *ffn)
    compare(aten._transformer_encoder_layer_fwd.default, *args, rtol=1e-4, atol=1e-4)


def test_safe_softmax():
    x = torch.randn(3, 4)
    x[1] = -float("inf")
    for dim in (0, 1, -1):
        compare(aten._safe_softmax.default, x, dim)
