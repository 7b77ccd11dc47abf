"""The tiers: what is found where, and what happens to entries that cannot be used."""

import dataclasses
import errno
import os
import warnings

import jax
import numpy as np
import pytest

import torchtpu
from torchtpu.cache import directory as directories
from torchtpu.cache import store as stores
from torchtpu.cache.entry import decode
from torchtpu.program import compiler


def entries(path):
    return sorted(path.rglob("*.entry"))


def run(program):
    """x + x."""
    return np.asarray(program.call(jax.device_put(np.full((3, 11), 2, np.float32)))[0])


@pytest.fixture
def quiet():
    """Any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_program_is_found_on_disk(build, windows, tmp_path, quiet):
    tier, program = build(windows["add"])
    assert tier == "compiled" and len(entries(tmp_path)) == 1
    want = run(program)
    tier, program = build(windows["add"])
    assert tier == "disk" and np.array_equal(run(program), want)
    assert build(windows["wider"])[0] == "compiled"
    assert build(windows["double"])[0] == "compiled"


def test_a_hit_does_not_reach_jax(build, windows, monkeypatch):
    build(windows["add"])
    monkeypatch.setattr(jax, "jit", None)
    assert build(windows["add"])[0] == "disk"


def test_this_process_is_asked_first(build, windows):
    _, program = build(windows["add"])
    tier, other = build(windows["add"], keep=True)
    assert tier == "memory" and other.executable is program.executable
    del program, other
    assert build(windows["add"], keep=True)[0] == "disk"  # programs nobody can run are not kept


def damage(data, kind):
    return {"cut": data[: len(data) // 2], "empty": b"", "text": b"hello" * 100, "checksum": data[:-32] + bytes(32)}[kind]


@pytest.mark.parametrize("kind", ["cut", "empty", "text", "checksum", "another program's", "no executable", "other results"])
def test_an_entry_that_cannot_be_used_is_a_miss_with_one_warning(build, windows, tmp_path, kind):
    _, program = build(windows["add"])
    want = run(program)
    (path,) = entries(tmp_path)
    data = path.read_bytes()
    entry = decode(data)
    if kind == "another program's":
        build(windows["wider"])
        (other,) = set(entries(tmp_path)) - {path}
        path.write_bytes(other.read_bytes())
    elif kind == "no executable":  # with a right checksum
        path.write_bytes(dataclasses.replace(entry, executable=b"\x12\x34" * 500).encode())
    elif kind == "other results":
        path.write_bytes(dataclasses.replace(entry, outputs=[("no such dtype", (3, 11))]).encode())
    else:
        path.write_bytes(damage(data, kind))
    with pytest.warns(RuntimeWarning, match="is not used") as caught:
        tier, program = build(windows["add"])
    assert tier == "compiled" and np.array_equal(run(program), want)
    assert len(caught) == 1
    assert build(windows["add"])[0] == "disk"  # it was replaced


def test_off_writes_nothing(build, windows, tmp_path, quiet):
    for _ in range(2):
        tier, _ = build(windows["add"], TORCHTPU_CACHE="off", TORCHTPU_SHARED_CACHE=tmp_path / "shared")
        assert tier == "compiled"
    assert list(tmp_path.iterdir()) == []


def test_a_shared_directory_is_asked_after_the_disk_and_fills_it(build, windows, tmp_path, quiet, monkeypatch):
    shared = tmp_path / "shared"
    build(windows["add"], TORCHTPU_SHARED_CACHE=shared)
    assert len(entries(shared)) == 1
    write = directories.Directory.write

    def read_only(self, key, data):
        if self.root == shared:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        write(self, key, data)

    monkeypatch.setattr(directories.Directory, "write", read_only)
    two = tmp_path / "two"
    assert build(windows["add"], TORCHTPU_CACHE_DIR=two)[0] == "shared"
    assert len(entries(two)) == 1
    assert build(windows["add"])[0] == "disk"
    assert build(windows["wider"])[0] == "compiled" and len(entries(shared)) == 1


def test_a_directory_that_others_can_write_is_not_used(build, windows, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.warns(RuntimeWarning, match="TORCHTPU_CACHE_TRUST") as caught:
        for _ in range(2):
            assert build(windows["add"])[0] == "compiled"
    assert len(caught) == 1 and entries(tmp_path) == []
    build(windows["add"], TORCHTPU_CACHE_TRUST=1)
    assert build(windows["add"])[0] == "disk"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_nothing_is_one_warning(build, windows, tmp_path, monkeypatch, code):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(directories.os, "replace", fail)
    with pytest.warns(RuntimeWarning, match=os.strerror(code)) as caught:
        for name in ("add", "wider"):
            assert build(windows[name], keep=True)[0] == "compiled"
    assert len(caught) == 1
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_path_that_is_a_file_is_one_warning(build, windows, tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.warns(RuntimeWarning, match="Not a directory"):
        assert build(windows["add"])[0] == "compiled"


def test_whoever_waited_finds_what_the_other_made(build, windows, monkeypatch):
    """Between the first look and the lock another process may have compiled it."""
    build(windows["add"])
    load, looks = stores.Store.load, []

    def blind_at_first(self, *arguments):
        looks.append(arguments)
        return None if len(looks) == 1 else load(self, *arguments)

    monkeypatch.setattr(stores.Store, "load", blind_at_first)
    assert build(windows["add"])[0] == "disk" and len(looks) == 2


def test_waiting_for_another_process_has_an_end(build, windows, monkeypatch):
    seen = []
    monkeypatch.setattr(directories, "_acquire", lambda handle, patience: seen.append(patience) or False)
    assert build(windows["add"], TORCHTPU_CACHE_WAIT="0.5")[0] == "compiled" and seen == [0.5]


def test_checks_are_part_of_an_entry(build, windows):
    _, first = build(windows["embedding"])
    tier, second = build(windows["embedding"])
    assert tier == "disk" and second.has_checks and len(second.checks) == len(first.checks) > 0
    for a, b in zip(first.checks, second.checks, strict=True):
        assert (a.exception, a.message) == (b.exception, b.message)
        assert b.where is windows["embedding"]["nodes"][0][0]  # so that the error names the operation


def test_a_check_with_an_exception_of_somebody_else_stays_in_the_process(build, windows, monkeypatch, tmp_path):
    monkeypatch.setattr(stores, "check_specs", lambda *_: None)
    build(windows["embedding"])
    assert entries(tmp_path) == [] and stores.store().keys() == []


def test_a_failed_compile_leaves_nothing_behind(build, windows, monkeypatch, tmp_path):
    def fail(*_, **__):
        raise RuntimeError("no")

    monkeypatch.setattr(compiler.Executable, "of", fail)
    with pytest.raises(RuntimeError, match="no"):
        build(windows["add"])
    monkeypatch.undo()
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_an_archive(build, windows, tmp_path):
    path = tmp_path / "programs.zip"
    held = [build(windows["add"])[1], build(windows["embedding"], keep=True)[1]]
    assert torchtpu.save_cache(path) == 2
    tier, program = build(windows["add"], TORCHTPU_CACHE="off")
    held.append(program)
    assert tier == "compiled"
    stores._store = None
    assert torchtpu.load_cache(path) == 2
    held = [build(windows[name], keep=True) for name in ("add", "embedding")]
    assert [tier for tier, _ in held] == ["archive", "archive"]
    # Programs that were loaded are saved as well, to the same bytes.
    again = tmp_path / "again.zip"
    assert torchtpu.save_cache(again) == 2
    assert again.read_bytes() == path.read_bytes()


def test_a_damaged_archive_is_a_miss(build, windows, tmp_path):
    path = tmp_path / "programs.zip"
    _, program = build(windows["add"])
    assert torchtpu.save_cache(path) == 1
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    del program
    build(windows["wider"], TORCHTPU_CACHE="off")
    assert torchtpu.load_cache(path) == 1
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert build(windows["add"], keep=True)[0] == "compiled"


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="not an archive"):
        torchtpu.load_cache(tmp_path / "text")
    with pytest.raises(FileNotFoundError):
        torchtpu.load_cache(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        torchtpu.save_cache(tmp_path / "no" / "folder")
