"""Special functions against the CPU's."""

import math

import pytest
import torch

from torchtpu.lowering.evaluate import compare, evaluate

aten = torch.ops.aten
HALF = {"rtol": 2e-2, "atol": 1e-2}
ERROR_AND_GAMMA = (
    "erf erfc erfinv lgamma digamma i0 special_i0e special_i1 special_i1e special_ndtri special_log_ndtr "
    "special_entr special_erfcx logit"
).split()
BESSEL = (
    "special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_modified_bessel_i0 "
    "special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 "
    "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_airy_ai"
).split()
VALUES = [0.0, 0.3, -0.3, 0.5, 1.0, 1.7, -1.7, 2.5, 6.0, -6.2, 9.5, math.nan]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ERROR_AND_GAMMA)
def test_error_and_gamma(name, dtype):
    if dtype == torch.bfloat16 and name in ("special_ndtri", "special_log_ndtr", "special_erfcx"):
        pytest.skip("not on the CPU either")
    x = torch.tensor(VALUES, dtype=dtype)
    compare(getattr(aten, name).default, x, **(HALF if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", BESSEL)
def test_bessel(name, dtype):
    """PyTorch's own J, Y and Ai hold about six digits, in double precision too."""
    x = torch.cat([torch.linspace(-30, 30, 120), torch.tensor([0.0, math.nan, 1e-8])]).to(dtype)
    compare(getattr(aten, name).default, x, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("name", ["erf", "lgamma", "digamma", "special_i1", "special_entr"])
def test_integers(name):
    compare(getattr(aten, name).default, torch.arange(1, 5), rtol=1e-5, atol=1e-5)


def test_two_arguments():
    x = torch.tensor([0.0, 0.5, 1.0, 2.5, math.inf, math.nan])
    y = torch.tensor([0.0, 0.3, 1.0, 4.0, math.nan])
    compare(aten.xlogy.Tensor, x[:, None], y[None])
    compare(aten.special_xlog1py.default, x[:, None], y[None])
    a, b = x[1:4, None], y[None, 1:4]
    compare(aten.igamma.default, a, b, rtol=1e-5, atol=1e-6)
    compare(aten.igammac.default, a, b, rtol=1e-5, atol=1e-6)
    compare(aten.special_zeta.default, torch.tensor([2.0, 3.0, 1.5, 1.0, 0.5]), torch.tensor([0.5, 2.0, 3.0, 1.0, 1.0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
def test_polygamma(n):
    x = torch.tensor([0.3, 1.0, 2.5, 7.0, -0.7, -3.2, -14.4], dtype=torch.float64)
    compare(aten.polygamma.default, n, x, rtol=1e-9, atol=1e-9)


def test_logit_eps():
    x = torch.tensor([0.0, 0.01, 0.3, 0.99, 1.0])
    compare(aten.logit.default, x, 0.05)
    compare(aten.logit_backward.default, torch.ones(5), x, 0.05)
    compare(aten.logit_backward.default, torch.ones(3), x[1:4], None)


@pytest.mark.parametrize("kind", ["t", "u", "v", "w"])
def test_chebyshev(kind):
    x = torch.tensor([-2.0, -1.0, -0.3, 0.0, 0.4, 1.0, 1.5], dtype=torch.float64)[:, None]
    n = torch.tensor([-1, 0, 1, 2, 3, 6, 7, 9, 12], dtype=torch.float64)[None]
    compare(getattr(aten, f"special_chebyshev_polynomial_{kind}").default, x, n, rtol=1e-7, atol=1e-7)
    if kind in "tu":
        shifted = getattr(aten, f"special_shifted_chebyshev_polynomial_{kind}")
        compare(shifted.default, x, n, rtol=1e-7, atol=1e-7)
    compare(getattr(aten, f"special_chebyshev_polynomial_{kind}").n_scalar, x, 3)


@pytest.mark.parametrize("name", ["hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"])
def test_polynomials(name):
    x = torch.tensor([-2.0, -1.0, -0.3, 0.0, 0.4, 1.0, 1.5], dtype=torch.float64)[:, None]
    n = torch.tensor([-1, 0, 1, 2, 3, 6, 9], dtype=torch.float64)[None]
    compare(getattr(aten, f"special_{name}").default, x, n, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("n", [1, 2, 4, 5, 6])
def test_polygamma_between_negative_integers(n):
    """Odd powers cancel there nearly all digits; near an integer the reflection divides by a small sine."""
    x = torch.tensor([-8.5, -0.5, -3.0001, -2.9999, 0.25, 7.5])
    actual, _ = evaluate(aten.polygamma.default, n, x)
    torch.testing.assert_close(actual[0].double(), torch.polygamma(n, x.double()), rtol=3e-5, atol=1e-7)
    compare(aten.polygamma_.default, x, n, rtol=1e-3, atol=1e-5)  # the CPU is less exact
