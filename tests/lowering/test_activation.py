"""Activations, softmax and their backward operators against the CPU's."""

import math

import pytest
import torch

from torchtpu.lowering.evaluate import compare, evaluate

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SHAPES = [(), (0,), (3, 4)]


def loose(dtype):
    return {"rtol": 2e-2, "atol": 1e-2} if dtype in (torch.bfloat16, torch.float16) else {}


def make(shape, dtype, scale=3.0):
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


FORWARD = [
    ("relu", ()), ("gelu", ()), ("silu", ()), ("mish", ()), ("hardswish", ()), ("hardsigmoid", ()),
    ("elu", ()), ("elu", (0.5, 2.0, 1.5)), ("leaky_relu", (0.2,)), ("hardtanh", ()), ("hardtanh", (-2, 0.5)),
    ("softplus", ()), ("softplus", (2.0, 1.0)), ("threshold", (0.5, 7)), ("hardshrink", ()), ("softshrink", (0.7,)),
    ("celu", (1.5,)), ("log_sigmoid_forward", ()),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name,arguments", FORWARD)
def test_forward(name, arguments, shape, dtype):
    compare(getattr(aten, name).default, make(shape, dtype), *arguments, **loose(dtype))


def test_edges():
    x = torch.tensor([0.0, -3.0, 3.0, 6.0, -6.0, 0.5, -0.5, 1.0, -1.0, math.nan, -math.inf])
    grad = torch.ones_like(x)
    for name in ("relu", "hardswish", "hardsigmoid", "hardtanh", "hardshrink", "softshrink", "leaky_relu", "elu"):
        compare(getattr(aten, name).default, x)
    compare(aten.threshold.default, x, 0.5, -7.0)
    compare(aten.hardtanh_backward.default, grad, x, -1, 1)
    compare(aten.hardswish_backward.default, grad[:-1].clone(), x[:-1].clone())
    compare(aten.hardsigmoid_backward.default, grad, x)
    compare(aten.hardshrink_backward.default, grad, x, 0.5)
    compare(aten.softshrink_backward.default, grad, x, 0.5)
    compare(aten.threshold_backward.default, grad, x, 0)
    compare(aten.leaky_relu_backward.default, grad, x, 0.1, False)
    compare(aten.relu.default, torch.tensor([-1, 2]))


BACKWARD = [
    ("threshold_backward", (0,)), ("gelu_backward", ()), ("silu_backward", ()), ("mish_backward", ()),
    ("hardswish_backward", ()), ("hardsigmoid_backward", ()), ("leaky_relu_backward", (0.2, False)),
    ("hardtanh_backward", (-1, 2)), ("softplus_backward", (2.0, 1.0)), ("hardshrink_backward", (0.5,)),
    ("softshrink_backward", (0.5,)), ("sigmoid_backward", ()), ("tanh_backward", ()),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name,arguments", BACKWARD)
def test_backward(name, arguments, dtype):
    op = getattr(aten, name)
    op = op.default if "default" in op.overloads() else op.grad_input
    compare(op, make((3, 4), dtype, 1.0), make((3, 4), dtype), *arguments, **loose(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_elu_backward(dtype):
    grad, x = make((3, 4), dtype, 1.0), make((3, 4), dtype)
    for is_result in (False, True):
        compare(aten.elu_backward.default, grad, 1.5, 0.5, 1.2, is_result, x, **loose(dtype))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_variants(approximate):
    x = make((5,), torch.float32)
    compare(aten.gelu.default, x, approximate=approximate)
    compare(aten.gelu_backward.default, torch.ones(5), x, approximate=approximate)


def test_prelu_glu_rrelu():
    x, grad = make((2, 3, 4), torch.float32), make((2, 3, 4), torch.float32, 1.0)
    weight = torch.tensor([0.1, 0.2, 0.3]).reshape(1, 3, 1)
    compare(aten._prelu_kernel.default, x, weight)
    compare(aten._prelu_kernel_backward.default, grad, x, weight.expand_as(x).contiguous())
    compare(aten.glu.default, x, -1)
    compare(aten.glu_backward.default, grad[..., :2].contiguous(), x, 2)
    compare(aten.glu_jvp.default, aten.glu(x), x, grad, -1)
    grad_glu, dgrad_glu = grad[..., :2].contiguous(), grad[..., 2:].contiguous()
    grad_x = aten.glu_backward(grad_glu, x, -1)
    compare(aten.glu_backward_jvp.default, grad_x, grad_glu, x, dgrad_glu, grad, -1)
    compare(aten.rrelu_with_noise_backward.default, grad, x, grad.abs(), 0.1, 0.3, True, False)
    compare(aten.rrelu_with_noise_backward.default, grad, x, grad.abs(), 0.1, 0.3, False, False)
    compare(aten.rrelu_with_noise.default, x, torch.zeros_like(x), 0.1, 0.3, False)
    compare(aten.log_sigmoid_backward.default, grad, x, torch.exp(-x.abs()))


def test_rrelu_draws_between_its_bounds():
    x = torch.full((4000,), -1.0)
    (out, noise), _ = evaluate(aten.rrelu_with_noise.default, x, torch.zeros_like(x), 0.1, 0.3, True)
    torch.testing.assert_close(out, -noise)
    assert noise.min() >= 0.1 and noise.max() <= 0.3
    assert abs(noise.mean() - 0.2) < 0.01


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape,dim", [((), 0), ((3, 4), -1), ((3, 4), 0), ((2, 3, 4), 1), ((0, 3), 1), ((3, 0), 1)])
def test_softmax(shape, dim, dtype):
    x, grad = make(shape, dtype), make(shape, dtype, 1.0)
    compare(aten._softmax.default, x, dim, False, **loose(dtype))
    compare(aten._log_softmax.default, x, dim, False, **loose(dtype))
    out = aten._softmax(x, dim, False)
    compare(aten._softmax_backward_data.default, grad, out, dim, dtype, **loose(dtype))
    log_out = aten._log_softmax(x, dim, False)
    compare(aten._log_softmax_backward_data.default, grad, log_out, dim, dtype, **loose(dtype))


def test_softmax_of_infinities():
    x = torch.tensor([[0.0, -math.inf], [-math.inf, -math.inf], [1e30, -1e30]])
    compare(aten._softmax.default, x, 1, False)
    compare(aten._log_softmax.default, x, 1, False)
