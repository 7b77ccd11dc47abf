"""What the compile cache saves: the first step and the first operation of a process, without and with a warm disk.

    python -m benchmarks.cold_start
    python -m benchmarks.cold_start --modes strict --rounds 5

Each start is a process of its own, on a directory of its own. "cold" has an empty directory, "off" none, "warm" one that
such a process has filled. Seconds are medians; PyTorch's and JAX's imports are not part of them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

STEP = """
import json, time
import torch
import torch._dynamo  # PyTorch imports it at an optimizer's first step on any device
import torchtpu
from examples.gpt_model import GPT, GPTConfig

torch.manual_seed(0)
model = GPT(GPTConfig(65, **{sizes})).to("tpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.randint(65, ({batch}, model.config.length + 1)).to("tpu")
torchtpu.synchronize()
torchtpu.reset_stats()

def step():
    logits = model(tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()

start = time.perf_counter()
first = step()
seconds = time.perf_counter() - start
for _ in range(4):
    step()
    torchtpu.wait_for_compiles()
print(json.dumps(dict(first=seconds, loss=first, **torchtpu.stats())))
"""

OPERATION = """
import json, time
import torch, torchtpu
x = torch.ones(8, 8).to("tpu")
start = time.perf_counter()
y = x + 1
torchtpu.synchronize()
print(json.dumps(dict(first=time.perf_counter() - start, **torchtpu.stats())))
"""

MODELS = {
    "demo: 4 blocks, width 128, 32×64 tokens": {"sizes": {}, "batch": 32},
    "tiny GPT: 4 blocks, width 32, 2×16 tokens": {"sizes": {"width": 32, "heads": 4, "length": 16}, "batch": 2},
}


def start(code, directory, mode):
    """Starts a process that prints one line of JSON."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHTPU_EAGER_MODE": mode}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])
    environment.pop("TORCHTPU_SHARED_CACHE", None)
    environment.update({"TORCHTPU_CACHE": "off"} if directory is None else {"TORCHTPU_CACHE": "on", "TORCHTPU_CACHE_DIR": str(directory)})
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


def result(process):
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit("a process failed")
    return json.loads(out.splitlines()[-1])


def compare(name, code, mode, rounds):
    """One row of the table: medians of the first step, and what was compiled."""
    runs = {"off": [], "cold": [], "warm": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="torchtpu-cold-") as directory:
            runs["off"].append(result(start(code, None, mode)))
            runs["cold"].append(result(start(code, directory, mode)))
            runs["warm"].append(result(start(code, directory, mode)))
    first = {kind: statistics.median(r["first"] for r in found) for kind, found in runs.items()}
    compiles = {kind: max(r["compiles"] for r in found) for kind, found in runs.items()}
    share = first["warm"] / first["cold"]
    print(
        f"| {name} | {mode} | {first['off']:.3f} | {first['cold']:.3f} | {first['warm']:.3f} | {share:.0%} | "
        f"{compiles['cold']} | {compiles['warm']} |",
        flush=True,
    )


def together(mode, count=4):
    """Processes that start at once on an empty directory: programs compiled in all, entries made."""
    code = STEP.format(**MODELS["tiny GPT: 4 blocks, width 32, 2×16 tokens"])
    with tempfile.TemporaryDirectory(prefix="torchtpu-cold-") as directory:
        found = [result(p) for p in [start(code, directory, mode) for _ in range(count)]]
        entries = len(list(Path(directory).rglob("*.entry")))
    print(f"{count} processes at once, {mode}: {sum(r['compiles'] for r in found)} compiles for {entries} programs", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", default=["strict", "fused"])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| start | mode | cache off, s | empty, s | warm, s | warm / empty | compiles, empty | warm |")
    print("|---|---|---|---|---|---|---|---|")
    for mode in options.modes:
        compare("one addition", OPERATION, mode, options.rounds)
        for name, values in MODELS.items():
            compare(name, STEP.format(**values), mode, options.rounds)
    for mode in options.modes:
        together(mode)


if __name__ == "__main__":
    main()
