"""Discrete Fourier transforms."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax

from torchtpu.lowering.call import context
from torchtpu.lowering.registry import lower

_COMPLEX = {"float32": jnp.complex64, "float64": jnp.complex128}


def _factor(x, count, normalization, inverse):
    """Applies PyTorch's normalization (0 none, 1 by the root, 2 by the size); XLA's inverse already divides."""
    have = 1 / count if inverse else 1.0
    want = {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[normalization]
    return x if have == want else x * jnp.asarray(want / have, x.real.dtype)


def _transform(x, dims, kind, lengths=None):
    """An FFT over `dims` in their order; the last of them is the real one for RFFT and IRFFT."""
    others = [i for i in range(x.ndim) if i not in dims]
    order = others + list(dims)
    moved = lax.transpose(x, order)
    lengths = lengths or [x.shape[d] for d in dims]
    out = lax.fft(moved, kind, tuple(lengths))
    back = [0] * x.ndim
    for place, dim in enumerate(order):
        back[dim] = place
    return lax.transpose(out, back)


def _complex_transform(x, dims, forward):
    kind = lax.FftType.FFT if forward else lax.FftType.IFFT
    for start in range(0, len(dims), 3):  # XLA transforms three dimensions at most
        x = _transform(x, dims[start : start + 3], kind)
    return x


def _dims(x, dim):
    return [d % x.ndim for d in dim]


@lower("_fft_c2c")
def fft_c2c(self, dim, normalization, forward):
    dims = _dims(self, dim)
    if self.size == 0 or not dims:
        return self
    count = math.prod(self.shape[d] for d in dims)
    return _factor(_complex_transform(self, dims, forward), count, normalization, not forward)


@lower("_fft_r2c")
def fft_r2c(self, dim, normalization, onesided):
    dims = _dims(self, dim)
    if self.size == 0:
        return jnp.zeros(context().out_shape, _COMPLEX[str(self.dtype)])
    count = math.prod(self.shape[d] for d in dims)
    if onesided:
        out = _transform(self, dims[-1:], lax.FftType.RFFT)
        out = _complex_transform(out, dims[:-1], True)
    else:
        out = _complex_transform(self.astype(_COMPLEX[str(self.dtype)]), dims, True)
    return _factor(out, count, normalization, False)


@lower("_fft_c2r")
def fft_c2r(self, dim, normalization, last_dim_size):
    dims = _dims(self, dim)
    if 0 in context().out_shape:
        return jnp.zeros(context().out_shape, self.real.dtype)
    count = math.prod(self.shape[d] for d in dims[:-1]) * last_dim_size
    out = _complex_transform(self, dims[:-1], False)
    out = _transform(out, dims[-1:], lax.FftType.IRFFT, [last_dim_size])
    return _factor(out, count, normalization, True)
