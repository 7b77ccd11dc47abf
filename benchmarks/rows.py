"""The rows of the speed table. A row builds a step; the same code serves every PyTorch target.

A builder takes the device string and returns the step: a function without arguments that does one
step and returns the tensor whose value proves that the step was done.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from gpt_model import GPT, GPTConfig  # noqa: E402

Step = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Row:
    """One row of the table. Its kind says when a result is read, which is what makes a target wait:

    train: at the end of a turn (an optimizer's step ends a window); losses are compared too
    read:  after each step, since nothing else would make a target compute it
    host:  never within the time that counts: the row is about the host's cost alone
    """

    name: str
    title: str
    build: Callable[[str], Step]
    kind: str = "train"


def training(model, optimizer, loss_of):
    """The usual training step."""

    def step():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def gpt_inputs(vocab, batch, length):
    """Tokens and targets; the hand-written JAX rows use the same."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(vocab, (batch, length + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def gpt_model(config):
    torch.manual_seed(0)
    return GPT(config)


TINY = (GPTConfig(vocab=97, blocks=4, width=32, heads=4, length=16), 2)
SMALL = (GPTConfig(vocab=97, blocks=4, width=128, heads=4, length=64), 8)


def gpt(config, batch, device, **options):
    model = gpt_model(config).to(device)
    tokens, targets = (t.to(device) for t in gpt_inputs(config.vocab, batch, config.length))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    return training(model, optimizer, lambda m: m(tokens, targets))


def gpt_tiny(device):
    return gpt(*TINY, device)


def gpt_tiny_fused(device):
    return gpt(*TINY, device, fused=True)


def gpt_small(device):
    return gpt(*SMALL, device)


def mlp_model():
    torch.manual_seed(0)
    layers = []
    for _ in range(20):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*layers)


def mlp_inputs():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 64, generator=generator), torch.randn(32, 64, generator=generator)


def mlp(device):
    model = mlp_model().to(device)
    x, y = (t.to(device) for t in mlp_inputs())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return training(model, optimizer, lambda m: F.mse_loss(m(x), y))


class LSTMLoop(nn.Module):
    """A cell stepped by a Python loop."""

    def __init__(self, width):
        super().__init__()
        self.cell = nn.LSTMCell(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, xs):
        state: Any = None
        for x in xs:
            state = self.cell(x, state)
        return self.out(state[0])


def lstm(device):
    torch.manual_seed(0)
    model = LSTMLoop(64).to(device)
    xs, y = torch.randn(20, 32, 64).to(device), torch.randn(32, 64).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return training(model, optimizer, lambda m: F.mse_loss(m(xs), y))


def cnn(device):
    torch.manual_seed(0)
    layers = []
    for before, after in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 4 * 4, 10)).to(device)
    images, labels = torch.randn(16, 3, 32, 32).to(device), torch.randint(10, (16,)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return training(model, optimizer, lambda m: F.cross_entropy(m(images), labels))


def elementwise_inputs():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2_000_000, generator=generator), torch.randn(2_000_000, generator=generator)


def elementwise(device):
    x, y = (t.to(device) for t in elementwise_inputs())

    def step():
        z = x
        for _ in range(4):  # 4 × 4 operations
            z = torch.tanh(z * 1.1 + y).neg()
        return z

    return step


def add(device):
    x, y = torch.ones(8, 8).to(device), torch.ones(8, 8).to(device)
    return lambda: x + y


ROWS = {
    row.name: row
    for row in (
        Row("gpt-tiny", "tiny GPT: 4 blocks, width 32, 2×16 tokens, AdamW", gpt_tiny),
        Row("gpt-tiny-fused", "the same, AdamW(fused=True)", gpt_tiny_fused),
        Row("mlp", "20-layer MLP of width 64, batch 32, AdamW", mlp),
        Row("lstm", "LSTMCell loop of 20 steps, width 64, AdamW", lstm),
        Row("elementwise", "16 elementwise operations on 2 M floats", elementwise, "read"),
        Row("gpt-small", "GPT: 4 blocks, width 128, 8×64 tokens, AdamW", gpt_small),
        Row("cnn", "CNN: 3 convolutions with BatchNorm, 16×3×32×32, AdamW", cnn),
        Row("add", "one add of 8×8, host only", add, "host"),
    )
}
