"""Random operators: distributions, ranges, reproducibility and errors."""

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

import torchtpu
from torchtpu.lowering.evaluate import evaluate

aten = torch.ops.aten
N = 20000
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def draw(op, *args, seed=0, **kwargs):
    """The first result of a random operator."""
    actual, expected = evaluate(op, *args, seed=seed, **kwargs)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype and a.shape == e.shape
    return actual[0]


def assert_distribution(sample, cdf, limit=0.02):
    """Kolmogorov-Smirnov distance below what chance or a half type's rounding explains."""
    assert scipy.stats.kstest(sample.double().numpy().reshape(-1), cdf).statistic < limit


@pytest.mark.parametrize("dtype", FLOATS)
def test_continuous(dtype):
    x = torch.empty(N, dtype=dtype)
    u = draw(aten.uniform_.default, x, -1.0, 3.0)
    assert u.min() >= -1 and u.max() <= 3
    assert_distribution(u, scipy.stats.uniform(-1, 4).cdf)
    u = draw(aten.uniform_.default, x)
    assert u.min() >= 0 and u.max() < 1
    assert_distribution(draw(aten.normal_.default, x, 2.0, 3.0), scipy.stats.norm(2, 3).cdf)
    assert_distribution(draw(aten.log_normal_.default, x, 0.5, 0.25), scipy.stats.lognorm(0.25, scale=np.exp(0.5)).cdf)
    e = draw(aten.exponential_.default, x, 2.0)
    assert e.min() > 0
    assert_distribution(e, scipy.stats.expon(scale=0.5).cdf)
    assert_distribution(draw(aten.cauchy_.default, x, 1.0, 2.0), scipy.stats.cauchy(1, 2).cdf)


def test_fresh_and_reproducible():
    x = torch.empty(4, 5)
    for op, args in [
        (aten.normal_.default, ()),
        (aten.uniform_.default, ()),
        (aten.bernoulli_.float, (0.5,)),
        (aten.random_.default, ()),
        (aten.exponential_.default, ()),
    ]:
        a, b, c = (draw(op, x, *args, seed=s) for s in (1, 1, 2))
        assert torch.equal(a, b) and not torch.equal(a, c)
        assert draw(op, torch.empty(0, 3), *args).shape == (0, 3)
        assert draw(op, torch.empty(()), *args).shape == ()


def test_normal_forms():
    mean, std = torch.full((N,), 5.0), torch.full((N,), 0.5)
    for op, args in [
        (aten.normal.Tensor_float, (mean, 0.5)),
        (aten.normal.float_Tensor, (5.0, std)),
        (aten.normal.Tensor_Tensor, (mean, std)),
        (aten.normal.float_float, (5.0, 0.5, [N])),
        (aten.normal_functional.default, (mean, 5.0, 0.5)),
    ]:
        assert_distribution(draw(op, *args), scipy.stats.norm(5, 0.5).cdf)
    out = torch.empty(N)
    assert_distribution(draw(aten.normal.Tensor_float_out, mean, 0.5, out=out), scipy.stats.norm(5, 0.5).cdf)
    z = draw(aten.normal_.default, torch.empty(N, dtype=torch.complex64), 0.0, 2.0)
    assert abs(z.abs().square().mean() - 4) < 0.2
    assert_distribution(z.real, scipy.stats.norm(0, 2**0.5).cdf)
    # The lowering's check, not the CPU's own.
    assert draw(aten.randn.default, [3, 4]).shape == (3, 4)


def test_creation_forms():
    x = torch.empty(N)
    assert_distribution(draw(aten.rand.default, [N]), scipy.stats.uniform.cdf)
    assert_distribution(draw(aten.rand_like.default, x), scipy.stats.uniform.cdf)
    assert_distribution(draw(aten.randn_like.default, x), scipy.stats.norm.cdf)
    for op, args in [
        (aten.randint.default, (7, [N])),
        (aten.randint_like.default, (x, 7)),
        (aten.randint_like.Tensor, (x, torch.tensor(7))),
    ]:
        assert torch.bincount(draw(op, *args).long(), minlength=7).min() > N / 7 * 0.85
    for op, args in [(aten.randint.low, (-3, 4, [N])), (aten.randint_like.low_dtype, (x, -3, 4))]:
        value = draw(op, *args)
        assert value.min() == -3 and value.max() == 3


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *FLOATS])
def test_random_ranges(dtype):
    x = torch.empty(N, dtype=dtype)
    full = draw(aten.random_.default, x).double()
    top = {torch.bool: 1, torch.float16: 2**11, torch.bfloat16: 2**8, torch.float32: 2**24, torch.float64: 2**53}.get(
        dtype
    )
    top = top or torch.iinfo(dtype).max
    assert full.min() >= 0 and full.max() <= top
    assert abs(full.mean() / top - 0.5) < 0.02
    low = 0 if dtype in (torch.bool, torch.uint8) else -5
    high = 2 if dtype == torch.bool else 9
    some = draw(getattr(aten.random_, "from"), x, low, high).long()
    assert sorted(some.unique().tolist()) == list(range(low, high))
    counts = torch.bincount(some - low)
    assert scipy.stats.chisquare(counts.numpy()).pvalue > 1e-4
    assert draw(aten.random_.to, x, 1).float().abs().max() == 0


def test_random_wide_ranges():
    x = torch.empty(N, dtype=torch.int64)
    low = -(2**63)
    value = draw(getattr(aten.random_, "from"), x, low, None).double()
    assert value.min() < -(2**62) and value.max() > 2**62
    value = draw(getattr(aten.random_, "from"), x, 10, 10 + 3 * 2**31).double() - 10
    assert_distribution(value / (3 * 2**31), scipy.stats.uniform.cdf)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, *FLOATS])
def test_bernoulli(dtype):
    x = torch.empty(N, dtype=dtype)
    assert abs(draw(aten.bernoulli_.float, x, 0.3).double().mean() - 0.3) < 0.02
    p = torch.linspace(0, 1, N)
    value = draw(aten.bernoulli_.Tensor, x, p)
    assert abs(value.double().mean() - 0.5) < 0.02 and value[0] == 0 and value[-1] == 1
    if dtype.is_floating_point:
        assert abs(draw(aten.bernoulli.default, torch.full((N,), 0.75, dtype=dtype)).double().mean() - 0.75) < 0.02
    assert abs(draw(aten.bernoulli.p, x, 0.25).double().mean() - 0.25) < 0.02


def test_discrete():
    x = torch.empty(N)
    g = draw(aten.geometric_.default, x, 0.3)
    for k in range(1, 5):
        assert abs((g == k).double().mean() - 0.7 ** (k - 1) * 0.3) < 0.015
    assert g.min() == 1
    for rate in (0.0, 0.5, 4.0, 30.0):
        p = draw(aten.poisson.default, torch.full((N,), rate))
        assert abs(p.mean() - rate) <= 0.03 * rate + 1e-9 and abs(p.var() - rate) <= 0.06 * rate + 1e-9
    b = draw(aten.binomial.default, torch.full((N,), 10.0), torch.full((N,), 0.3))
    assert abs(b.mean() - 3) < 0.05 and abs(b.var() - 2.1) < 0.1 and b.max() <= 10
    b = draw(aten.binomial.default, torch.tensor([5.0, 5.0, 0.0, 7.0]), torch.tensor([0.0, 1.0, 0.5, 1.0]))
    assert b.tolist() == [0, 5, 0, 7]


@pytest.mark.parametrize("n", [0, 1, 2, 10, 1000, 3000])
def test_randperm(n):
    value = draw(aten.randperm.default, n)
    assert sorted(value.tolist()) == list(range(n))
    if n > 2:
        assert not torch.equal(value, draw(aten.randperm.default, n, seed=7))


def test_randperm_is_fair():
    counts = torch.zeros(3, 3)
    for seed in range(300):
        value = draw(aten.randperm.default, 3, seed=seed)
        counts[torch.arange(3), value] += 1
    assert (counts - 100).abs().max() < 40


@pytest.mark.parametrize("dtype", FLOATS)
def test_multinomial(dtype):
    p = torch.tensor([0.0, 1.0, 3.0, 0.0, 6.0, 0.0], dtype=dtype)
    value = draw(aten.multinomial.default, p, N, True)
    share = torch.bincount(value, minlength=6).double() / N
    assert torch.allclose(share, p.double() / 10, atol=0.02)
    rows = draw(aten.multinomial.default, p.expand(2000, 6), 1)
    share = torch.bincount(rows.reshape(-1), minlength=6).double() / 2000
    assert torch.allclose(share, p.double() / 10, atol=0.05)
    rows = draw(aten.multinomial.default, p.expand(2000, 6), 3)
    assert (rows.sort(1).values == torch.tensor([1, 2, 4])).all()
    first = torch.bincount(rows[:, 0], minlength=6).double() / 2000
    assert torch.allclose(first, p.double() / 10, atol=0.05)
    second = (rows[:, 0] == 4) & (rows[:, 1] == 2)
    assert abs(second.double().mean() - 0.6 * 0.75) < 0.05


@pytest.mark.parametrize("dtype", FLOATS)
def test_dropout(dtype):
    x = torch.full((N,), 2.0, dtype=dtype)
    (out, mask), _ = evaluate(aten.native_dropout.default, x, 0.25, True)
    assert mask.dtype == torch.bool and abs(mask.double().mean() - 0.75) < 0.02
    torch.testing.assert_close(out, (mask * 2 / 0.75).to(dtype))
    (out, mask), _ = evaluate(aten.native_dropout.default, x, 1.0, True)
    assert not mask.any() and not out.any()
    (out, mask), _ = evaluate(aten.native_dropout.default, x, 0.0, True)
    assert mask.all() and torch.equal(out, x)
    (out, mask), _ = evaluate(aten.native_dropout.default, x, 0.5, False)
    assert mask.all() and torch.equal(out, x)
    grad, keep = torch.randn(N).to(dtype), torch.rand(N) < 0.5
    (got,), (want,) = evaluate(aten.native_dropout_backward.default, grad, keep, 2.0)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("alpha", [0.05, 0.7, 1.0, 4.0, 50.0])
def test_gamma(alpha):
    for dtype in (torch.float32, torch.float64):
        value = draw(aten._standard_gamma.default, torch.full((N,), alpha, dtype=dtype))
        assert_distribution(value, scipy.stats.gamma(alpha).cdf)
        a, x = torch.full((50,), alpha, dtype=dtype), value[:50].clamp_min(1e-6)
        (got,), (want,) = evaluate(aten._standard_gamma_grad.default, a, x)
        torch.testing.assert_close(got, want, rtol=2e-3, atol=1e-5)


def test_dirichlet():
    alpha = torch.tensor([0.5, 1.5, 3.0]).expand(N, 3).contiguous()
    value = draw(aten._sample_dirichlet.default, alpha)
    torch.testing.assert_close(value.sum(1), torch.ones(N))
    assert torch.allclose(value.mean(0), torch.tensor([0.1, 0.3, 0.6]), atol=0.01)
    assert_distribution(value[:, 0], scipy.stats.beta(0.5, 4.5).cdf)
    tiny = draw(aten._sample_dirichlet.default, torch.full((100, 4), 1e-3))
    assert tiny.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dirichlet_grad(dtype):
    rng = np.random.default_rng(0)
    a, b = (np.exp(rng.uniform(-3, 5, 500)) for _ in range(2))
    x = np.clip(rng.beta(a, b), 1e-6, 1 - 1e-6)
    args = [torch.tensor(v, dtype=dtype) for v in (x, a, a + b)]
    (got,), (want,) = evaluate(aten._dirichlet_grad.default, *args)
    torch.testing.assert_close(got, want, rtol=5e-3, atol=1e-6)  # the CPU approximates
    # Against the definition, by differences of the distribution function.
    step = 1e-5 * a
    slope = (scipy.special.betainc(a + step, b, x) - scipy.special.betainc(a - step, b, x)) / (2 * step)
    exact = -slope / scipy.stats.beta(a, b).pdf(x) / (1 - x)
    if dtype == torch.float64:
        np.testing.assert_allclose(got.numpy(), exact, rtol=2e-5, atol=1e-9)
    edge = [torch.tensor(v, dtype=dtype) for v in ([0.0, 1.0, 0.5], [0.1, 3.0, 4.0], [3.0, 4.0, 9.0])]
    (got,), (want,) = evaluate(aten._dirichlet_grad.default, *edge)
    torch.testing.assert_close(got, want, rtol=5e-3, atol=1e-6)


def test_distributions_stay_on_the_device_and_have_gradients(mode):
    before = torchtpu.fallbacks()
    concentration = torch.tensor([[1.0, 2.0, 3.0]], device="tpu", requires_grad=True)
    torch.distributions.Dirichlet(concentration).rsample((5,)).square().sum().backward()
    assert concentration.grad.isfinite().all()
    # The mean of Beta(a, 3) is a / (a + 3), and its derivative 3 / (a + 3)**2.
    a = torch.tensor(2.0, device="tpu", requires_grad=True)
    torch.distributions.Beta(a, torch.tensor(3.0, device="tpu")).rsample((20000,)).mean().backward()
    assert abs(a.grad.item() - 3 / 25) < 0.01
    count, p = torch.full((N,), 10.0, device="tpu"), torch.full((N,), 0.3, device="tpu")
    assert abs(torch.binomial(count, p).mean().item() - 3) < 0.05
    assert torchtpu.fallbacks() == before


def test_kaiser_window(mode):
    for args in [(5,), (0,), (1,), (2,), (64, False), (5, True, 2.0), (5, False, -2.0)]:
        for dtype in (None, torch.float64):
            got = torch.kaiser_window(*args, dtype=dtype, device="tpu").cpu()
            torch.testing.assert_close(got, torch.kaiser_window(*args, dtype=dtype), rtol=1e-4, atol=1e-6)
    with pytest.raises(RuntimeError, match="floating point dtypes"):
        torch.kaiser_window(5, dtype=torch.int64, device="tpu")
