"""What the report says about each compile, and when it warns."""

import json
import re

import pytest
import torch

import torchtpu
from torchtpu.cache import difference, report


@pytest.fixture(autouse=True)
def cold(monkeypatch, tmp_path):
    """Nothing is known, on disk or in this process's report. (The core's own programs stay: tests use sizes of their own.)"""
    from torchtpu.cache import store

    monkeypatch.setenv("TORCHTPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(store, "_store", None)
    for name in ("_known", "_keys", "_causes", "_compiles"):
        value = getattr(report, name)
        monkeypatch.setattr(report, name, type(value)())
    with torchtpu.eager_mode("strict"):  # where each line compiles what it needs
        yield


_sizes = iter(range(1000, 10_000))


@pytest.fixture
def n():
    """A size that no other test has used."""
    return next(_sizes)


def f(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype).to("tpu")


def last():
    torchtpu.synchronize()
    return report.records()[-1]


def test_where_and_how_long(n):
    a = f(n)
    before = len(report.records())
    held = a + a
    row = last()
    assert len(report.records()) == before + 1
    assert row["name"] == "add" and row["operations"] == 1 and 0 < row["seconds"] < 60
    assert re.search(r"test_report\.py:\d+ in test_where_and_how_long", row["location"])
    assert row["reason"] == "new: no program like it was known" and row["remedy"] == ""
    assert held.shape == (n,)


@pytest.mark.parametrize(
    ("first", "second", "kind", "text"),
    [
        (lambda n: torch.mm(f(2, n), f(n, 37)), lambda n: torch.mm(f(2, n), f(n, 41)), "shape", r"operand 2 \(mat2\), dimension 1: 37 → 41"),
        (lambda n: f(n) - f(1), lambda n: f(n, dtype=torch.float64) - f(1), "dtype", r"operand 1 \(self\): float32 → float64"),
        (lambda n: f(n, 2) * f(1), lambda n: f(2, n).t() * f(1), "view", r"operand 1 \(self\): strides \(2, 1\) → \(1, \d+\)"),
        (lambda n: f(n + 1)[1:].exp(), lambda n: f(n + 1)[:n].exp(), "view", "storage offset 1 → 0"),
        (lambda n: f(n, 2).sum(0), lambda n: f(n, 2).sum(1), "argument", r"argument dim: \[0\] → \[1\]"),
        (lambda n: f(n).sin(), lambda n: f(n, 1).sin(), "shape", "1 dimension → 2 dimensions"),
        (lambda n: torch.cat([f(n), f(2)]), lambda n: torch.cat([f(n), f(3)]), "shape", r"operand 2 \(tensors\[1\]\), dimension 0: 2 → 3"),
        (lambda n: torch.cat([f(n)] * 2), lambda n: torch.cat([f(n), f(n), f(n)]), "argument", "1 → 3 operands|2 → 3 operands"),
        (lambda n: f(n).add(1), lambda n: f(n).add(1.5), "argument", "argument other: an int → a float"),
    ],
)
def test_the_exact_difference(n, first, second, kind, text):
    with torchtpu.eager_mode("strict"):
        first(n)
        second(n)
    row = last()
    assert row["kind"] == kind and re.search(text, row["reason"]), row
    assert row["remedy"] == difference.REMEDIES[kind]


def _window(n, keep=False, extra=False):
    with torchtpu.eager_mode("fused"):
        for _ in range(2):  # compiled when it is seen again
            a = f(n)
            b = a.sin()
            if extra:
                b = b.exp()
            c = b * 2
            d = c + a
            held = (c, d) if keep else d
            del b, c
            torchtpu.synchronize()
            torchtpu.wait_for_compiles()
    return held


def window_row():
    torchtpu.synchronize()
    return [r for r in report.records() if r["operations"] > 1][-1]


def test_a_window_with_another_result_alive(n):
    _window(n)
    _window(n, keep=True)
    assert "the result of operation 2 (aten::mul.Tensor) is held by a tensor, which it was not" in window_row()["reason"]


def test_a_window_with_a_new_operation(n):
    _window(n)
    _window(n, extra=True)
    assert window_row()["reason"] == "a new operation at position 2: aten::exp"
    assert window_row()["kind"] == "operations"


def test_a_window_of_another_size(n):
    _window(n)
    _window(next(_sizes) + 5000)
    assert re.match(r"operation 1 \(aten::sin\): operand 1 \(self\), dimension 0: ", window_row()["reason"])


def test_another_processes_programs_are_compared_too(n, monkeypatch):
    """What differs may be a version."""
    f(n).cos()
    torchtpu.synchronize()
    environment = {**report._compiles[-1].environment, "jax": "9.9"}
    monkeypatch.setattr(report, "_known", {})
    monkeypatch.setattr(report, "_keys", set())  # as in a process that has not compiled it
    record = report._compiles[-1]
    reasons = report._why(record.key[:48] + "f" * 32, record.description, environment, 10**9)
    assert [d.text for d in reasons] == [f"jax {record.environment['jax']} → 9.9"]


def test_formats(n):
    f(n) + f(n)
    torchtpu.synchronize()
    text = torchtpu.compile_report()
    assert re.search(r"\d+\.\d ms  add  at .*test_report\.py", text) and "no program like it" in text
    data = json.loads(torchtpu.compile_report("json"))
    assert data["compiles"] == len(data["programs"]) > 0 and data["programs"][-1]["name"] == "add"
    report.note("<script>", 1, "", 0.1, None, None, "a & b")
    page = torchtpu.compile_report("html")
    assert page.startswith("<!doctype html>") and "&lt;script&gt;" in page and "<script>" not in page
    with pytest.raises(ValueError, match="'text', 'json' or 'html'"):
        torchtpu.compile_report("pdf")


def test_reset_stats_clears_it(n):
    f(n) + f(n)
    torchtpu.synchronize()
    assert report.records()
    torchtpu.reset_stats()
    assert report.records() == []


def test_one_cause_of_many_compiles_is_a_warning(n, monkeypatch):
    monkeypatch.setenv("TORCHTPU_RECOMPILE_WARNING", "3")
    with pytest.warns(RuntimeWarning, match=r"neg was compiled 3 times more at .*test_report.py:\d+ in test_one.*dimension 1: .*drop_last") as caught:
        for k in range(6):
            f(n, 1 + k).neg()
            torchtpu.synchronize()
    assert len(caught) == 1


@pytest.mark.filterwarnings("error")
def test_no_warning_about_different_things(n, monkeypatch):
    monkeypatch.setenv("TORCHTPU_RECOMPILE_WARNING", "3")
    for k, dtype in enumerate((torch.float32, torch.float64, torch.int32, torch.int64, torch.bfloat16, torch.int8)):
        f(n + k * 10_000, 2 + k, dtype=dtype).abs()
    monkeypatch.setenv("TORCHTPU_RECOMPILE_WARNING", "0")
    for k in range(5):
        f(n, 1 + k).tan()
    torchtpu.synchronize()


@pytest.mark.parametrize("mode", ["debug", "strict", "fused"])
def test_forbidden_compiles_name_the_cause(n, mode):
    small, large = f(n), f(n + 20_000)
    held = small.log()
    torchtpu.synchronize()
    with torchtpu.eager_mode(mode), torchtpu.forbid_compiles():
        held = small.log()
    assert held.shape == (n,)
    with pytest.raises(torchtpu.CompileForbiddenError, match=r"log has to be compiled.*dimension 0: \d+ → \d+.*Pad"):
        with torchtpu.eager_mode(mode), torchtpu.forbid_compiles():
            held = large.log()
    assert not report.compiles_forbidden()
    assert large.log().tolist() == [0.0] * (n + 20_000)


def test_forbidden_compiles_of_whole_windows_are_errors_not_warnings(n):
    """Although they would be compiled in the background."""

    def step():
        a = f(n)
        held = a.sin() * 2 + a
        torchtpu.synchronize()
        return held

    with torchtpu.eager_mode("fused"):
        step()
        with pytest.raises(torchtpu.CompileForbiddenError, match="window_3_sin has to be compiled"), torchtpu.forbid_compiles():
            step()


def test_what_is_in_the_cache_is_not_forbidden(n):
    from torchtpu.cache import store

    f(n).sqrt()
    torchtpu.synchronize()
    store._store = None
    with torchtpu.forbid_compiles():
        assert f(n).sqrt().tolist() == [1.0] * n


def test_what_came_later_is_no_reason(n):
    """A program's own later neighbours are on disk too when the report is asked for."""
    first, second = f(n), f(n, 2)
    held = [first.erf(), second.erf()]
    torchtpu.synchronize()
    rows = [row for row in report.records() if row["name"] == "erf"]
    assert [row["reason"].startswith("new") for row in rows] == [True, False] and len(held) == 2
