"""Fourier transforms against PyTorch's CPU."""

import pytest
import torch

from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten


@pytest.mark.parametrize("normalization", [0, 1, 2])
@pytest.mark.parametrize("dims", [[0], [1, 2], [0, 1, 2, 3], [3, 0]], ids=str)
def test_transforms(normalization, dims):
    for real, dtype, tol in ((torch.float64, torch.complex128, 1e-9), (torch.float32, torch.complex64, 1e-4)):
        x = torch.randn(4, 3, 5, 6, dtype=dtype)
        for forward in (True, False):
            compare(aten._fft_c2c.default, x, dims, normalization, forward, rtol=tol, atol=tol)
        for onesided in (True, False):
            compare(aten._fft_r2c.default, torch.randn(4, 3, 5, 6, dtype=real), dims, normalization, onesided, rtol=tol, atol=tol)
        half = aten._fft_r2c(torch.randn(4, 3, 5, 6, dtype=real), dims, 0, True)
        compare(aten._fft_c2r.default, half, dims, normalization, [4, 3, 5, 6][dims[-1]], rtol=tol, atol=tol)


def test_other_lengths():
    x = torch.randn(3, 5, dtype=torch.complex128)
    x[:, 0] = x[:, 0].real
    for n in (8, 9):
        compare(aten._fft_c2r.default, x, [1], 2, n)
