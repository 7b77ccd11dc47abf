"""Matrix products against PyTorch's CPU."""

import pytest
import torch

from torchtpu.lowering.evaluate import compare, evaluate

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def make(*shape, dtype=torch.float32):
    return torch.testing.make_tensor(shape, dtype=dtype, device="cpu", low=-3 if dtype != torch.uint8 else 0, high=4)


@pytest.mark.parametrize("dtype", FLOATS + INTS, ids=str)
@pytest.mark.parametrize("m,k,n", [(3, 4, 5), (1, 7, 1), (0, 2, 3), (3, 0, 2), (2, 3, 0)])
def test_products(dtype, m, k, n):
    a, b, c = make(m, k, dtype=dtype), make(k, n, dtype=dtype), make(m, n, dtype=dtype)
    compare(aten.mm.default, a, b)
    compare(aten.bmm.default, make(2, m, k, dtype=dtype), make(2, k, n, dtype=dtype))
    factors = (2, 3) if dtype in INTS else (0.5, 2.5)
    beta, alpha = factors
    tolerance = {"rtol": 2e-2, "atol": 5e-2} if dtype in (torch.bfloat16, torch.float16) else {}
    compare(aten.addmm.default, c, a, b, beta=beta, alpha=alpha, **tolerance)
    compare(aten.addmm.default, c[0] if m else c, a, b, **tolerance)
    batches = make(2, m, k, dtype=dtype), make(2, k, n, dtype=dtype)
    compare(aten.baddbmm.default, make(2, m, n, dtype=dtype), *batches, beta=beta, alpha=alpha, **tolerance)
    compare(aten.addbmm.default, c, *batches, beta=beta, alpha=alpha, **tolerance)
    compare(aten.mv.default, a, make(k, dtype=dtype), **tolerance)
    compare(aten.addmv.default, make(m, dtype=dtype), a, make(k, dtype=dtype), beta=beta, alpha=alpha, **tolerance)
    compare(aten.dot.default, make(k, dtype=dtype), make(k, dtype=dtype), **tolerance)
    compare(aten.vdot.default, make(k, dtype=dtype), make(k, dtype=dtype), **tolerance)
    compare(aten.addr.default, c, make(m, dtype=dtype), make(n, dtype=dtype), beta=beta, alpha=alpha, **tolerance)


@pytest.mark.parametrize("beta", [0, 0.0])
def test_zero_beta_ignores_nan(beta):
    bad = torch.full((3, 3), float("nan"))
    a = make(3, 3)
    compare(aten.addmm.default, bad, a, a, beta=beta)
    compare(aten.baddbmm.default, bad[None], a[None], a[None], beta=beta)
    compare(aten.addmv.default, bad[0], a, a[0], beta=beta)
    compare(aten.addr.default, bad, a[0], a[1], beta=beta)


def test_in_place_and_out():
    a = make(3, 3)
    compare(aten.addmm_.default, a, a, a, beta=0.5)
    compare(aten.mm.out, a, a, out=torch.empty(3, 3))


def test_bool_addr():
    x = torch.tensor([True, False])
    for beta in (True, False):
        compare(aten.addr.default, torch.eye(2, dtype=torch.bool), x, x, beta=beta, alpha=True)


@pytest.mark.parametrize("gelu", [False, True])
def test_addmm_activation(gelu):
    compare(aten._addmm_activation.default, make(4), make(3, 5), make(5, 4), use_gelu=gelu)


def test_int_mm():
    compare(aten._int_mm.default, make(17, 8, dtype=torch.int8), make(8, 16, dtype=torch.int8))


def test_float32_is_exact():
    a, b = torch.rand(64, 300) + 1, torch.rand(300, 64) + 1
    (got,), _ = evaluate(aten.mm.default, a, b)
    exact = a.double() @ b.double()
    assert ((got - exact).abs() / exact).max() < 1e-5


def test_scaled_and_packed_products():
    torch.manual_seed(0)
    a, b = (torch.randn(16, 32).to(torch.float8_e4m3fn) for _ in range(2))
    one, two = torch.tensor(2.0), torch.tensor(0.5)
    compare(aten._scaled_mm.default, a, b.t(), one, two, out_dtype=torch.float32)
    compare(aten._scaled_mm.default, a, b.t(), one, two, torch.randn(16).bfloat16(), out_dtype=torch.bfloat16)
    compare(aten._scaled_mm.default, a, b.t(), torch.rand(16, 1), torch.rand(1, 16), out_dtype=torch.bfloat16)
    rows, scales = torch.randint(-9, 9, (16, 32), dtype=torch.int8), torch.rand(16).bfloat16()
    compare(aten._weight_int8pack_mm.default, torch.randn(4, 32).bfloat16(), rows, scales, rtol=2e-2, atol=2e-2)
    compare(aten._compute_linear_combination.default, torch.randn(3, 4, 5), torch.randn(2, 3))
