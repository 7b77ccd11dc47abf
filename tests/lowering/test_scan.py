"""Cumulative operators."""

import pytest
import torch

from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten
ALL = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
SHAPES = [(7,), (3, 6), (2, 4, 3), (), (0,), (2, 0)]
AWKWARD = torch.tensor([1.0, 2.0, 2.0, float("-inf"), float("inf"), 3.0, float("nan"), 5.0, float("nan")])


def make(*shape, dtype=torch.float32):
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    return torch.randint(0 if dtype == torch.uint8 else -3, 4, shape).to(dtype)


@pytest.mark.parametrize("dtype", [*ALL, torch.complex64])
def test_sums_and_products(dtype):
    for shape in SHAPES:
        x = make(*shape, dtype=dtype)
        for dim in (0, -1):
            compare(aten.cumsum.default, x, dim)
            compare(aten.cumprod.default, x, dim)
    x = make(3, 4, dtype=dtype)
    compare(aten.cumsum.default, x, 1, dtype=torch.complex64 if dtype.is_complex else torch.float64)
    compare(aten.cumprod.default, x, 0, dtype=torch.complex128 if dtype.is_complex else torch.float32)
    compare(aten.cumsum.out, x, 0, out=torch.empty(3, 4, dtype=dtype if dtype.is_complex else torch.float32))
    if not dtype == torch.bool:
        compare(aten.cumsum_.default, x, 0)


@pytest.mark.parametrize("dtype", ALL)
def test_extremes(dtype):
    for shape in SHAPES:
        x = make(*shape, dtype=dtype)
        for dim in (0, -1):
            compare(aten.cummax.default, x, dim)
            compare(aten.cummin.default, x, dim)
    x = make(3, 4, dtype=dtype)
    for op in (aten._cummax_helper.default, aten._cummin_helper.default):
        compare(op, x, torch.empty_like(x), torch.empty(3, 4, dtype=torch.int64), 1)
    if dtype.is_floating_point:
        compare(aten.cummax.default, AWKWARD.to(dtype), 0)
        compare(aten.cummin.default, AWKWARD.to(dtype), 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_logcumsumexp(dtype):
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype in (torch.float16, torch.bfloat16) else {}
    for shape in SHAPES:
        x = torch.randn(shape).to(dtype) * 3
        for dim in (0, -1):
            compare(aten.logcumsumexp.default, x, dim, **tolerance)
            compare(aten._logcumsumexp.default, x, dim, **tolerance)
    if dtype.is_floating_point:
        for x in (AWKWARD, AWKWARD.flip(0), torch.tensor([float("-inf")] * 3), torch.tensor([-1e4, 1e4, 0.0, 1e4])):
            compare(aten.logcumsumexp.default, x.to(dtype), 0, **tolerance)
