"""Constant, reflecting and replicating pads."""

import pytest
import torch

from torchtpu.lowering.evaluate import compare

aten = torch.ops.aten
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, *FLOATS])
def test_constant(dtype):
    x = torch.ones(2, 3, 4, dtype=dtype)
    for pad, value in [([1, -2, 0, 3], 2), ([-1, -1], 0), ([0, 0, 1, 1], 1), ([], 0)]:
        compare(aten.constant_pad_nd.default, x, pad, value)


PADS = {1: [(2, 1), (0, 3), (-1, 2), (1, -2)], 2: [(2, 1, 0, 3), (1, 1, -1, 2)], 3: [(1, 2, 3, 0, 1, 1)]}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["reflection", "replication"])
def test_pads(kind, dtype):
    # The CPU accumulates in the half type.
    tolerance = {"rtol": 5e-2, "atol": 8e-2} if dtype in (torch.float16, torch.bfloat16) else {}
    for dims, pads in PADS.items():
        forward = getattr(aten, f"{kind}_pad{dims}d").default
        backward = getattr(aten, f"{kind}_pad{dims}d_backward").default
        for pad in pads:
            for lead in ((2, 3), (3,)):
                x = torch.randn(*lead, *(4, 5, 6)[:dims], dtype=dtype)
                y = forward(x, pad)
                compare(forward, x, pad)
                compare(backward, torch.randn_like(y), x, pad, **tolerance)
