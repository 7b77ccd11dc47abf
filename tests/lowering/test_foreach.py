"""`_foreach_*` against the CPU's."""

import pytest
import torch

from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten
UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round "
    "rsqrt sigmoid sign sin sinh sqrt tan tanh trunc max zero clone"
).split()


def lists(dtype=torch.float32, count=3):
    generator = torch.Generator().manual_seed(2)

    def make():
        shapes = [(3, 4), (5,), ()]
        return [(torch.rand(s, generator=generator) * 0.8 + 0.1).to(dtype) for s in shapes]

    return [make() for _ in range(count)]


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    (x,) = lists(count=1)
    compare(getattr(aten, f"_foreach_{name}").default, x, rtol=1e-5, atol=1e-5)
    if name not in ("max", "clone"):
        compare(getattr(aten, f"_foreach_{name}_").default, x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "maximum", "clamp_max"])
def test_binary(name, dtype):
    if dtype.is_complex and name in ("maximum", "clamp_max"):
        pytest.skip("not on the CPU either")
    x, y = lists(dtype, 2)
    if dtype == torch.int64:
        x, y = [t + 3 for t in x], [t + 2 for t in y]
    loose = {"rtol": 2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
    packet = getattr(aten, f"_foreach_{name}")
    compare(packet.List, x, y, **loose)
    compare(packet.Scalar, x, 2, **loose)
    compare(packet.ScalarList, x, [1, 2, 3], **loose)
    if name in ("add", "mul", "div"):
        compare(packet.Tensor, x, torch.tensor(2, dtype=dtype), **loose)
    if name != "div" or dtype != torch.int64:
        compare(getattr(aten, f"_foreach_{name}_").Scalar, x, 2, **loose)


def test_scalars_promote_as_numbers():
    x = [torch.arange(3), torch.tensor(2), torch.ones(2, dtype=torch.bool)]
    compare(aten._foreach_add.Scalar, x, 0.5)
    compare(aten._foreach_mul.ScalarList, x, [0.5, 2, True])
    compare(aten._foreach_add.Scalar, [torch.ones(2)], 1j)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ternary(dtype):
    x, y, z = lists(dtype)
    loose = {"rtol": 2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
    for packet in (aten._foreach_addcmul, aten._foreach_addcdiv, aten._foreach_addcmul_, aten._foreach_addcdiv_):
        compare(packet.Scalar, x, y, z, 0.5, **loose)
        compare(packet.ScalarList, x, y, z, [0.5, 1.0, 2.0], **loose)
        compare(packet.Tensor, x, y, z, torch.tensor([0.5, 1.0, 2.0]), **loose)
    compare(aten._foreach_lerp.List, x, y, z, **loose)
    compare(aten._foreach_lerp.Scalar, x, y, 0.7, **loose)
    compare(aten._foreach_lerp_.ScalarList, x, y, [0.1, 0.5, 0.9], **loose)


def test_the_rest():
    x, y = lists(count=2)
    compare(aten._foreach_copy.default, x, [t.to(torch.float64) for t in y])
    compare(aten._foreach_copy_.default, x, y)
    compare(aten._foreach_pow.ScalarAndTensor, 0.9, x)
    for order in (1, 2, float("inf")):
        compare(aten._foreach_norm.Scalar, x, order)
    compare(aten._foreach_norm.Scalar, [t.bfloat16() for t in x], 2, torch.float32)
    compare(aten._foreach_powsum.Scalar, x, 2)
