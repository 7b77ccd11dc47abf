"""One program as bytes: what the cache's directories and archives hold. No pickle.

    magic (8) | header's length (4, big-endian) | header, JSON | description, zlib | executable, zlib | SHA-256 (32)

The header says what the program takes and gives, what its run-time checks raise, and what it was made for. Entries of
one key may differ (how long the compile took); any of them will do.
"""

from __future__ import annotations

import builtins
import dataclasses
import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

MAGIC = b"TORCHTPU"
_LENGTH = struct.Struct(">I")
_MAX_HEADER = 64 << 20
_MAX_PART = 4 << 30  # bytes of a part after it is unpacked


class DamagedError(ValueError):
    """These bytes are not a whole entry of this version."""


@dataclasses.dataclass(frozen=True)
class CheckSpec:
    """A run-time check: the exception it raises, its message, and the node of the window that asked for it."""

    exception: str
    message: str
    node: int


@dataclasses.dataclass(frozen=True)
class Entry:
    """A program that was compiled.

    key: 80 hexadecimal digits. name: for people. outputs: (dtype, shape) of each result, the checks' flags included.
    environment, description: what the key is a digest of, the latter as JSON.
    """

    key: str
    name: str
    operations: int
    seconds: float
    outputs: list[tuple[str, tuple[int, ...]]]
    checks: list[CheckSpec]
    environment: Mapping[str, Any]
    description: str
    executable: bytes

    def encode(self) -> bytes:
        """The entry as bytes."""
        text = self.description.encode()
        packed = [zlib.compress(part, 1) for part in (text, self.executable)]
        header = {
            "key": self.key,
            "name": self.name,
            "operations": self.operations,
            "seconds": round(self.seconds, 6),
            "outputs": self.outputs,
            "checks": [dataclasses.astuple(check) for check in self.checks],
            "environment": self.environment,
            "parts": [[len(packed[0]), len(text)], [len(packed[1]), len(self.executable)]],
        }
        head = json.dumps(header, separators=(",", ":")).encode()
        data = b"".join((MAGIC, _LENGTH.pack(len(head)), head, *packed))
        return data + hashlib.sha256(data).digest()


def _header(data: bytes | memoryview) -> tuple[dict[str, Any], int]:
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise DamagedError("it is not an entry")
    start = len(MAGIC) + _LENGTH.size
    (length,) = _LENGTH.unpack(data[len(MAGIC) : start])
    if length > min(_MAX_HEADER, len(data)):
        raise DamagedError("it is cut short")
    try:
        header = json.loads(bytes(data[start : start + length]))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"its header cannot be read: {error}") from None
    if not isinstance(header, dict):
        raise DamagedError("its header is not an object")
    return header, start + length


def _unpack(packed: bytes | memoryview, size: int) -> bytes:
    if not 0 <= size <= _MAX_PART:
        raise DamagedError("a part's length is out of range")
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(packed, size)
    if len(data) != size or not unpacker.eof and unpacker.decompress(unpacker.unconsumed_tail, 1):
        raise DamagedError("a part has another length than it says")
    return data


def decode(data: bytes, key: str | None = None) -> Entry:
    """The entry in `data`, after its checksum and its lengths were checked; with `key`, that of no other program.

    Raises DamagedError.
    """
    if len(data) < len(MAGIC) + _LENGTH.size + 32:
        raise DamagedError("it is cut short")
    body, checksum = memoryview(data)[:-32], data[-32:]
    if bytes(body[: len(MAGIC)]) != MAGIC:
        raise DamagedError("it is not an entry")
    if hashlib.sha256(body).digest() != checksum:
        raise DamagedError("its checksum is wrong")
    try:
        header, at = _header(body)
        parts = []
        for packed, size in header["parts"]:
            parts.append(_unpack(body[at : at + packed], size))
            at += packed
        description, executable = parts
        if at != len(body):
            raise DamagedError("it has more bytes than it says")
        entry = Entry(
            key=str(header["key"]),
            name=str(header["name"]),
            operations=int(header["operations"]),
            seconds=float(header["seconds"]),
            outputs=[(str(dtype), tuple(int(n) for n in shape)) for dtype, shape in header["outputs"]],
            checks=[CheckSpec(str(kind), str(message), int(node)) for kind, message, node in header["checks"]],
            environment=dict(header["environment"]),
            description=description.decode(),
            executable=executable,
        )
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error, struct.error) as error:
        raise error if isinstance(error, DamagedError) else DamagedError(f"its header is wrong: {error!r}") from None
    if key is not None and entry.key != key:
        raise DamagedError("it is another program's")
    return entry


def _torch_exceptions() -> dict[str, type[Exception]]:
    import torch

    return {"OutOfMemoryError": torch.OutOfMemoryError, "LinAlgError": torch.linalg.LinAlgError}


def exception_name(kind: type[BaseException]) -> str | None:
    """How an entry names an exception, or None when it cannot: only Python's and PyTorch's own are found again."""
    for name, known in _torch_exceptions().items():
        if kind is known:
            return name
    return kind.__name__ if getattr(builtins, kind.__name__, None) is kind and issubclass(kind, Exception) else None


def exception_type(name: str) -> type[Exception]:
    """The exception of that name. Raises DamagedError for anything else."""
    found = _torch_exceptions().get(name) or getattr(builtins, name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        raise DamagedError(f"it names an exception that does not exist: {name!r}")
    return found
