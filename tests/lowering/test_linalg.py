"""Linear algebra against PyTorch's CPU."""

import pytest
import torch

from torchtpu.lowering.evaluate import compare, evaluate

aten = torch.ops.aten
DTYPES = [torch.float64, torch.float32, torch.complex128]


def tol(dtype):
    return {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 1e-8, "atol": 1e-8}


def positive(*shape, dtype):
    a = torch.randn(shape, dtype=dtype)
    return a @ a.mH + torch.eye(shape[-1], dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(dtype, upper):
    a = positive(2, 3, 3, dtype=dtype)
    compare(aten.linalg_cholesky_ex.default, a, upper=upper, **tol(dtype))
    factor = torch.linalg.cholesky(a, upper=upper)
    b = torch.randn(2, 3, 2, dtype=dtype)
    compare(aten._cholesky_solve_helper.default, b, factor, upper, **tol(dtype))
    compare(aten.cholesky_inverse.default, factor, upper, **tol(dtype))
    compare(aten.linalg_cholesky_ex.default, torch.zeros(0, 0, dtype=dtype))


def test_cholesky_says_which_minor_failed():
    a = torch.tensor([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    batch = torch.stack([a, torch.eye(3), -torch.eye(3), torch.diag(torch.tensor([1.0, 1.0, 0.0]))])
    (_, info), (_, want) = evaluate(aten.linalg_cholesky_ex.default, batch)
    assert info.tolist() == want.tolist() == [2, 0, 1, 3]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangular(dtype, upper, left, unit):
    a = torch.randn(2, 3, 3, dtype=dtype) + 3 * torch.eye(3)
    a = a.triu() if upper else a.tril()
    b = torch.randn(2, 3, 4, dtype=dtype) if left else torch.randn(2, 4, 3, dtype=dtype)
    args = {"upper": upper, "left": left, "unitriangular": unit}
    if unit:
        a.diagonal(dim1=-2, dim2=-1).fill_(1)
    compare(aten.linalg_solve_triangular.default, a, b, **args, **tol(dtype))
    if left:
        for transpose in (False, True):
            compare(aten.triangular_solve.default, b, a, upper, transpose, unit, **tol(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 3), (3, 5), (2, 0, 0)])
def test_lu(dtype, shape):
    a = torch.randn(shape, dtype=dtype)
    compare(aten.linalg_lu_factor_ex.default, a, **tol(dtype))
    compare(aten.linalg_lu.default, a, **tol(dtype))
    lu, pivots, _ = aten.linalg_lu_factor_ex(a)
    for data, pivot in ((True, True), (False, True), (True, False)):
        compare(aten.lu_unpack.default, lu, pivots, data, pivot, **tol(dtype))
    if shape[-1] == shape[-2] and a.numel():
        for left in (True, False):
            b = torch.randn((3, 2) if left else (2, 3), dtype=dtype)
            for adjoint in (True, False):
                compare(aten.linalg_lu_solve.default, lu, pivots, b, left=left, adjoint=adjoint, **tol(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_solvers(dtype):
    a = torch.randn(2, 3, 3, dtype=dtype)
    compare(aten._linalg_solve_ex.default, a, torch.randn(2, 3, 4, dtype=dtype), **tol(dtype))
    compare(aten._linalg_solve_ex.default, a, torch.randn(2, 4, 3, dtype=dtype), left=False, **tol(dtype))
    compare(aten._linalg_solve_ex.default, a, torch.randn(2, 3, dtype=dtype), **tol(dtype))
    compare(aten._linalg_solve_ex.default, a[0], torch.randn(3, dtype=dtype), **tol(dtype))
    compare(aten.linalg_inv_ex.default, a, **tol(dtype))
    for matrix in (a, a.mT, torch.zeros(0, 0, dtype=dtype)):
        compare(aten._linalg_det.default, matrix, **tol(dtype))
        compare(aten._linalg_slogdet.default, matrix, **tol(dtype))


def test_singular_info():
    (_, info), (_, want) = evaluate(aten.linalg_inv_ex.default, torch.zeros(2, 2))
    assert info == want == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 3), (3, 5), (0, 2)])
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr(dtype, shape, mode):
    compare(aten.linalg_qr.default, torch.randn(shape, dtype=dtype), mode, **tol(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_householder(dtype):
    a = torch.randn(2, 4, 3, dtype=dtype)
    compare(aten.geqrf.default, a, **tol(dtype))
    h, tau = torch.geqrf(a)
    compare(aten.linalg_householder_product.default, h, tau, **tol(dtype))
    for left in (True, False):
        for transpose in (True, False):
            b = torch.randn((2, 4, 2) if left else (2, 2, 4), dtype=dtype)
            compare(aten.ormqr.default, h, tau, b, left, transpose, **tol(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigh(dtype, uplo):
    a = torch.randn(2, 4, 4, dtype=dtype)
    compare(aten._linalg_eigh.default, a, uplo, False, **tol(dtype))
    (values, vectors), (want, _) = evaluate(aten._linalg_eigh.default, a, uplo, True)
    torch.testing.assert_close(values, want, **tol(dtype))
    full = (a.tril(-1) + a.tril(-1).mH) if uplo == "L" else (a.triu(1) + a.triu(1).mH)
    full = full + torch.diag_embed(a.diagonal(dim1=-2, dim2=-1).real.to(dtype))
    torch.testing.assert_close(full @ vectors, vectors * values[..., None, :], **tol(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 3), (3, 5), (0, 2)])
@pytest.mark.parametrize("full", [False, True])
def test_svd(dtype, shape, full):
    a = torch.randn(shape, dtype=dtype)
    compare(aten._linalg_svd.default, a, full, False, **tol(dtype))
    (u, s, vh), (_, want, _) = evaluate(aten._linalg_svd.default, a, full, True)
    torch.testing.assert_close(s, want, **tol(dtype))
    k = s.shape[-1]
    torch.testing.assert_close((u[..., :k] * s[..., None, :].to(dtype)) @ vh[..., :k, :], a, **tol(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matrix_exp(dtype):
    a = torch.randn(3, 4, 4, dtype=dtype)
    a[1] *= 20
    a[2] *= 1e-3
    compare(aten.linalg_matrix_exp.default, a / 4, rtol=1e-2 if dtype == torch.float32 else 1e-8, atol=1e-3)
    compare(aten.linalg_matrix_exp.default, torch.randn(2, 1, 1, dtype=dtype))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.bfloat16], ids=str)
def test_small(dtype):
    a, b = (torch.testing.make_tensor(s, dtype=dtype, device="cpu", low=-3, high=4) for s in ((2, 3, 4), (1, 3, 4)))
    extra = {"rtol": 2e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
    compare(aten.linalg_cross.default, a, b, dim=1, **extra)
    compare(aten.trace.default, a[0], **extra)
    compare(aten.trace.default, a[0][:0], **extra)
