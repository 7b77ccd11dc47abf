"""A character-level GPT in plain PyTorch. Nothing here knows which device it runs on."""

import math
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of the model; the defaults are the demo's (about 0.8 M parameters)."""

    vocab: int
    blocks: int = 4
    width: int = 128
    heads: int = 4
    length: int = 64


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Pre-norm transformer with learned positions; the head shares the embedding's weight."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.positions = nn.Embedding(config.length, config.width)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.blocks)])
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        self.head.weight = self.tokens.weight
        self._initialise()

    def _initialise(self):
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
            elif name.startswith(("tokens", "positions")):
                nn.init.normal_(p, std=0.02)
            elif p.dim() == 2:
                # What is added to the residual stream starts small, whatever the depth.
                residual = name.endswith(("out.weight", "down.weight"))
                scale = (2 * self.config.blocks) ** -0.5 if residual else 1.0
                nn.init.normal_(p, std=scale * self.config.width**-0.5)

    def forward(self, tokens, targets=None):
        """Logits, or the mean cross-entropy when targets are given."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def generate(self, tokens, count, temperature=0.8):
        """The tokens that follow; the window keeps its length, so every step has one shape."""
        made = []
        for _ in range(count):
            logits = self(tokens)[:, -1] / temperature
            following = torch.multinomial(torch.softmax(logits, dim=-1), 1)
            tokens = torch.cat([tokens[:, 1:], following], dim=1)
            made.append(following)
        return torch.cat(made, dim=1)


class Text:
    """The Python standard library's own source files, as characters."""

    # Printable ASCII and the newline; whatever else occurs becomes the last character, "?".
    ALPHABET = "\n" + "".join(map(chr, range(32, 127))) + "\N{REPLACEMENT CHARACTER}"

    def __init__(self, folder=None, limit=None):
        folder = Path(folder or sysconfig.get_path("stdlib"))
        files = sorted(folder.glob("*.py"))
        if not files:
            raise FileNotFoundError(f"no .py files in {folder}: is the standard library installed as source?")
        text = "\n".join(f.read_text(encoding="utf-8", errors="replace") for f in files)[:limit]
        self.files, self.codes = len(files), {c: i for i, c in enumerate(self.ALPHABET)}
        data = self.encode(text)
        cut = len(data) * 9 // 10
        self.train, self.validation = data[:cut], data[cut:]

    @property
    def vocab(self):
        return len(self.ALPHABET)

    def encode(self, text):
        last = len(self.ALPHABET) - 1
        return torch.tensor([self.codes.get(c, last) for c in text.replace("\t", "    ")], dtype=torch.int64)

    def decode(self, tokens):
        return "".join(self.ALPHABET[i] for i in tokens)

    def batch(self, size, length, generator=None, data=None):
        """Random pieces of text and the same pieces one character further on."""
        data = self.train if data is None else data
        start = torch.randint(len(data) - length - 1, (size, 1), generator=generator)
        piece = data[start + torch.arange(length + 1)]
        return piece[:, :-1], piece[:, 1:]


def learning_rate(step, steps, peak=2e-3, warm_up=50):
    """Linear warm-up, then a cosine down to a tenth of the peak."""
    if step < warm_up:
        return peak * (step + 1) / warm_up
    done = (step - warm_up) / max(1, steps - warm_up)
    return peak * (0.55 + 0.45 * math.cos(math.pi * min(1.0, done)))
