"""Embedding tables, bags, and their gradients."""

import itertools

import pytest
import torch

from torchtpu.lowering.evaluate import compare, evaluate

aten = torch.ops.aten
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def tolerance(dtype):
    # The CPU accumulates in the half type.
    return {"rtol": 5e-2, "atol": 5e-2} if dtype in (torch.float16, torch.bfloat16) else {}


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", FLOATS)
def test_embedding(dtype, index):
    weight = torch.randn(10, 4).to(dtype)
    for shape in [(3, 5), (7,), (), (0,), (2, 0)]:
        i = torch.randint(0, 10, shape, dtype=index)
        compare(aten.embedding.default, weight, i, 3)
        grad = torch.randn(*shape, 4).to(dtype)
        for padding, scale in itertools.product((-1, 2), (False, True)):
            compare(aten.embedding_dense_backward.default, grad, i, 10, padding, scale, **tolerance(dtype))


def test_infinite_gradient_stays_in_its_row():
    grad = torch.tensor([[float("inf")], [1.0], [float("nan")]])
    compare(aten.embedding_dense_backward.default, grad, torch.tensor([1, 2, 4]), 5, -1, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_renorm(dtype):
    weight, i = torch.randn(10, 4, dtype=dtype), torch.tensor([[3, 3], [0, 9]])
    for p in (1.0, 2.0, 3.5, float("inf")):
        compare(aten.embedding_renorm_.default, weight, i, 1.0, p)
    compare(aten.embedding_renorm.default, weight, i[:0], 1.0, 2.0)


BAGS = [([0, 2, 2, 5], False), ([0, 0, 4], False), ([0, 3, 7], True), ([0], False)]


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bag(dtype, mode):
    weight, i = torch.randn(10, 4).to(dtype), torch.randint(0, 10, (7,))
    for (offsets, last), padding in itertools.product(BAGS, (-1, 4)):
        offsets = torch.tensor(offsets)
        for samples in (None, torch.rand(7).to(dtype)) if mode == 0 else (None,):
            args = (weight, i, offsets, False, mode, False, samples, last, padding)
            (out, *_), (want, *_) = evaluate(aten._embedding_bag.default, *args)
            torch.testing.assert_close(out, want, **tolerance(dtype))
            (out, *_), _ = evaluate(aten._embedding_bag_forward_only.default, *args)
            torch.testing.assert_close(out, want, **tolerance(dtype))
            _, bag, size, top = aten._embedding_bag(*args)
            grad = torch.randn_like(want)
            compare(
                aten._embedding_bag_backward.default,
                grad,
                i,
                offsets,
                bag,
                size,
                top,
                10,
                False,
                mode,
                False,
                samples,
                padding,
                **tolerance(dtype),
            )
            if samples is not None and dtype not in (torch.float16, torch.bfloat16):
                compare(
                    aten._embedding_bag_per_sample_weights_backward.default,
                    grad,
                    weight,
                    i,
                    offsets,
                    bag,
                    mode,
                    padding,
                )


@pytest.mark.parametrize("mode", [0, 1])
def test_bag_scaled_by_frequency(mode):
    """Each row's gradient is divided by how often the row was read (the CPU's kernel takes another row's count)."""
    weight = torch.randn(10, 4, dtype=torch.float64)
    i, offsets = torch.tensor([1, 4, 4, 0, 4, 1, 9]), torch.tensor([0, 3, 5])
    out, bag, size, top = aten._embedding_bag(weight, i, offsets, False, mode)
    grad = torch.randn_like(out)
    args = (grad, i, offsets, bag, size, top, 10)
    plain = aten._embedding_bag_backward(*args, False, mode, False, None, -1)
    (scaled,), _ = evaluate(aten._embedding_bag_backward.default, *args, True, mode, False, None, -1)
    torch.testing.assert_close(scaled, plain / i.bincount(minlength=10).clamp_min(1)[:, None])


def test_empty_bag():
    weight, i = torch.randn(10, 4), torch.empty(0, dtype=torch.int64)
    for mode in (0, 1):
        (out, *_), (want, *_) = evaluate(
            aten._embedding_bag.default, weight, i, torch.tensor([0, 0]), False, mode, False, None, False, -1
        )
        torch.testing.assert_close(out, want)
