"""One target in a process of its own: builds a row's step and runs turns of it on request.

Requests and answers are JSON objects, a line each: {"steps": n} on standard input gives
{"seconds": s, ...} on standard output. Everything else that is printed goes to standard error.
"""

import argparse
import json
import os
import sys
import time

# Target → what it needs: the device, and the mode of the device.
TARGETS = {
    "cpu": ("cpu", None),
    "jax": ("jax", None),
    "debug": ("tpu", "debug"),
    "strict": ("tpu", "strict"),
    "fused": ("tpu", "fused"),
}
LOSSES = 5


def settings(target):
    """The environment of a target's process: one core's worth of threads for each library."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["TORCHTPU_CACHE"] = "off"  # the first step is one that compiles
    flags = environment.get("XLA_FLAGS", "")
    environment["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    device, mode = TARGETS[target]
    if device != "tpu":
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # the CPU alone, as without this package
    if mode:
        environment["TORCHTPU_EAGER_MODE"] = mode
    return environment


def read(value):
    """Wait for a step's result by reading one element of it."""
    return float(value.reshape(-1)[0].item())


def build(row, target):
    device, _ = TARGETS[target]
    if device == "jax":
        from benchmarks import jax_rows

        return jax_rows.BUILDERS[row.name]()
    import torch

    torch.set_num_threads(1)
    return row.build(device)


def compiles(target):
    """Programs compiled so far, and what the device says about itself."""
    if TARGETS[target][0] != "tpu":
        return 0, {}
    import torchtpu

    return torchtpu.compile_count(), torchtpu.stats()


def resident_bytes():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def turn(row, step, steps):
    """Seconds for so many steps; see Row for when results are read."""
    begin = time.perf_counter()
    for _ in range(steps):
        result = step()
        if row.kind == "read":
            read(result)
    if row.kind == "host":
        seconds = time.perf_counter() - begin
        read(result)
        return seconds
    read(result)
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", required=True)
    parser.add_argument("--target", required=True, choices=TARGETS)
    parser.add_argument("--core", type=int)
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})  # before any library starts its threads
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields):
        print(json.dumps(fields), file=answers, flush=True)

    from benchmarks.rows import ROWS

    row = ROWS[options.row]
    step = build(row, options.target)
    before, _ = compiles(options.target)
    begin = time.perf_counter()
    first = [read(step())]
    first_step = time.perf_counter() - begin
    losses = first + [read(step()) for _ in range(LOSSES - 1)]
    answer(first_step=first_step, losses=losses, first_compiles=compiles(options.target)[0] - before)

    for line in sys.stdin:
        request = json.loads(line)
        seconds = turn(row, step, request["steps"])
        count, stats = compiles(options.target)
        answer(seconds=seconds, compiles=count, stats=stats, resident=resident_bytes())


if __name__ == "__main__":
    main()
