"""Normalization against PyTorch's CPU."""

import pytest
import torch

from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten
HALF = [torch.bfloat16, torch.float16]
FLOATS = [torch.float32, torch.float64, *HALF]


def tolerance(dtype):
    return {"rtol": 3e-2, "atol": 3e-2} if dtype in HALF else {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape,n", [((2, 3, 4), 1), ((5, 2, 3), 2), ((4,), 1), ((0, 3), 1)])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(dtype, shape, n, affine):
    x, g = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    normal = list(shape[len(shape) - n :])
    w, b = (torch.randn(normal, dtype=dtype), torch.randn(normal, dtype=dtype)) if affine else (None, None)
    compare(aten.native_layer_norm.default, x, normal, w, b, 1e-5, **tolerance(dtype))
    _, mean, rstd = aten.native_layer_norm(x, normal, w, b, 1e-5)
    for mask in ([True, affine, affine], [False, affine, affine], [True, False, False]):
        compare(aten.native_layer_norm_backward.default, g, x, normal, mean, rstd, w, b, mask, **tolerance(dtype))


def test_layer_norm_mixed():
    x = torch.randn(3, 8).bfloat16()
    compare(aten.native_layer_norm.default, x, [8], torch.randn(8), torch.randn(8), 1e-5, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm(dtype, affine):
    x, g = torch.randn(2, 6, 5, dtype=dtype), torch.randn(2, 6, 5, dtype=dtype)
    w, b = (torch.randn(6, dtype=dtype), torch.randn(6, dtype=dtype)) if affine else (None, None)
    compare(aten.native_group_norm.default, x, w, b, 2, 6, 5, 3, 1e-5, **tolerance(dtype))
    _, mean, rstd = aten.native_group_norm(x, w, b, 2, 6, 5, 3, 1e-5)
    mask = [True, affine, affine]
    args = (g, x, mean, rstd, w, 2, 6, 5, 3, mask)
    compare(aten.native_group_norm_backward.default, *args, **tolerance(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4, 5), (1, 3, 7)])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm(dtype, shape, training, affine):
    x, g = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    w, b = (torch.randn(3, dtype=dtype), torch.randn(3, dtype=dtype)) if affine else (None, None)
    mean, var = torch.randn(3, dtype=dtype), torch.rand(3, dtype=dtype) + 0.5
    tol = tolerance(dtype)
    compare(aten.native_batch_norm.default, x, w, b, mean, var, training, 0.1, 1e-5, **tol)
    compare(aten._native_batch_norm_legit.default, x, w, b, mean, var, training, 0.1, 1e-5, **tol)
    compare(aten._native_batch_norm_legit_functional.default, x, w, b, mean, var, training, 0.1, 1e-5, **tol)
    compare(aten._native_batch_norm_legit_no_training.default, x, w, b, mean, var, 0.1, 1e-5, **tol)
    compare(aten._batch_norm_no_update.default, x, w, b, mean, var, 0.1, 1e-5, **tol)
    _, save, invstd = aten.native_batch_norm(x, w, b, mean.clone(), var.clone(), training, 0.1, 1e-5)
    mask = [True, affine, affine]
    args = (g, x, w, mean, var, save, invstd, training, 1e-5, mask)
    compare(aten.native_batch_norm_backward.default, *args, **tol)
    if affine:
        reserve = torch.empty(0, dtype=torch.uint8)
        args = (g, x, w, mean, var, save, invstd, training, 1e-5, mask, reserve)
        compare(aten.batch_norm_backward.default, *args, **tol)
    if training:
        compare(aten.native_batch_norm.default, x, w, b, None, None, True, 0.1, 1e-5, **tol)
        compare(aten._native_batch_norm_legit.no_stats, x, w, b, True, 0.1, 1e-5, **tol)
        compare(aten._batch_norm_with_update.default, x, w, b, mean, var, 0.1, 1e-5, **tol)
        compare(aten._batch_norm_with_update_functional.default, x, w, b, mean, var, 0.1, 1e-5, **tol)
        compare(aten.batch_norm_update_stats.default, x, mean, var, 0.1, **tol)


@pytest.mark.parametrize("p", [1, 2, 3.0, 0.5, float("inf")])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_renorm(p, dim):
    compare(aten.renorm.default, torch.randn(3, 4, 2), p, dim, 1.5, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim):
    v, shape = torch.randn(3, 4, 5), [1, 1, 1]
    shape[dim] = v.shape[dim]
    g = torch.randn(shape)
    compare(aten._weight_norm_interface.default, v, g, dim)
    _, norms = aten._weight_norm_interface(v, g, dim)
    args = (torch.randn(3, 4, 5), v, g, norms, dim)
    compare(aten._weight_norm_interface_backward.default, *args, rtol=1e-4, atol=1e-5)


def test_rms_norm_with_its_gradient():
    x, w = torch.randn(3, 8, dtype=torch.float64, requires_grad=True), torch.randn(8, dtype=torch.float64)
    compare(aten._fused_rms_norm.default, x.detach(), [8], w, 1e-6)
    compare(aten._fused_rms_norm.default, x.detach(), [8], None, None)
