"""Writes the table of docs/settings.md from torchtpu/config.py. Run it after a change of a setting."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"
MARKS = ("<!-- table:begin -->\n", "<!-- table:end -->\n")


def load_config():
    """The module from its file: importing the package would need the native core."""
    spec = importlib.util.spec_from_file_location("torchtpu_config", ROOT / "torchtpu" / "config.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up there
    spec.loader.exec_module(module)
    return module


def default_text(setting):
    if setting.default is None:
        return "not set"
    return f"`{int(setting.default) if setting.type is bool else setting.default}`"


def table():
    rows = ["| variable | default | allowed | meaning |", "|---|---|---|---|"]
    for setting in load_config().SETTINGS.values():
        rows.append(f"| `{setting.name}` | {default_text(setting)} | {setting.allowed} | {setting.doc} |")
    return "\n".join(rows) + "\n"


def page():
    """The page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(MARKS[0])
    return before + MARKS[0] + table() + MARKS[1] + rest.split(MARKS[1])[1]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
