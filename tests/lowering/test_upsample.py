"""Interpolation, grid sampling and sliding blocks against PyTorch's CPU."""

import pytest
import torch

from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten
SIZES = [((5, 4, 3), (8, 9, 7)), ((6, 7, 8), (3, 4, 2)), ((4, 4, 4), (8, 8, 8)), ((3, 4, 5), (1, 1, 1))]


def check(name, n, sizes, out, extra, tol=1e-4):
    for dtype in (torch.float32, torch.float64)[n - 1 :] or (torch.float32,):
        x = torch.randn(2, 3, *sizes[:n], dtype=dtype)
        compare(getattr(aten, name).default, x, out[:n], *extra, rtol=tol, atol=tol)
        g = torch.randn(2, 3, *out[:n], dtype=dtype)
        args = (g, out[:n], list(x.shape), *extra)
        compare(getattr(aten, name + "_backward").default, *args, rtol=tol, atol=tol)


@pytest.mark.parametrize("sizes,out", SIZES)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_nearest(sizes, out, n):
    for name in (f"upsample_nearest{n}d", f"_upsample_nearest_exact{n}d"):
        check(name, n, sizes, list(out), ())


@pytest.mark.parametrize("sizes,out", SIZES)
@pytest.mark.parametrize("align", [False, True])
def test_linear_and_cubic(sizes, out, align):
    for name, n in (("upsample_linear1d", 1), ("upsample_bilinear2d", 2), ("upsample_trilinear3d", 3),
                    ("upsample_bicubic2d", 2), ("_upsample_bilinear2d_aa", 2), ("_upsample_bicubic2d_aa", 2)):
        check(name, n, sizes, list(out), (align,))


def test_given_scales():
    check("upsample_nearest2d", 2, (5, 4), [12, 10], (2.5, 2.6))
    check("upsample_bilinear2d", 2, (5, 4), [12, 10], (False, 2.5, 2.6))


def test_bytes():
    x = torch.randint(0, 255, (1, 3, 4, 4), dtype=torch.uint8)
    compare(aten.upsample_nearest2d.default, x, [7, 9])
    compare(aten.upsample_bilinear2d.default, x, [7, 9], False, rtol=0, atol=1)


def test_a_nan_does_not_spread():
    x = torch.randn(1, 1, 4, 4)
    x[0, 0, 0, 0] = float("nan")
    compare(aten.upsample_bilinear2d.default, x, [8, 8], False)


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("align", [False, True])
def test_grid_sampler(mode, padding, align):
    x, grid = torch.randn(2, 3, 5, 4).double(), (torch.rand(2, 6, 7, 2).double() * 3 - 1.5)
    compare(aten.grid_sampler_2d.default, x, grid, mode, padding, align)
    g = torch.randn(2, 3, 6, 7).double()
    compare(aten.grid_sampler_2d_backward.default, g, x, grid, mode, padding, align, [True, True])
    if mode < 2:
        x, grid = torch.randn(2, 3, 5, 4, 3).double(), (torch.rand(2, 2, 3, 4, 3).double() * 3 - 1.5)
        compare(aten.grid_sampler_3d.default, x, grid, mode, padding, align)
        g = torch.randn(2, 3, 2, 3, 4).double()
        compare(aten.grid_sampler_3d_backward.default, g, x, grid, mode, padding, align, [True, True])


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [[2, 3, 4, 5], [2, 3, 4, 1, 6]])
def test_affine_grid(align, size):
    n = len(size) - 2
    compare(aten.affine_grid_generator.default, torch.randn(2, n, n + 1), size, align, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batched", [True, False])
def test_sliding_blocks(batched):
    for kernel, dilation, padding, stride in (([2, 3], [1, 1], [0, 0], [1, 1]), ([3, 2], [2, 1], [1, 2], [2, 1])):
        x = torch.randn(2, 3, 7, 6) if batched else torch.randn(3, 7, 6)
        compare(aten.im2col.default, x, kernel, dilation, padding, stride)
        columns = aten.im2col(x, kernel, dilation, padding, stride)
        compare(aten.col2im.default, columns, [7, 6], kernel, dilation, padding, stride)


def test_shuffles():
    x = torch.randn(2, 8, 4, 6)
    compare(aten.channel_shuffle.default, x, 4)
    compare(aten.pixel_shuffle.default, x, 2)
    compare(aten.pixel_unshuffle.default, x, 2)


@pytest.mark.parametrize("name", ["upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_images_of_bytes_to_the_bit(name, align_corners):
    """The CPU's fixed-point arithmetic, which rounds and saturates after each dimension."""
    op = getattr(aten, name).default
    for channels, size in ((3, (17, 63)), (7, (90, 20)), (1, (50, 40))):
        x = torch.randint(0, 256, (1, channels, 50, 40), dtype=torch.uint8)
        compare(op, x, size, align_corners, rtol=0, atol=0)
