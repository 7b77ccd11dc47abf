"""Fused recurrent cells against PyTorch's own cells (the CPU has no kernel for the fused forms)."""

import jax
import torch

from torchtpu.lowering.call import Context, OutSpec, call, raw
from torchtpu.lowering.evaluate import to_jax, to_torch

aten = torch.ops.aten


def run(op, shapes, *arguments):
    with jax.enable_x64(True):
        outs = [None if s is None else OutSpec(torch.float64, tuple(s)) for s in shapes]
        values = [to_jax(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        return [None if r is None else to_torch(r) for r in call(op.default, values, Context(outs))]


def make(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def test_lstm_cell():
    gi, gh, c, bi, bh = make(3, 8), make(3, 8), make(3, 2), make(8), make(8)
    i, f, g, o = (gi + gh + bi + bh).chunk(4, 1)
    want_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    want_h = o.sigmoid() * want_c.tanh()
    shapes = [(3, 2), (3, 2), (3, 8)]
    h, cy, workspace = run(aten._thnn_fused_lstm_cell, shapes, *(t.detach() for t in (gi, gh, c, bi, bh)))
    torch.testing.assert_close(h, want_h.detach())
    torch.testing.assert_close(cy, want_c.detach())
    for dh, dc in ((torch.randn(3, 2).double(), torch.randn(3, 2).double()), (torch.randn(3, 2).double(), None)):
        want = torch.autograd.grad((want_h * dh).sum() + (0 if dc is None else (want_c * dc).sum()), (gi, c, bi), retain_graph=True)
        got = run(aten._thnn_fused_lstm_cell_backward_impl, [(3, 8), (3, 2), (8,)], dh, dc, c.detach(), cy, workspace, True)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


def test_gru_cell():
    gi, gh, h, bi, bh = make(3, 6), make(3, 6), make(3, 2), make(6), make(6)
    (ir, iz, n), (hr, hz, hn) = (gi + bi).chunk(3, 1), (gh + bh).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    new = (n + r * hn).tanh()
    want = new + z * (h - new)
    hy, workspace = run(aten._thnn_fused_gru_cell, [(3, 2), (3, 10)], *(t.detach() for t in (gi, gh, h, bi, bh)))
    torch.testing.assert_close(hy, want.detach())
    grad = torch.randn(3, 2).double()
    grads = torch.autograd.grad((want * grad).sum(), (gi, gh, h, bi, bh))
    shapes = [(3, 6), (3, 6), (3, 2), (6,), (6,)]
    for a, b in zip(run(aten._thnn_fused_gru_cell_backward, shapes, grad, workspace, True), grads, strict=True):
        torch.testing.assert_close(a, b)


def test_lstm_cell_without_biases():
    """Results have the cell's dtype whatever the arithmetic is done in: no meta kernel of PyTorch's tells it."""
    with jax.enable_x64(True):
        gates, c = to_jax(torch.randn(3, 8).bfloat16()), to_jax(torch.randn(3, 2).bfloat16())
        for result in raw(aten._thnn_fused_lstm_cell.default, [gates, gates, c, None, None], Context([])):
            assert result.dtype == c.dtype
