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
    random: the same, but each device draws its own random numbers, so losses differ
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


class ResidualBlock(nn.Module):
    """Two convolutions with BatchNorm and a shortcut."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if stride > 1 or before != after else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet(device):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2), ResidualBlock(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    ).to(device)  # fmt: skip
    images, labels = torch.randn(16, 3, 32, 32).to(device), torch.randint(10, (16,)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=5e-4)
    return training(model, optimizer, lambda m: F.cross_entropy(m(images), labels))


def transformer(device):
    """Dropout, gradient clipping and a learning-rate schedule."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 10)).to(device)
    x, y = torch.randn(8, 32, 64).to(device), torch.randint(10, (8, 32)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss.detach()

    return step


def accumulation(device):
    """Four backward passes for each step of the optimizer."""
    model = mlp_model().to(device)
    x, y = (t.to(device) for t in mlp_inputs())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    def step():
        optimizer.zero_grad()
        for part, target in zip(x.chunk(4), y.chunk(4)):
            loss = F.mse_loss(model(part), target) / 4
            loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def gan(device):
    """Two models trained in turns."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)).to(device)
    critic = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)).to(device)
    real, noise = torch.randn(32, 32).to(device), torch.randn(32, 16).to(device)
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
    c_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    one, zero = torch.ones(32, 1).to(device), torch.zeros(32, 1).to(device)

    def step():
        c_optimizer.zero_grad()
        fake = generator(noise)
        loss = F.binary_cross_entropy_with_logits(critic(real), one)
        loss = loss + F.binary_cross_entropy_with_logits(critic(fake.detach()), zero)
        loss.backward()
        c_optimizer.step()
        g_optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(critic(fake), one)
        loss.backward()
        g_optimizer.step()
        return loss.detach()

    return step


def generation(device):
    """Greedy decoding of eight tokens with a static key-value cache; tokens stay on the device."""
    torch.manual_seed(0)
    width, heads, length, vocab = 64, 4, 64, 97
    embed, head = nn.Embedding(vocab, width).to(device), nn.Linear(width, vocab).to(device)
    blocks = [[nn.Linear(width, 3 * width).to(device), nn.Linear(width, width).to(device), nn.LayerNorm(width).to(device)] for _ in range(2)]
    caches = [torch.zeros(2, 1, heads, length, width // heads).to(device) for _ in blocks]
    positions = torch.arange(length).to(device)

    @torch.no_grad()
    def step():
        token = torch.zeros(1, dtype=torch.int64, device=device)
        position = torch.zeros((), dtype=torch.int64, device=device)
        for _ in range(8):
            x = embed(token)
            here = (positions == position)[None, None, :, None]
            for (qkv, out, norm), cache in zip(blocks, caches):
                q, k, v = qkv(norm(x)).view(1, 3, heads, 1, width // heads).unbind(1)
                cache[0] = torch.where(here, k, cache[0])
                cache[1] = torch.where(here, v, cache[1])
                mask = (positions <= position)[None, None, None]
                y = F.scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=mask)
                x = x + out(y.reshape(1, width))
            token = head(x).argmax(-1)
            position = position + 1
        return token

    return step


def physics(device):
    """One step of a wave equation on a grid, elementwise operations and shifts."""
    torch.manual_seed(0)
    u, before = (torch.randn(256, 256).to(device) for _ in range(2))
    speed = torch.rand(256, 256).to(device) * 0.2

    def step():
        nonlocal u, before
        around = u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1) - 4 * u
        after = (2 * u - before + speed * around) * 0.999 - 1e-4 * torch.sin(u) * u.square()
        u, before = torch.clamp(after, -10, 10), u
        return u

    return step


def branching(device):
    """A script that reads a value at each step and branches on it."""
    torch.manual_seed(0)
    w = torch.randn(32, 32).to(device) / 6
    x = torch.randn(16, 32).to(device)

    def step():
        nonlocal x
        x = torch.tanh(x @ w) + 0.1 * x
        x = F.layer_norm(x, (32,))
        if x.square().mean().item() > 0.5:
            x = x * 0.9
        else:
            x = x * 1.1
        return x

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
        Row("resnet", "ResNet of 7 convolutions, 16×3×32×32, SGD", resnet),
        Row("transformer", "Transformer with dropout, clipping and a schedule, 8×32×64, AdamW", transformer, "random"),
        Row("accumulation", "the MLP, four backward passes a step, SGD", accumulation),
        Row("gan", "GAN of two small MLPs, two Adam steps", gan),
        Row("generation", "8 tokens of greedy decoding, static cache, width 64", generation, "read"),
        Row("physics", "wave equation on 256×256, 18 operations", physics, "read"),
        Row("branching", "a value read and branched on at each step", branching, "read"),
        Row("add", "one add of 8×8, host only", add, "host"),
    )
}
