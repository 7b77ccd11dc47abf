"""Index tensors, masks, and reads and writes along a dimension."""

import pytest
import torch

from torchtpu.lowering.evaluate import compare, evaluate

aten = torch.ops.aten
ALL = [
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


def make(*shape, dtype=torch.float32):
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if dtype.is_floating_point or dtype.is_complex:
        # Small integers add up exactly in every type and order.
        return torch.randint(-8, 9, shape).to(dtype)
    return torch.randint(0, 50, shape, dtype=dtype)


def indices():
    i, j = torch.tensor([0, -1, 2]), torch.tensor([[1], [-3]])
    mask1, mask2 = torch.tensor([True, False, True]), torch.rand(3, 4) < 0.5
    yield from [
        [i],
        [None, i],
        [None, None, i],
        [i, None, i],
        [i, i.int()],
        [i, j],
        [None, i, j],
        [j, None, i],
        [torch.tensor(1)],
        [torch.tensor(-2), None, i],
        [torch.empty(0, dtype=torch.int64)],
        [mask1],
        [mask2],
        [None, torch.rand(4, 5) < 0.5],
        [None, None, torch.rand(5) < 0.5],
        [mask1, None, torch.tensor([1, 3])],
        [mask1, j[:, :1]],
        [torch.zeros(3, dtype=torch.bool)],
        [torch.ones(3, 4, 5, dtype=torch.bool)],
        [mask1.byte()],
        [torch.tensor([False, True, False]), i],
        [mask2, torch.tensor(3)],
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ALL)
def test_index(dtype):
    x = make(3, 4, 5, dtype=dtype)
    for index in indices():
        compare(aten.index.Tensor, x, index)
    compare(aten._unsafe_index.Tensor, x, [None, torch.tensor([1, 1])])
    compare(aten.index.Tensor, make(0, 4, dtype=dtype), [torch.empty(0, dtype=torch.int64)])
    compare(aten.index.Tensor, make(0, 4, dtype=dtype), [torch.empty(0, dtype=torch.bool)])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.float32, torch.complex64])
def test_index_put(dtype, accumulate):
    x = make(3, 4, 5, dtype=dtype)
    for index in indices():
        shape = aten.index.Tensor(x, index).shape
        # Equal rows at equal indices: duplicates may be written in any order.
        full = make(*shape[-1:], dtype=dtype).expand(shape) if not accumulate else make(*shape, dtype=dtype)
        i = [k for k in index if k is not None]
        duplicates = len(i) > 1 and not accumulate
        if not duplicates and not (len(i) == 1 and i[0].ndim == 0):
            compare(aten.index_put_.default, x, index, full.clone(), accumulate)
        if i[0].dtype != torch.uint8:  # the CPU's shortcut for one value rejects these
            compare(aten.index_put.default, x, index, make(dtype=dtype), accumulate)
            compare(aten._index_put_impl_.default, x, index, make(1, dtype=dtype), accumulate, True)
    compare(aten.index_put.default, x, [torch.tensor([0, 0, 2])], make(3, 4, 5, dtype=dtype), True)
    mask = torch.rand(3, 4) < 0.5
    compare(aten.index_put.default, x, [mask], make(int(mask.sum()), 5, dtype=dtype), accumulate)
    compare(aten.index_put.default, x, [mask], make(5, dtype=dtype), accumulate)
    compare(aten.index_put.default, x, [mask], make(int(mask.sum()), 1, dtype=dtype), accumulate)
    rows = torch.rand(4) < 0.7
    compare(aten.index_put.default, x, [None, rows], make(3, int(rows.sum()), 5, dtype=dtype), accumulate)
    compare(aten.index_put.default, x, [None, rows], make(int(rows.sum()), 5, dtype=dtype), accumulate)


@pytest.mark.parametrize("dtype", ALL)
def test_along_a_dimension(dtype):
    x = make(4, 5, dtype=dtype)
    i = torch.tensor([3, 0, 1])
    for op, args in [
        (aten.index_select.default, (0, i)),
        (aten.index_select.default, (-1, i.int())),
        (aten.index_select.default, (0, torch.tensor(2))),
        (aten.index_select.default, (0, i[:0])),
        (aten.index_add.default, (0, torch.tensor([1, 1, 3]), make(3, 5, dtype=dtype))),
        (aten.index_add_.default, (1, i, make(4, 3, dtype=dtype))),
        (aten.index_copy.default, (1, i, make(4, 3, dtype=dtype))),
        (aten.index_fill.int_Scalar, (1, torch.tensor([-1, 2]), 1)),
        (aten.index_fill_.int_Scalar, (0, i, True)),
        (aten.index_fill.int_Tensor, (0, i, make(dtype=dtype))),
        (aten.gather.default, (1, torch.randint(0, 5, (4, 7)))),
        (aten.gather.default, (0, torch.randint(0, 4, (2, 3)))),
        (aten.gather.default, (0, torch.empty(0, 3, dtype=torch.int64))),
        (aten.take.default, (torch.tensor([[0, -1], [19, -20]]),)),
        (aten.take.default, (torch.tensor(3),)),
        (aten.put.default, (torch.tensor([3, -1]), make(2, dtype=dtype))),
        (aten.put_.default, (torch.tensor([3, 3]), make(2, dtype=dtype), True)),
    ]:
        compare(op, x, *args)
    compare(aten.index_add.default, x, 0, i, make(3, 5, dtype=dtype), alpha=3 if dtype != torch.bool else True)
    s = make(dtype=dtype)
    compare(aten.index_select.default, s, 0, torch.tensor([0]))
    compare(aten.gather.default, s, 0, torch.tensor(0))
    compare(aten.gather.default, s, 0, torch.tensor([0, 0]))
    compare(aten.index_add.default, s, 0, torch.tensor(0), make(dtype=dtype))
    compare(aten.index_fill.int_Scalar, s, 0, torch.tensor(0), 1)
    compare(aten.index_copy.default, s, 0, torch.tensor(0), make(dtype=dtype))


@pytest.mark.parametrize("dtype", ALL)
def test_masks(dtype):
    x = make(4, 5, dtype=dtype)
    for mask in (torch.rand(4, 5) < 0.5, torch.rand(5) < 0.5, torch.zeros(4, 5, dtype=torch.bool), torch.tensor(True)):
        compare(aten.masked_scatter.default, x, mask, make(30, dtype=dtype))
    compare(aten.masked_scatter.default, x, torch.zeros(4, 5, dtype=torch.bool), make(0, dtype=dtype))
    compare(aten.nonzero_static.default, x, size=30, fill_value=-7)
    compare(aten.nonzero_static.default, x, size=2)
    mask = torch.rand(4, 5) < 0.5
    if dtype.is_floating_point:
        compare(aten.masked_scatter_backward.default, x, mask, [7, 3])


def test_unsafe_masked():
    x = make(3, 4)
    i, j = torch.tensor([[5], [-1], [2]]), torch.tensor([0, 9])
    mask = (i.abs() < 3) & (j < 4)
    compare(aten._unsafe_masked_index.default, x, mask, [i, j], 7.0)
    compare(aten._unsafe_masked_index.default, x, mask[:, :1], [i[:, 0:1], None], 7.0)
    compare(aten._unsafe_masked_index_put_accumulate.default, x, mask, [i, j], make(3, 2))


def test_values_survive():
    """NaN, infinities and the extremes of integers pass through reads and writes."""
    x = torch.tensor([float("nan"), float("inf"), -0.0, 1.0])
    compare(aten.index.Tensor, x, [torch.tensor([3, 2, 1, 0])])
    compare(aten.index_put.default, x, [torch.tensor([True, False, True, False])], torch.tensor(2.0), True)
    big = torch.tensor([2**63 - 1, -(2**63)])
    compare(aten.gather.default, big, 0, torch.tensor([1, 0]))


@pytest.mark.parametrize(
    "op,args,kind,text",
    [
        (
            aten.index.Tensor,
            ([torch.tensor([1, 9])],),
            IndexError,
            "index 9 is out of bounds for dimension 0 with size 3",
        ),
        (
            aten.index.Tensor,
            ([None, torch.tensor([-9])],),
            IndexError,
            "index -9 is out of bounds for dimension 0 with size 4",
        ),
        (
            aten.index_select.default,
            (1, torch.tensor([-1])),
            RuntimeError,
            "INDICES element is out of DATA bounds, id=-1 axis_dim=4",
        ),
        (
            aten.gather.default,
            (1, torch.tensor([[4]])),
            RuntimeError,
            "index 4 is out of bounds for dimension 1 with size 4",
        ),
        (
            aten.index_copy.default,
            (0, torch.tensor([3]), torch.ones(1, 4)),
            IndexError,
            "index_copy_(): index 3 is out of bounds for dimension 0 with size 3",
        ),
        (
            aten.take.default,
            (torch.tensor([12]),),
            IndexError,
            "out of range: tried to access index 12 on a tensor of 12 elements.",
        ),
        (
            aten.index_put.default,
            ([torch.ones(3, dtype=torch.bool)], torch.ones(2, 1)),
            RuntimeError,
            "shape mismatch: value tensor of shape [2, 1] cannot be broadcast to indexing result of shape [3",
        ),
        (
            aten.masked_scatter.default,
            (torch.ones(3, 4, dtype=torch.bool), torch.ones(2)),
            RuntimeError,
            "Number of elements of source < number of ones in mask",
        ),
    ],
)
def test_errors(op, args, kind, text, monkeypatch):
    """A failed check raises what the CPU raises."""
    x = torch.ones(3, 4)
    with pytest.raises(kind) as cpu:
        op(x, *args)
    assert str(cpu.value).startswith(text)
    good = list(args)
    # Shapes of the results come from a call that succeeds; the indices under test are traced operands.
    import torchtpu.lowering.evaluate as module

    original = module.to_jax
    swapped = {}
    for k, a in enumerate(good):
        items = a if isinstance(a, list) else [a]
        fixed = []
        for v in items:
            if isinstance(v, torch.Tensor) and v.dtype == torch.int64:
                swapped[v.shape] = v
                v = torch.zeros_like(v)
            elif isinstance(v, torch.Tensor) and v.dtype == torch.bool:
                swapped[v.shape, "mask"] = v
                bits = torch.zeros_like(v).reshape(-1)
                bits[:2] = True
                v = bits.reshape(v.shape)
            fixed.append(v)
        good[k] = fixed if isinstance(a, list) else fixed[0]

    def to_jax(tensor):
        bad = None
        if tensor.dtype == torch.int64:
            bad = swapped.get(tensor.shape)
        elif tensor.dtype == torch.bool:
            bad = swapped.get((tensor.shape, "mask"))
        return original(tensor if bad is None else bad)

    monkeypatch.setattr(module, "to_jax", to_jax)
    with pytest.raises(kind) as ours:
        evaluate(op, x, *good)
    assert str(ours.value).startswith(text)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_out_of_a_size_that_the_data_decides():
    x = torch.tensor([[1.0, 0.0, 2.0]])
    for name, dtype, call in (
        ("nonzero", torch.int64, lambda t, out: torch.nonzero(t, out=out)),
        ("masked_select", torch.float32, lambda t, out: torch.masked_select(t, t > 0, out=out)),
    ):
        for shape in ((0,), (7,), (2, 2)):
            want = call(x, torch.zeros(shape, dtype=dtype))
            out = torch.zeros(shape, dtype=dtype, device="tpu")
            assert call(x.to("tpu"), out) is out
            assert torch.equal(out.cpu(), want), name
        with pytest.raises(RuntimeError, match="scalar type"):
            call(x.to("tpu"), torch.zeros(2, dtype=torch.int32, device="tpu"))
