"""Tensors made from sizes and scalars, and triangles."""

import pytest
import torch

from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
HALVES = [torch.float16, torch.bfloat16]
REALS = [torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
ALL = [torch.bool, *INTS, *HALVES, *REALS, *COMPLEX]


@pytest.mark.parametrize("dtype", [*INTS, *HALVES, *REALS])
def test_arange(dtype):
    compare(aten.arange.default, 7, dtype=dtype)
    compare(aten.arange.start, 2, 9, dtype=dtype)
    compare(aten.arange.start_step, 1, 10, 3, dtype=dtype)
    compare(aten.arange.start_step, 5, 5, 1, dtype=dtype)
    compare(aten.arange.start_out, 1, 10, 4, out=torch.empty(3, dtype=dtype))
    if dtype not in (torch.uint8,):
        compare(aten.arange.start_step, 10, -1, -3, dtype=dtype)
    if dtype.is_floating_point:
        compare(aten.arange.start_step, -1.5, 2.25, 0.1, dtype=dtype)
        compare(aten.range.step, 0.5, 3.0, 0.25, dtype=dtype)


def test_arange_infers():
    for op, args in [
        (aten.arange.default, (2.5,)),
        (aten.arange.start_step, (0, 1.0, 0.25)),
        (aten.arange.start, (2**40, 2**40 + 5)),
    ]:
        compare(op, *args)


@pytest.mark.parametrize("dtype", [*INTS, *HALVES, *REALS, *COMPLEX])
@pytest.mark.parametrize("steps", [0, 1, 2, 5, 50])
def test_spaced(dtype, steps):
    compare(aten.linspace.default, 1, 10, steps, dtype=dtype)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype in HALVES else {}
    compare(aten.logspace.default, 0, 2, steps, dtype=dtype, **tolerance)
    compare(aten.logspace.default, 0, 3, steps, 2.0, dtype=dtype, **tolerance)
    if dtype not in INTS:
        compare(aten.linspace.default, -3.25, 7.5, steps, dtype=dtype, **tolerance)
    compare(aten.linspace.Tensor_Scalar, torch.tensor(2), 9, steps, dtype=dtype)
    compare(aten.linspace.Scalar_Tensor, 2, torch.tensor(9), steps, dtype=dtype)
    compare(aten.linspace.Tensor_Tensor, torch.tensor(2), torch.tensor(9), steps, dtype=dtype)


@pytest.mark.parametrize("dtype", ALL)
def test_constants(dtype):
    compare(aten.eye.default, 3, dtype=dtype)
    compare(aten.eye.m, 2, 4, dtype=dtype)
    compare(aten.eye.m, 0, 4, dtype=dtype)
    x = torch.empty(2, 0, 3, dtype=dtype)
    compare(aten.full.default, [2, 3], 1, dtype=dtype)
    compare(aten.full.default, [], True, dtype=dtype)
    compare(aten.full_like.default, torch.empty(2, 2, dtype=dtype), 3)
    compare(aten.new_full.default, x, [3], 2)
    compare(aten.zeros.default, [2, 3], dtype=dtype)
    compare(aten.ones.default, [2, 3], dtype=dtype)
    compare(aten.zeros_like.default, x)
    compare(aten.ones_like.default, torch.empty(3, dtype=dtype))
    compare(aten.new_zeros.default, x, [3])
    compare(aten.new_ones.default, x, [3])
    compare(aten.scalar_tensor.default, 2, dtype=dtype)
    compare(aten.scalar_tensor.default, 1.5)


@pytest.mark.parametrize("offset", [-7, -2, 0, 1, 9])
def test_triangle_indices(offset):
    for row, col in [(3, 5), (5, 3), (0, 2), (1, 1)]:
        compare(aten.tril_indices.default, row, col, offset)
        compare(aten.triu_indices.default, row, col, offset, dtype=torch.int32)


@pytest.mark.parametrize("dtype", ALL)
def test_triangles(dtype):
    for shape in [(3, 4), (2, 4, 3), (0, 3), (2, 0, 3), (1, 1)]:
        x = torch.ones(shape, dtype=dtype)
        for diagonal in (-5, -1, 0, 2):
            compare(aten.tril.default, x, diagonal)
            compare(aten.triu.default, x, diagonal)
    compare(aten.triu.default, torch.full((3, 3), float("nan")), 1)
    compare(aten.tril_.default, torch.ones(3, 3, dtype=dtype), 1)
