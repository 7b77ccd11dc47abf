"""Linear algebra: factorizations, solvers, determinants."""

from __future__ import annotations

import jax.numpy as jnp
import torch
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import context
from torchtpu.lowering.matmul import precision
from torchtpu.lowering.registry import lower

LinAlgError = torch.linalg.LinAlgError


def _mT(x):
    return jnp.swapaxes(x, -1, -2)


def mH(x):
    """The adjoint of a batch of matrices."""
    return jnp.conj(_mT(x)) if jnp.iscomplexobj(x) else _mT(x)


def dot(a, b):
    """A matrix product in the precision that the user chose."""
    return jnp.matmul(a, b, precision=precision())


def _eye(x, n):
    return jnp.broadcast_to(jnp.eye(n, dtype=x.dtype), (*x.shape[:-2], n, n))


def broadcast_batches(a, b):
    """Two batches of matrices with the same leading dimensions."""
    lead = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return jnp.broadcast_to(a, lead + a.shape[-2:]), jnp.broadcast_to(b, lead + b.shape[-2:])


def triangular(a, b, *, left=True, upper=False, unit=False, transpose=False, conjugate=False):
    """Solves op(a) x = b, or x op(a) = b, for triangular a."""
    a, b = broadcast_batches(a, b)
    if b.size == 0 or a.size == 0:
        return jnp.zeros(b.shape, b.dtype)
    return lax.linalg.triangular_solve(
        a, b, left_side=left, lower=not upper, transpose_a=transpose, conjugate_a=conjugate, unit_diagonal=unit
    )


# Cholesky


def _first_failing_minor(a):
    """1-based order of the first leading minor that is not positive, by elimination without pivoting."""
    n = a.shape[-1]

    def step(i, state):
        rest, info = state
        pivot = lax.dynamic_index_in_dim(jnp.diagonal(rest, axis1=-2, axis2=-1), i, -1, keepdims=False).real
        info = jnp.where((info == 0) & ~(pivot > 0), i + 1, info)
        column = lax.dynamic_index_in_dim(rest, i, rest.ndim - 1, keepdims=False)
        update = column[..., :, None] * jnp.conj(column)[..., None, :] / pivot[..., None, None]
        return rest - update.astype(rest.dtype), info

    start = jnp.zeros(a.shape[:-2], jnp.int32)
    return lax.fori_loop(0, n, step, (a, start))[1]


def _cholesky_ex(a, upper):
    """The factor and PyTorch's info: zero, or the order of the leading minor that is not positive-definite."""
    n = a.shape[-1]
    if a.size == 0:
        return a, jnp.zeros(a.shape[:-2], jnp.int32)
    lower_part = jnp.tril(mH(a) if upper else a)
    strict = jnp.tril(lower_part, -1)
    diagonal = jnp.diagonal(lower_part, axis1=-2, axis2=-1).real
    full = strict + mH(strict) + (jnp.eye(n, dtype=a.dtype) * diagonal[..., None, :].astype(a.dtype))
    factor = jnp.tril(lax.linalg.cholesky(full, symmetrize_input=False))
    failed = jnp.isnan(factor).any(axis=(-2, -1))
    info = lax.cond(
        failed.any(), _first_failing_minor, lambda x: jnp.zeros(x.shape[:-2], jnp.int32), full
    )
    info = jnp.where(failed, jnp.maximum(info, 1), 0).astype(jnp.int32)
    return mH(factor) if upper else factor, info


def _not_positive(info, name):
    message = (
        f"{name}: The factorization could not be completed because the input is not positive-definite "
        "(the leading minor of order {value} is not positive-definite)."
    )
    context().check(info == 0, LinAlgError, message, info)


@lower("linalg_cholesky_ex")
def linalg_cholesky_ex(self, *, upper=False, check_errors=False):
    factor, info = _cholesky_ex(self, upper)
    if check_errors:
        _not_positive(info, "linalg.cholesky_ex")
    return factor, info


@lower("cholesky")
def cholesky(self, upper=False):
    factor, info = _cholesky_ex(self, upper)
    _not_positive(info, "cholesky")
    return factor


def _cholesky_solve(b, a, upper):
    a, b = broadcast_batches(a, b)
    if upper:
        first = triangular(a, b, upper=True, transpose=True, conjugate=True)
        return triangular(a, first, upper=True)
    first = triangular(a, b)
    return triangular(a, first, transpose=True, conjugate=True)


@lower("_cholesky_solve_helper", "cholesky_solve")
def cholesky_solve(self, A, upper=False):
    return _cholesky_solve(self, A, upper)


@lower("cholesky_inverse")
def cholesky_inverse(self, upper=False):
    return _cholesky_solve(_eye(self, self.shape[-1]), self, upper)


# Triangular systems


@lower("linalg_solve_triangular")
def linalg_solve_triangular(self, B, *, upper, left=True, unitriangular=False):
    return triangular(self, B, left=left, upper=upper, unit=unitriangular)


@lower("triangular_solve")
def triangular_solve(self, A, upper=True, transpose=False, unitriangular=False):
    A, self = broadcast_batches(A, self)
    return triangular(A, self, upper=upper, unit=unitriangular, transpose=transpose), A


# LU


def _lu(a):
    """Packed LU, zero-based int32 pivots, and the permutation of the rows."""
    if a.size == 0:
        lead, k = a.shape[:-2], min(a.shape[-2:])
        rows = jnp.broadcast_to(jnp.arange(a.shape[-2], dtype=jnp.int32), (*lead, a.shape[-2]))
        return a, jnp.zeros((*lead, k), jnp.int32), rows
    return lax.linalg.lu(a)


def _lu_info(lu):
    """1-based place of the first zero pivot, or zero."""
    k = min(lu.shape[-2:])
    if k == 0:
        return jnp.zeros(lu.shape[:-2], jnp.int32)
    zero = jnp.diagonal(lu, axis1=-2, axis2=-1) == 0
    return jnp.where(zero.any(-1), jnp.argmax(zero, -1) + 1, 0).astype(jnp.int32)


def _permutation(pivots, rows):
    """The permutation that PyTorch's one-based pivots describe."""
    if pivots.size == 0:
        return jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (*pivots.shape[:-1], rows))
    return lax.linalg.lu_pivots_to_permutation(pivots.astype(jnp.int32) - 1, rows)


def _unpack(lu):
    m, n = lu.shape[-2:]
    k = min(m, n)
    low = jnp.tril(lu[..., :, :k], -1) + jnp.eye(m, k, dtype=lu.dtype)
    return low, jnp.triu(lu[..., :k, :])


def _permutation_matrix(permutation, dtype):
    """P with A = P L U."""
    n = permutation.shape[-1]
    return (permutation[..., None, :] == jnp.arange(n, dtype=permutation.dtype)[:, None]).astype(dtype)


def _singular(info, name):
    message = f"{name}: The diagonal element " + "{value} is zero, the inversion could not be completed because the input matrix is singular."
    context().check(info == 0, LinAlgError, message, info)


@lower("linalg_lu_factor_ex")
def linalg_lu_factor_ex(A, *, pivot=True, check_errors=False):
    lu, pivots, _ = _lu(A)
    info = _lu_info(lu)
    if check_errors:
        message = "torch.linalg.lu_factor_ex: U[{value},{value}] is zero and using it on lu_solve would result in a division by zero."
        context().check(info == 0, RuntimeError, message, info)
    return lu, pivots + 1, info


@lower("linalg_lu")
def linalg_lu(A, *, pivot=True):
    lu, _, permutation = _lu(A)
    low, high = _unpack(lu)
    return _permutation_matrix(permutation, A.dtype), low, high


@lower("lu_unpack")
def lu_unpack(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True):
    nothing = jnp.zeros((0,), LU_data.dtype)
    p, low, high = nothing, nothing, nothing
    if unpack_pivots:
        p = _permutation_matrix(_permutation(LU_pivots, LU_data.shape[-2]), LU_data.dtype)
    if unpack_data:
        low, high = _unpack(LU_data)
    return p, low, high


def _take_rows(b, order):
    return jnp.take_along_axis(b, order[..., :, None].astype(jnp.int64), axis=-2)


def _lu_solve(lu, permutation, b, adjoint=False):
    lead = jnp.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    permutation = jnp.broadcast_to(permutation, lead + permutation.shape[-1:])
    b = jnp.broadcast_to(b, lead + b.shape[-2:])
    if b.size == 0:
        return b
    if adjoint:
        x = triangular(lu, b, upper=True, transpose=True, conjugate=True)
        x = triangular(lu, x, unit=True, transpose=True, conjugate=True)
        return _take_rows(x, jnp.argsort(permutation, axis=-1))
    x = triangular(lu, _take_rows(b, permutation), unit=True)
    return triangular(lu, x, upper=True)


@lower("linalg_lu_solve")
def linalg_lu_solve(LU, pivots, B, *, left=True, adjoint=False):
    permutation = _permutation(pivots, LU.shape[-1])
    if left:
        return _lu_solve(LU, permutation, B, adjoint)
    # X A = B is A^H X^H = B^H.
    return mH(_lu_solve(LU, permutation, mH(B), not adjoint))


def _is_vector(a, b):
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])


@lower("_linalg_solve_ex")
def linalg_solve_ex(A, B, *, left=True, check_errors=False):
    lu, pivots, permutation = _lu(A)
    info = _lu_info(lu)
    if check_errors:
        message = "torch.linalg.solve_ex: The solver failed because the input matrix is singular."
        context().check(info == 0, LinAlgError, message, info)
    vector = _is_vector(A, B)
    b = B[..., None] if vector else B
    if left:
        x = _lu_solve(lu, permutation, b)
    else:
        x = mH(_lu_solve(lu, permutation, mH(b), True))
    return x[..., 0] if vector else x, lu, pivots + 1, info


@lower("linalg_inv_ex")
def linalg_inv_ex(A, *, check_errors=False):
    lu, _, permutation = _lu(A)
    info = _lu_info(lu)
    if check_errors:
        _singular(info, "linalg.inv_ex")
    return _lu_solve(lu, permutation, _eye(A, A.shape[-1])), info


def _det_lu(a):
    """PyTorch factors the transpose of a contiguous real matrix; its gradients count on that."""
    known = context().contiguous
    if not jnp.iscomplexobj(a) and (not known or known[0]):
        a = _mT(a)
    lu, pivots, _ = _lu(a)
    swaps = (pivots != jnp.arange(pivots.shape[-1], dtype=pivots.dtype)).sum(-1)
    sign = (1 - 2 * (swaps % 2)).astype(a.dtype)
    return lu, pivots + 1, sign


@lower("_linalg_det")
def linalg_det(A):
    lu, pivots, sign = _det_lu(A)
    return sign * jnp.prod(jnp.diagonal(lu, axis1=-2, axis2=-1), axis=-1), lu, pivots


@lower("_linalg_slogdet")
def linalg_slogdet(A):
    lu, pivots, sign = _det_lu(A)
    diagonal = jnp.diagonal(lu, axis1=-2, axis2=-1)
    size = jnp.abs(diagonal)
    return sign * jnp.prod(lax.sign(diagonal), axis=-1), jnp.sum(jnp.log(size), axis=-1), lu, pivots


# Orthogonal factorizations


@lower("linalg_qr")
def linalg_qr(A, mode="reduced"):
    m, n = A.shape[-2:]
    k = min(m, n)
    if A.size == 0:
        q = _eye(A, m) if mode == "complete" else jnp.zeros((*A.shape[:-2], m, k), A.dtype)
        rows = m if mode == "complete" else k
        return jnp.zeros((0,), A.dtype) if mode == "r" else q, jnp.zeros((*A.shape[:-2], rows, n), A.dtype)
    if mode == "r":
        return jnp.zeros((0,), A.dtype), jnp.linalg.qr(A, mode="r")
    q, r = jnp.linalg.qr(A, mode=mode)
    return q, r


@lower("geqrf")
def geqrf(self):
    if self.size == 0:
        return self, jnp.zeros((*self.shape[:-2], min(self.shape[-2:])), self.dtype)
    h, tau = jnp.linalg.qr(self, mode="raw")
    return _mT(h), tau


@lower("linalg_householder_product")
def linalg_householder_product(input, tau):
    if input.size == 0:
        return input
    if tau.shape[-1] == 0:
        return jnp.broadcast_to(jnp.eye(*input.shape[-2:], dtype=input.dtype), input.shape)
    return lax.linalg.householder_product(input, tau)


@lower("ormqr")
def ormqr(self, input2, input3, left=True, transpose=False):
    m = self.shape[-2]
    k = input2.shape[-1]
    square = jnp.zeros((*self.shape[:-1], m), self.dtype).at[..., :k].set(self[..., :k])
    q = lax.linalg.householder_product(square, input2) if k else _eye(self, m)
    q = mH(q) if transpose else q
    return dot(q, input3) if left else dot(input3, q)


@lower("_linalg_eigh")
def linalg_eigh(A, UPLO="L", compute_v=True):
    n = A.shape[-1]
    real = A.real.dtype
    if A.size == 0:
        return jnp.zeros(A.shape[:-1], real), A if compute_v else jnp.zeros((0,), A.dtype)
    low = jnp.tril(A, -1) if UPLO.upper() == "L" else mH(jnp.triu(A, 1))
    diagonal = jnp.diagonal(A, axis1=-2, axis2=-1).real.astype(A.dtype)
    full = low + mH(low) + jnp.eye(n, dtype=A.dtype) * diagonal[..., None, :]
    if not compute_v:
        return jnp.linalg.eigvalsh(full, symmetrize_input=False), jnp.zeros((0,), A.dtype)
    vectors, values = lax.linalg.eigh(full, symmetrize_input=False)
    return values, vectors


@lower("_linalg_svd")
def linalg_svd(A, full_matrices=False, compute_uv=True, *, driver=None):
    m, n = A.shape[-2:]
    k = min(m, n)
    real = A.real.dtype
    nothing = jnp.zeros((0,), A.dtype)
    if A.size == 0:
        values = jnp.zeros((*A.shape[:-2], k), real)
        if not compute_uv:
            return nothing, values, nothing
        shapes = [(m, m if full_matrices else k), (n if full_matrices else k, n)]
        u, v = (jnp.broadcast_to(jnp.eye(*s, dtype=A.dtype), (*A.shape[:-2], *s)) for s in shapes)
        return u, values, v
    if not compute_uv:
        return nothing, jnp.linalg.svd(A, compute_uv=False), nothing
    return tuple(jnp.linalg.svd(A, full_matrices=full_matrices))


# The rest


# Coefficients of the diagonal Padé approximant of exp of degree 13.
_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0, 10559470521600.0,
    670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)


@lower("linalg_matrix_exp")
def linalg_matrix_exp(self):
    a = self.astype(dtypes.opmath(self.dtype))
    n = a.shape[-1]
    if a.size == 0:
        return a
    if n == 1:
        return jnp.exp(a)
    norm = jnp.max(jnp.sum(jnp.abs(a), axis=-2), axis=-1)
    squarings = jnp.clip(jnp.ceil(jnp.log2(jnp.where(norm > 0, norm, 1) / 4)), 0, 1100)
    squarings = jnp.where(jnp.isfinite(norm), squarings, 0).astype(jnp.int32)
    x = a / jnp.exp2(squarings.astype(norm.dtype))[..., None, None].astype(a.dtype)
    b = _PADE
    one = _eye(a, n)
    x2 = dot(x, x)
    x4 = dot(x2, x2)
    x6 = dot(x4, x2)
    odd = dot(x6, b[13] * x6 + b[11] * x4 + b[9] * x2) + b[7] * x6 + b[5] * x4 + b[3] * x2 + b[1] * one
    u = dot(x, odd)
    v = dot(x6, b[12] * x6 + b[10] * x4 + b[8] * x2) + b[6] * x6 + b[4] * x4 + b[2] * x2 + b[0] * one
    lu, _, permutation = _lu(v - u)
    result = _lu_solve(lu, permutation, v + u)

    def square(i, r):
        return jnp.where((i < squarings)[..., None, None], dot(r, r), r)

    return lax.fori_loop(0, jnp.max(squarings), square, result)


@lower("linalg_cross")
def linalg_cross(self, other, *, dim=-1):
    shape = jnp.broadcast_shapes(self.shape, other.shape)
    dim %= len(shape)
    a, b = (jnp.broadcast_to(x.astype(context().out_dtype), shape) for x in (self, other))

    def part(x, i):
        return lax.slice_in_dim(x, i, i + 1, axis=dim)

    pieces = [
        part(a, i) * part(b, j) - part(a, j) * part(b, i) for i, j in ((1, 2), (2, 0), (0, 1))
    ]
    return lax.concatenate(pieces, dim)


@lower("trace")
def trace(self):
    n = min(self.shape)
    if n == 0:
        return jnp.zeros((), context().out_dtype)
    compute = dtypes.opmath(context().out_dtype)
    return jnp.sum(jnp.diagonal(self).astype(compute), dtype=compute)
