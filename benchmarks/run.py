"""The speed table: every row on every target, alternating in one run, pinned to one core.

    python -m benchmarks.run
    python -m benchmarks.run --rows gpt-tiny,mlp --targets cpu,fused --rounds 5
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from benchmarks import alternate, report
from benchmarks.rows import ROWS
from benchmarks.worker import TARGETS

ROOT = Path(__file__).resolve().parent.parent
LOSS_TOLERANCE = 1e-3


def machine():
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    versions = {}
    for package in ("torch", "jax", "jaxlib", "torchtpu"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {"processor": name, "cores": os.cpu_count(), "python": platform.python_version(), **versions}


def choose(text, known):
    """A comma-separated choice among known names."""
    names = list(known) if text == "all" else text.split(",")
    for name in names:
        if name not in known:
            sys.exit(f"unknown: {name} (known: {', '.join(known)})")
    return names


def differing_losses(row):
    """Targets whose first losses are not PyTorch CPU's: they did other work."""
    expected = row["targets"].get("cpu", {}).get("losses")
    if row["kind"] != "train" or not expected:
        return []
    found = []
    for target, numbers in row["targets"].items():
        pairs = zip(numbers.get("losses", []), expected)
        if not all(abs(a - b) <= LOSS_TOLERANCE * abs(b) for a, b in pairs):  # a NaN is never within
            found.append(target)
    return found


def measure(names, targets, rounds, core, progress):
    """The whole table as one JSON-able value."""
    from benchmarks.jax_rows import BUILDERS

    rows = []
    with tempfile.TemporaryDirectory() as logs:
        for name in names:
            row = ROWS[name]
            chosen = [t for t in targets if t != "jax" or name in BUILDERS]
            numbers = alternate.measure(row, chosen, rounds, core, logs, progress)
            rows.append({"name": name, "title": row.title, "kind": row.kind, "targets": numbers})
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "core": core,
        "rounds": rounds,
        "targets": targets,
        "rows": rows,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="all", help=f"all, or some of {','.join(ROWS)}")
    parser.add_argument("--targets", default="all", help=f"all, or some of {','.join(TARGETS)}")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="the core to run on")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--readme", action="store_true", help="write table and plot into README.md and docs/images")
    options = parser.parse_args()
    names, targets = choose(options.rows, ROWS), choose(options.targets, TARGETS)

    width = 60

    def progress(text):
        if sys.stderr.isatty():
            print(f"\r{text:<{width}}", end="", file=sys.stderr, flush=True)
        elif "round" not in text:
            print(text, file=sys.stderr, flush=True)

    results = measure(names, targets, options.rounds, options.core, progress)
    progress("")
    print("\n" + report.plain(report.table(results)))
    print("\n" + report.plain(report.table(results, report.first_cell, "first step, empty cache; programs compiled")))
    failed = False
    for row in results["rows"]:
        for target in differing_losses(row):
            failed = True
            print(f"\nNOT COMPARABLE: the losses of {row['name']} on {target} differ from PyTorch CPU's")
        for numbers in row["targets"].values():
            if "error" in numbers:
                failed = True
                print(f"\nFAILED: {numbers['error']}")

    whole = names == list(ROWS) and targets == list(TARGETS)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / ("speed.json" if whole else "partial.json")
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    drawn = report.plot(results, path.with_suffix(".png"))
    print(f"\nwritten: {path}" + (f", {path.with_suffix('.png')}" if drawn else ""))
    if options.readme:
        report.write_into(ROOT / "README.md", results)
        report.plot(results, ROOT / "docs" / "images" / "speed.png")
        print("written: README.md, docs/images/speed.png")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
