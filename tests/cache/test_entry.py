"""Entries as bytes: what goes in comes out, and nothing else does."""

import hashlib
import json
import random
import struct

import pytest
import torch

from torchtpu.cache.entry import CheckSpec, DamagedError, Entry, decode, exception_name, exception_type

KEY = "ab" * 40


def make(**changes):
    fields = {
        "key": KEY, "name": "add", "operations": 1, "seconds": 0.25, "outputs": [("float32", (3, 5)), ("int64", (2,))],
        "checks": [CheckSpec("IndexError", "index {value} is out of range", 0)], "environment": {"jax": "1"},
        "description": '{"nodes":[]}', "executable": bytes(range(256)) * 20,
    }
    return Entry(**{**fields, **changes})


def signed(body):
    return body + hashlib.sha256(body).digest()


def with_header(change):
    """An entry whose header says something else, with a right checksum: what a hostile writer would make."""
    data = make().encode()
    (length,) = struct.unpack(">I", data[8:12])
    header = json.loads(data[12 : 12 + length])
    text = change(header)
    head = (text if isinstance(text, bytes) else json.dumps(header).encode())
    return signed(data[:8] + struct.pack(">I", len(head)) + head + data[12 + length : -32])


def test_round_trip():
    assert decode(make().encode(), KEY) == make()
    assert len(make().encode()) < 2000  # compressed
    empty = make(executable=b"", description="", outputs=[], checks=[])
    assert decode(empty.encode()) == empty


def test_the_same_program_makes_the_same_bytes():
    assert make().encode() == make().encode()


def test_another_programs_entry_is_refused():
    with pytest.raises(DamagedError, match="another program"):
        decode(make(key="cd" * 40).encode(), KEY)


def test_every_cut_and_every_changed_byte_is_noticed():
    data = make().encode()
    for end in range(0, len(data), 7):
        with pytest.raises(DamagedError):
            decode(data[:end], KEY)
    for at in range(0, len(data), 5):
        with pytest.raises(DamagedError):
            decode(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :], KEY)
    with pytest.raises(DamagedError):
        decode(data + b"\0", KEY)


@pytest.mark.parametrize("rewritten", [False, True], ids=["", "with a right checksum"])
def test_mutations(rewritten):
    """Only DamagedError, or, where somebody made the checksum right, an entry of the right types."""
    draw = random.Random(5)
    data = make().encode()
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(changed))
            action = draw.randrange(4)
            if action == 0:
                changed[at] = draw.randrange(256)
            elif action == 1:
                del changed[at : at + draw.randint(1, 50)]
            elif action == 2:
                changed[at:at] = draw.randbytes(draw.randint(1, 20))
            else:
                changed[at : at + 4] = struct.pack(">i", draw.choice([0, -1, 2**31 - 1, 255]))
        if changed == data:
            continue
        try:
            entry = decode(signed(bytes(changed[:-32])) if rewritten else bytes(changed), KEY)
        except DamagedError:
            continue
        assert rewritten and isinstance(entry.executable, bytes) and entry.key == KEY


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.pop("key"),
        lambda h: h.update(outputs=3),
        lambda h: h.update(outputs=[["float32", "x"]]),
        lambda h: h.update(checks=[["IndexError"]]),
        lambda h: h.update(environment=7),
        lambda h: h.update(parts=[]),
        lambda h: h["parts"][1].__setitem__(1, 10**12),  # unpacks to more than memory holds
        lambda h: h["parts"][1].__setitem__(1, 10),
        lambda h: h["parts"][1].__setitem__(1, -1),
        lambda h: h["parts"][0].__setitem__(0, 10**9),
        lambda h: h["parts"][0].__setitem__(0, -4),
        lambda h: h.update(seconds="long"),
        lambda h: b"[]",
        lambda h: b"{",
        lambda h: b"[" * 100_000,
        lambda h: b"\xff\xfe",
    ],
)
def test_a_lying_header_is_refused(change):
    with pytest.raises(DamagedError):
        decode(with_header(change), KEY)


def test_a_length_beyond_the_file_is_refused():
    with pytest.raises(DamagedError):
        decode(signed(b"TORCHTPU" + struct.pack(">I", 2**32 - 1) + b"{}" * 20), KEY)


def test_exceptions_go_by_name():
    for kind in (IndexError, ValueError, RuntimeError, torch.OutOfMemoryError, torch.linalg.LinAlgError):
        assert exception_type(exception_name(kind)) is kind
    assert exception_name(type("IndexError", (Exception,), {})) is None
    for name in ("print", "eval", "Own", "", "SystemExit", "__import__"):
        with pytest.raises(DamagedError):
            exception_type(name)
