"""Windows that fail: the operation is named, what does not depend on it runs, and nothing that was there is lost."""

import dataclasses
import warnings

import pytest
import torch

import torchtpu
from torchtpu.lowering import registry


@pytest.fixture
def broken_trunc(monkeypatch):
    """`torch.trunc` of seven elements cannot be lowered."""
    entry = registry.table()["trunc"]

    def lowering(self):
        if self.shape == (7,):
            raise RuntimeError("seven is refused")
        return entry.fn(self)

    monkeypatch.setitem(registry._table, "trunc", dataclasses.replace(entry, fn=lowering))
    registry.find.cache_clear()
    yield
    registry.find.cache_clear()


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_failing_window_keeps_what_it_can(broken_trunc, repeats):
    """Also when the whole window was to be compiled."""
    with torchtpu.eager_mode("fused"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(repeats):
            p, q = torch.ones(7, device="tpu"), torch.full((7,), 2.0, device="tpu")
            torchtpu.synchronize()
            bad = torch.trunc(q)
            p.add_(bad)
            q.mul_(3)
            r = q + 1
            p.mul_(2)
            with pytest.raises(RuntimeError, match="seven is refused"):
                q.cpu()
            torchtpu.wait_for_compiles()
            assert q.cpu().tolist() == [6.0] * 7 and r.cpu().tolist() == [7.0] * 7
            assert p.cpu().tolist() == [1.0] * 7  # as before the window
            with pytest.raises(RuntimeError, match="seven is refused"):
                bad.cpu()
            with pytest.raises(RuntimeError, match="no value"):
                bad + 1
            assert (p + 1).cpu().tolist() == [2.0] * 7


def test_a_window_that_cannot_be_compiled_as_a_whole_runs_from_its_parts(monkeypatch):
    from torchtpu.program import compiler

    compile_one = compiler.Program.compile

    def refuse(self):
        if self.operations > 1:
            raise RuntimeError("too large")
        compile_one(self)

    monkeypatch.setattr(compiler.Program, "compile", refuse)
    monkeypatch.setattr(compiler, "_warned", False)
    with torchtpu.eager_mode("fused"):
        x = torch.arange(11.0, device="tpu")
        with pytest.warns(UserWarning, match="could not be compiled as a whole"):
            for _ in range(4):
                assert (x * 2 - 1).exp().sum().item() > 0
                torchtpu.wait_for_compiles()
        assert {w.how for w in torchtpu.explain(last=2).windows} == {"parts"}


def test_a_quick_program_is_improved_when_it_runs_often():
    with torchtpu.eager_mode("fused"):
        x = torch.arange(13.0, device="tpu")
        before = torchtpu.compile_count() + torchtpu.stats().get("cache_loads", 0)
        for _ in range(140):
            x = x + 1
            torchtpu.synchronize()
            torchtpu.wait_for_compiles()
        assert x[0].item() == 140
        assert torchtpu.compile_count() + torchtpu.stats().get("cache_loads", 0) >= before
