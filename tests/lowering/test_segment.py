"""Reductions over segments, and jagged tensors."""

import pytest
import torch

import torchtpu
from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten
NAN = float("nan")
REDUCES = ["sum", "mean", "max", "min", "prod"]
LENGTHS = torch.tensor([2, 0, 3, 1])


def both(data, reduce, tolerance=None, unsafe=False, **options):
    """Compares the reduction and its gradient."""
    tolerance = tolerance or {}
    compare(aten.segment_reduce.default, data, reduce, unsafe=unsafe, **options, **tolerance)
    output = torch.segment_reduce(data, reduce, unsafe=unsafe, **options)
    grad = torch.randn(output.shape).to(data.dtype)
    compare(aten._segment_reduce_backward.default, grad, output, data, reduce, **options, **tolerance)


@pytest.mark.parametrize("reduce", REDUCES)
def test_segment_reduce(reduce):
    torch.manual_seed(0)
    for values in ([1.0, 2, 2, NAN, 5, 6], [0.0, 2, 2, 0, 0, 6], [5.0, 5, 2, 3, 3, 6], [[1.0, NAN], [0, 0]] * 3):
        for initial in (None, 2.0):
            both(torch.tensor(values), reduce, lengths=LENGTHS, initial=initial)
    data = torch.arange(12.0).reshape(2, 3, 2)
    for options in [
        {"lengths": torch.tensor([[1, 2], [3, 0]]), "axis": 1},
        {"offsets": torch.tensor([[0, 1, 3], [0, 3, 3]]), "axis": 1},
        {"lengths": torch.tensor([1, 0], dtype=torch.int32), "unsafe": True},
    ]:
        both(data, reduce, **options)
    compare(aten.segment_reduce.default, torch.arange(6.0), reduce, offsets=torch.tensor([1, 2, 2, 5]))
    compare(aten.segment_reduce.default, torch.empty(0, 3), reduce, lengths=torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_segment_reduce_dtypes(dtype):
    data = torch.tensor([1.0, -2, 0.5, 3, 3, 6]).to(dtype)
    for reduce in REDUCES:
        both(data, reduce, {} if dtype == torch.float64 else {"rtol": 2e-2, "atol": 2e-2}, lengths=LENGTHS)


def test_segment_reduce_errors_and_gradient(mode):
    x = torch.randn(6, 2)
    for data, options in [
        (x, {"lengths": torch.tensor([1, 2])}), (x, {"lengths": torch.tensor([-1, 7])}), (x, {}), (x, {"indices": LENGTHS}),
        (x.long(), {"lengths": LENGTHS}),
    ]:  # fmt: skip
        with pytest.raises((RuntimeError, NotImplementedError)) as want:
            torch.segment_reduce(data, "sum", **options)
        with pytest.raises(type(want.value)) as got:
            torch.segment_reduce(data.to("tpu"), "sum", **{name: t.to("tpu") for name, t in options.items()}).cpu()
        assert str(got.value).split("\n")[0] == str(want.value).split("\n")[0]
    grads = []
    for device in ("cpu", "tpu"):
        y = x.detach().to(device).requires_grad_()
        torch.segment_reduce(y, "max", lengths=LENGTHS.to(device), initial=0).square().sum().backward()
        grads.append(y.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.float32])
def test_jagged(dtype):
    values, offsets = torch.randint(0, 3, (7, 3)).to(dtype), torch.tensor([0, 2, 2, 6, 7])
    for width in (3, 5):  # rows are cut, or padded
        compare(aten._jagged_to_padded_dense_forward.default, values, [offsets], [width], 1.0)
    compare(aten._jagged_to_padded_dense_forward.default, values[:0], [offsets * 0], [2], 1.0)
    dense = torch.randint(0, 3, (4, 4, 3)).to(dtype)
    before = torchtpu.fallbacks()
    for total in (None, 7):
        want = aten._padded_dense_to_jagged_forward(dense, [offsets], total)
        assert torch.equal(aten._padded_dense_to_jagged_forward(dense.to("tpu"), [offsets.to("tpu")], total).cpu(), want)
    assert torchtpu.fallbacks() == before


def test_nested_tensors_pad(mode):
    rows = [torch.randn(2, 3), torch.randn(4, 3)]
    want = torch.nested.nested_tensor(rows, layout=torch.jagged).to_padded_tensor(-1.0)
    got = torch.nested.nested_tensor([r.to("tpu") for r in rows], layout=torch.jagged).to_padded_tensor(-1.0)
    assert torch.equal(got.cpu(), want)
