"""Convolutions against PyTorch's CPU."""

import pytest
import torch

from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten
HALF = [torch.bfloat16, torch.float16]


def check(x, w, b, stride, padding, dilation, transposed, output_padding, groups, mask=(True, True, True)):
    tol = {"rtol": 3e-2, "atol": 6e-2} if x.dtype in HALF else {"rtol": 1e-4, "atol": 1e-4}
    args = (stride, padding, dilation, transposed, output_padding, groups)
    compare(aten.convolution.default, x, w, b, *args, **tol)
    out = aten.convolution(x, w, b, *args)
    g = torch.randn_like(out) if out.is_floating_point() or out.is_complex() else torch.ones_like(out)
    sizes = [out.shape[1]]
    compare(aten.convolution_backward.default, g, x, w, sizes, *args, list(mask), **tol)


@pytest.mark.parametrize(
    "dtype,n",
    [(torch.float32, 1), (torch.float32, 2), (torch.float32, 3), (torch.float64, 2), (torch.bfloat16, 2), (torch.float16, 1)],
)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(dtype, n, transposed, groups):
    size, kernel = (7, 6, 5)[:n], (3, 2, 3)[:n]
    channels = (4, 6 // groups) if transposed else (6, 4 // groups)
    x = torch.randn(2, 4, *size, dtype=dtype)
    w = torch.randn(*channels, *kernel, dtype=dtype)
    b = torch.randn(6, dtype=dtype)
    for stride, padding, dilation, extra in (
        ([1] * n, [0] * n, [1] * n, [0] * n),
        ([2, 1, 2][:n], [1, 0, 1][:n], [1, 2, 1][:n], [1, 1, 1][:n]),
        ([2] * n, [2, 1, 0][:n], [1] * n, [0] * n),
    ):
        check(x, w, b, stride, padding, dilation, transposed, extra if transposed else [0] * n, groups)


def test_depthwise():
    check(torch.randn(2, 6, 8, 8), torch.randn(12, 1, 3, 3), None, [2, 2], [1, 1], [1, 1], False, [0, 0], 6,
          (True, True, False))


@pytest.mark.parametrize("mask", [(True, False, False), (False, True, False), (True, True, False)])
def test_output_mask(mask):
    check(torch.randn(2, 3, 5), torch.randn(4, 3, 3), torch.randn(4), [1], [1], [1], False, [0], 1, mask)


def test_empty_batch():
    args = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    compare(aten.convolution.default, torch.randn(0, 3, 5, 5), torch.randn(4, 3, 3, 3), torch.randn(4), *args)


def test_single_entries_stand_for_all_dimensions():
    args = ([2], [1], [1], False, [0], 1)
    compare(aten.convolution.default, torch.randn(1, 3, 5, 5), torch.randn(4, 3, 3, 3), None, *args, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_other_dtypes(dtype):
    x = torch.testing.make_tensor(1, 2, 5, 5, dtype=dtype, device="cpu", low=-3, high=4)
    w = torch.testing.make_tensor(3, 2, 3, 3, dtype=dtype, device="cpu", low=-3, high=4)
    compare(aten.convolution.default, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, rtol=1e-4, atol=1e-4)


def test_conv_tbc():
    x, w, b = torch.randn(6, 2, 3), torch.randn(3, 3, 4), torch.randn(4)
    compare(aten.conv_tbc.default, x, w, b, 1, rtol=1e-4, atol=1e-4)
    g = torch.randn(6, 2, 4)
    compare(aten.conv_tbc_backward.default, g, x, w, b, 1, rtol=1e-4, atol=1e-4)
