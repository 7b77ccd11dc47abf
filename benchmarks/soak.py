"""A long run that must not grow: live device memory, resident memory and compiles over time.

    python -m benchmarks.soak
    python -m benchmarks.soak --mode strict --steps 500

Fails when anything compiles after the warm-up, when live bytes grow, or when resident memory does.
"""

import argparse
import math
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402

from benchmarks import rows  # noqa: E402
from benchmarks.worker import resident_bytes  # noqa: E402

MIB = 1 << 20


def live_bytes(device):
    """Bytes of live buffers of the device; 0 for the CPU, whose memory PyTorch doesn't count."""
    if not device.startswith("tpu"):
        return 0
    torch.tpu.synchronize()
    return torch.tpu.memory_allocated()


def compile_count(device):
    if not device.startswith("tpu"):
        return 0
    import torchtpu

    return torchtpu.compile_count()


def finish_compiling(device):
    """Wait for what compiles in the background: on a slow machine it takes longer than the warm-up's steps."""
    if device.startswith("tpu"):
        import torchtpu

        torchtpu.wait_for_compiles()


def problems(samples, warm_up, slack):
    """What is wrong with the samples (step, live, resident, compiles) taken during a run."""
    warm = [s for s in samples if s[0] >= warm_up]
    if len(warm) < 4:
        return ["too few samples after the warm-up"]
    found = []
    if warm[-1][3] > warm[0][3]:
        found.append(f"{warm[-1][3] - warm[0][3]} programs compiled after step {warm_up}")
    if warm[-1][1] > warm[0][1]:
        found.append(f"live bytes grew from {warm[0][1]:,} to {warm[-1][1]:,}")
    # Allocators settle during the first quarter; after that, growth is a leak.
    quarter = warm[len(warm) // 4 :]
    growth = quarter[-1][2] - quarter[0][2]
    if growth > slack:
        found.append(f"resident memory grew by {growth / MIB:.1f} MiB after step {quarter[0][0]}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--mode", default="fused", choices=("debug", "strict", "fused"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--every", type=int, default=20, help="steps between two samples")
    parser.add_argument("--slack", type=float, default=8, help="MiB by which resident memory may wander")
    options = parser.parse_args()
    if options.device.startswith("tpu"):
        import torchtpu

        torchtpu.set_eager_mode(options.mode)

    config, batch = rows.TINY
    model = rows.gpt_model(config).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 0.5 + 0.5 * math.cos(i / options.steps * math.pi))
    generator = torch.Generator().manual_seed(1)
    samples, begun = [], time.perf_counter()
    print(f"{'step':>6} {'loss':>8} {'live bytes':>12} {'resident MiB':>13} {'programs':>9} {'seconds':>8}")
    for step in range(options.steps + 1):
        data = torch.randint(config.vocab, (batch, config.length + 1), generator=generator)
        tokens, targets = (t.to(options.device) for t in (data[:, :-1], data[:, 1:]))
        loss = model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step < options.warm_up:
            finish_compiling(options.device)
        if step % options.every == 0:
            value = loss.item()
            del loss, tokens, targets
            samples.append((step, live_bytes(options.device), resident_bytes(), compile_count(options.device)))
            if step % (10 * options.every) == 0 or step in (options.every, options.steps):
                _, live, resident, count = samples[-1]
                seconds = time.perf_counter() - begun
                print(f"{step:>6} {value:>8.4f} {live:>12,} {resident / MIB:>13.1f} {count:>9} {seconds:>8.1f}")
    found = problems(samples, options.warm_up, options.slack * MIB)
    print("FAILED: " + "; ".join(found) if found else "passed: nothing compiled and nothing grew after the warm-up")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
