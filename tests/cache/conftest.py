"""A window to build again and again, against a store of its own."""

import pytest
import torch

from torchtpu import config
from torchtpu.cache import report
from torchtpu.cache import store as stores
from torchtpu.program import compiler, stats


@pytest.fixture(scope="session")
def windows():
    """Descriptions of windows, as the native core hands them over, by name."""
    found = []
    real = compiler.build

    def capture(window, wait):
        found.append(window)
        return real(window, wait)

    compiler.build = capture
    try:
        x = torch.ones(3, 11).to("tpu")
        (x + x).cpu()
        y = torch.ones(3, 12).to("tpu")
        (y + y).cpu()
        z = torch.ones(3, 11, dtype=torch.float64).to("tpu")
        (z + z).cpu()
        torch.nn.functional.embedding(torch.tensor([1, 2, 0, 1, 2]).to("tpu"), x).cpu()
    finally:
        compiler.build = real
    by_name = {}
    for window in found:
        name = window["nodes"][0][0].name.split("::")[1]
        by_name.setdefault(name, []).append(window)
    return {"add": by_name["add"][0], "wider": by_name["add"][1], "double": by_name["add"][2], "embedding": by_name["embedding"][0]}


@pytest.fixture
def build(monkeypatch, tmp_path):
    """Builds a window with a fresh store on tmp_path/cache, or with the settings in keywords: ("compiled" or the tier that
    had it, the program). The program is dropped by the process, so the next call is like one of a new process."""
    for name in config.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(stores, "_store", None)
    monkeypatch.setattr(stores, "_warned", set())
    monkeypatch.setattr(report, "_known", {})
    monkeypatch.setenv("TORCHTPU_CACHE_DIR", str(tmp_path / "cache"))

    def run(window, keep=False, **settings):
        for name, value in settings.items():
            monkeypatch.setenv(name, str(value))
        if not keep:
            stores._store = None
        compiles, loads = stats.compile_count(), stats.loads()
        program = compiler.build(window, True)
        tiers = [tier for tier, n in stats.loads().items() if n != loads.get(tier, 0)]
        assert len(tiers) + stats.compile_count() - compiles == 1
        return (tiers[0] if tiers else "compiled"), program

    return run
