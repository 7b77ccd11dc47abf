"""Settings: the one place that reads TORCHTPU_* environment variables.

`get(name)` gives the parsed value of a variable, or its default. A value that cannot be used
raises a ValueError which names the variable, the value and what is allowed.
Set a variable before its first use; each is read from the environment every time it is asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Setting:
    """One environment variable: its type, default, the values allowed (in words) and its meaning."""

    name: str
    type: type
    default: Any
    allowed: str
    doc: str
    parse: Callable[[str], Any]


def _choice(*values: str) -> tuple[str, Callable[[str], str]]:
    def parse(text: str) -> str:
        value = text.strip().lower()
        if value not in values:
            raise ValueError
        return value

    return "one of " + ", ".join(values), parse


def _whole(least: int) -> tuple[str, Callable[[str], int]]:
    def parse(text: str) -> int:
        value = int(text)
        if value < least:
            raise ValueError
        return value

    return f"a whole number, {least} or more", parse


def _flag() -> tuple[str, Callable[[str], bool]]:
    words = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}

    def parse(text: str) -> bool:
        value = words.get(text.strip().lower())
        if value is None:
            raise ValueError
        return value

    return "0 or 1", parse


_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS[f"{_letter}IB"] = 1024**_power
    _UNITS[f"{_letter}B"] = 1000**_power


def _bytes() -> tuple[str, Callable[[str], int]]:
    def parse(text: str) -> int:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
        if match is None or match[2].upper() not in _UNITS:
            raise ValueError
        amount = Decimal(match[1])
        value = int(amount * _UNITS[match[2].upper()])
        if value == 0 and amount != 0:
            raise ValueError  # half a byte is a mistake, not "no limit"
        return value

    return "a number of bytes, with or without a unit (1073741824, 512MiB, 1GiB, 2GB)", parse


def _folder() -> tuple[str, Callable[[str], Path]]:
    return "a folder", lambda text: Path(text.strip()).expanduser()


def _seconds() -> tuple[str, Callable[[str], float]]:
    def parse(text: str) -> float:
        value = float(text)
        if not 0 <= value < float("inf"):
            raise ValueError
        return value

    return "a number of seconds", parse


def _setting(name: str, kind: type, default: Any, rule: tuple[str, Callable[[str], Any]], doc: str) -> Setting:
    allowed, parse = rule
    return Setting(name, kind, default, allowed, doc, parse)


SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        _setting(
            "TORCHTPU_EAGER_MODE", str, "fused", _choice("debug", "strict", "fused"),
            "The eager mode at start-up; torchtpu.set_eager_mode changes it later.",
        ),
        _setting(
            "TORCHTPU_PLATFORM", str, None, _choice("tpu", "cuda", "cpu"),
            "The XLA platform. Unset: the first of tpu, cuda, cpu that has devices.",
        ),
        _setting(
            "TORCHTPU_CPU_DEVICES", int, 1, _whole(1),
            "How many devices XLA's CPU client shows, for tests of several devices on one host.",
        ),
        _setting(
            "TORCHTPU_MEMORY_LIMIT", int, 0, _bytes(),
            "Bytes that tensors of one device may hold; past it torch.OutOfMemoryError is raised. 0: no limit.",
        ),
        _setting(
            "TORCHTPU_FALLBACK", str, "warn", _choice("warn", "error", "silent"),
            "What an operator without a lowering does beside running on the CPU: warn once by name, raise, nothing.",
        ),
        _setting("TORCHTPU_NAN_CHECK", bool, False, _flag(), "In Debug: raise at the first operation that makes a NaN."),
        _setting(
            "TORCHTPU_MAX_WINDOW", int, 4096, _whole(1), "In Fused: the number of operations after which a window is cut."
        ),
        _setting(
            "TORCHTPU_MAX_WINDOW_BYTES", int, 8 << 30, _bytes(), "In Fused: the bytes of results after which a window is cut."
        ),
        _setting(
            "TORCHTPU_MAX_PROGRAMS", int, 8192, _whole(16),
            "Compiled programs kept in memory for each device; the least recently used go first.",
        ),
        _setting(
            "TORCHTPU_FUSED_COMPILE", str, "background", _choice("background", "sync"),
            "In Fused: compile a new window in the background while its parts run, or at once.",
        ),
        _setting("TORCHTPU_CACHE", bool, True, _flag(), "Keep compiled programs on disk and find them again there."),
        _setting(
            "TORCHTPU_CACHE_DIR", Path, None, _folder(), "Where they are kept. Unset: torchtpu in the user's cache folder."
        ),
        _setting(
            "TORCHTPU_CACHE_SIZE", int, 2 << 30, _bytes(),
            "Bytes of compiled programs in a directory; past it those used least recently are removed. 0: no limit.",
        ),
        _setting(
            "TORCHTPU_SHARED_CACHE", Path, None, _folder(),
            "A second directory for several hosts or users, asked after the first; it may be read-only.",
        ),
        _setting(
            "TORCHTPU_CACHE_TRUST", bool, False, _flag(),
            "Use directories of compiled programs that other users can write: whoever can may run code as you.",
        ),
        _setting(
            "TORCHTPU_CACHE_WAIT", float, 120.0, _seconds(),
            "How long to wait for another process on this host that compiles the same program, before doing it too.",
        ),
        _setting(
            "TORCHTPU_RECOMPILE_WARNING", int, 16, _whole(0),
            "Warn when one cause (a dimension that changes) has led to this many compiles at one line. 0: never.",
        ),
    )
}


def get(name: str) -> Any:
    """The value of setting `name`. Raises KeyError for an unknown name, ValueError for a value that is not allowed."""
    setting = SETTINGS[name]
    text = os.environ.get(name, "")
    if not text.strip():
        return setting.default
    try:
        return setting.parse(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} is not valid: expected {setting.allowed}") from None


def check() -> None:
    """Raises ValueError when any variable has a value that is not allowed, also one that is read much later."""
    for name in SETTINGS:
        get(name)


def describe() -> str:
    """A table of all settings in plain text: name, default, allowed values, meaning."""
    lines = []
    for setting in SETTINGS.values():
        lines.append(f"{setting.name} (default {setting.default}): {setting.doc} Allowed: {setting.allowed}.")
    return "\n".join(lines)
