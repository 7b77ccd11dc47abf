"""Operators that the core takes whole: each has a lowering, else it would run on the CPU where its parts need not."""

from pathlib import Path

import pytest
import torch

from torchtpu.lowering import graph, registry

_LIST = Path(__file__).resolve().parents[2] / "csrc" / "whole_operators.inc"
NAMES = [line.strip().strip('",') for line in _LIST.read_text().splitlines() if line.startswith('"')]


def _overload(name):
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload or "default", None)


def test_names_are_unique():
    assert len(NAMES) == len(set(NAMES)) > 500


@pytest.mark.parametrize("name", NAMES)
def test_has_a_lowering(name):
    op = _overload(name)
    if op is None:
        pytest.skip("not in this version of PyTorch")
    assert registry.find(op) is not None or graph.decomposition(op) is not None
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "PrivateUse1")
