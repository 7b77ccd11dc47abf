"""The directory on disk: many processes, old entries, killed writers, other users, full disks."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from torchtpu.cache.directory import Directory, UnsafeError


def key(n):
    return f"{n:080x}"[::-1]


def test_what_is_written_is_read(tmp_path):
    directory = Directory(tmp_path / "new" / "cache")
    assert directory.read(key(1)) is None and directory.files() == []
    directory.write(key(1), b"one")
    directory.write(key(1), b"uno")
    directory.write(key(2), b"two")
    assert directory.read(key(1)) == b"uno"
    assert {(f.key, f.size) for f in directory.files()} == {(key(1), 3), (key(2), 3)}
    assert [f.key for f in directory.files(key(2)[:16])] == [key(2)]
    directory.remove(key(1))
    assert directory.read(key(1)) is None
    assert directory.clear() == 1 and directory.files() == []


def test_nobody_else_can_read_a_private_one(tmp_path):
    before = os.umask(0)
    try:
        directory = Directory(tmp_path / "cache")
        directory.write(key(1), b"data")
        for path in (directory.root, directory.entries, directory.path(key(1)).parent, directory.path(key(1))):
            assert path.stat().st_mode & 0o077 == 0
        shared = Directory(tmp_path / "shared", private=False)
        shared.write(key(1), b"data")
        for path in (shared.root, shared.entries, shared.path(key(1)).parent, shared.path(key(1))):
            assert path.stat().st_mode & 0o022 == 0 and path.stat().st_mode & 0o044
    finally:
        os.umask(before)


def test_a_directory_that_others_can_write_is_refused(tmp_path):
    directory = Directory(tmp_path)
    directory.write(key(1), b"data")
    tmp_path.chmod(0o777)
    with pytest.raises(UnsafeError):
        directory.check()
    with pytest.raises(UnsafeError):
        directory.write(key(2), b"data")
    Directory(tmp_path, trust=True).check()
    tmp_path.chmod(0o700)
    directory.check()
    directory.entries.chmod(0o770)
    with pytest.raises(UnsafeError):
        directory.check()


def test_a_file_that_others_could_have_written_is_refused(tmp_path):
    directory = Directory(tmp_path)
    directory.write(key(1), b"data")
    directory.path(key(1)).chmod(0o666)
    with pytest.raises(UnsafeError):
        directory.read(key(1))
    target = tmp_path / "target"
    target.write_bytes(b"data")
    directory.path(key(1)).unlink()
    directory.path(key(1)).symlink_to(target)
    with pytest.raises(UnsafeError, match="link"):
        directory.read(key(1))
    directory.path(key(1)).unlink()
    os.mkfifo(directory.path(key(1)))
    with pytest.raises(UnsafeError):
        directory.read(key(1))  # and does not wait for a writer
    directory.path(key(1)).unlink()
    directory.path(key(1)).mkdir()
    with pytest.raises(OSError):
        directory.read(key(1))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_another_user_are_refused(tmp_path):
    private, shared = Directory(tmp_path / "private"), Directory(tmp_path / "shared", private=False)
    for directory in (private, shared):
        directory.write(key(1), b"data")
        os.chown(directory.path(key(1)), 12345, 12345)
        with pytest.raises(UnsafeError):
            directory.read(key(1))
        os.chown(directory.root, 12345, 12345)
    with pytest.raises(UnsafeError):
        private.check()
    shared.check()  # its owner was trusted by naming it
    assert shared.read(key(1)) == b"data"


def test_the_least_recently_used_go_first(tmp_path):
    directory = Directory(tmp_path, limit=1000)
    for n in range(10):
        directory.write(key(n), b"x" * 100)
        os.utime(directory.path(key(n)), (n, n))
    assert directory.read(key(0)) is not None  # renews it
    directory.write(key(10), b"x" * 100)
    left = {f.key for f in directory.files()}
    assert sum(f.size for f in directory.files()) <= 1000
    assert key(0) in left and key(10) in left and key(1) not in left


def test_prune_by_size_and_age(tmp_path):
    directory = Directory(tmp_path)
    for n in range(4):
        directory.write(key(n), b"x" * 100)
        os.utime(directory.path(key(n)), (time.time() - n * 1000,) * 2)
    assert directory.prune(10**6, older_than=2500) == (1, 100)
    assert directory.prune(250) == (1, 100)
    assert {f.key for f in directory.files()} == {key(0), key(1)}


def test_what_killed_processes_left_is_swept(tmp_path):
    directory = Directory(tmp_path)
    directory.write(key(1), b"x")
    old = directory.path(key(1)).with_name(".0123.tmp")
    new = directory.path(key(1)).with_name(".4567.tmp")
    for path in (old, new):
        path.write_bytes(b"half an ent")
    os.utime(old, (1, 1))
    directory.prune(10**6)
    assert not old.exists() and new.exists() and directory.read(key(1)) == b"x"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch, code):
    directory = Directory(tmp_path)

    def fail(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError):
        directory.write(key(1), b"data")
    monkeypatch.undo()
    assert directory.read(key(1)) is None
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


WRITER = """
import sys
from pathlib import Path
from torchtpu.cache.directory import Directory
directory = Directory(Path(sys.argv[1]), limit=200_000)
mine = int(sys.argv[2])
print("ready", flush=True)
for n in range(10**9 if mine < 0 else 60):
    key = f"{n % 20:080x}"[::-1]
    directory.write(key, bytes([n % 20]) * 20_000)
    found = directory.read(key)
    assert found is None or found == bytes([n % 20]) * 20_000
"""


def _writer(tmp_path, number):
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(number)], env=environment, stdout=subprocess.PIPE)


def test_a_writer_killed_at_any_time_leaves_a_usable_cache(tmp_path):
    process = _writer(tmp_path, -1)
    process.stdout.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    directory = Directory(tmp_path)
    files = directory.files()
    assert files
    for file in files:
        data = directory.read(file.key)
        assert len(data) == 20_000 and len(set(data)) == 1
    directory.write(key(99), b"data")
    assert directory.read(key(99)) == b"data"


def test_eight_writers_at_once(tmp_path):
    """Threads: each `write` is a sequence of system calls without the interpreter's lock, as in processes."""
    errors = []

    def work(n):
        directory = Directory(tmp_path, limit=200_000)
        try:
            for i in range(40):
                k = (i + n) % 20
                directory.write(key(k), bytes([k]) * 20_000)
                found = directory.read(key(k))
                assert found is None or found == bytes([k]) * 20_000
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    directory = Directory(tmp_path, limit=200_000)
    directory.prune(200_000)
    assert 0 < sum(f.size for f in directory.files()) <= 200_000
    assert not list(tmp_path.rglob("*.tmp"))


def test_one_holds_the_lock_and_others_wait_for_a_time(tmp_path):
    directory = Directory(tmp_path)
    order, inside = [], threading.Event()

    def hold():
        with directory.lock(key(1), 5):
            inside.set()
            time.sleep(0.3)
            order.append("first")

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    with directory.lock(key(2), 5):
        order.append("another key")
    with directory.lock(key(1), 0.05):
        order.append("patience is over")
    with directory.lock(key(1), 5):
        order.append("second")
    thread.join()
    assert order == ["another key", "patience is over", "first", "second"]
    assert list((tmp_path / "locks").iterdir()) == []


def test_a_killed_process_holds_no_lock(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom torchtpu.cache.directory import Directory\n"
        "with Directory(Path(sys.argv[1])).lock(sys.argv[2], 5):\n    print('held', flush=True)\n    time.sleep(60)"
    )
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), key(1)], env=environment, stdout=subprocess.PIPE)
    process.stdout.readline()
    start = time.monotonic()
    with Directory(tmp_path).lock(key(1), 0.2):
        assert time.monotonic() - start >= 0.2
    process.kill()
    process.wait()
    with Directory(tmp_path).lock(key(1), 10**6):
        pass  # at once: otherwise the test would not end


def test_where_no_lock_can_be_made_it_goes_on_without(tmp_path):
    (tmp_path / "locks").write_text("not a directory")
    with Directory(tmp_path).lock(key(1), 5):
        pass
