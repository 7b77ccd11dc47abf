"""Wrong calls: the device raises what the CPU raises, whether or not a meta kernel looks at it."""

import math

import pytest
import torch
import torch.nn.functional as F


def ones(device, *shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype, device=device)


def conv(device, **change):
    arguments = {"padding": 0, "stride": 1, "dilation": 1, **change}
    return F.conv1d(ones(device, 1, 2, 8), ones(device, 3, 2, 3), **arguments)


WRONG = {
    "gelu": lambda d: F.gelu(ones(d, 3), approximate="no"),
    "conv dilation": lambda d: conv(d, dilation=-1),
    "conv padding": lambda d: conv(d, padding=-1),
    "conv stride": lambda d: conv(d, stride=0),
    "conv3d padding": lambda d: F.conv3d(ones(d, 1, 1, 4, 4, 4), ones(d, 1, 1, 2, 2, 2), padding=-1),
    "complex dtypes": lambda d: torch.complex(ones(d, 3), ones(d, 3, dtype=torch.float64)),
    "masked_scatter mask": lambda d: ones(d, 3).masked_scatter(ones(d, 3, dtype=torch.int32), ones(d, 3)),
    "masked_scatter source": lambda d: ones(d, 3).masked_scatter(ones(d, 3, dtype=torch.bool), ones(d, 3, dtype=torch.int64)),
    "masked_select mask": lambda d: ones(d, 3).masked_select(ones(d, 3, dtype=torch.uint8)),
    "multinomial dtype": lambda d: torch.multinomial(ones(d, 1, 2, dtype=torch.int64), 2),
    "bucketize": lambda d: torch.bucketize(ones(d, 3), ones(d, 3, 3)),
    "searchsorted": lambda d: torch.searchsorted(ones(d, 2, 2), ones(d, 3, 2)),
    "nll_loss weight": lambda d: F.nll_loss(ones(d, 2, 3), torch.zeros(2, dtype=torch.int64, device=d), ones(d, 3, dtype=torch.float16)),
    "index_fill complex": lambda d: ones(d, 3).index_fill(0, torch.tensor([0], device=d), 1 + 1j),
    "logit_ of integers": lambda d: ones(d, 3, dtype=torch.int64).logit_(),
    "foreach of complex": lambda d: torch._foreach_sign_([ones(d, 3, dtype=torch.complex64)]),
    "foreach of integers": lambda d: torch._foreach_addcdiv_(*([ones(d, 3, dtype=torch.int64)] for _ in range(3))),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_raise_the_cpus_error(name):
    with pytest.raises(Exception) as want:
        WRONG[name]("cpu")
    with pytest.raises(type(want.value)) as got:
        WRONG[name]("tpu")
    assert str(got.value).split("\n")[0] == str(want.value).split("\n")[0]


def test_a_lowering_that_fails_gives_way_to_the_cpus_error():
    """addr_ of a 0-d tensor: the meta kernel accepts it, the lowering cannot, and the CPU says why."""
    with pytest.raises(RuntimeError, match="2D tensor expected, got 0D"):
        torch.ones((), device="tpu").addr_(torch.ones(2, device="tpu"), torch.ones(3, device="tpu")).cpu()


def test_a_tensor_of_too_many_dimensions():
    with pytest.raises(RuntimeError, match="only tensors with up to 64 dims are supported"):
        torch.ones((1,) * 65).to("tpu").amax(-1)


def test_uniform_range_is_checked():
    with pytest.raises(RuntimeError, match="expects to return a .from, to. range"):
        torch.empty(3, device="tpu").uniform_(3, -1).cpu()


FILLS = {
    "fill": lambda x, v: x.fill_(v),
    "masked_fill": lambda x, v: x.masked_fill(torch.tensor([True, False], device=x.device), v),
    "full": lambda x, v: torch.full_like(x, v),
    "scatter": lambda x, v: x.scatter(0, torch.tensor([0], device=x.device), v),
    "index_fill": lambda x, v: x.index_fill(0, torch.tensor([0], device=x.device), v),
}
NUMBERS = [-200, 300, 70000.5, 2.5, True, 2**40, 1e300, math.inf, math.nan, 1 + 0j, 1 + 1j]


@pytest.mark.parametrize("name", FILLS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.float64, torch.bool])
def test_numbers_that_do_not_fit(name, dtype):
    for number in NUMBERS:
        try:
            want = FILLS[name](torch.zeros(2, dtype=dtype), number)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as got:
                FILLS[name](torch.zeros(2, dtype=dtype, device="tpu"), number).cpu()
            assert str(got.value) == str(error), number
        else:
            got = FILLS[name](torch.zeros(2, dtype=dtype, device="tpu"), number).cpu()
            torch.testing.assert_close(got, want, equal_nan=True)
