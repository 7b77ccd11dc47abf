"""Linear algebra of general matrices: eigenvalues, symmetric indefinite factorization, least squares."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torchtpu.lowering.call import context
from torchtpu.lowering.linalg import broadcast_batches, dot, mH, triangular
from torchtpu.lowering.registry import lower

LinAlgError = torch.linalg.LinAlgError

# XLA has no eigenvalues of general matrices on a TPU: there they run on the CPU.
_EIG_PLATFORMS = ("cpu", "cuda")


def _eig(A, vectors, name):
    out = jnp.result_type(A.dtype, jnp.complex64)
    if A.size == 0:
        return jnp.zeros(A.shape[:-1], out), jnp.zeros(A.shape, out)
    finite = jnp.isfinite(A).all()
    context().check(finite, RuntimeError, f"torch.{name}: input tensor should not contain infs or NaNs.")
    # LAPACK may not return from values that are not finite.
    safe = jnp.where(finite, A, jnp.zeros((), A.dtype))
    values, *rest = lax.linalg.eig(safe, compute_left_eigenvectors=False, compute_right_eigenvectors=vectors)
    message = f"{name}: The algorithm failed to converge because the input matrix is ill-conditioned or has too many repeated eigenvalues"
    context().check(~jnp.isnan(values), LinAlgError, message + ".")
    return values, rest[0] if vectors else None


@lower("linalg_eig", platforms=_EIG_PLATFORMS)
def linalg_eig(self):
    return _eig(self, True, "linalg.eig")


@lower("_linalg_eigvals", "linalg_eigvals", platforms=_EIG_PLATFORMS)
def linalg_eigvals(self):
    return _eig(self, False, "linalg.eigvals")[0]


# Bunch and Kaufman's factorization A = P L D L^T P^T with blocks of one or two rows in D, in LAPACK's packed form.

# The growth of elements is least when a diagonal pivot is taken above this share of its column.
_ALPHA = (1 + 17**0.5) / 8


def _size(x):
    return jnp.abs(x.real) + jnp.abs(x.imag) if jnp.iscomplexobj(x) else jnp.abs(x)


def _swapped(i, j, n):
    """The permutation that exchanges positions i and j."""
    index = jnp.arange(n)
    return jnp.where(index == i, j, jnp.where(index == j, i, index))


def _choose_pivot(a, k, index):
    """The row to exchange with, whether a block of two is eliminated, and whether the column is zero."""
    sizes = jnp.where(index > k, _size(a[:, k]), -1.0)
    row = jnp.argmax(sizes)
    column_max, diagonal = jnp.maximum(sizes[row], 0), _size(a[k, k])
    row_max = jnp.where((index >= k) & (index != row), _size(a[row]), 0).max()
    keep = diagonal >= _ALPHA * column_max
    keep |= diagonal >= _ALPHA * column_max * (column_max / row_max)
    single = keep | (_size(a[row, row]) >= _ALPHA * row_max)
    zero = (jnp.maximum(diagonal, column_max) == 0) | jnp.isnan(diagonal)
    return jnp.where(keep | zero, k, row), ~(single | zero), zero


def _ldl_factor(matrix, hermitian):
    """LD, LAPACK's pivots and info of one matrix, of which the lower triangle is read."""
    n = matrix.shape[0]
    index = jnp.arange(n)
    below = jnp.tril(matrix, -1)
    diagonal = jnp.diagonal(matrix)
    if hermitian:
        diagonal = diagonal.real.astype(matrix.dtype)
    conj = jnp.conj if hermitian else lambda x: x
    start = below + conj(below).T + jnp.diag(diagonal)

    def step(state):
        k, a, packed, pivots, info = state
        row, double, zero = _choose_pivot(a, k, index)
        last = k + double
        order = _swapped(last, row, n)
        a = a[order][:, order]
        nxt = jnp.minimum(k + 1, n - 1)
        first, second = a[:, k], a[:, nxt]
        if hermitian:
            first = first.at[k].set(first[k].real.astype(a.dtype))
        rest = index > last
        # A block of two has (d, conj e; e, f) on the diagonal, one of one has d.
        d, e, f = first[k], first[nxt], second[nxt]
        scale = d * f - e * conj(e)
        one = jnp.where(zero, jnp.zeros_like(first), first / d)
        pair = (first * f - second * e) / scale, (second * d - first * conj(e)) / scale
        left = jnp.where(rest, jnp.where(double, pair[0], one), 0)
        right = jnp.where(rest & double, pair[1], 0)
        a = a - jnp.outer(left, conj(jnp.where(rest, first, 0))) - jnp.outer(right, conj(jnp.where(rest, second, 0)))
        left = jnp.where(zero, first, jnp.where(rest, left, first))
        packed = packed.at[:, k].set(jnp.where(index >= k, left, 0))
        packed = jnp.where(double, packed.at[:, nxt].set(jnp.where(rest, right, jnp.where(index == nxt, second, 0))), packed)
        pivot = jnp.where(double, -(row + 1), row + 1).astype(jnp.int32)
        pivots = jnp.where((index == k) | (double & (index == nxt)), pivot, pivots)
        info = jnp.where((info == 0) & zero, k + 1, info).astype(jnp.int32)
        return last + 1, a, packed, pivots, info

    state = (jnp.asarray(0), start, jnp.zeros_like(matrix), jnp.zeros(n, jnp.int32), jnp.int32(0))
    return lax.while_loop(lambda s: s[0] < n, step, state)[2:]


def _batched(fn, *arrays):
    """`fn`, which takes single matrices and vectors, over the leading dimensions that the arrays share."""
    for _ in range(arrays[0].ndim - 2):
        fn = jax.vmap(fn)
    return fn(*arrays)


@lower("linalg_ldl_factor_ex")
def linalg_ldl_factor_ex(self, *, hermitian=False, check_errors=False):
    if self.size == 0:
        return self, jnp.zeros(self.shape[:-1], jnp.int32), jnp.zeros(self.shape[:-2], jnp.int32)
    hermitian = hermitian and jnp.iscomplexobj(self)
    packed, pivots, info = _batched(lambda a: _ldl_factor(a, hermitian), self)
    if check_errors:
        context().check(info == 0, RuntimeError, "torch.linalg.ldl_factor_ex: Unknown error code: {value}.", info)
    return packed, pivots, info


def _ldl_solve(packed, pivots, b, hermitian):
    n = packed.shape[0]
    index = jnp.arange(n)
    conj = jnp.conj if hermitian else lambda x: x
    # Both pivots of a block of two are negative; the first of its columns carries the block's off-diagonal element.
    first = lax.scan(lambda before, negative: (negative & ~before,) * 2, jnp.bool_(False), pivots < 0)[1]
    second = (pivots < 0) & ~first
    rows = jnp.abs(pivots) - 1
    below = jnp.tril(packed, -1)
    off = jnp.where(first, jnp.append(jnp.diagonal(packed, -1), 0), 0)
    below = jnp.where((index[:, None] == index + 1) & first, 0, below)

    def exchanged(x, k):
        return jnp.where(second[k], x, x[_swapped(jnp.where(first[k], k + 1, k), rows[k], n)])

    def forward(k, x):
        x = exchanged(x, k)
        return jnp.where(index[:, None] > k, x - jnp.outer(below[:, k], x[k]), x)

    def backward(i, x):
        k = n - 1 - i
        later = jnp.where(index[:, None] > k, x, 0)  # the others may be infinite
        return exchanged(x.at[k].add(-dot(conj(below[:, k]), later)), k)

    def divide(x):
        d = jnp.diagonal(packed)
        d = d.real.astype(d.dtype) if hermitian else d
        other = jnp.where(first, jnp.roll(d, -1), jnp.roll(d, 1))
        across = jnp.where(first, conj(off), jnp.roll(off, 1))
        partner = jnp.where(first[:, None], jnp.roll(x, -1, 0), jnp.roll(x, 1, 0))
        pair = x * other[:, None] - partner * across[:, None]
        scale = jnp.where(first | second, d * other - across * conj(across), d)
        return jnp.where((first | second)[:, None], pair, x) / scale[:, None]

    return lax.fori_loop(0, n, backward, divide(lax.fori_loop(0, n, forward, b)))


@lower("linalg_ldl_solve")
def linalg_ldl_solve(LD, pivots, B, *, hermitian=False):
    n = LD.shape[-1]
    message = "Pivots given to ldl_solve must all satisfy |pivot| <= LD.size(-2). Did you properly pass the result of ldl_factor?"
    context().check(jnp.abs(pivots) <= n, RuntimeError, message)
    LD, B = broadcast_batches(LD, B)
    if B.size == 0:
        return B
    pivots = jnp.broadcast_to(pivots, LD.shape[:-1])
    hermitian = hermitian and jnp.iscomplexobj(LD)
    return _batched(lambda ld, p, b: _ldl_solve(ld, p, b, hermitian), LD, pivots, B)


# Least squares


def _lstsq_full_rank(A, B):
    """gels: by QR of A or of its adjoint; a zero on R's diagonal is an error."""
    tall = A.shape[-2] >= A.shape[-1]
    q, r = jnp.linalg.qr(A if tall else mH(A))
    zero = jnp.diagonal(r, axis1=-2, axis2=-1) == 0
    message = (
        "torch.linalg.lstsq: The least squares solution could not be computed because the input matrix does not have full "
        "rank (error code: {value})."
    )
    context().check(~zero.any(-1), LinAlgError, message, jnp.argmax(zero, -1) + 1)
    if tall:
        return triangular(r, dot(mH(q), B), upper=True)
    return dot(q, triangular(r, B, upper=True, transpose=True, conjugate=True))


@lower("torchtpu::lstsq")
def lstsq(A, B, rcond, driver):
    """Solutions, squared residuals, ranks (int64) and singular values for A (*, m, n) and B (*, m, k), whose batches broadcast.

    Singular values below rcond times the largest are taken for zero, and the solution is the one of least norm; "gels"
    takes the rank for full.
    """
    m, n = A.shape[-2:]
    values = jnp.zeros((*A.shape[:-2], min(m, n)), A.real.dtype)
    rank = jnp.zeros(A.shape[:-2], jnp.int64)
    if A.size == 0 or B.size == 0:
        batch = jnp.broadcast_shapes(A.shape[:-2], B.shape[:-2])
        residuals = jnp.broadcast_to(jnp.sum(_squared(B), -2), (*batch, B.shape[-1]))  # gels gives zeros
        return jnp.zeros((*batch, n, B.shape[-1]), A.dtype), residuals * (driver != "gels"), rank, values
    if driver == "gels":
        solution = _lstsq_full_rank(A, B)
    else:
        u, values, vh = jnp.linalg.svd(A, full_matrices=False)
        keep = values > rcond.astype(values.dtype) * values[..., :1]
        rank = keep.sum(-1)
        inverse = jnp.where(keep, 1 / jnp.where(keep, values, 1), 0)
        solution = dot(mH(vh), inverse[..., None].astype(A.dtype) * dot(mH(u), B))
    return solution, jnp.sum(_squared(B - dot(A, solution)), -2), rank, values


def _squared(x):
    return jnp.square(x.real) + jnp.square(x.imag) if jnp.iscomplexobj(x) else jnp.square(x)
