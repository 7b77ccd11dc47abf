"""Fused optimizer steps and gradient scaling against the CPU's."""

import itertools

import pytest
import torch

from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten


def state(dtype):
    generator = torch.Generator().manual_seed(3)
    shapes = [(3, 4), (5,), ()]

    def make(positive=False):
        return [
            (torch.rand(s, generator=generator) + 0.5 if positive else torch.randn(s, generator=generator)).to(dtype)
            for s in shapes
        ]

    steps = [torch.tensor(float(i + 1)) for i in range(3)]
    return make(), make(), make(), make(True), make(True), steps


SCALING = [
    {},
    {"grad_scale": torch.tensor(2.0), "found_inf": torch.tensor(0.0)},
    {"grad_scale": torch.tensor(2.0), "found_inf": torch.tensor(1.0)},
]


def loose(dtype):
    return {"rtol": 2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scaling", SCALING)
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("name", ["_fused_adam", "_fused_adamw"])
def test_adam(name, amsgrad, scaling, dtype):
    params, grads, avgs, squares, tops, steps = state(dtype)
    options = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": amsgrad, **scaling}
    lists = (params, grads, avgs, squares, tops if amsgrad else [], steps)
    inplace, functional = getattr(aten, name + "_"), getattr(aten, name)
    compare(inplace.default, *lists, lr=1e-2, maximize=False, **options, **loose(dtype))
    compare(inplace.tensor_lr, *lists, lr=torch.tensor(1e-2), maximize=True, **options, **loose(dtype))
    compare(functional.default, *lists, lr=1e-2, maximize=False, **options, **loose(dtype))


def test_adam_keeps_its_digits_at_the_first_step():
    """1 - beta2^1 in single precision would be off by 6e-5."""
    x = [torch.zeros(4)]
    compare(
        aten._fused_adam_.default, x, [torch.ones(4)], [torch.zeros(4)], [torch.zeros(4)], [], [torch.tensor(1.0)],
        lr=1.0, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=0.0, amsgrad=False, maximize=False, rtol=1e-6, atol=0,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scaling", SCALING)
def test_sgd(scaling, dtype):
    params, grads, buffers, *_ = state(dtype)
    for momentum, first, nesterov in itertools.product([0.0, 0.9], [False, True], [False, True]):
        if nesterov and not momentum:
            continue
        options = {
            "weight_decay": 0.1, "momentum": momentum, "dampening": 0.0 if nesterov else 0.2, "nesterov": nesterov,
            "maximize": False, "is_first_step": first, **scaling, **loose(dtype),
        }
        lists = (params, grads, buffers if momentum else [])
        compare(aten._fused_sgd_.default, *lists, lr=0.1, **options)
        compare(aten._fused_sgd_.tensor_lr, *lists, lr=torch.tensor(0.1), **options)


@pytest.mark.parametrize("scaling", SCALING)
def test_adagrad(scaling):
    params, grads, _, sums, _, steps = state(torch.float32)
    options = {"lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-10, "maximize": False, **scaling}
    compare(aten._fused_adagrad_.default, params, grads, sums, steps, lr=0.1, **options)
    compare(aten._fused_adagrad_.tensor_lr, params, grads, sums, steps, lr=torch.tensor(0.1), **options)
    compare(aten._fused_adagrad.default, params, grads, sums, steps, lr=0.1, **options)


@pytest.mark.parametrize("bad", [None, float("inf"), float("nan")])
def test_unscale(bad):
    grads = [torch.randn(3, 4), torch.randn(()), torch.randn(0)]
    if bad is not None:
        grads[0][1, 2] = bad
    for found in (0.0, 1.0):
        compare(
            aten._amp_foreach_non_finite_check_and_unscale_.default, grads, torch.tensor([found]), torch.tensor(0.25)
        )


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("tracker", [0, 4])
@pytest.mark.parametrize("scale", [1024.0, 3e38])
def test_update_scale(scale, tracker, found):
    compare(
        aten._amp_update_scale_.default, torch.tensor(scale), torch.tensor(tracker, dtype=torch.int32),
        torch.tensor(found), 2.0, 0.5, 5,
    )
