"""Random programs over views and in-place writes, run on the CPU and on the device.

A program is a list of choices; `run` plays it on one device and returns every tensor that it made. Sizes and operators
are few, so that the executables of earlier programs serve later ones.
"""

from __future__ import annotations

import torch

SHAPES = [(4, 6), (6,), (2, 3, 4), (1, 6), ()]
DTYPES = [torch.float32, torch.int64, torch.float64]
LIMIT = 64  # values are clamped, so that nothing overflows

VIEWS = [
    lambda t: t.t() if t.dim() == 2 else t.movedim(0, -1) if t.dim() else t,
    lambda t: t[1:] if t.dim() and t.size(0) > 1 else t,
    lambda t: t[..., ::2] if t.dim() else t,
    lambda t: t[..., 0] if t.dim() and t.size(-1) else t,
    lambda t: t.unsqueeze(0) if t.dim() < 3 else t,
    lambda t: t.flatten() if t.is_contiguous() else t,
    lambda t: t.narrow(-1, t.size(-1) // 2, t.size(-1) - t.size(-1) // 2) if t.dim() else t,
    lambda t: t.diagonal() if t.dim() >= 2 else t,
    lambda t: t.view(2, -1) if t.is_contiguous() and t.numel() and t.numel() % 2 == 0 else t,
    lambda t: t.unfold(-1, 2, 2) if t.dim() in (1, 2) and t.size(-1) >= 2 else t,
    lambda t: t.squeeze(),
    lambda t: t.data,
]
UNARY = [
    lambda t: -t,
    lambda t: t.abs(),
    lambda t: t.relu(),
    lambda t: t.sum(-1) if t.dim() else t.sum(),
    lambda t: t.cumsum(0) if t.dim() else t + 1,
    lambda t: t.flip(0) if t.dim() else t * 1,
    lambda t: t.clone(),
    lambda t: t.sign() + 2,
    lambda t: (t > 1).to(t.dtype),
    lambda t: t.amax(0) if t.dim() and t.size(0) else t + 0,
]
BINARY = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b.sign(),
    lambda a, b: torch.maximum(a, b),
    lambda a, b: torch.where(a > b, a, b.to(a.dtype)),
]
IN_PLACE = [
    lambda t, s: t.add_(s),
    lambda t, s: t.mul_(s % 3 - 1),
    lambda t, s: t.fill_(s),
    lambda t, s: t.clamp_(-s, s),
    lambda t, s: t.zero_(),
    lambda t, s: t.neg_(),
    lambda t, s: t.masked_fill_(t > s, s),
    lambda t, s: t.__setitem__(0, s) if t.dim() and t.size(0) else t.add_(1),
    lambda t, s: t.cumsum_(0) if t.dim() else t.sub_(1),
]
IN_PLACE_BINARY = [
    lambda a, b: a.copy_(b),
    lambda a, b: a.add_(b, alpha=2),
    lambda a, b: a.sub_(b),
    lambda a, b: a.copy_(b.flip(-1) if b.dim() else b),
]
KINDS = ("view", "view", "unary", "binary", "in_place", "in_place", "in_place_binary")


def _spans_share(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _writable(t: torch.Tensor) -> bool:
    """PyTorch leaves writes to elements that share memory undefined."""
    if t.numel() <= 1:
        return True
    spans = sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n > 1)
    reach = 1
    for stride, size in spans:
        if stride < reach:
            return False
        reach = stride * (size - 1) + reach
    return True


def run(device: str, program: list[tuple[int, int, int, int]], shape: int, dtype: int) -> list[torch.Tensor]:
    """Plays a program: each step is (kind, function, first operand, second operand or scalar)."""
    size = SHAPES[shape % len(SHAPES)]
    n = max(1, int(torch.tensor(size).prod())) if size else 1
    start = (torch.arange(n) * 7 % 11 - 5).reshape(size).to(DTYPES[dtype % len(DTYPES)])
    tensors = [start.to(device), (start * 2).to(device)]
    for kind, function, first, second in program:
        name = KINDS[kind % len(KINDS)]
        a, b = tensors[first % len(tensors)], tensors[second % len(tensors)]
        if name == "view":
            tensors.append(VIEWS[function % len(VIEWS)](a))
        elif name == "unary":
            tensors.append(UNARY[function % len(UNARY)](a).clamp(-LIMIT, LIMIT))
        elif name == "binary":
            try:
                torch.broadcast_shapes(a.shape, b.shape)
            except RuntimeError:
                continue
            tensors.append(BINARY[function % len(BINARY)](a, b).clamp(-LIMIT, LIMIT))
        elif name == "in_place":
            if _writable(a):
                IN_PLACE[function % len(IN_PLACE)](a, second % 7)
                a.clamp_(-LIMIT, LIMIT)
        elif _writable(a) and not _spans_share(a, b):
            try:
                if torch.broadcast_shapes(a.shape, b.shape) != a.shape:
                    continue
            except RuntimeError:
                continue
            IN_PLACE_BINARY[function % len(IN_PLACE_BINARY)](a, b)
            a.clamp_(-LIMIT, LIMIT)
    return tensors


def difference(program: list[tuple[int, int, int, int]], shape: int, dtype: int) -> str | None:
    """What differs between CPU and device after a program, or None."""
    want, got = run("cpu", program, shape, dtype), run("tpu", program, shape, dtype)
    for i, (w, g) in enumerate(zip(want, got, strict=True)):
        if w.shape != g.shape or w.stride() != g.stride() or w.dtype != g.dtype:
            return f"tensor {i}: {g.dtype}{tuple(g.shape)}{g.stride()} instead of {w.dtype}{tuple(w.shape)}{w.stride()}"
        if not torch.equal(g.cpu(), w):
            return f"tensor {i}: {g.cpu()} instead of {w}"
    return None
