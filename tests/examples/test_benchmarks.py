"""The benchmarks' own machinery, without measuring anything."""

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import report, rows, run, soak, worker  # noqa: E402


@pytest.mark.parametrize("name", rows.ROWS)
@pytest.mark.parametrize("target", ["debug", "strict", "fused"])
def test_row_gives_the_cpu_result(name, target):
    import torchtpu

    row = rows.ROWS[name]
    if row.name == "gpt-small" and target == "debug":
        pytest.skip("the tiny GPT stands for it")
    step = row.build("cpu")
    expected = torch.stack([step().reshape(-1)[0] for _ in range(2)])
    with torchtpu.eager_mode(target):
        step = row.build("tpu")
        found = torch.stack([step().reshape(-1)[0].cpu() for _ in range(2)])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_jax_row_does_the_same_work():
    from benchmarks import jax_rows

    for name in ("gpt-tiny", "mlp"):
        torch_step, jax_step = rows.ROWS[name].build("cpu"), jax_rows.BUILDERS[name]()
        for _ in range(3):
            assert float(jax_step()) == pytest.approx(torch_step().item(), rel=1e-4)


def results():
    def numbers(seconds, ratio):
        return {
            "step_seconds": seconds,
            "ratio": ratio,
            "first_step_seconds": 1.5,
            "compiles": 3,
            "stats": {"compile_seconds": 0.5},
            "losses": [1.0, 2.0],
        }

    targets = {"cpu": {**numbers(0.002, 1.0), "compiles": 0, "stats": {}}, "fused": numbers(0.001, 0.5)}
    row = {"name": "mlp", "title": "an MLP", "kind": "train", "targets": targets}
    broken = {**row, "title": "broken", "targets": {**targets, "fused": {"error": "died"}}}
    machine = {"processor": "a processor", "torch": "2.13.0", "jax": "0.10.2"}
    return {"date": "2026-01-01", "rounds": 3, "targets": ["cpu", "fused"], "rows": [row, broken], "machine": machine}


def test_table():
    text = report.plain(report.table(results()))
    assert "an MLP" in text and "1 ms (0.50×)" in text and "2 ms" in text and "failed" in text
    assert "1.50 s, 3 programs in 0.5 s" in report.plain(report.table(results(), report.first_cell))


def test_readme_table_is_replaced(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("before\n" + "\nold\n".join(report.MARKS) + "\nafter\n")
    report.write_into(path, results())
    report.write_into(path, results())
    text = path.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert "old" not in text and text.count("an MLP") == 1
    assert all((ROOT / "README.md").read_text().count(mark) == 1 for mark in report.MARKS)


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    assert report.plot(results(), tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_different_losses_are_found():
    row = results()["rows"][0]
    assert run.differing_losses(row) == []
    row["targets"]["fused"]["losses"] = [1.0, 2.1]
    assert run.differing_losses(row) == ["fused"]
    row["targets"]["fused"]["losses"] = [1.0, float("nan")]
    assert run.differing_losses(row) == ["fused"]


def test_soak_finds_growth_and_compiles():
    steady = [(step, 1000, 500_000, 7) for step in range(0, 401, 20)]
    assert soak.problems(steady, 20, slack=1000) == []
    assert "compiled" in soak.problems([*steady, (420, 1000, 500_000, 8)], 20, slack=1000)[0]
    assert "live bytes" in soak.problems([*steady, (420, 1001, 500_000, 7)], 20, slack=1000)[0]
    assert "resident" in soak.problems([*steady, (420, 1000, 502_000, 7)], 20, slack=1000)[0]


def test_turns_read_when_the_row_says_so(monkeypatch):
    reads = []
    monkeypatch.setattr(worker, "read", reads.append)
    for kind, expected in (("train", 1), ("read", 4), ("host", 1)):
        reads.clear()
        worker.turn(rows.Row("r", "r", None, kind), lambda: 1, 3)
        assert len(reads) == expected


def test_results_are_json():
    path = ROOT / "benchmarks" / "results" / "speed.json"
    if not path.exists():
        pytest.skip("nothing measured yet")
    assert {row["name"] for row in json.loads(path.read_text())["rows"]} == set(rows.ROWS)
