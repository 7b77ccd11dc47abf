"""Eigenvalues of general matrices, symmetric indefinite factorization, least squares."""

import pytest
import torch

from torchtpu.lowering import registry
from torchtpu.lowering.evaluate import compare, evaluate

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
TOLERANCE = {torch.float32: 2e-4, torch.complex64: 2e-4, torch.float64: 1e-9, torch.complex128: 1e-9}


def symmetric(*shape, dtype, hermitian):
    a = torch.randn(*shape, dtype=dtype)
    return a + (a.mH if hermitian else a.mT)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (1, 1), (0, 0), (0, 2, 2)])
def test_eig(dtype, shape):
    torch.manual_seed(0)
    a = torch.randn(shape, dtype=dtype)
    tolerance = TOLERANCE[dtype]
    (values, vectors), expected = evaluate(aten.linalg_eig.default, a)
    assert values.dtype == expected[0].dtype and vectors.dtype == expected[1].dtype
    torch.testing.assert_close(a.to(vectors.dtype) @ vectors, vectors * values[..., None, :], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(vectors.abs().square().sum(-2), torch.ones(vectors.shape[:-2] + vectors.shape[-1:], dtype=a.real.dtype))
    torch.testing.assert_close(values, expected[0], rtol=tolerance, atol=tolerance)
    compare(aten._linalg_eigvals.default, a, rtol=tolerance, atol=tolerance)


def test_eig_refuses_what_is_not_finite():
    for op in (aten.linalg_eig.default,):
        with pytest.raises(RuntimeError, match="should not contain infs or NaNs"):
            evaluate(op, torch.full((2, 2), float("inf")))


def test_eig_says_where_it_runs():
    assert registry.find(aten.linalg_eig.default).platforms == ("cpu", "cuda")


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ldl(dtype, hermitian):
    tolerance = TOLERANCE[dtype]
    for seed in range(2):
        torch.manual_seed(seed)
        for shape in ((1, 1), (2, 2), (2, 3, 7, 7), (2, 0, 0)):
            a = symmetric(*shape, dtype=dtype, hermitian=hermitian)
            if seed % 2 and shape[-1] > 1:
                a.diagonal(dim1=-2, dim2=-1).zero_()  # only blocks of two will do
            compare(aten.linalg_ldl_factor_ex.default, a, hermitian=hermitian, rtol=10 * tolerance, atol=10 * tolerance)
            factor, pivots, _ = torch.linalg.ldl_factor_ex(a, hermitian=hermitian)
            b = torch.randn(*shape[:-1], 3, dtype=dtype)
            compare(aten.linalg_ldl_solve.default, factor, pivots, b, hermitian=hermitian, rtol=100 * tolerance, atol=100 * tolerance)
            if a.numel() and shape[-1] > 1:
                x = evaluate(aten.linalg_ldl_solve.default, factor, pivots, b, hermitian=hermitian)[0][0]
                torch.testing.assert_close(a @ x, b, rtol=100 * tolerance, atol=100 * tolerance)


def test_ldl_of_a_singular_matrix():
    compare(aten.linalg_ldl_factor_ex.default, torch.zeros(3, 3))
    compare(aten.linalg_ldl_factor_ex.default, torch.diag(torch.tensor([1.0, 0.0, 2.0])))
    factor, pivots, _ = torch.linalg.ldl_factor_ex(torch.eye(2))
    with pytest.raises(RuntimeError, match="must all satisfy"):
        evaluate(aten.linalg_ldl_solve.default, factor, pivots * 5, torch.ones(2, 1))
    compare(aten.linalg_ldl_solve.default, factor, pivots, torch.ones(4, 2, 3))


def lstsq(device, *args, driver):
    args = [a.to(device) if isinstance(a, torch.Tensor) else a for a in args]
    return [r.cpu() for r in torch.linalg.lstsq(*args, driver=driver)]


@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lstsq(dtype, driver):
    torch.manual_seed(0)
    tolerance = 10 * TOLERANCE[dtype]
    for a, b in [
        ((5, 3), (5, 2)), ((3, 5), (3, 2)), ((4, 4), (4,)), ((2, 3, 5, 3), (2, 3, 5, 2)), ((4, 3, 2), (4, 3)),
        ((1, 4, 2), (3, 4, 2)), ((0, 3), (0, 2)), ((3, 0), (3, 2)), ((0, 3, 2), (0, 3, 1)), ((2, 0, 3), (2, 0, 3)),
    ]:  # fmt: skip
        a, b = torch.randn(a, dtype=dtype), torch.randn(b, dtype=dtype)
        want, got = lstsq("cpu", a, b, driver=driver), lstsq("tpu", a, b, driver=driver)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("driver", ["gelsy", "gelsd", "gelss"])
def test_lstsq_without_full_rank(driver):
    torch.manual_seed(0)
    a, b = torch.randn(6, 2) @ torch.randn(2, 4), torch.randn(6, 3)
    for args in ((a, b), (a.mT.contiguous(), b[:4]), (torch.diag(torch.tensor([1.0, 0.1, 0.01])), b[:3], 0.05)):
        want, got = lstsq("cpu", *args, driver=driver), lstsq("tpu", *args, driver=driver)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-3, atol=1e-3)


def test_lstsq_errors():
    x = torch.randn
    for a, b, driver in [
        (x(3), x(3), None), (x(3, 2), x(2), None), (x(3, 2), torch.tensor(1.0), None), (x(3, 2), x(3).double(), None),
        (x(3, 2).half(), x(3).half(), None), (x(4, 3, 2), x(5, 3, 2), None), (x(4, 3, 2), x(3), None), (x(3, 2), x(3), "lu"),
        (torch.tensor([[1.0, 0], [0, 0], [0, 0]]), x(3, 2), "gels"),
    ]:  # fmt: skip
        with pytest.raises(RuntimeError) as want:
            lstsq("cpu", a, b, driver=driver)
        with pytest.raises(type(want.value)) as got:
            lstsq("tpu", a, b, driver=driver)
        assert str(got.value).split("\n")[0] == str(want.value).split("\n")[0]


@pytest.mark.parametrize("name", ["eig", "eigvals", "lstsq"])
def test_gradients(name, mode):
    torch.manual_seed(0)
    a, b = torch.randn(4, 3, 3, dtype=torch.float64), torch.randn(4, 3, 2, dtype=torch.float64)
    losses = {
        "eig": lambda a, b: sum(t.abs().sum() for t in torch.linalg.eig(a)),
        "eigvals": lambda a, b: torch.linalg.eigvals(a).abs().sum(),
        "lstsq": lambda a, b: torch.linalg.lstsq(a, b).solution.square().sum(),
    }
    grads = []
    for device in ("cpu", "tpu"):
        x, y = (t.detach().to(device).requires_grad_() for t in (a, b))
        losses[name](x, y).backward()
        grads.append([t.grad.cpu() for t in (x, y) if t.grad is not None])
    torch.testing.assert_close(grads[1], grads[0])
