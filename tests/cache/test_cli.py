"""The command line."""

import json
import re

import pytest
import torch

import torchtpu
from torchtpu import cli, config, doctor


@pytest.fixture
def directory(monkeypatch, tmp_path):
    """A directory with two entries, which the commands are about."""
    from torchtpu.cache import store

    for name in config.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHTPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "_store", None)
    base = directory.sizes = getattr(directory, "sizes", 50) + 1
    x = torch.ones(base, 3).to("tpu")
    held = (x * x, x - x)
    torchtpu.synchronize()
    assert len(held) == 2 and len(list((tmp_path / "cache").rglob("*.entry"))) == 2
    return tmp_path / "cache"


def run(capsys, *arguments, status=0):
    assert cli.main(["cache", *map(str, arguments)]) == status
    return capsys.readouterr().out


def test_info(directory, capsys):
    text = run(capsys, "info")
    assert str(directory) in text and "2 entries" in text and "2.0 GiB" in text
    found = json.loads(run(capsys, "info", "--json"))
    assert found["entries"] == 2 and found["bytes"] > 0 and found["limit"] == 2 << 30


def test_list(directory, capsys):
    text = run(capsys, "list")
    assert re.search(r"KiB .* s  mul  \(cpu, jax", text) and "  sub  (cpu" in text
    rows = [json.loads(line) for line in run(capsys, "list", "--json").splitlines()]
    assert {row["name"] for row in rows} == {"mul", "sub"} and all(row["compile_seconds"] > 0 for row in rows)


def test_verify_removes_what_is_damaged(directory, capsys):
    assert "2 entries, 0 damaged" in run(capsys, "verify")
    path = next(directory.rglob("*.entry"))
    path.write_bytes(path.read_bytes()[:-1])
    assert "damaged: " in run(capsys, "list")
    assert "checksum" in run(capsys, "verify", status=1)
    assert "1 entries, 0 damaged" in run(capsys, "verify")


def test_export_and_import(directory, capsys, tmp_path):
    assert "2 entries written" in run(capsys, "export", tmp_path / "x.zip")
    other = tmp_path / "other"
    assert "2 entries copied" in run(capsys, "import", tmp_path / "x.zip", "--dir", other)
    names = sorted(p.name for p in other.rglob("*.entry"))
    assert names == sorted(p.name for p in directory.rglob("*.entry"))
    for path in other.rglob("*.entry"):
        assert path.read_bytes() == next(directory.rglob(path.name)).read_bytes()
    data = bytearray((tmp_path / "x.zip").read_bytes())
    data[len(data) // 4] ^= 1
    (tmp_path / "x.zip").write_bytes(data)
    assert "1 damaged ones left out" in run(capsys, "import", tmp_path / "x.zip", "--dir", tmp_path / "third", status=1)


def test_prune_and_clear(directory, capsys):
    assert "removed 0 entries" in run(capsys, "prune")
    assert "removed 0 entries" in run(capsys, "prune", "--older-than", 1)
    assert "removed 1 entries" in run(capsys, "prune", "--size", "8KB")
    assert "removed 1 entries" in run(capsys, "clear")
    assert "removed 0 entries" in run(capsys, "clear")
    assert "0 entries" in run(capsys, "info")


def test_errors_are_one_line(directory, capsys, tmp_path, monkeypatch):
    assert cli.main(["cache", "import", str(tmp_path / "nothing")]) == 1
    assert capsys.readouterr().err.startswith("torchtpu: ")
    (tmp_path / "text").write_text("hello")
    assert cli.main(["cache", "import", str(tmp_path / "text")]) == 1
    assert "not an archive" in capsys.readouterr().err
    assert cli.main(["cache", "prune", "--size", "much"]) == 1
    with pytest.raises(SystemExit, match="TORCHTPU_SHARED_CACHE"):
        cli.main(["cache", "info", "--shared"])
    directory.chmod(0o777)
    with pytest.raises(SystemExit, match="others can write"):
        cli.main(["cache", "info"])
    with pytest.raises(SystemExit):
        cli.main(["cache", "burn"])


def test_shared(directory, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHTPU_SHARED_CACHE", str(tmp_path / "shared"))
    assert "0 entries" in run(capsys, "info", "--shared")


def test_env_names_every_setting(monkeypatch, capsys):
    monkeypatch.setenv("TORCHTPU_CACHE_SIZE", "1GiB")
    monkeypatch.setenv("XLA_FLAGS", "--xla_flag=1")
    assert cli.main(["env"]) == 0
    text = capsys.readouterr().out
    assert all(f"{name}=" in text for name in config.SETTINGS)
    assert f"TORCHTPU_CACHE_SIZE={2**30}\n" in text and "XLA_FLAGS=--xla_flag=1" in text
    monkeypatch.setenv("TORCHTPU_CACHE_SIZE", "some")
    assert cli.main(["env"]) == 1
    assert "number of bytes" in capsys.readouterr().out


def test_doctor_is_content_here(directory, capsys):
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "FAIL" not in text and "native core" in text and "platform cpu" in text and str(directory) in text


def test_doctor_names_what_is_missing_and_the_remedy(monkeypatch, directory, capsys):
    monkeypatch.setattr(doctor, "_version", lambda name: {"jax": None, "torch": "1.0.0"}.get(name, "0.10.2"))
    monkeypatch.setenv("TORCHTPU_CACHE_SIZE", "some")
    assert cli.main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "jax is not installed\n       → pip install 'jax>=" in text
    assert "torch 1.0.0 is outside" in text
    assert "→ unset TORCHTPU_CACHE_SIZE" in text
    assert "platform" not in text  # the device is not tried


def test_doctor_runs_where_the_core_does_not_load(tmp_path):
    """`python -m torchtpu doctor` is what one runs then."""
    import os
    import shutil
    import subprocess
    import sys
    import sysconfig
    from pathlib import Path

    package = tmp_path / "torchtpu"
    shutil.copytree(Path(torchtpu.__file__).parent, package, ignore=shutil.ignore_patterns("_C*.so", "__pycache__"))
    # Empty and not missing: an editable installation would find its own.
    (package / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(b"")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-m", "torchtpu", "doctor"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "the native core does not load" in done.stdout and "pip install --no-build-isolation" in done.stdout
