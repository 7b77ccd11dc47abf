"""Many entries in one file: to warm a fleet or a container image. A zip file of entries, not compressed again.

An archive holds machine code: load only one that you trust.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchtpu.cache.directory import Directory
from torchtpu.cache.entry import DamagedError, decode
from torchtpu.cache.key import FORMAT

_NAME = re.compile(rf"v{FORMAT}/([0-9a-f]{{80}})\.entry")
_MAX_ENTRY = 4 << 30


class Archive:
    """An archive that is read. Raises FileNotFoundError, or DamagedError when it is not an archive."""

    def __init__(self, path: str | os.PathLike[str]):
        self.root = Path(path)
        try:
            self._zip = zipfile.ZipFile(self.root)
        except zipfile.BadZipFile as error:
            raise DamagedError(f"{self.root} is not an archive of compiled programs: {error}") from None
        self._items: dict[str, zipfile.ZipInfo] = {}
        for item in self._zip.infolist():
            match = _NAME.fullmatch(item.filename)
            if match and item.compress_type == zipfile.ZIP_STORED and item.file_size <= _MAX_ENTRY:
                self._items[match[1]] = item

    def __len__(self) -> int:
        return len(self._items)

    def keys(self) -> list[str]:
        """The keys of its entries."""
        return list(self._items)

    def path(self, key: str) -> Path:
        """Where the entry of `key` is, for messages."""
        return self.root / f"{key}.entry"

    def read(self, key: str) -> bytes | None:
        """The bytes of an entry, None when there is none. Raises DamagedError."""
        item = self._items.get(key)
        if item is None:
            return None
        try:
            return self._zip.read(item)
        except (zipfile.BadZipFile, EOFError, OSError) as error:
            raise DamagedError(f"the archive is damaged: {error}") from None


def write(path: str | os.PathLike[str], entries: Iterable[tuple[str, bytes]]) -> int:
    """Writes an archive, all of it or nothing. Returns how many entries it has. Raises OSError."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    count = 0
    try:
        with zipfile.ZipFile(temporary, "x", zipfile.ZIP_STORED) as archive:
            for key, data in entries:
                # One fixed date: the same programs make the same file.
                archive.writestr(zipfile.ZipInfo(f"v{FORMAT}/{key}.entry"), data)
                count += 1
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    return count


def sound(directory: Directory) -> Iterator[tuple[str, bytes]]:
    """The key and bytes of each entry of a directory that is whole."""
    for file in sorted(directory.files(), key=lambda f: f.key):
        with contextlib.suppress(OSError, DamagedError):
            data = directory.read(file.key)
            if data is not None:
                decode(data, file.key)
                yield file.key, data


def import_into(directory: Directory, path: str | os.PathLike[str]) -> tuple[int, int]:
    """Copies an archive's entries into a directory. Returns how many were copied and how many were damaged.

    Raises FileNotFoundError, DamagedError for a file that is no archive, OSError when nothing can be written.
    """
    archive = Archive(path)
    copied = damaged = 0
    for key in archive.keys():
        try:
            data = archive.read(key)
            assert data is not None
            decode(data, key)
        except DamagedError:
            damaged += 1
            continue
        directory.write(key, data)
        copied += 1
    return copied, damaged


def save_cache(path: str | os.PathLike[str]) -> int:
    """Writes the programs that this process compiled or loaded, and still holds, to an archive.

    Returns how many. `load_cache`, or `torchtpu cache import` on the command line, reads it. Raises OSError.
    """
    from torchtpu.cache.store import store
    from torchtpu.program.compiler import wait_for_compiles

    wait_for_compiles()
    if not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(Path(path).absolute().parent))
    return write(path, store().entries())


def load_cache(path: str | os.PathLike[str]) -> int:
    """Lets this process find the programs of an archive, which must stay where it is. Returns how many it has.

    Those that were made for another device or by other versions are simply never found. The archive holds machine
    code: load only one that you trust. Raises FileNotFoundError, DamagedError (a ValueError) for another kind of file.
    """
    from torchtpu.cache.store import store

    archive = Archive(path)
    store().archives.append(archive)
    return len(archive)
