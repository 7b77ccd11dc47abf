"""Windows, programs and compile counts."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import torchtpu
from torchtpu import _C


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def _train(device, steps, make_optimizer, schedule=True, dropout=0.0):
    model = _model()
    model.append(nn.Dropout(dropout))
    model = model.to(device)
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(32, 8, generator=g).to(device), torch.randn(32, 4, generator=g).to(device)
    optimizer = make_optimizer(model.parameters())
    losses, counts = [], []
    for step in range(steps):
        if schedule:
            for group in optimizer.param_groups:
                group["lr"] = 1e-2 / (1 + step)
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if device != "cpu":
            torchtpu.synchronize()
            torchtpu.wait_for_compiles()
            counts.append(torchtpu.compile_count())
    return torch.stack([v.cpu() for v in losses]), counts


OPTIMIZERS = {
    "sgd for": lambda p: torch.optim.SGD(p, lr=1e-2, foreach=False),
    "sgd momentum foreach": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, foreach=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, fused=True),
    "adam for": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "adamw for": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True, amsgrad=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_loop_settles_and_agrees_with_the_cpu(name, mode):
    """After warm-up nothing compiles, although the learning rate changes at every step."""
    want, _ = _train("cpu", 12, OPTIMIZERS[name])
    got, counts = _train("tpu", 12, OPTIMIZERS[name])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    assert counts[-1] == counts[5], counts


def test_dropout_compiles_nothing_new_and_differs_each_step(mode):
    got, counts = _train("tpu", 10, OPTIMIZERS["adamw foreach"], dropout=0.5)
    assert counts[-1] == counts[5] and len(set(got.tolist())) == 10


def test_strict_runs_one_program_an_operation():
    with torchtpu.eager_mode("strict"):
        x = torch.ones(4, device="tpu")
        torchtpu.synchronize()
        before = torchtpu.stats()
        y = (x + 1) * 2
        after = torchtpu.stats()
        assert after["programs_run"] - before["programs_run"] == 2
        assert y.cpu().tolist() == [4, 4, 4, 4]


def test_fused_waits_for_a_read_and_runs_one_program():
    with torchtpu.eager_mode("fused"):
        for _ in range(4):
            x = torch.ones(5, device="tpu")
            torchtpu.synchronize()
            before = torchtpu.stats()
            y = ((x + 1) * 2 - 3).exp()
            assert _C._pending(0) == 4
            total = y.sum().item()
            torchtpu.wait_for_compiles()
            after = torchtpu.stats()
        assert after["windows"] - before["windows"] == 1 and after["programs_run"] - before["programs_run"] == 1
        assert total == pytest.approx(5 * torch.tensor(1.0).exp().item(), rel=1e-6)


def test_the_size_limit_cuts():
    code = """
import torch, torchtpu
torchtpu.set_eager_mode("fused")
x = torch.zeros(2, device="tpu")
torchtpu.synchronize()
before = torchtpu.stats()["windows"]
for _ in range(50):
    x = x + 1
assert torchtpu.stats()["windows"] - before == 5
assert x.cpu().tolist() == [50, 50]
"""
    import os

    subprocess.run([sys.executable, "-c", code], env=dict(os.environ, TORCHTPU_MAX_WINDOW="10"), check=True, timeout=300)


def test_optimizer_step_ends_a_window():
    with torchtpu.eager_mode("fused"):
        model = nn.Linear(2, 2).to("tpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2, device="tpu")).sum().backward()
        assert _C._pending(0) > 0
        optimizer.step()
        assert _C._pending(0) == 0


def test_scalars_are_operands(mode):
    x = torch.arange(4.0, device="tpu")
    for value in (2.5, 3.5, 4.5):
        (x * value).cpu()
    torchtpu.wait_for_compiles()
    before = torchtpu.compile_count()
    for value in (5.5, 6.25, 7.125):
        assert (x * value).cpu().tolist() == [0, value, 2 * value, 3 * value]
        assert torch.add(x, x, alpha=value)[1].item() == 1 + value
    torchtpu.wait_for_compiles()
    assert torchtpu.compile_count() - before <= 4  # the add and its read, not one for each value


def test_dead_inputs_are_donated_in_place():
    with torchtpu.eager_mode("strict"):
        x = torch.zeros(1 << 16, device="tpu")
        x.add_(1)
        array = _C._array_of(torch.zeros(2, device="tpu"))
        assert not array.is_deleted()
        held = torch.zeros(1 << 16, device="tpu")
        other = held.clone()
        held.add_(1)  # `other` must not change
        assert other.sum().item() == 0 and held.sum().item() == 1 << 16


def test_same_code_gives_the_same_windows():
    """The same loop once more in one process adds no program, once every window was seen twice."""
    with torchtpu.eager_mode("fused"):
        for _ in range(2):
            _train("tpu", 6, OPTIMIZERS["adamw foreach"])
            torchtpu.wait_for_compiles()
        before = torchtpu.compile_count()
        _train("tpu", 6, OPTIMIZERS["adamw foreach"])
        torchtpu.wait_for_compiles()
        assert torchtpu.compile_count() == before


def test_debug_and_strict_agree_to_the_bit():
    results = []
    for which in ("debug", "strict"):
        with torchtpu.eager_mode(which):
            results.append(_train("tpu", 5, OPTIMIZERS["adam foreach"])[0])
    assert torch.equal(*results)


def test_memory_stays_flat(mode):
    model = _model().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(4, 8, device="tpu")
    sizes = []
    for step in range(20):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        if step >= 5:
            torchtpu.synchronize()
            sizes.append(torch.tpu.memory_allocated())
    assert len(set(sizes)) == 1
