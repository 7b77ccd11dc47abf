"""Changes cache entries at random and looks them up: each must be a miss, or, unchanged, the right program.

    python scripts/fuzz_cache.py                    10,000 mutations
    python scripts/fuzz_cache.py --count 1000 --seed 7
"""

import argparse
import os
import random
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")


def mutate(data, draw):
    """Some bytes changed, removed, inserted, repeated or cut off."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        at = draw.randrange(len(changed) or 1)
        match draw.randrange(7):
            case 0:
                changed[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                changed[at : at + 1] = bytes([(changed[at] if changed else 0) ^ 1 << draw.randrange(8)])
            case 2:
                del changed[at : at + draw.randint(1, 200)]
            case 3:
                changed[at:at] = draw.randbytes(draw.randint(1, 64))
            case 4:
                del changed[at:]
            case 5:
                changed[at : at + 4] = draw.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"[[[["))
            case 6:
                changed[at:at] = changed[draw.randrange(len(changed) or 1) :][: draw.randint(1, 500)]
    return bytes(changed)


def fuzz(count, seed, root):
    """Number of lookups that found a program. Raises AssertionError at a wrong one."""
    import torch

    import torchtpu
    from torchtpu.cache import store as stores
    from torchtpu.cache.directory import Directory
    from torchtpu.runtime import client

    stores.reset()
    directory = Directory(root)
    stores._store = stores.Store({"disk": directory})
    x = torch.full((5, 4321), 2.0, device="tpu")
    held = (x * 3, x - 1.0, x.sum(1), torch.nn.functional.embedding(torch.tensor([1, 2]).to("tpu"), x))
    torchtpu.synchronize()
    assert len(held) == 4
    originals = {file.key: file.path.read_bytes() for file in directory.files()}
    assert len(originals) >= 4
    draw = random.Random(seed)
    keys = sorted(originals)
    device, hits = client.device(0), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(count):
            key = draw.choice(keys)
            data = originals[draw.choice(keys)] if draw.random() < 0.02 else mutate(originals[key], draw)
            directory.path(key).write_bytes(data)
            directory.path(key).chmod(0o600)
            found = stores.Store({"disk": directory}).load(key, device, lambda node: None)
            same = data == originals[key]
            assert (found is not None) == same, f"mutation {number} of {key} (seed {seed}) was {'not ' * same}loaded"
            hits += same
    for key in keys:  # nothing is broken for good
        directory.write(key, originals[key])
        found = stores.Store({"disk": directory}).load(key, device, lambda node: None)
        assert found is not None
    stores.reset()
    return hits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    with tempfile.TemporaryDirectory(prefix="torchtpu-fuzz-") as root:
        hits = fuzz(options.count, options.seed, Path(root))
    print(f"{options.count} mutations: no crash, none was taken for a program ({hits} lookups of unchanged bytes found theirs)")


if __name__ == "__main__":
    main()
