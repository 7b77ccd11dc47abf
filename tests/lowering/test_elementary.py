"""Elementary functions against the CPU's."""

import math

import pytest
import torch

from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten
UNARY = (
    "exp exp2 expm1 log log1p log2 log10 sqrt rsqrt sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh "
    "sigmoid reciprocal sgn abs neg"
).split()
REAL_ONLY = "deg2rad rad2deg floor ceil trunc round frac sign signbit isfinite isposinf isneginf".split()
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.0, math.inf, -math.inf, math.nan, 1e-3]
HALF = {"rtol": 1e-2, "atol": 1e-2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*UNARY, *REAL_ONLY, "sinc", "nan_to_num"])
def test_float(name, dtype):
    extra = HALF if dtype.itemsize == 2 else {}
    compare(getattr(aten, name).default, torch.tensor(SPECIAL, dtype=dtype), **extra)


@pytest.mark.parametrize("name", UNARY)
def test_complex(name):
    x = torch.tensor([1, -1, 1j, -1j, 1 + 1j, -2.5 + 0.5j, 0.3 - 0.4j], dtype=torch.complex64)
    if name in ("atanh", "atan"):
        x = x[4:]  # poles
    compare(getattr(aten, name).default, x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.bool])
@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "sin", "tanh", "sigmoid", "exp2", "rsqrt", "reciprocal"])
def test_integers_become_floats(name, dtype):
    compare(getattr(aten, name).default, torch.tensor([0, 1, 2, 3]).to(dtype))


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round", "frac", "sign"])
def test_rounding_leaves_integers(name):
    if name == "frac":
        pytest.skip("not for integers")
    compare(getattr(aten, name).default, torch.arange(-3, 4))


@pytest.mark.parametrize("decimals", [-1, 0, 2])
def test_round_decimals(decimals):
    compare(aten.round.decimals, torch.tensor([12.345, -0.005, 15.0, 25.0]), decimals=decimals)


def test_parts_of_floats():
    x = torch.tensor([1.0, -0.3, 100.0, 0.0])
    compare(aten.frexp.Tensor, x)
    compare(aten.ldexp.Tensor, x, torch.tensor([3, -2, 10, 5]))
    compare(aten.nextafter.default, x, torch.tensor([2.0, -1.0, 100.0, 1.0]))
    compare(aten.copysign.Tensor, x, torch.tensor([-0.0, 1.0, math.nan, -1.0]))
    compare(aten.nan_to_num.default, torch.tensor([math.nan, math.inf, -math.inf]), 1.0, 2.0, 3.0)


def test_binary_functions_reach_the_limits():
    a = torch.tensor(SPECIAL)[:, None]
    b = torch.tensor(SPECIAL)[None, :]
    for op in (aten.logaddexp, aten.logaddexp2, aten.hypot, aten.atan2):
        compare(op.default, a, b)


def test_exp2_is_exact_at_whole_numbers():
    compare(aten.exp2.default, torch.arange(-120.0, 128.0), rtol=0, atol=0)
