"""Losses and distances against PyTorch's CPU."""

import pytest
import torch

from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten
HALF = [torch.bfloat16, torch.float16]
FLOATS = [torch.float32, torch.float64, *HALF]
REDUCTIONS = [0, 1, 2]


def tolerance(dtype):
    return {"rtol": 3e-2, "atol": 3e-2} if dtype in HALF else {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_nll(dtype, reduction, weighted):
    weight = torch.rand(5, dtype=dtype) if weighted else None
    tol = tolerance(dtype)
    cases = [
        ("nll_loss", (3, 5), torch.tensor([4, 0, -100])),
        ("nll_loss", (3, 5), torch.full((3,), -100)),
        ("nll_loss", (0, 5), torch.zeros(0, dtype=torch.int64)),
        ("nll_loss", (5,), torch.tensor(3)),
        ("nll_loss", (5,), torch.tensor(-100)),
        ("nll_loss2d", (2, 5, 1, 3), torch.tensor([[[0, 4, -100]], [[1, 2, 3]]])),
    ]
    for name, shape, target in cases:
        x = torch.randn(shape, dtype=dtype)
        forward, backward = getattr(aten, name + "_forward").default, getattr(aten, name + "_backward").default
        compare(forward, x, target, weight, reduction, -100, **tol)
        out, total = forward(x, target, weight, reduction, -100)
        if x.numel():
            compare(backward, torch.randn_like(out), x, target, weight, reduction, -100, total, **tol)


def test_target_out_of_bounds():
    import jax
    import jax.numpy as jnp

    from torchtpu.lowering.call import Context, OutSpec, call

    context = Context([OutSpec(torch.float32, ()), OutSpec(torch.float32, ())])
    with jax.enable_x64(True):
        target = jnp.asarray([0, 5, -100])
        call(aten.nll_loss_forward.default, [jnp.zeros((3, 5), jnp.float32), target, None, 1, -100], context)
    (check,) = context.checks
    assert not check.ok and check.exception is IndexError
    assert check.message.format(value=int(check.value)) == "Target 5 is out of bounds."


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)])
def test_elementwise_losses(dtype, reduction, shape):
    tol = tolerance(dtype)
    x, y = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    g = torch.randn(shape if reduction == 0 else (), dtype=dtype)
    for name, extra in (("mse_loss", ()), ("smooth_l1_loss", (0.7,)), ("huber_loss", (0.7,)), ("soft_margin_loss", ())):
        if name == "soft_margin_loss":
            y = torch.sign(y)
        compare(getattr(aten, name).default, x, y, reduction, *extra, **tol)
        compare(getattr(aten, name + "_backward").default, g, x, y, reduction, *extra, **tol)
    p, t = torch.rand(shape, dtype=dtype), torch.rand(shape, dtype=dtype)
    if p.ndim == 2 and p.numel():
        p[0, 0], p[0, 1] = 0, 1
    for weight in (None, torch.rand(shape, dtype=dtype)):
        compare(aten.binary_cross_entropy.default, p, t, weight, reduction, **tol)
        if dtype not in HALF:  # 1e-12 is zero in half precision on the CPU
            compare(aten.binary_cross_entropy_backward.default, g, p, t, weight, reduction, **tol)
        for pos in (None, torch.rand(shape, dtype=dtype)):
            compare(aten.binary_cross_entropy_with_logits.default, x, t, weight, pos, reduction, **tol)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margin_losses(reduction):
    x = torch.randn(3, 4, dtype=torch.float64)
    target = torch.tensor([0, 3, 1])
    for p in (1, 2):
        for weight in (None, torch.rand(4, dtype=torch.float64)):
            compare(aten.multi_margin_loss.default, x, target, p, 0.7, weight, reduction)
            g = torch.randn(3 if reduction == 0 else (), dtype=torch.float64)
            compare(aten.multi_margin_loss_backward.default, g, x, target, p, 0.7, weight, reduction)
    compare(aten.multi_margin_loss.default, x[0], target[0], 1, 1, None, reduction)
    labels = torch.tensor([[0, 2, -1, 3], [1, -1, -1, -1], [3, 2, 1, 0]])
    compare(aten.multilabel_margin_loss_forward.default, x, labels, reduction)
    _, hit = aten.multilabel_margin_loss_forward(x, labels, reduction)
    compare(aten.multilabel_margin_loss_backward.default, g, x, labels, reduction, hit)
    compare(aten.multilabel_margin_loss_forward.default, x[0], labels[0], reduction)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
def test_distances(p):
    x, y = torch.randn(2, 4, 3, dtype=torch.float64), torch.randn(2, 5, 3, dtype=torch.float64)
    y[:, 0] = x[:, 0]
    compare(aten._cdist_forward.default, x, y, p, None)
    d = aten._cdist_forward(x, y, p, None)
    compare(aten._cdist_backward.default, torch.randn_like(d), x, y, p, d)
    z = x[0].contiguous()
    compare(aten._pdist_forward.default, z, p)
    d = aten._pdist_forward(z, p)
    compare(aten._pdist_backward.default, torch.randn_like(d), z, p, d)


def test_large_distances():
    compare(aten._cdist_forward.default, torch.randn(30, 3), torch.randn(28, 3), 2.0, None, rtol=1e-4, atol=1e-4)
    for mode in (1, 2):
        compare(aten._cdist_forward.default, torch.randn(3, 3), torch.randn(4, 3), 2.0, mode, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("concatenated", [False, True])
def test_ctc(zero_infinity, concatenated):
    log_probs = torch.randn(6, 3, 4, dtype=torch.float64).log_softmax(2)
    targets = torch.tensor([[1, 1, 2], [3, 2, 0], [0, 0, 0]])
    lengths, inputs = [3, 2, 0], [6, 5, 4]
    if concatenated:
        targets = torch.tensor([1, 1, 2, 3, 2])
    from torchtpu.lowering.evaluate import evaluate

    op = aten._ctc_loss.default
    (loss, alpha), (want, want_alpha) = evaluate(op, log_probs, targets, inputs, lengths, 0, zero_infinity)
    torch.testing.assert_close(loss, want)
    g = torch.randn(3, dtype=torch.float64)
    args = (g, log_probs, targets, inputs, lengths, want)
    want_grad = aten._ctc_loss_backward(*args, want_alpha, 0, zero_infinity)
    (grad,), _ = evaluate(aten._ctc_loss_backward.default, *args, alpha, 0, zero_infinity)
    torch.testing.assert_close(grad, want_grad)
