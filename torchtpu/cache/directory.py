"""A directory of cache entries that many processes read and write at once.

Every entry is a file of its own, written elsewhere and renamed into place, so a reader sees all of it or nothing, and
a process that is killed leaves at most a temporary file. Which entries are used least is told by their modification
times, which a reader renews.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchtpu.cache.key import FORMAT

_NAME = re.compile(r"[0-9a-f]{80}\.entry")
_STALE = 3600.0  # seconds after which a temporary or lock file belongs to a process that was killed
_RECENT = 60.0  # an entry's time is renewed when it is older than this


class UnsafeError(PermissionError):
    """Other users could put code into this directory or file."""


@dataclass(frozen=True)
class File:
    """An entry's file. used: when it was last read or written, seconds since the epoch."""

    key: str
    path: Path
    size: int
    used: float


class Directory:
    """Entries under `root`, at most `limit` bytes of them (0: no limit).

    private: only this user's own files count, and what is made can be read by nobody else. trust: no check of who
    else could write there. A directory is made when the first entry is written.
    """

    def __init__(self, root: Path, limit: int = 0, *, private: bool = True, trust: bool = False):
        self.root = root
        self.entries = root / f"v{FORMAT}"
        self.limit = limit
        self.private = private
        self.trust = trust
        self._known_size: int | None = None  # what a look at all files said, and what was written since
        self._since_look = 0

    def path(self, key: str) -> Path:
        """Where the entry of `key` is."""
        return self.entries / key[:2] / f"{key}.entry"

    def check(self) -> None:
        """Raises UnsafeError when others could write here, FileNotFoundError when there is no such directory."""
        for path in (self.root, self.entries):
            try:
                info = os.stat(path)
            except FileNotFoundError:
                if path is self.root:
                    raise
                continue
            if not stat.S_ISDIR(info.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            self._check_owner(info, path)

    def _check_owner(self, info: os.stat_result, path: Path) -> None:
        if self.trust:
            return
        if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UnsafeError(errno.EACCES, "others can write it", str(path))
        owners = {0, os.geteuid()}
        if not self.private:
            owners.add(os.stat(self.root).st_uid)  # whoever owns a shared directory was trusted by naming it
        if info.st_uid not in owners:
            raise UnsafeError(errno.EACCES, "it belongs to another user", str(path))

    def read(self, key: str) -> bytes | None:
        """The bytes of an entry, None when there is none. Raises UnsafeError for a file that others could have
        written, OSError when it cannot be read."""
        path = self.path(key)
        try:
            # A link could lead to where the checks of this directory say nothing; a pipe must not block.
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UnsafeError(errno.EACCES, "it is a symbolic link", str(path)) from None
            raise
        with open(handle, "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise UnsafeError(errno.EACCES, "it is not a file", str(path))
            self._check_owner(info, path)
            data = file.read()
            if time.time() - info.st_mtime > _RECENT:
                with contextlib.suppress(OSError):  # somebody else's, or read-only
                    os.utime(file.fileno())
        return data

    def write(self, key: str, data: bytes) -> None:
        """Puts an entry in place, and evicts old ones past the limit. Raises OSError (no space, read-only, …)."""
        path = self.path(key)
        directory_mode, mode = (0o700, 0o600) if self.private else (0o755, 0o644)
        self.root.mkdir(mode=directory_mode, parents=True, exist_ok=True)
        self.check()
        for directory in (self.entries, path.parent):
            directory.mkdir(mode=directory_mode, exist_ok=True)
        temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            with open(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        self._keep_limit(len(data))

    def probe(self) -> None:
        """Raises OSError when no entry can be written."""
        self.root.mkdir(mode=0o700 if self.private else 0o755, parents=True, exist_ok=True)
        path = self.root / f".{secrets.token_hex(8)}.tmp"
        path.write_bytes(b"")
        path.unlink()

    def _keep_limit(self, written: int) -> None:
        if not self.limit:
            return
        self._since_look += written
        # Other processes write too, so look again from time to time.
        if self._known_size is None or self._since_look > self.limit // 16:
            self._known_size, self._since_look = sum(f.size for f in self.files()), 0
        else:
            self._known_size += written
        if self._known_size > self.limit:
            self.prune(self.limit * 9 // 10)

    def remove(self, key: str) -> None:
        """Removes an entry, if it is there and can be removed."""
        with contextlib.suppress(OSError):
            self.path(key).unlink()

    def files(self, start: str = "") -> list[File]:
        """The entries whose key begins with `start`, in no order."""
        found: list[File] = []
        pattern = f"{start[:2]}*" if start else "*"
        for directory in self.entries.glob(pattern):
            with contextlib.suppress(OSError), os.scandir(directory) as items:
                for item in items:
                    if not _NAME.fullmatch(item.name) or not item.name.startswith(start):
                        continue
                    with contextlib.suppress(OSError):
                        info = item.stat(follow_symlinks=False)
                        found.append(File(item.name[:80], Path(item.path), info.st_size, info.st_mtime))
        return found

    def prune(self, limit: int, older_than: float | None = None) -> tuple[int, int]:
        """Removes the entries used least recently until at most `limit` bytes are left, and all that were not used
        for `older_than` seconds. Returns how many entries and bytes went."""
        files = sorted(self.files(), key=lambda f: f.used)
        total, count, freed, now = sum(f.size for f in files), 0, 0, time.time()
        for file in files:
            if total - freed <= limit and (older_than is None or now - file.used <= older_than):
                continue
            try:
                file.path.unlink()
            except FileNotFoundError:
                pass  # another process was faster
            except OSError:
                continue
            count, freed = count + 1, freed + file.size
        self._known_size = total - freed
        self._sweep()
        return count, freed

    def _sweep(self) -> None:
        """Removes what killed processes left behind."""
        old = time.time() - _STALE
        for pattern in ("v*/*/.*.tmp", "locks/*.lock"):
            for path in self.root.glob(pattern):
                with contextlib.suppress(OSError):
                    if path.stat().st_mtime < old:
                        path.unlink()

    def clear(self) -> int:
        """Removes all entries, of other versions too. Returns how many."""
        count = 0
        for pattern in ("v*/*/*.entry", "v*/*/.*.tmp", "locks/*.lock"):
            for path in self.root.glob(pattern):
                with contextlib.suppress(OSError):
                    path.unlink()
                    count += pattern.endswith("entry")
        for path in [*self.root.glob("v*/*"), *self.root.glob("v*"), *self.root.glob("locks")]:
            with contextlib.suppress(OSError):
                path.rmdir()
        self._known_size = None
        return count

    @contextlib.contextmanager
    def lock(self, key: str, patience: float) -> Iterator[None]:
        """Held by one process (and thread) at a time, for `patience` seconds of waiting; then, or where locks do not
        work, the block runs without it. A killed process's lock is free at once."""
        handle = None
        path = self.root / "locks" / f"{key}.lock"
        try:
            self.root.mkdir(mode=0o700 if self.private else 0o755, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700 if self.private else 0o755, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            held = _acquire(handle, patience)
        except OSError:
            held = False
        try:
            yield
        finally:
            if held:
                with contextlib.suppress(OSError):
                    path.unlink()  # before the lock is let go: whoever waits for this file then looks for the entry
            if handle is not None:
                os.close(handle)


def _acquire(handle: int, patience: float) -> bool:
    end, pause = time.monotonic() + patience, 0.001
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
