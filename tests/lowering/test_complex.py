"""Complex numbers against the CPU's."""

import math

import pytest
import torch

from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_parts(dtype):
    x = torch.randn(3, 4, dtype=dtype)
    compare(aten.angle.default, x)
    compare(aten._conj_physical.default, x)
    compare(aten.view_as_real_copy.default, x)
    compare(aten.view_as_complex_copy.default, torch.view_as_real(x).contiguous())
    compare(aten.abs.default, x)
    compare(aten.isinf.default, x)
    compare(aten.sgn.default, x)
    compare(aten._to_copy.default, x, dtype=torch.float32)


def test_angle_of_reals():
    compare(aten.angle.default, torch.tensor([1.0, -1.0, 0.0, math.nan, -math.inf]))
    compare(aten.angle.default, torch.tensor([1, -1, 0]))


def test_building():
    a, b = torch.randn(3, 1), torch.randn(4)
    compare(aten.complex.default, a, b)
    compare(aten.polar.default, a, b)
    compare(aten.complex.default, a.double(), b.double())
