"""The demo model's losses on the CPU and on tpu in each mode, from the same weights and batches.

Exit code 0 when all modes agree with the CPU to 1e-3 relative and Debug equals Strict to the bit.
"""

import argparse
import contextlib
import copy
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
from gpt_model import GPT, GPTConfig, Text, learning_rate  # noqa: E402

TOLERANCE = 1e-3


def losses(model, batches, device, after_step=lambda: None):
    """Train a copy of the model; the loss of each step."""
    model = copy.deepcopy(model).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = []
    for step, (x, y) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, len(batches), warm_up=5)
        loss = model(x.to(device), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step()
        found.append(loss.detach())
    return [loss.item() for loss in found]


def worst(found, expected):
    """The largest relative difference; infinite where there is a NaN."""
    differences = [abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True)]
    return max(d if d == d else float("inf") for d in differences)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()

    torch.manual_seed(0)
    text = Text(limit=1_000_000)
    model = GPT(GPTConfig(text.vocab))
    generator = torch.Generator().manual_seed(1)
    batches = [text.batch(options.batch, model.config.length, generator) for _ in range(options.steps)]

    expected = losses(model, batches, "cpu")
    print(f"cpu: {expected[0]:.6f} … {expected[-1]:.6f}")
    modes = {options.device: contextlib.nullcontext()}
    wait = lambda: None  # noqa: E731
    if options.device.startswith("tpu"):
        import torchtpu

        wait = torchtpu.wait_for_compiles
        modes = {mode: torchtpu.eager_mode(mode) for mode in ("debug", "strict", "fused")}
    found, good = {}, True
    for mode, context in modes.items():
        with context:
            # Fused must not run from its parts until the end: the whole window's program is what is compared.
            found[mode] = losses(model, batches, options.device, wait)
        difference = worst(found[mode], expected)
        good &= difference <= TOLERANCE
        print(f"{mode}: {found[mode][0]:.6f} … {found[mode][-1]:.6f}, largest relative difference {difference:.2e}")
    if "debug" in found:
        same = found["debug"] == found["strict"]
        good &= same
        print(f"debug and strict are {'equal to the bit' if same else 'DIFFERENT'}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
