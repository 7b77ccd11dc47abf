"""Pooling against PyTorch's CPU."""

import pytest
import torch

from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten
HALF = [torch.bfloat16, torch.float16]


def tolerance(dtype):
    return {"rtol": 2e-2, "atol": 2e-2} if dtype in HALF else {"rtol": 1e-5, "atol": 1e-6}


MAX_CASES = [
    ([2, 2], [], [0], [1], False),
    ([3, 3], [2, 2], [1, 1], [1], False),
    ([3, 2], [2, 1], [1, 0], [2, 1], False),
    ([3], [2], [1], [1], True),
    ([9, 9], [1], [4], [1], False),
]


@pytest.mark.parametrize("case", MAX_CASES, ids=str)
@pytest.mark.parametrize("n", [2, 3])
def test_max_pool(case, n):
    kernel, stride, padding, dilation, ceil = case
    if n == 3:
        if kernel[0] == 9:
            pytest.skip("large")
        kernel, stride, padding, dilation = (v if len(v) < 2 else [*v, v[0]] for v in (kernel, stride, padding, dilation))
    forward = getattr(aten, f"max_pool{n}d_with_indices").default
    backward = getattr(aten, f"max_pool{n}d_with_indices_backward").default
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randint(-3, 3, (2, 3, 9, 8, 7)[: n + 2]).to(dtype)
        x[0, 0] = -float("inf")
        x[1, 0].view(-1)[::5] = float("nan")
        args = (kernel, stride, padding, dilation, ceil)
        compare(forward, x, *args)
        out, indices = forward(x, *args)
        compare(backward, torch.randn_like(out), x, *args, indices, **({"rtol": 0.1, "atol": 0.1} if dtype in HALF else {}))
    compare(forward, x[0], *args)


def test_max_pool_other_dtypes():
    for dtype in (torch.int64, torch.uint8, torch.float64):
        x = torch.randint(0, 5, (1, 2, 6, 6)).to(dtype)
        compare(aten.max_pool2d_with_indices.default, x, [3, 3], [2, 2], [1, 1])


@pytest.mark.parametrize("size,out", [((6, 8), (3, 4)), ((7, 5), (3, 4)), ((4, 5), (6, 1)), ((3, 3), (1, 1))])
def test_adaptive(size, out):
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(2, 3, *size, dtype=dtype)
        g = torch.randn(2, 3, *out, dtype=dtype)
        compare(aten._adaptive_avg_pool2d.default, x, out, **tolerance(dtype))
        compare(aten._adaptive_avg_pool2d_backward.default, g, x, **tolerance(dtype))
        compare(aten.adaptive_max_pool2d.default, x, out)
        _, indices = aten.adaptive_max_pool2d(x, out)
        compare(aten.adaptive_max_pool2d_backward.default, g, x, indices, **tolerance(dtype))
    x, g = torch.randn(2, 3, *size, 5), torch.randn(2, 3, *out, 2)
    x[0, 0, 0, 0] = float("nan")
    compare(aten._adaptive_avg_pool3d.default, x, (*out, 2))
    compare(aten._adaptive_avg_pool3d_backward.default, g, x)
    compare(aten.adaptive_max_pool3d.default, x, (*out, 2))
    _, indices = aten.adaptive_max_pool3d(x, (*out, 2))
    compare(aten.adaptive_max_pool3d_backward.default, g, x, indices)


AVG_CASES = [
    ([2], [], [0], False, True, None),
    ([3], [2], [1], False, True, None),
    ([3], [2], [1], False, False, None),
    ([3], [2], [1], True, True, None),
    ([3], [2], [1], True, False, None),
    ([3], [2], [1], True, True, 7),
    ([2], [3], [0], True, True, None),
]


@pytest.mark.parametrize("case", AVG_CASES, ids=str)
@pytest.mark.parametrize("n", [2, 3])
def test_avg_pool(case, n):
    for dtype in (torch.float32, torch.bfloat16) if n == 2 else (torch.float64,):
        x = torch.randn((2, 3, 7, 8, 6)[: n + 2], dtype=dtype)
        forward, backward = getattr(aten, f"avg_pool{n}d").default, getattr(aten, f"avg_pool{n}d_backward").default
        kernel, stride, *rest = case
        compare(forward, x, kernel, stride, *rest, **tolerance(dtype))
        g = torch.randn_like(forward(x, kernel, stride, *rest))
        compare(backward, g, x, kernel, stride, *rest, **tolerance(dtype))


def test_integer_average():
    compare(aten.avg_pool2d.default, torch.randint(-9, 9, (1, 2, 5, 5)), [2, 2])


def test_unpool():
    x = torch.randn(2, 3, 6, 4)
    out, indices = aten.max_pool2d_with_indices(x, [2, 2])
    compare(aten.max_unpool2d.default, out, indices, [6, 4])
    x = torch.randn(2, 3, 4, 6, 4)
    out, indices = aten.max_pool3d_with_indices(x, [2, 2, 2])
    compare(aten.max_unpool3d.default, out, indices, [4, 6, 4], [2, 2, 2], [0, 0, 0])


def test_fractional():
    x, samples = torch.randn(2, 3, 9, 7), torch.rand(2, 3, 2)
    compare(aten.fractional_max_pool2d.default, x, [2, 3], [4, 3], samples)
    out, indices = aten.fractional_max_pool2d(x, [2, 3], [4, 3], samples)
    compare(aten.fractional_max_pool2d_backward.default, torch.randn_like(out), x, [2, 3], [4, 3], indices)
    x, samples = torch.randn(2, 3, 9, 7, 8), torch.rand(2, 3, 3)
    compare(aten.fractional_max_pool3d.default, x, [2, 3, 2], [4, 3, 5], samples)
    out, indices = aten.fractional_max_pool3d(x, [2, 3, 2], [4, 3, 5], samples)
    compare(aten.fractional_max_pool3d_backward.default, torch.randn_like(out), x, [2, 3, 2], [4, 3, 5], indices)


def test_empty_batch():
    compare(aten.max_pool2d_with_indices.default, torch.randn(0, 2, 4, 4), [2, 2])
    compare(aten.avg_pool2d.default, torch.randn(0, 2, 4, 4), [2, 2])


@pytest.mark.parametrize("n", [2, 3])
def test_fractional_max_pool_without_a_batch(n):
    """The first samples count, however many there are."""
    op = (aten.fractional_max_pool2d if n == 2 else aten.fractional_max_pool3d).default
    for count in (1, 3):
        compare(op, torch.randn(4, *[7] * n), [2] * n, [3] * n, torch.rand(count, 4, n))
