"""What the project says about itself: metadata, settings, links."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_entry_point_is_a_function():
    points = PROJECT["entry-points"]["torch.backends"]
    assert points == {"torchtpu": "torchtpu._autoload:autoload"}
    module, name = points["torchtpu"].split(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_installed_entry_point_is_the_same():
    found = [e.value for e in importlib.metadata.entry_points(group="torch.backends") if e.name == "torchtpu"]
    assert set(found) == {PROJECT["entry-points"]["torch.backends"]["torchtpu"]}


def test_version():
    import torchtpu

    assert torchtpu.__version__ == PROJECT["version"]


def test_ranges_cover_the_pinned_versions():
    requirement = pytest.importorskip("packaging.requirements").Requirement
    pinned = {}
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            pinned[name.lower()] = version
    for text in PROJECT["dependencies"]:
        wanted = requirement(text)
        assert pinned[wanted.name.lower()] in wanted.specifier
    extras = PROJECT["optional-dependencies"]
    for text in extras["dev"] + extras["demo"]:
        assert requirement(text).name in pinned


def test_settings_page_is_what_config_says(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    write_settings = importlib.import_module("write_settings")
    assert write_settings.PAGE.read_text(encoding="utf-8") == write_settings.page(), "run scripts/write_settings.py"


def test_every_variable_is_a_setting():
    from torchtpu import config

    used = set()
    for folder in ("torchtpu", "csrc", "examples", "benchmarks"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in (".py", ".cpp", ".h", ".inc"):
                used.update(re.findall(r"""["'](TORCHTPU_[A-Z0-9_]+)["']""", path.read_text(encoding="utf-8")))
    assert used <= set(config.SETTINGS)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{page}: {target}"


def test_make_help_names_every_target():
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split()
    shown = re.findall(r'@echo "make (\w+)', makefile) + ["help", "setup", "distclean"]
    assert set(phony) == set(shown)


def test_set_up_skips_what_has_not_changed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    set_up = importlib.import_module("set_up")
    step = set_up.Step(tmp_path, "x", "a step", "key 1")
    assert step.needed()
    with step:
        pass
    assert not step.needed()
    assert set_up.Step(tmp_path, "x", "a step", "key 2").needed()
    failing = set_up.Step(tmp_path, "y", "a step", "key")
    with pytest.raises(SystemExit), failing:
        sys.exit(1)
    assert failing.needed()
