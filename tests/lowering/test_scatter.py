"""Scattered writes and reductions, histograms and searches."""

import pytest
import torch

from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten
ALL = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
REDUCES = ["sum", "prod", "mean", "amax", "amin"]


def make(*shape, dtype=torch.float32):
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randint(-2, 3, shape).to(dtype)
    return torch.randint(0, 4, shape, dtype=dtype)


def tolerance(dtype):
    return {"rtol": 2e-2, "atol": 2e-2} if dtype in (torch.float16, torch.bfloat16) else {}


@pytest.mark.parametrize("dtype", [*ALL, torch.complex64])
def test_scatter(dtype):
    x = make(3, 5, dtype=dtype)
    unique = torch.stack([torch.randperm(5)[:2] for _ in range(3)])
    compare(aten.scatter.src, x, 1, unique, make(3, 4, dtype=dtype))
    compare(aten.scatter.src, x, -1, unique[:2], make(3, 4, dtype=dtype))
    compare(aten.scatter_.value, x, 1, unique, 1)
    compare(aten.scatter.value_out, x, 1, unique, 1, out=torch.empty_like(x))
    compare(aten.scatter.src, x, 0, torch.empty(0, 5, dtype=torch.int64), make(3, 5, dtype=dtype))
    index = torch.randint(0, 3, (2, 4))
    compare(aten.scatter_add.default, x, 0, index, make(3, 5, dtype=dtype))
    compare(aten.scatter_add_.default, x, 0, index, make(2, 4, dtype=dtype))
    if dtype != torch.bool:
        compare(aten.scatter.reduce, x, 0, index, make(2, 4, dtype=dtype), reduce="add")
        compare(aten.scatter.reduce, x, 0, index, make(2, 4, dtype=dtype), reduce="multiply")
        compare(aten.scatter.value_reduce, x, 0, index, 2, reduce="multiply")
    s = make(dtype=dtype)
    compare(aten.scatter.src, s, 0, torch.tensor(0), make(dtype=dtype))
    compare(aten.scatter.value, s, 0, torch.tensor([0]), 1)
    compare(aten.scatter_add.default, s, 0, torch.tensor(0), make(dtype=dtype))


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("dtype", ALL)
def test_reduce(dtype, reduce, include_self):
    if dtype == torch.bool and reduce in ("mean",):
        pytest.skip("PyTorch has no mean of bool")
    x, index = make(3, 5, dtype=dtype), torch.randint(0, 3, (4, 4))
    kwargs = {"include_self": include_self, **tolerance(dtype)}
    compare(aten.scatter_reduce.two, x, 0, index, make(4, 5, dtype=dtype), reduce, **kwargs)
    compare(
        aten.scatter_reduce_.two, make(dtype=dtype), 0, torch.tensor([0, 0]), make(2, dtype=dtype), reduce, **kwargs
    )
    if reduce != "sum" and (include_self or dtype != torch.bool):
        rows = torch.tensor([0, 2, 2, 0])
        compare(aten.index_reduce.default, x, 0, rows, make(4, 5, dtype=dtype), reduce, **kwargs)
        compare(aten.index_reduce.default, x, 1, rows, make(3, 4, dtype=dtype), reduce, **kwargs)


def test_reduce_nan():
    x = torch.tensor([1.0, float("nan"), 3.0])
    src = torch.tensor([float("nan"), 2.0, 0.5, float("-inf")])
    for reduce in REDUCES:
        for include in (True, False):
            compare(aten.scatter_reduce.two, x, 0, torch.tensor([0, 1, 2, 2]), src, reduce, include_self=include)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histograms(dtype):
    x = torch.randn(40, dtype=dtype)
    for args in [(10, 0, 0), (7, -1, 1.5), (3, 2, 2), (1, -5, 5)]:
        compare(aten.histc.default, x, *args)
    compare(aten.histc.default, torch.ones(3, dtype=dtype), 4)
    compare(aten.histc.default, x[:0], 4, 0, 1)
    w = torch.rand(40, dtype=dtype)
    for density in (False, True):
        compare(aten.histogram.bin_ct, x, 8, density=density)
        compare(aten.histogram.bin_ct, x, 5, range=[-1.0, 2.0], weight=w, density=density)
        compare(
            aten.histogram.bins_tensor, x, torch.tensor([-2, -0.5, 0, 0.1, 3], dtype=dtype), weight=w, density=density
        )
        p = torch.randn(10, 4, 2, dtype=dtype)
        compare(aten._histogramdd_from_bin_cts.default, p, [3, 4], density=density)
        compare(aten._histogramdd_from_bin_tensors.default, p, [torch.tensor([-1.0, 0, 2], dtype=dtype)] * 2)
    compare(aten._histogramdd_bin_edges.default, p, [3, 4], range=[-1.0, 1.0, 0.0, 2.0])


@pytest.mark.parametrize("n", [0, 1, 5, 64, 200])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bfloat16, torch.float32, torch.float64])
def test_search(dtype, n):
    sequence = torch.randint(0, 50, (2, 3, n)).to(dtype).sort().values
    values = torch.randint(-2, 53, (2, 3, 7)).to(dtype)
    flat = sequence[0, 0].contiguous()
    for right in (False, True):
        compare(aten.searchsorted.Tensor, sequence, values, right=right, out_int32=True)
        compare(aten.searchsorted.Tensor, flat, values, right=right)
        compare(aten.searchsorted.Scalar, flat, 7, right=right)
        compare(aten.bucketize.Tensor, values, flat, right=right)
        compare(aten.bucketize.Scalar, 3, flat, right=right)
    compare(aten.searchsorted.Tensor, flat, values[0, 0, 0], side="right")
    shuffled = sequence.flip(-1).contiguous()
    compare(aten.searchsorted.Tensor, shuffled, values, sorter=shuffled.argsort(-1))


def test_search_nan():
    sequence = torch.tensor([0.0, 1.0, 2.0, float("inf")])
    for x in (torch.tensor([float("nan"), float("inf"), 1.0, float("-inf")]), torch.empty(0)):
        for right in (False, True):
            compare(aten.searchsorted.Tensor, sequence, x, right=right)


@pytest.mark.parametrize("n", [0, 3, 100])
def test_isin(n):
    x = torch.randint(0, 200, (4, 5))
    for tests in (torch.randint(0, 200, (n,)), torch.randint(0, 200, (n,)).float()):
        for invert in (False, True):
            compare(aten.isin.Tensor_Tensor, x, tests, invert=invert)
    compare(aten.isin.Tensor_Scalar, x, 3)
    compare(aten.isin.Scalar_Tensor, 3, x)
    nan = torch.tensor([float("nan"), 1.0])
    compare(aten.isin.Tensor_Tensor, nan, nan.repeat(n or 1))
