"""Views, their copies, scatters and backwards, and operators that join or rearrange."""

import pytest
import torch

from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten
ALL = [
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]


def make(*shape, dtype=torch.float32):
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(0, 50, shape, dtype=dtype)


@pytest.mark.parametrize("dtype", ALL)
def test_views(dtype):
    x = make(2, 3, 4, dtype=dtype)
    for op, args in [
        (aten.view.default, ([6, -1],)),
        (aten._unsafe_view.default, ([24],)),
        (aten.view_copy.default, ([4, 6],)),
        (aten.expand.default, ([5, 2, -1, 4],)),
        (aten.expand_copy.default, ([5, 2, 3, 4],)),
        (aten.permute.default, ([2, -3, 1],)),
        (aten.permute_copy.default, ([2, 0, 1],)),
        (aten.transpose.int, (0, -1)),
        (aten.transpose_copy.int, (0, 1)),
        (aten.unsqueeze.default, (-1,)),
        (aten.unsqueeze_copy.default, (0,)),
        (aten.select.int, (1, -1)),
        (aten.select_copy.int, (-1, 2)),
        (aten.slice.Tensor, (1, -2, 100)),
        (aten.slice.Tensor, (2, 0, 4, 3)),
        (aten.slice.Tensor, (0, 1, 0)),
        (aten.slice_copy.Tensor, (1, 1, None)),
        (aten.narrow_copy.default, (2, 1, 2)),
        (aten.split.Tensor, (2, 1)),
        (aten.split_with_sizes.default, ([1, 0, 3], 2)),
        (aten.split_copy.Tensor, (2, 1)),
        (aten.split_with_sizes_copy.default, ([1, 3], 2)),
        (aten.unsafe_split.Tensor, (2, 1)),
        (aten.unbind.int, (1,)),
        (aten.unbind_copy.int, (-1,)),
        (aten.diagonal.default, ()),
        (aten.diagonal.default, (1, 0, 2)),
        (aten.diagonal.default, (-1, -1, 0)),
        (aten.diagonal.default, (9, 0, 1)),
        (aten.diagonal_copy.default, (0, 2, 1)),
        (aten.unfold.default, (2, 2, 1)),
        (aten.unfold.default, (1, 3, 2)),
        (aten.unfold_copy.default, (0, 1, 1)),
        (aten.alias.default, ()),
        (aten.detach.default, ()),
        (aten.clone.default, ()),
        (aten.as_strided.default, ([3, 2], [4, 1], 1)),
        (aten.as_strided_copy.default, ([2, 2, 3], [1, 1, 2], 3)),
        (aten.as_strided.default, ([4, 3, 2], [1, 4, 12])),
        (aten.as_strided.default, ([3, 0], [4, 1])),
        (aten.as_strided.default, ([5, 3], [0, 1], 2)),
    ]:
        compare(op, x, *args)
    compare(aten.squeeze.default, make(1, 3, 1, dtype=dtype))
    compare(aten.squeeze.dim, make(1, 3, 1, dtype=dtype), -1)
    compare(aten.squeeze.dims, make(1, 3, 1, dtype=dtype), [0, 1])
    compare(aten.squeeze_copy.dims, make(1, 3, 1, dtype=dtype), [0, 2])
    compare(aten.t.default, make(2, 3, dtype=dtype))
    compare(aten.t_copy.default, make(3, dtype=dtype))
    compare(aten.expand.default, make(dtype=dtype), [2, 2])
    compare(aten.expand.default, make(1, 0, dtype=dtype), [3, 0])
    compare(aten.unfold.default, make(dtype=dtype), 0, 1, 1)


@pytest.mark.parametrize("size,step", [(12, 12), (12, 5), (40, 1), (3, 7), (0, 2)])
def test_unfold(size, step):
    x = make(2, 50, 3)
    compare(aten.unfold.default, x, 1, size, step)
    windows = x.unfold(1, size, step).contiguous()
    compare(aten.unfold_backward.default, windows, [2, 50, 3], 1, size, step)


def test_view_dtype():
    for source in (torch.float32, torch.int32, torch.uint8, torch.float64, torch.bfloat16, torch.complex64):
        x = make(2, 8, dtype=source)
        for target in (torch.float32, torch.int64, torch.int8, torch.float16, torch.complex64):
            compare(aten.view.dtype, x, target)
    compare(aten.view.dtype, make(3, dtype=torch.bool), torch.uint8)


@pytest.mark.parametrize("dtype", ALL)
def test_scatters(dtype):
    x = make(4, 5, dtype=dtype)
    compare(aten.slice_scatter.default, x, make(2, 5, dtype=dtype), 0, 1, 3)
    compare(aten.slice_scatter.default, x, make(4, 2, dtype=dtype), 1, -4, 100, 2)
    compare(aten.slice_scatter.default, x, make(0, 5, dtype=dtype), 0, 3, 1)
    compare(aten.select_scatter.default, x, make(5, dtype=dtype), 0, -1)
    compare(aten.diagonal_scatter.default, x, make(4, dtype=dtype), 1)
    compare(aten.diagonal_scatter.default, x, make(2, dtype=dtype), -2, 0, 1)
    compare(aten.as_strided_scatter.default, x, make(2, 3, dtype=dtype), [2, 3], [7, 2], 1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_backwards(dtype):
    compare(aten.slice_backward.default, make(2, 2, dtype=dtype), [2, 5], 1, -4, 2**62, 2)
    compare(aten.slice_backward.default, make(2, 0, dtype=dtype), [2, 5], 1, 3, 3, 1)
    compare(aten.select_backward.default, make(3, dtype=dtype), [3, 4], -1, -2)
    compare(aten.diagonal_backward.default, make(4, 2, dtype=dtype), [3, 4, 3], 1, 0, 2)
    compare(aten.diagonal_backward.default, make(4, 0, dtype=dtype), [3, 4, 3], 5, 0, 2)
    compare(aten.unfold_backward.default, make(2, 2, 4, dtype=dtype), [2, 7], 1, 4, 3)
    compare(aten.diag_embed.default, make(2, 3, dtype=dtype), 1, 0, -1)


@pytest.mark.parametrize("dtype", ALL)
def test_joining(dtype):
    x, y = make(2, 3, dtype=dtype), make(2, 1, dtype=dtype)
    compare(aten.cat.default, [x, y], -1)
    compare(aten.cat.default, [x, torch.empty(0), x.to(torch.float32) if not dtype.is_complex else x], 0)
    compare(aten.cat.default, [make(0, 3, dtype=dtype), x], 0)
    compare(aten.cat.default, [torch.empty(0, dtype=dtype)] * 2)
    compare(aten.cat.out, [x, y], 1, out=torch.empty(0, dtype=torch.complex128 if dtype.is_complex else torch.float64))
    compare(aten.stack.default, [x, x], -1)
    compare(aten.stack.default, [make(dtype=dtype)] * 3)
    compare(aten.block_diag.default, [x, make(dtype=dtype), make(3, dtype=dtype), make(0, 2, dtype=dtype)])
    compare(aten._chunk_cat.default, [make(5, 3, dtype=dtype), make(2, 2, 2, dtype=dtype)], 0, 2)


@pytest.mark.parametrize("dtype", ALL)
def test_rearranging(dtype):
    x = make(2, 3, 4, dtype=dtype)
    for op, args in [
        (aten.flip.default, ([0, -1],)),
        (aten.flip.default, ([],)),
        (aten.roll.default, ([2, -1], [1, 0])),
        (aten.roll.default, ([5],)),
        (aten.roll.default, ([-7], [2])),
        (aten.repeat.default, ([2, 1, 3, 2],)),
        (aten.repeat.default, ([0, 1, 1],)),
        *((aten.rot90.default, (k, [0, -1])) for k in (-1, 0, 1, 2, 3)),
    ]:
        compare(op, x, *args)
    compare(aten.roll.default, make(0, 3, dtype=dtype), [1], [0])
    compare(aten.flip.default, make(dtype=dtype), [0])


def test_repeat_interleave():
    for repeats in ([1, 0, 3, 2], [0, 0], [4], [0, 5, 0], []):
        for dtype in (torch.int64, torch.int32):
            compare(aten.repeat_interleave.Tensor, torch.tensor(repeats, dtype=dtype))
