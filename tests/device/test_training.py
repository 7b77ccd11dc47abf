"""What training code does around the operators: hooks, checkpointing, grad modes, tied weights, saved optimizers."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def test_module_hooks(mode):
    seen = []
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).to("tpu")
    model[0].register_forward_pre_hook(lambda module, args: seen.append("forward pre"))
    model[0].register_forward_hook(lambda module, args, result: result * 2)
    model.register_full_backward_pre_hook(lambda module, grads: seen.append("backward pre"))
    model.register_full_backward_hook(lambda module, grads, outer: seen.append(f"backward {outer[0].device}"))
    x = torch.ones(1, 2, device="tpu", requires_grad=True)
    y = model(x)
    plain = torch.relu(2 * nn.functional.linear(x, model[0].weight, model[0].bias))
    assert torch.equal(y, plain)
    y.sum().backward()
    assert seen == ["forward pre", "backward pre", "backward tpu:0"]


def test_tensor_hooks(mode):
    x = torch.ones(3, device="tpu", requires_grad=True)
    x.register_hook(lambda grad: grad * 10)
    y = x * 2
    y.retain_grad()
    y.sum().backward()
    assert y.grad.tolist() == [1.0] * 3 and x.grad.tolist() == [20.0] * 3
    x.register_hook(lambda grad: {}["missing"])
    with pytest.raises(KeyError, match="missing"):
        (x * 2).sum().backward()


def test_optimizer_inside_backward(mode):
    model = nn.Linear(3, 3).to("tpu")
    before = model.weight.detach().clone()
    optimizers = {p: torch.optim.SGD([p], lr=0.5) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    model(torch.ones(1, 3, device="tpu")).sum().backward()
    torch.testing.assert_close(model.weight, before - 0.5)
    assert model.weight.grad is None


def test_checkpoint_changes_nothing(mode):
    def run(use_reentrant):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 8)).to("tpu")
        x = torch.ones(4, 8, device="tpu", requires_grad=True)
        with torch.autocast("tpu", torch.bfloat16):
            y = model(x) if use_reentrant is None else checkpoint(model, x, use_reentrant=use_reentrant)
        y.float().sum().backward()
        return x.grad, model[0].weight.grad, torch.rand(1, device="tpu")

    plain = run(None)
    for use_reentrant in (True, False):
        for got, expected in zip(run(use_reentrant), plain):
            assert torch.equal(got, expected)


def test_checkpoint_sequential():
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)]).to("tpu")
    x = torch.ones(2, 4, device="tpu", requires_grad=True)
    model(x).sum().backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    checkpoint_sequential(model, 2, x, use_reentrant=False).sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], expected)


def test_activations_saved_on_cpu():
    x = torch.full((3,), 3.0, device="tpu", requires_grad=True)
    with torch.autograd.graph.save_on_cpu(pin_memory=True, device_type="tpu"):
        y = (x * x).sum()
    y.backward()
    assert x.grad.tolist() == [6.0] * 3


def test_no_grad(mode):
    w = torch.ones(2, device="tpu", requires_grad=True)
    with torch.no_grad():
        assert not (w * 2).requires_grad
        w.add_(1)
        with torch.enable_grad():
            assert (w * 2).requires_grad
    assert w.tolist() == [2.0, 2.0] and w.is_leaf
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        w.add_(1)
    y = w.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_inference_mode(mode):
    model = nn.Linear(2, 2).to("tpu")
    x = torch.ones(1, 2, device="tpu")
    expected = model(x).detach()
    with torch.inference_mode():
        y = model(x)
        assert y.is_inference() and not y.requires_grad
        y[0].mul_(2)
    assert torch.equal(y, expected * 2)
    w = torch.ones(2, device="tpu", requires_grad=True)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        w * y


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.embed(tokens))


def test_tied_weights_stay_tied(mode):
    torch.manual_seed(0)
    reference = Tied()
    model = copy.deepcopy(reference).to("tpu")
    tokens = torch.tensor([1, 2, 1])
    for net, where in ((reference, "cpu"), (model, "tpu")):
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        for _ in range(3):
            loss = nn.functional.cross_entropy(net(tokens.to(where)), tokens.to(where))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert model.out.weight is model.embed.weight and len(list(model.parameters())) == 1
    torch.testing.assert_close(model.embed.weight.cpu(), reference.embed.weight)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    loaded["embed.weight"].zero_()
    assert not loaded["out.weight"].any()
    model.cpu()
    assert model.out.weight.data_ptr() == model.embed.weight.data_ptr()


@pytest.mark.parametrize("location", [None, "tpu", "cpu"])
def test_training_resumes_from_a_file(location):
    torch.manual_seed(0)
    x = torch.ones(4, 3, device="tpu")

    def step(model, optimizer):
        optimizer.zero_grad()
        model(x.to(model.weight.device)).pow(2).mean().backward()
        optimizer.step()

    model = nn.Linear(3, 2).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    step(model, optimizer)

    file.seek(0)
    saved = torch.load(file, map_location=location, weights_only=True)
    other = nn.Linear(3, 2).to(location or "tpu")
    resumed = torch.optim.AdamW(other.parameters(), lr=0.1)
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    step(other, resumed)
    assert resumed.state[other.weight]["step"] == 2
    torch.testing.assert_close(other.weight.cpu(), model.weight.cpu())


def test_graph_is_freed_after_backward(mode):
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    w = torch.ones(1000, device="tpu", requires_grad=True)
    (w * w).exp().sum().backward()
    del w
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() == before
