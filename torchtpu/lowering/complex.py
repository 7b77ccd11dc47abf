"""Complex numbers: parts, conjugates, polar form."""

from __future__ import annotations

import math

import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import context
from torchtpu.lowering.numeric import expand, is_complex, is_float, select, up
from torchtpu.lowering.registry import lower, pointwise


@lower("_conj", "_conj_physical", "conj_physical", "_conj_copy")
def conj(self):
    return lax.conj(self) if is_complex(self) else self


@lower("real")
def real(self):
    return lax.real(self) if is_complex(self) else self


@lower("imag")
def imag(self):
    return lax.imag(self)


@lower("angle")
def angle(self):
    if is_complex(self):
        return lax.atan2(lax.imag(self), lax.real(self))
    x = up(self) if is_float(self) else self.astype(dtypes.opmath(context().out_dtype))
    return select(x != x, x, select(x < 0, math.pi, expand(np.zeros((), x.dtype)[()], x.shape)))


@lower("complex")
def complex_(real, imag):
    shape = np.broadcast_shapes(real.shape, imag.shape)
    return lax.complex(expand(up(real), shape), expand(up(imag), shape))


@pointwise("polar")
def polar(abs, angle):
    shape = np.broadcast_shapes(abs.shape, angle.shape)
    abs, angle = expand(abs, shape), expand(angle, shape)
    return lax.complex(abs * lax.cos(angle), abs * lax.sin(angle))


@lower("view_as_real_copy", "view_as_real")
def view_as_real(self):
    last = (self.ndim,)
    return lax.concatenate([lax.expand_dims(lax.real(self), last), lax.expand_dims(lax.imag(self), last)], self.ndim)


@lower("view_as_complex_copy", "view_as_complex")
def view_as_complex(self):
    x = up(self)
    last = x.ndim - 1
    return lax.complex(lax.index_in_dim(x, 0, last, False), lax.index_in_dim(x, 1, last, False))
