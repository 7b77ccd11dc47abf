"""Sorting and selection by rank."""

import jax
import pytest
import torch

from torchtpu.lowering.evaluate import compare, evaluate, to_jax
from torchtpu.lowering.sort import lexicographic_order

aten = torch.ops.aten
ALL = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
SHAPES = [(7,), (3, 8), (2, 5, 3), (1,), (), (0,), (2, 0), (0, 3)]
NAN = float("nan")
AWKWARD = torch.tensor([[1.0, NAN, -0.0, 0.0, float("inf"), -NAN, float("-inf"), 1.0]])


def make(*shape, dtype=torch.float32):
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    return torch.randint(0 if dtype == torch.uint8 else -5, 6, shape).to(dtype)


def check_selection(x, dim, values, indices, expected):
    """Ties may resolve in any way, but the values are right and sit where the indices say."""
    torch.testing.assert_close(values, expected, equal_nan=True)
    assert indices.dtype == torch.int64
    if x.ndim and x.numel():
        torch.testing.assert_close(x.gather(dim, indices), values, equal_nan=True)
        ordered = indices.sort(dim).values
        assert (ordered.diff(dim=dim) > 0).all()


@pytest.mark.parametrize("dtype", ALL)
def test_sort(dtype):
    for shape in SHAPES:
        x = make(*shape, dtype=dtype)
        for dim in (0, -1):
            for descending in (False, True):
                compare(aten.sort.stable, x, stable=True, dim=dim, descending=descending)
                compare(
                    aten.sort.values_stable,
                    x,
                    stable=True,
                    dim=dim,
                    descending=descending,
                    values=torch.empty_like(x),
                    indices=torch.empty(shape, dtype=torch.int64),
                )
    (values, _), (expected, _) = evaluate(aten.sort.default, make(9, 4, dtype=dtype), 0, True)
    assert torch.equal(values, expected)
    if dtype.is_floating_point:
        for descending in (False, True):
            compare(aten.sort.stable, AWKWARD.to(dtype), stable=True, dim=1, descending=descending)


@pytest.mark.parametrize("dtype", ALL)
def test_topk(dtype):
    for shape in SHAPES:
        x = make(*shape, dtype=dtype)
        for dim in (0, -1):
            n = x.shape[dim] if x.ndim else 1
            for k in {0, min(1, n), min(3, n), n}:
                for largest in (True, False):
                    try:
                        (values, indices), (expected, _) = evaluate(aten.topk.default, x, k, dim, largest)
                    except RuntimeError as error:
                        assert dtype == torch.bool or "selected index k out of range" in str(error)
                        continue
                    check_selection(x, dim, values, indices, expected)
    if dtype.is_floating_point:
        x = AWKWARD.to(dtype)
        for largest in (True, False):
            for k in (1, 3, 8):
                (values, indices), (expected, _) = evaluate(aten.topk.default, x, k, 1, largest)
                check_selection(x, 1, values, indices, expected)


@pytest.mark.parametrize("dtype", [d for d in ALL if d != torch.bool])
def test_kthvalue(dtype):
    for shape in [(7,), (3, 8), (2, 5, 3), ()]:
        x = make(*shape, dtype=dtype)
        for dim in (0, -1):
            for keepdim in (False, True):
                (values, indices), (expected, _) = evaluate(aten.kthvalue.default, x, 1, dim, keepdim)
                assert torch.equal(values, expected)
                if x.ndim:
                    kept = indices if keepdim else indices.unsqueeze(dim)
                    assert torch.equal(x.gather(dim, kept).reshape(values.shape), values)
    if dtype.is_floating_point:
        (values, _), (expected, _) = evaluate(aten.kthvalue.default, AWKWARD.to(dtype), 7)
        assert values.isnan().all() and expected.isnan().all()


@pytest.mark.parametrize("unique", [torch.unique, torch.unique_consecutive])
@pytest.mark.filterwarnings("ignore:.*has no lowering")
def test_unique_of_nothing(unique):
    x = torch.zeros(5, 0, 5)
    want = unique(x, dim=1, return_inverse=True, return_counts=True)
    got = unique(x.to("tpu"), dim=1, return_inverse=True, return_counts=True)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.cpu(), b)


def test_lexicographic_order():
    for rows in (torch.randint(0, 2, (20, 4)), torch.rand(20, 3).round(), torch.zeros(0, 3), torch.zeros(3, 0), torch.rand(6, 2) > 0.5):
        with jax.enable_x64(True):
            got = lexicographic_order(to_jax(rows)).tolist()
        assert got == sorted(range(rows.shape[0]), key=lambda i: rows[i].tolist())
