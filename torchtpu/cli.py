"""The command line: `torchtpu cache …`, `torchtpu doctor`, `torchtpu env`; also `python -m torchtpu`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtpu.cache.directory import Directory
    from torchtpu.cache.entry import Entry


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _directory(options: argparse.Namespace) -> Directory:
    """The directory that a command is about: --dir, the shared one, or the user's."""
    from torchtpu import config
    from torchtpu.cache import store
    from torchtpu.cache.directory import Directory

    trust, limit = config.get("TORCHTPU_CACHE_TRUST"), config.get("TORCHTPU_CACHE_SIZE")
    shared = config.get("TORCHTPU_SHARED_CACHE")
    if options.shared and shared is None:
        raise SystemExit("torchtpu: TORCHTPU_SHARED_CACHE is not set")
    root = options.dir or (shared if options.shared else store.user_directory())
    directory = Directory(root, limit, private=not options.shared, trust=trust)
    try:
        directory.check()
    except FileNotFoundError:
        pass  # an empty cache
    except OSError as error:
        raise SystemExit(f"torchtpu: {directory.root} is not used: {error.strerror or error}") from None
    return directory


def _read(directory: Directory, key: str) -> Entry | str:
    """An entry, or what is wrong with it."""
    from torchtpu.cache.entry import DamagedError, decode

    try:
        data = directory.read(key)
        return decode(data, key) if data is not None else "it is gone"
    except (OSError, DamagedError) as error:
        return str(error)


def _info(options: argparse.Namespace) -> int:
    directory = _directory(options)
    files = directory.files()
    total = sum(f.size for f in files)
    found = {
        "directory": str(directory.root),
        "entries": len(files),
        "bytes": total,
        "limit": directory.limit,
    }
    if options.json:
        print(json.dumps(found))
        return 0
    limit = _size(directory.limit) if directory.limit else "no limit"
    print(f"{directory.root}\n{len(files)} entries, {_size(total)} of {limit}")
    if files:
        now = time.time()
        print(f"last used between {_age(now - max(f.used for f in files))} and {_age(now - min(f.used for f in files))} ago")
    return 0


def _list(options: argparse.Namespace) -> int:
    directory = _directory(options)
    now = time.time()
    for file in sorted(directory.files(), key=lambda f: -f.used):
        entry = _read(directory, file.key)
        if options.json:
            what: dict[str, Any] = {"error": entry} if isinstance(entry, str) else {
                "name": entry.name, "operations": entry.operations, "compile_seconds": entry.seconds, "environment": entry.environment,
            }
            print(json.dumps({"key": file.key, "bytes": file.size, "used": file.used, **what}))
        elif isinstance(entry, str):
            print(f"{file.key[:48]}  {_size(file.size):>10}  {_age(now - file.used):>6}  damaged: {entry}")
        else:
            device = f"{entry.environment.get('platform')}, jax {entry.environment.get('jax')}"
            print(f"{file.key[:48]}  {_size(file.size):>10}  {_age(now - file.used):>6}  {entry.seconds:7.3f} s  {entry.name}  ({device})")
    return 0


def _prune(options: argparse.Namespace) -> int:
    from torchtpu import config

    directory = _directory(options)
    limit = config.SETTINGS["TORCHTPU_CACHE_SIZE"].parse(options.size) if options.size is not None else directory.limit or sys.maxsize
    days = options.older_than
    count, freed = directory.prune(limit, None if days is None else days * 86400)
    print(f"removed {count} entries, {_size(freed)}")
    return 0


def _clear(options: argparse.Namespace) -> int:
    print(f"removed {_directory(options).clear()} entries")
    return 0


def _export(options: argparse.Namespace) -> int:
    from torchtpu.cache import archive

    print(f"{archive.write(options.file, archive.sound(_directory(options)))} entries written to {options.file}")
    return 0


def _import(options: argparse.Namespace) -> int:
    from torchtpu.cache import archive

    directory = _directory(options)
    copied, damaged = archive.import_into(directory, options.file)
    print(f"{copied} entries copied to {directory.root}" + (f", {damaged} damaged ones left out" if damaged else ""))
    return 1 if damaged else 0


def _verify(options: argparse.Namespace) -> int:
    directory = _directory(options)
    bad = 0
    files = directory.files()
    for file in files:
        entry = _read(directory, file.key)
        if isinstance(entry, str):
            bad += 1
            directory.remove(file.key)
            print(f"removed {file.path}: {entry}")
    print(f"{len(files)} entries, {bad} damaged")
    return 1 if bad else 0


def _env(options: argparse.Namespace) -> int:
    from torchtpu import config

    wrong = 0
    for name in config.SETTINGS:
        try:
            value: Any = config.get(name)
            note = "" if os.environ.get(name, "").strip() else "  (default)"
        except ValueError as error:
            value, note, wrong = os.environ[name], f"  {error}", 1
        print(f"{name}={'' if value is None else int(value) if isinstance(value, bool) else value}{note}")
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_PLATFORMS", "TORCH_DEVICE_BACKEND_AUTOLOAD"):
        if name in os.environ:
            print(f"{name}={os.environ[name]}")
    return wrong


def _doctor(options: argparse.Namespace) -> int:
    from torchtpu import doctor

    return doctor.main()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchtpu", description="TorchTPU: the compile cache, and what is installed.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    cache = commands.add_parser("cache", help="compiled programs on disk")
    parts = cache.add_subparsers(required=True, metavar="COMMAND")

    def part(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        command = parts.add_parser(name, help=text, description=text)
        command.add_argument("--dir", type=Path, help="another directory than TORCHTPU_CACHE_DIR")
        command.add_argument("--shared", action="store_true", help="the directory in TORCHTPU_SHARED_CACHE")
        command.set_defaults(run=run)
        return command

    for name, run, text in (("info", _info, "where, how many, how large"), ("list", _list, "each entry, the last used first")):
        part(name, run, text).add_argument("--json", action="store_true", help="for programs: JSON, one object a line")
    prune = part("prune", _prune, "remove what was used least recently")
    prune.add_argument("--size", help="keep at most this much (500MiB); default: TORCHTPU_CACHE_SIZE")
    prune.add_argument("--older-than", type=float, metavar="DAYS", help="remove what was not used for so many days")
    part("clear", _clear, "remove everything")
    part("export", _export, "write all entries to one file").add_argument("file")
    text = "copy the entries of a file that `export` or save_cache wrote; it holds machine code: trust it first"
    part("import", _import, text).add_argument("file")
    part("verify", _verify, "read every entry and remove the damaged ones; exit status 1 when there were any")
    commands.add_parser("doctor", help="what is installed, what is missing, and how to mend it").set_defaults(run=_doctor)
    commands.add_parser("env", help="all settings with their values").set_defaults(run=_env)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status: 0, 1 when something is wrong, 2 for a wrong command."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except (OSError, ValueError) as error:
        print(f"torchtpu: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
