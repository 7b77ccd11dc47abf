"""Reductions against the CPU's."""

import math

import pytest
import torch

from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool]
FLOATS = DTYPES[:4]
SHAPES = [(), (1,), (3, 4), (2, 1, 5)]


def make(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 9, shape, generator=generator).to(dtype)


def loose(dtype):
    return {"rtol": 2e-2, "atol": 1e-2} if dtype in (torch.bfloat16, torch.float16) else {}


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
@pytest.mark.parametrize("shape", [*SHAPES, (0,), (0, 3), (3, 0)])
def test_sum(shape, dtype):
    x = make(shape, dtype)
    compare(aten.sum.default, x, **loose(dtype))
    compare(aten.sum.dim_IntList, x, [-1], True, **loose(dtype))
    compare(aten.sum.dim_IntList, x, [], **loose(dtype))
    compare(aten.sum.dim_IntList, x, None, dtype=torch.float64 if not dtype.is_complex else None, **loose(dtype))
    compare(aten.prod.default, x, **loose(dtype))
    compare(aten.prod.dim_int, x, -1, True, **loose(dtype))
    if dtype.is_floating_point or dtype.is_complex:
        compare(aten.mean.default, x, **loose(dtype))
        compare(aten.mean.dim, x, [0], **loose(dtype))
    if not dtype.is_complex:
        compare(aten.nansum.default, x, [0], **loose(dtype))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
@pytest.mark.parametrize("shape", [*SHAPES, (0, 3)])
def test_any_all_count(shape, dtype):
    x = make(shape, dtype)
    for op in (aten.any, aten.all):
        compare(op.default, x)
        compare(op.dim, x, 0, True)
        compare(op.dims, x, [0])
        compare(op.dims, x, None)
        compare(op.dims, x, [])
    compare(aten.count_nonzero.default, x)
    compare(aten.count_nonzero.dim_IntList, x, [0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_extrema(shape, dtype):
    x = make(shape, dtype)
    compare(aten.amax.default, x, [-1], True)
    compare(aten.amin.default, x)
    compare(aten.max.default, x)
    compare(aten.min.default, x)
    compare(aten.max.dim, x, -1)
    compare(aten.min.dim, x, 0, True)
    compare(aten.aminmax.default, x, dim=0)
    compare(aten.aminmax.default, x)
    if dtype != torch.bool:
        compare(aten.argmax.default, x, -1)
        compare(aten.argmin.default, x, None, True)
        compare(aten.argmax.default, x)


def test_ties_and_nan_take_the_first_index():
    x = torch.tensor([[1.0, 3.0, 3.0], [math.nan, 2.0, math.nan], [-math.inf, -math.inf, -math.inf]])
    for op in (aten.max.dim, aten.min.dim):
        compare(op, x, 1)
    compare(aten.argmax.default, x, 1)
    compare(aten.amax.default, x, [1])
    compare(aten.median.dim, x[:2], 1)
    compare(aten.nanmedian.dim, x[:2], 1)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64])
@pytest.mark.parametrize("correction", [None, 0, 1, 2, 0.5, 7])
@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (0, 2)])
def test_moments(shape, correction, dtype):
    x = make(shape, dtype)
    for op in (aten.var, aten.std, aten.var_mean, aten.std_mean):
        if op in (aten.var_mean, aten.std_mean) and dtype.is_complex:
            continue
        compare(op.correction, x, correction=correction, **loose(dtype))
        compare(op.correction, x, [-1], correction=correction, keepdim=True, **loose(dtype))


def test_variance_does_not_cancel():
    x = torch.randn(1000) + 1e4
    compare(aten.var.correction, x, rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64])
@pytest.mark.parametrize("p", [0, 1, 2, 3, 0.5, math.inf, -math.inf])
def test_norms(p, dtype):
    x = make((3, 4), dtype)
    compare(aten.linalg_vector_norm.default, x, p, **loose(dtype))
    compare(aten.linalg_vector_norm.default, x, p, [0], True, **loose(dtype))
    compare(aten.norm.ScalarOpt_dim, x, p, [1], **loose(dtype))
    compare(aten.linalg_vector_norm.default, make((), dtype), p, **loose(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_logsumexp(dtype):
    x = make((3, 4), dtype)
    x[0] = -math.inf
    x[1, 0] = math.inf
    compare(aten.logsumexp.default, x, [1], **loose(dtype))
    compare(aten.logsumexp.default, x, [0, 1], True, **loose(dtype))
    compare(aten.logsumexp.default, make((2, 0), dtype), [1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_order_statistics(dtype):
    x = torch.randperm(12).reshape(3, 4).to(dtype)
    compare(aten.median.default, x)
    compare(aten.median.dim, x, 1)
    compare(aten.median.dim, x, 0, True)
    compare(aten.nanmedian.default, x)
    compare(aten.mode.default, torch.tensor([[1, 2, 2, 3], [4, 4, 1, 1], [0, 1, 2, 3]]).to(dtype))
    compare(aten.mode.default, x, 0, True)
    compare(aten.median.default, torch.tensor(3).to(dtype))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int8])
def test_hash_tensor(dtype):
    x = torch.tensor([[-1.0, 2.5, 0.0], [math.nan if dtype.is_floating_point else 3, -0.0, 7.0]]).to(dtype)
    compare(aten.hash_tensor.default, x)
    for dim in ([0], [-1], [0, 1]):
        compare(aten.hash_tensor.default, x, dim, keepdim=True)
    compare(aten.hash_tensor.default, x[:, :0], [0])


def test_hash_tensor_errors():
    for x, options in [(torch.ones(2), {"mode": 1}), (torch.empty(0), {}), (torch.ones(2) * 1j, {}), (torch.empty(0, 3), {"dim": 0})]:
        with pytest.raises(Exception) as want:
            torch.hash_tensor(x, **options)
        with pytest.raises(type(want.value)) as got:
            torch.hash_tensor(x.to("tpu"), **options)
        assert str(got.value).split("\n")[0] == str(want.value).split("\n")[0]
