"""Sampling on a grid, and the affine grid."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.matmul import precision
from torchtpu.lowering.registry import lower

BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


def _to_pixels(x, size, align_corners):
    return (x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2


def _clip(x, size):
    """Clamped into the image; the gradient is zero from the border on, as PyTorch has it."""
    low, high = jnp.zeros((), x.dtype), jnp.asarray(size - 1, x.dtype)
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x))


def _reflect(x, low2, high2):
    if low2 == high2:
        return jnp.zeros_like(x)
    low, span = low2 / 2, (high2 - low2) / 2
    x = jnp.where(x - low < 0, low - x, x - low)
    flips = lax.stop_gradient(jnp.floor(x / span))
    extra = x - flips * span
    return jnp.where(flips % 2 == 0, extra + low, span - extra + low)


def _padded(x, size, padding, align_corners):
    if padding == BORDER:
        return _clip(x, size)
    if padding == REFLECTION:
        x = _reflect(x, 0, 2 * (size - 1)) if align_corners else _reflect(x, -1, 2 * size - 1)
        return _clip(x, size)
    return x


def _read(flat, places, sizes, inside_always):
    """flat[n, c, place] for integer coordinates (N, P) of each dimension; zero outside."""
    index = jnp.zeros((), jnp.int32)
    inside = None
    for place, size in zip(places, sizes, strict=True):
        ok = (place >= 0) & (place < size)
        inside = ok if inside is None else inside & ok
        index = index * size + jnp.clip(place, 0, size - 1)
    n, c, _ = flat.shape
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(1,), collapsed_slice_dims=(2,), start_index_map=(2,),
        operand_batching_dims=(0,), start_indices_batching_dims=(0,),
    )
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    values = lax.gather(flat, index[..., None], numbers, (1, c, 1), mode=mode)
    return values if inside_always else jnp.where(inside[:, None], values, jnp.zeros((), flat.dtype))


def _cubic(t):
    a = -0.75

    def near(x):
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x):
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return far(t + 1), near(t), near(1 - t), far(2 - t)


def _int(x):
    """Coordinates as integers; NaN and what no image can hold go outside of every image."""
    limit = jnp.asarray(2**30, x.dtype)
    return jnp.where((x > -limit) & (x < limit), x, jnp.asarray(-100, x.dtype)).astype(jnp.int32)


def _sample(x, grid, mode, padding, align_corners):
    """x (N, C, *sizes) at grid (N, *outs, dims), whose last dimension counts from the last spatial one."""
    sizes = x.shape[2:]
    outs = grid.shape[1:-1]
    n, c = x.shape[:2]
    flat = x.reshape(n, c, -1)
    points = grid.reshape(n, -1, len(sizes))
    raw = [_to_pixels(points[..., len(sizes) - 1 - i], s, align_corners) for i, s in enumerate(sizes)]
    if mode == BICUBIC:
        lows = [lax.stop_gradient(jnp.floor(p)) for p in raw]
        weights = [_cubic(p - low) for p, low in zip(raw, lows, strict=True)]
        total = jnp.zeros((), x.dtype)
        for taps in itertools.product(range(4), repeat=len(sizes)):
            places, factor = [], None
            for i, tap in enumerate(taps):
                places.append(_int(lax.stop_gradient(_padded(lows[i] + (tap - 1), sizes[i], padding, align_corners))))
                factor = weights[i][tap] if factor is None else factor * weights[i][tap]
            total = total + _read(flat, places, sizes, padding != ZEROS) * factor[:, None]
        return total.reshape(n, c, *outs)
    where = [_padded(p, s, padding, align_corners) for p, s in zip(raw, sizes, strict=True)]
    if mode == NEAREST:
        return _read(flat, [_int(lax.round(p, lax.RoundingMethod.TO_NEAREST_EVEN)) for p in where], sizes, False).reshape(n, c, *outs)
    lows = [lax.stop_gradient(jnp.floor(p)) for p in where]
    total = jnp.zeros((), x.dtype)
    for corner in itertools.product((0, 1), repeat=len(sizes)):
        factor = None
        for i, up in enumerate(corner):
            part = where[i] - lows[i] if up else lows[i] + 1 - where[i]
            factor = part if factor is None else factor * part
        places = [_int(low) + up for low, up in zip(lows, corner, strict=True)]
        total = total + _read(flat, places, sizes, False) * factor[:, None]
    return total.reshape(n, c, *outs)


def _wide(x):
    return x.astype(dtypes.opmath(x.dtype))


def _grid_sample(input, grid, mode, padding, align_corners):
    shape = (*input.shape[:2], *grid.shape[1:-1])
    if 0 in shape or input.size == 0:
        return jnp.zeros(shape, input.dtype)
    return _sample(_wide(input), _wide(grid).astype(_wide(input).dtype), mode, padding, align_corners)


def _grid_sample_backward(grad, input, grid, mode, padding, align_corners, mask):
    x, g = _wide(input), _wide(grid)
    if grad.size == 0 or input.size == 0:
        return jnp.zeros_like(x) if mask[0] else None, jnp.zeros_like(g)
    _, pull = jax.vjp(lambda a, b: _sample(a, b, mode, padding, align_corners), x, g)
    grad_x, grad_grid = pull(_wide(grad))
    return grad_x if mask[0] else None, grad_grid


@lower("grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback")
def grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners):
    return _grid_sample(input, grid, interpolation_mode, padding_mode, align_corners)


@lower("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask):
    return _grid_sample_backward(grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask)


def _base(sizes, align_corners, dtype):
    """Homogeneous coordinates of each pixel: (*sizes, dims + 1), the last spatial dimension first."""
    lines = []
    for size in sizes:
        line = jnp.linspace(-1, 1, size, dtype=dtype) if size > 1 else jnp.zeros(1, dtype)
        lines.append(line if align_corners or size <= 1 else line * ((size - 1) / size))
    grids = jnp.meshgrid(*lines, indexing="ij")
    return jnp.stack([*reversed(grids), jnp.ones(sizes, dtype)], axis=-1)


@lower("affine_grid_generator")
def affine_grid_generator(theta, size, align_corners):
    sizes = tuple(size[2:])
    wide = _wide(theta)
    base = _base(sizes, align_corners, wide.dtype).reshape(-1, len(sizes) + 1)
    out = jnp.einsum("pk,nik->npi", base, wide, precision=precision())
    return out.reshape(theta.shape[0], *sizes, len(sizes))


@lower("affine_grid_generator_backward")
def affine_grid_generator_backward(grad, size, align_corners):
    sizes = tuple(size[2:])
    wide = _wide(grad)
    base = _base(sizes, align_corners, wide.dtype).reshape(-1, len(sizes) + 1)
    flat = wide.reshape(wide.shape[0], -1, len(sizes))
    return jnp.einsum("npi,pk->nik", flat, base, precision=precision())
