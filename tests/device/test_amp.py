import pytest
import torch
from torch import nn

F = nn.functional


def test_autocast_types(mode):
    a, b = torch.ones(3, 3, device="tpu"), torch.full((3, 3), 2.0, device="tpu")
    with torch.autocast("tpu", torch.bfloat16):
        assert torch.tpu.is_autocast_enabled() and torch.tpu.get_autocast_dtype() == torch.bfloat16
        product = a @ b
        assert product.dtype == torch.bfloat16
        assert F.linear(a, b).dtype == torch.bfloat16
        assert product.softmax(0).dtype == torch.float32
        assert product.sum().dtype == torch.float32
        assert product.exp().dtype == torch.float32
        assert (product + a).dtype == torch.float32
        assert torch.addcmul(product, a, b).dtype == torch.float32
        assert torch.cat([product, a]).dtype == torch.stack([product, a]).dtype == torch.float32
        assert product.norm().dtype == torch.float32
        assert (a.double() @ b.double()).dtype == torch.float64
        with torch.autocast("tpu", enabled=False):
            assert (a @ b).dtype == torch.float32
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(torch.rand(2, device="tpu"), torch.ones(2, device="tpu"))
    assert (a @ b).dtype == torch.float32
    with torch.autocast("tpu", torch.float16):
        assert (a @ b).dtype == torch.float16
    with pytest.warns(UserWarning, match="not supported"), torch.autocast("tpu", torch.float64):
        assert (a @ b).dtype == torch.float32
    assert product.tolist() == [[6.0] * 3] * 3


def test_autocast_trains(mode):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to("tpu")
    x, y = torch.randn(16, 8, device="tpu"), torch.randn(16, 1, device="tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(5):
        with torch.autocast("tpu", torch.bfloat16):
            loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert model[0].weight.grad.dtype == torch.float32


@pytest.mark.parametrize("kind", ["foreach", "fused"])
def test_grad_scaler_with_grouped_optimizers(kind):
    weight = torch.ones(2, device="tpu", requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.0, **{kind: True})
    scaler = torch.amp.GradScaler("tpu", init_scale=4.0)
    scaler.scale((weight * 2).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(weight.detach().cpu(), torch.full((2,), 0.9))
    before = weight.tolist()
    optimizer.zero_grad()
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == before and scaler.get_scale() == 2.0


def test_custom_function_under_autocast(mode):
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu", cast_inputs=torch.float32)
        def forward(ctx, a):
            assert not torch.is_autocast_enabled("tpu")
            return a * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="tpu")
        def backward(ctx, grad):
            return grad * 2

    a = torch.ones(2, 2, device="tpu", requires_grad=True)
    with torch.autocast("tpu", torch.bfloat16):
        y = Double.apply(a @ a)
    y.sum().backward()
    assert y.dtype == torch.float32 and a.grad.tolist() == [[8.0, 8.0]] * 2


def test_grad_scaler(mode):
    weight = torch.ones(2, device="tpu", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler("tpu", init_scale=4.0, growth_interval=1)
    scaler.scale((weight * 2).sum()).backward()
    assert weight.grad.tolist() == [8.0, 8.0]
    scaler.unscale_(optimizer)
    assert weight.grad.tolist() == [2.0, 2.0]
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0.0, 0.0] and scaler.get_scale() == 8.0
    optimizer.zero_grad()
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0.0, 0.0] and scaler.get_scale() == 4.0
    assert scaler.state_dict()["scale"] == 4.0
