"""Elementwise operators against the CPU's, on the values where implementations differ."""

import math

import pytest
import torch

from torchtpu.lowering.evaluate import compare, evaluate

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.0, math.inf, -math.inf, math.nan, 100.0]


def special(dtype):
    if dtype.is_complex:
        return torch.tensor([0, 1, -1, 1j, -1j, 1 + 1j, -2.5 + 0.5j, 3 - 4j], dtype=dtype)
    if dtype.is_floating_point:
        return torch.tensor(SPECIAL, dtype=dtype)
    values = [0, 1, 2, 3, 5, 7, 8, 31, 32, 63, 64, 100, 127]
    if dtype not in (torch.uint8, torch.bool):
        values += [-1, -2, -3, -7, -128]
    return torch.tensor(values).to(dtype)


def grid(dtype, nonzero_divisor=False):
    v = special(dtype)
    right = v[1:] if nonzero_divisor else v
    return v[:, None].contiguous(), right[None, :].contiguous()


def tolerance(dtype):
    return {"rtol": 1e-2, "atol": 1e-2} if dtype in (torch.bfloat16, torch.float16) else {}


ARITHMETIC = ["add", "sub", "mul", "eq", "ne", "fmax", "fmin", "maximum", "minimum", "lt", "le", "gt", "ge"]
NO_COMPLEX = {"fmax", "fmin", "maximum", "minimum", "lt", "le", "gt", "ge"}


@pytest.mark.parametrize("dtype", [torch.bool, *FLOATS, *INTS, *COMPLEX])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_binary(name, dtype):
    if dtype.is_complex and name in NO_COMPLEX or dtype == torch.bool and name == "sub":
        pytest.skip("not on the CPU either")
    packet = getattr(aten, name)
    op = packet.Tensor if "Tensor" in packet.overloads() else packet.default
    compare(op, *grid(dtype), **tolerance(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["fmod", "remainder", "floor_divide", "div", "atan2", "hypot", "logaddexp", "copysign"])
def test_binary_float(name, dtype):
    packet = getattr(aten, name)
    op = packet.Tensor if "Tensor" in packet.overloads() else packet.default
    compare(op, *grid(dtype), **tolerance(dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
@pytest.mark.parametrize("mode", ["floor", "trunc", None])
def test_rounded_division(mode, dtype):
    compare(aten.div.Tensor_mode, *grid(dtype, not dtype.is_floating_point), rounding_mode=mode, **tolerance(dtype))


def test_truncated_division_by_a_number_is_exact():
    x = torch.arange(1.0, 400.0)
    for divisor in (7.0, 41.0, 49.0, 0.1):
        compare(aten.div.Tensor_mode, x, divisor, rounding_mode="trunc", rtol=0, atol=0)


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("name", ["fmod", "remainder", "floor_divide"])
def test_integer_division(name, dtype):
    packet = getattr(aten, name)
    op = packet.Tensor if "Tensor" in packet.overloads() else packet.default
    a, b = grid(dtype, nonzero_divisor=True)
    compare(op, a, b)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        # The CPU raises by itself; the lowering's own check is what is wanted here.
        _evaluate_lowering_only(op, a, torch.zeros_like(b))


def _evaluate_lowering_only(op, *args):
    import jax
    import jax.numpy as jnp

    from torchtpu.lowering.call import Context, OutSpec, call
    from torchtpu.lowering.evaluate import to_jax

    shape = torch.broadcast_shapes(*(a.shape for a in args))
    with jax.enable_x64(True):
        context = Context([OutSpec(args[0].dtype, tuple(shape))])
        call(op, [to_jax(a) for a in args], context)
        for check in context.checks:
            if not bool(jnp.asarray(check.ok)):
                raise check.exception(check.message.format(value=int(check.value)))


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize(
    "name",
    ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "gcd", "lcm"],
)
def test_bits(name, dtype):
    packet = getattr(aten, name)
    compare(packet.Tensor if "Tensor" in packet.overloads() else packet.default, *grid(dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool])
@pytest.mark.parametrize("number", [2, 2.5, True, -1])
@pytest.mark.parametrize("name", ["add", "mul", "div", "eq", "lt", "ge"])
def test_numbers_promote_by_category(name, number, dtype):
    packet = getattr(aten, name)
    compare(packet.Scalar if name in ("eq", "lt", "ge") else packet.Tensor, special(dtype), number, **tolerance(dtype))


def test_zero_dim_and_dimensioned_promotion():
    a, b = torch.arange(3), torch.tensor(2.5, dtype=torch.float64)
    compare(aten.add.Tensor, a, b)
    compare(aten.mul.Tensor, a.to(torch.int8), torch.tensor(3))
    compare(aten.add.Tensor, torch.ones(2, dtype=torch.float16), torch.ones(2, dtype=torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2, -3, 1.7, 5, -5, 100])
def test_pow_number(exponent, dtype):
    x = special(dtype)
    compare(aten.pow.Tensor_Scalar, x, exponent, **tolerance(dtype))
    compare(aten.pow.Scalar, abs(exponent), x, **tolerance(dtype))


@pytest.mark.parametrize("dtype", INTS)
def test_pow_integers(dtype):
    compare(aten.pow.Tensor_Tensor, *grid(dtype))
    compare(aten.pow.Tensor_Scalar, special(dtype), 100)
    compare(aten.pow.Tensor_Scalar, special(dtype), 0.5)
    compare(aten.pow.Scalar, 3, special(dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool])
@pytest.mark.parametrize("to", [torch.bool, torch.int8, torch.uint8, torch.int64, torch.float16, torch.float32])
def test_conversions(to, dtype):
    x = special(dtype)
    if dtype.is_floating_point and not to.is_floating_point and to != torch.bool:
        x = x[torch.isfinite(x)]  # out of range is undefined in C++
    compare(aten._to_copy.default, x, dtype=to)
    compare(aten.copy.default, torch.zeros(3, x.numel(), dtype=to), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_clamp(dtype):
    x = special(dtype)
    compare(aten.clamp.default, x, -1, 2)
    compare(aten.clamp.default, x, 2, 1)
    compare(aten.clamp.default, x, None, 1)
    compare(aten.clamp.Tensor, x, torch.tensor(1, dtype=dtype), None)
    compare(aten.clamp_min.default, x, 1)
    compare(aten.clamp_max.Tensor, x, x.flip(0))
    compare(aten.clamp.default, x, 0.5, 1.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_fused_arithmetic(dtype):
    a, b, c = (torch.arange(1, 7).reshape(2, 3).to(dtype), torch.ones(3, dtype=dtype), torch.full((2, 1), 2, dtype=dtype))
    compare(aten.addcmul.default, a, b, c, value=2)
    compare(aten.rsub.Scalar, a, 2, 3)
    if dtype != torch.int64:
        compare(aten.addcdiv.default, a, b, c, value=0.5)
        compare(aten.lerp.Scalar, a, a + 1, 0.3)
        compare(aten.lerp.Tensor, a, a + 1, (a / 10))


def test_where_and_fills():
    x, mask = torch.randn(3, 4), torch.rand(3, 1) > 0.5
    compare(aten.where.self, mask, x, torch.tensor(2.0))
    compare(aten.where.self, mask, torch.arange(4), torch.tensor(2.5))
    compare(aten.masked_fill.Scalar, x, mask, -math.inf)
    compare(aten.masked_fill.Tensor, x.to(torch.int32), mask, torch.tensor(7))
    compare(aten.masked_fill_.Scalar, x, mask, 1)
    compare(aten.fill.Scalar, x, 3)
    compare(aten.fill.Tensor, x, torch.tensor(2))
    compare(aten.zero.default, x)
    compare(aten.clone.default, x)
    compare(aten.heaviside.default, x, torch.tensor(0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool, torch.complex64])
def test_logic(dtype):
    a, b = grid(dtype)
    for op in (aten.logical_and, aten.logical_or, aten.logical_xor):
        compare(op.default, a, b)
    compare(aten.logical_not.default, a)
    for op in (aten.isnan, aten.isinf):
        compare(op.default, a)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1, 1)])
def test_awkward_shapes(shape):
    x = torch.randn(shape)
    compare(aten.add.Tensor, x, x, alpha=2)
    compare(aten.where.self, x > 0, x, -x)
    compare(aten.remainder.Scalar, x, 2)
    compare(aten.gcd.default, torch.ones(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.int64))


def test_out_dtype_decides_at_the_end():
    """`out=` may hold another dtype: the sum is computed in the promoted type and cast."""
    actual, expected = evaluate(aten.add.out, torch.ones(3, dtype=torch.int32), 2, out=torch.empty(3, dtype=torch.float64))
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_product_with_a_bool_keeps_nan_and_signs(dtype):
    x = torch.tensor([math.nan, math.inf, -1.0, 2.0], dtype=dtype)
    mask = torch.tensor([False, False, False, True])
    compare(aten.mul.Tensor, x, mask)
    actual, expected = evaluate(aten.mul.Tensor, mask, x)
    assert torch.equal(actual[0].signbit()[2:], expected[0].signbit()[2:])
    got = (x.to("tpu") * (x.to("tpu") > 1).to(dtype)).cpu()
    torch.testing.assert_close(got, x * (x > 1).to(dtype), equal_nan=True)
