"""Matrix products."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import context
from torchtpu.lowering.registry import lower

_PRECISION = {"highest": lax.Precision.HIGHEST, "high": lax.Precision.HIGH, "medium": lax.Precision.DEFAULT}


def precision() -> lax.Precision:
    """How exact a float32 product must be: PyTorch's own setting, exact unless the user relaxed it."""
    return _PRECISION[torch.get_float32_matmul_precision()]


def contract(a, b, contracting, batch=((), ())):
    """`lax.dot_general` in the type that PyTorch accumulates in: float32 for the half types."""
    return lax.dot_general(
        a, b, (contracting, batch), precision=precision(), preferred_element_type=dtypes.opmath(a.dtype)
    )


def _is_one(factor) -> bool:
    return isinstance(factor, int | float) and factor == 1


def _times(x, factor):
    return x if _is_one(factor) else x * jnp.asarray(factor).astype(x.dtype)


def _combine(self, product, beta, alpha):
    """beta * self + alpha * product, where a beta of zero ignores even a NaN in self."""
    product = _times(product, alpha)
    bias = self.astype(product.dtype)
    if not _is_one(beta):
        beta = jnp.asarray(beta).astype(product.dtype)
        bias = jnp.where(beta == 0, jnp.zeros((), product.dtype), beta * bias)
    return product + bias


def matmul2(a, b):
    """Product over the last dimension of a and the second to last of b, with equal leading dimensions."""
    n = a.ndim
    lead = tuple(range(n - 2))
    return contract(a, b, ((n - 1,), (n - 2,)), (lead, lead))


@lower("mm", "bmm", "_int_mm")
def mm(self, mat2):
    out = context().out_dtype
    if out == jnp.int32 and self.dtype == jnp.int8:
        return lax.dot_general(self, mat2, (((1,), (0,)), ((), ())), preferred_element_type=out)
    return matmul2(self, mat2)


@lower("mm.dtype", "bmm.dtype")
def mm_dtype(self, mat2, out_dtype):
    return matmul2(self, mat2)


@lower("addmm", "baddbmm")
def addmm(self, mat1, mat2, *, beta=1, alpha=1):
    return _combine(self, matmul2(mat1, mat2), beta, alpha)


@lower("addmm.dtype", "baddbmm.dtype")
def addmm_dtype(self, mat1, mat2, out_dtype, *, beta=1, alpha=1):
    return _combine(self, matmul2(mat1, mat2), beta, alpha)


@lower("addbmm")
def addbmm(self, batch1, batch2, *, beta=1, alpha=1):
    return _combine(self, contract(batch1, batch2, ((0, 2), (0, 1))), beta, alpha)


@lower("_addmm_activation")
def addmm_activation(self, mat1, mat2, *, beta=1, alpha=1, use_gelu=False):
    out = _combine(self, matmul2(mat1, mat2), beta, alpha)
    if use_gelu:
        return jax.nn.gelu(out, approximate=False)
    return lax.max(out, jnp.zeros((), out.dtype))


@lower("mv")
def mv(self, vec):
    return contract(self, vec, ((1,), (0,)))


@lower("addmv")
def addmv(self, mat, vec, *, beta=1, alpha=1):
    return _combine(self, contract(mat, vec, ((1,), (0,))), beta, alpha)


@lower("dot")
def dot(self, tensor):
    return contract(self, tensor, ((0,), (0,)))


@lower("vdot")
def vdot(self, other):
    return contract(lax.conj(self) if jnp.iscomplexobj(self) else self, other, ((0,), (0,)))


@lower("addr")
def addr(self, vec1, vec2, *, beta=1, alpha=1):
    out = context().out_dtype
    if out == jnp.bool_:
        beta, alpha = (jnp.asarray(factor).astype(jnp.bool_) for factor in (beta, alpha))
        return (beta & self) | (alpha & (vec1[:, None] & vec2[None, :]))
    compute = dtypes.opmath(out)
    # PyTorch scales the first vector before the product.
    left = _times(vec1.astype(compute), alpha)
    return _combine(self, left[:, None] * vec2.astype(compute)[None, :], beta, 1)


@lower("linear")
def linear(input, weight, bias=None):
    n = input.ndim - 1
    if weight.ndim == 1:
        out = contract(input, weight, ((n,), (0,)))
    else:
        out = contract(input, weight, ((n,), (1,)))
    return out if bias is None else out + bias.astype(out.dtype)


@lower("linear_backward")
def linear_backward(self, grad_output, weight, output_mask):
    rows = tuple(range(grad_output.ndim - 1))
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        grad_input = contract(grad_output, weight, ((len(rows),), (0,)))
    if output_mask[1]:
        grad_weight = contract(grad_output, self, (rows, rows))
    if output_mask[2]:
        grad_bias = lax.reduce_sum(grad_output.astype(dtypes.opmath(grad_output.dtype)), rows)
    return grad_input, grad_weight, grad_bias


@lower("_trilinear")
def trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim, unroll_dim=1):
    out = functools.reduce(
        lambda a, b: a * b,
        [
            jnp.expand_dims(x.astype(dtypes.opmath(x.dtype)), tuple(sorted(expand)))
            for x, expand in ((i1, expand1), (i2, expand2), (i3, expand3))
        ],
    )
    return jnp.sum(out, axis=tuple(sumdim)).astype(i1.dtype)


@lower("_compute_linear_combination")
def compute_linear_combination(input, coefficients):
    return jnp.tensordot(coefficients, input, 1, precision=precision())


@lower("_weight_int8pack_mm")
def weight_int8pack_mm(self, mat2, scales):
    """self (m, k) times the transpose of int8 rows mat2 (n, k), of which each has its scale."""
    compute = dtypes.opmath(self.dtype)
    return contract(self.astype(compute), mat2.astype(compute), ((1,), (1,))) * scales.astype(compute)


@lower("_scaled_mm")
def scaled_mm(self, mat2, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False):
    """A product of float8 matrices (m, k) and (k, n), with a scale for each as a whole or for its rows and columns."""
    product = contract(self.astype(jnp.float32), mat2.astype(jnp.float32), ((1,), (0,)))
    product = product * scale_a.astype(jnp.float32) * scale_b.astype(jnp.float32)
    if bias is not None:
        product = product + bias.astype(jnp.float32)
    return product if scale_result is None else product * scale_result.astype(jnp.float32)
