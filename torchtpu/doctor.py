"""`torchtpu doctor`: whether the device can work here, and the command that mends what is in the way."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_RANGES = {"torch": ((2, 11), (2, 15)), "jax": ((0, 10), (0, 13)), "jaxlib": ((0, 10), (0, 13))}


@dataclass(frozen=True)
class Finding:
    """state: "ok", "note" (works, but) or "fail". remedy: a command or what to do, "" when there is nothing to do."""

    state: str
    what: str
    remedy: str = ""


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split("+")[0].split(".")
    return int(major), int(minor)


def _packages() -> Iterator[Finding]:
    python, recent = platform.python_version(), sys.version_info >= (3, 11)
    yield Finding("ok" if recent else "fail", f"Python {python}", "" if recent else "Install Python 3.11 or newer")
    for name, (least, below) in _RANGES.items():
        found = _version(name)
        allowed = f"{name}>={least[0]}.{least[1]},<{below[0]}.{below[1]}"
        if found is None:
            yield Finding("fail", f"{name} is not installed", f"pip install '{allowed}'")
        elif not least <= _release(found) < below:
            yield Finding("fail", f"{name} {found} is outside of what is supported", f"pip install '{allowed}'")
        else:
            yield Finding("ok", f"{name} {found}")
    if _version("jax") != _version("jaxlib") and _version("jaxlib") is not None:
        yield Finding("note", "jax and jaxlib have different versions", f"pip install jaxlib=={_version('jax')}")
    for name in ("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin"):
        if _version(name):
            yield Finding("ok", f"{name} {_version(name)}")


def _settings() -> Iterator[Finding]:
    from torchtpu import config

    wrong = 0
    for name in config.SETTINGS:
        try:
            config.get(name)
        except ValueError as error:
            wrong += 1
            yield Finding("fail", str(error), f"unset {name}")
    if not wrong:
        yield Finding("ok", "settings")


def _core() -> Iterator[Finding]:
    rebuild = "pip install --no-build-isolation --force-reinstall --no-deps torchtpu"
    try:
        from torchtpu._autoload import register

        register()
    except (ImportError, RuntimeError) as error:
        yield Finding("fail", f"the native core does not load: {error}", rebuild)
        if not any(shutil.which(c) for c in ("c++", "g++", "clang++")):
            yield Finding("fail", "no C++ compiler to build it with", "apt install g++, or your system's like")
        return
    yield Finding("ok", "native core")


def _devices() -> Iterator[Finding]:
    from torchtpu.runtime import client

    found = client.devices()
    yield Finding("ok", f"platform {client.platform()}: {len(found)} × {found[0].device_kind}")
    import torch

    value = (torch.ones(3, device="tpu") + 1).sum().item()
    yield Finding("ok" if value == 6.0 else "fail", f"compiles and runs (1 + 1, three times: {value:g})")


def _cache() -> Iterator[Finding]:
    import warnings

    from torchtpu import config
    from torchtpu.cache.store import Store

    if not config.get("TORCHTPU_CACHE"):
        yield Finding("note", "the compile cache is off", "unset TORCHTPU_CACHE")
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = Store()
    for warning in caught:
        yield Finding("fail", str(warning.message))
    for name, directory in store.directories.items():
        try:
            if name == "disk":
                directory.probe()
            files = directory.files()
            yield Finding("ok", f"compile cache ({name}): {directory.root}, {len(files)} entries, {sum(f.size for f in files) >> 20} MiB")
        except OSError as error:
            text = f"nothing can be written to the compile cache {directory.root}: {error.strerror}"
            yield Finding("note", text, "set TORCHTPU_CACHE_DIR")


_CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (_packages, _settings, _core, _devices, _cache)


def findings() -> Iterator[Finding]:
    """Everything that is looked at, in order; the device is left alone once something before it failed."""
    failed = False
    for check in _CHECKS:
        if failed and check in (_devices, _cache):
            continue
        try:
            for finding in check():
                failed |= finding.state == "fail"
                yield finding
        except Exception as error:  # a doctor that dies says nothing
            failed = True
            yield Finding("fail", f"{check.__name__.strip('_')}: {type(error).__name__}: {error}")


def main() -> int:
    """Prints the findings. Returns 1 when something failed."""
    marks = {"ok": "  ok ", "note": "note ", "fail": "FAIL "}
    status = 0
    for finding in findings():
        print(marks[finding.state], finding.what, flush=True)
        if finding.remedy:
            print(f"       → {finding.remedy}", flush=True)
        status |= finding.state == "fail"
    print("everything that is needed is there" if not status else "something is in the way, see above")
    return status
