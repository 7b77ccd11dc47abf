"""Operators whose results' sizes depend on data give the CPU's results and errors, and nothing runs on the CPU."""

import pytest
import torch

import torchtpu

aten = torch.ops.aten
NAN = float("nan")
DTYPES = [
    torch.bool, torch.uint8, torch.int64, torch.uint16, torch.bfloat16, torch.float32, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip


def outcome(device, fn, *args):
    """The results of `fn` as CPU tensors, or its error's type and text."""
    try:
        results = fn(*(a.to(device) if isinstance(a, torch.Tensor) else a for a in args))
    except Exception as error:
        return type(error).__name__, str(error).split("\n")[0]
    return [r.cpu() for r in (results if isinstance(results, tuple) else (results,))]


def check(fn, *args):
    """Asserts that the device's outcome is the CPU's."""
    want, before = outcome("cpu", fn, *args), torchtpu.fallbacks()
    got = outcome("tpu", fn, *args)
    assert torchtpu.fallbacks() == before
    if isinstance(want, tuple):
        assert got == want
    else:
        assert not isinstance(got, tuple), got
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_unique(dtype):
    torch.manual_seed(0)
    for shape in [(3, 4), (), (0, 3)]:
        x = torch.randint(0, 3, shape).to(dtype)
        for inverse, counts in [(True, True), (False, True), (True, False), (False, False)]:
            check(aten._unique2.default, x, True, inverse, counts)
            check(aten.unique_consecutive.default, x, inverse, counts)
        check(aten._unique2.default, x, False, True, True)
        check(aten._unique.default, x, True, True)
        for dim in (0, -1):
            for flag in (True, False):
                check(aten.unique_dim.default, x, dim, True, flag, flag)
                check(aten.unique_consecutive.default, x, flag, flag, dim)
                check(aten.unique_dim_consecutive.default, x, dim, flag, flag)


def test_unique_slices_nan_and_zeros(mode):
    x = torch.randint(0, 2, (5, 2, 3))
    for dim in (0, 1, 2):
        check(aten.unique_dim.default, x, dim, True, True, True)
    x = torch.tensor([1.0, NAN, 2.0, NAN, -0.0, 0.0])
    check(aten._unique2.default, x, True, True, True)
    check(aten.unique_consecutive.default, torch.tensor([NAN, NAN, 1.0, 1.0]), True, True)
    check(torch.unique, x.reshape(2, 3).T)
    for shape in [(0,), (1,), (9,)]:
        x = torch.randint(0, 3, shape)
        check(aten._unique2.default, x, True, True, True)
        check(aten.unique_consecutive.default, x, True, True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bincount(dtype):
    x = torch.tensor([1, 3, 3, 0]).to(dtype)
    check(torch.bincount, x)
    for weights, minlength in [(torch.rand(4), 2), (torch.rand(4).double(), 9), (torch.tensor([1, 2, 3, 4]), -1)]:
        check(torch.bincount, x, weights, minlength)


def test_bincount_edges(mode):
    empty = torch.empty(0, dtype=torch.int64)
    for args in [(empty,), (empty, None, 3), (empty, torch.empty(0), 3), (torch.tensor([-1, 2]),), (torch.tensor([[1, 2]]),)]:
        check(torch.bincount, *args)
    check(torch.bincount, torch.tensor([1, 2]), torch.tensor([1.0]))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.complex64])
def test_nonzero_and_masked_select(dtype):
    for shape in [(4, 5), (3,), (), (0, 3)]:
        x = torch.randint(0, 2, shape).to(dtype)
        check(torch.nonzero, x)
        check(torch.argwhere, x)
        check(torch.masked_select, x, x != 0)
    check(torch.masked_select, torch.arange(5).to(dtype), torch.rand(3, 5) < 0.5)
    check(torch.masked_select, torch.arange(5).to(dtype), torch.arange(5))


def test_out_forms(mode):
    x, mask = torch.tensor([[0, 5], [7, 0]]), torch.tensor([[True, False], [True, True]])
    for dtype in (torch.int64, torch.int32):
        check(lambda x: torch.nonzero(x, out=torch.empty(0, dtype=dtype, device=x.device)), x)
        check(lambda x, m: torch.masked_select(x, m, out=torch.empty(0, dtype=dtype, device=x.device)), x, mask)
    for dtype in (torch.float32, torch.float64):
        outs = lambda x, n: tuple(torch.empty(0, dtype=dtype, device=x.device) for _ in range(n))  # noqa: B023, E731
        check(lambda x: torch.histogram(x, 4, range=(-1.0, 2.0), out=outs(x, 2)), x.float())
        check(lambda x: torch.geqrf(x, out=outs(x, 2)), torch.eye(3))
        check(lambda x: torch.logcumsumexp(x, 0, out=outs(x, 1)[0]), torch.zeros(1, 3))


def test_histograms_infer_their_sizes(mode):
    torch.manual_seed(0)
    x, edges = torch.randn(30), torch.tensor([-2.0, -0.5, 0.0, 1.0])
    check(torch.histogram, x, edges)
    check(lambda x: torch.histogram(x, 4, range=(-1.0, 2.0)), x)
    check(lambda x: torch.histogram(x, 4).hist, x)
    check(lambda x: torch.histogramdd(x.reshape(15, 2), [2, 3]).hist, x)
    check(lambda x: torch.histogram(x, 3), torch.tensor([1, 2]))
    check(lambda x: torch.histogram(x, 3, weight=torch.ones(2, device=x.device)), x)
    check(lambda x: torch.histogramdd(x.reshape(15, 2), [2]).hist, x)
    check(lambda x, e: torch.histogram(x[:0], e, density=True), x, edges)
    for call in (
        lambda: torch.histogram(torch.tensor([1.0, NAN], device="tpu"), 3),
        lambda: torch.histogram(x.to("tpu"), 3, range=(2.0, 1.0)),
        lambda: torch.histc(torch.tensor([1.0, NAN], device="tpu"), 3),
        lambda: torch.histc(x.to("tpu"), 3, 2, 1),
    ):
        with pytest.raises(RuntimeError, match="not finite|should not exceed|must be larger"):
            call()
            torch.tpu.synchronize()
