"""python -m conformance: runs PyTorch's databases on the device and says what differs from the CPU."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from conformance import catalogue, exceptions, report, runner


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _shard(text: str) -> tuple[int, int]:
    try:
        part, of = (int(x) for x in text.split("/"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a shard such as 1/4") from None
    if not 1 <= part <= of:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a shard such as 1/4")
    return part, of


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    p.add_argument("--ops", type=_words, help="only these, by name: add,linalg.svd,module:nn.Linear")
    p.add_argument("--family", type=_words, help="only these families")
    p.add_argument("--database", type=_words, help="only these of op, foreach, module, optim")
    p.add_argument("--dtypes", type=_words, help="only these dtypes")
    p.add_argument("--checks", type=_words, help=f"only these of {', '.join(catalogue.CHECKS)}")
    p.add_argument("--samples", type=int, help="samples of each operator and check, spread evenly (default: all)")
    p.add_argument("--mode", choices=("debug", "strict", "fused"), default="strict", help="the eager mode")
    p.add_argument("--shard", type=_shard, default=(1, 1), help="1/4: the first of four parts")
    p.add_argument("--workers", type=int, default=1, help="processes")
    p.add_argument("--timeout", type=float, default=120.0, help="seconds that one case may take")
    p.add_argument("--results", type=Path, default=Path("build/conformance.jsonl"), help="appended to; done cases are skipped")
    p.add_argument("--fresh", action="store_true", help="start the results file anew")
    p.add_argument("--again", action="store_true", help="run the cases again that failed, and keep the rest")
    p.add_argument("--report", action="store_true", help="write docs/conformance.md and conformance/results from the file")
    p.add_argument("--quiet", action="store_true", help="only the summary")
    return p


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 when every case passes or is a listed exception that still fails."""
    options = parser().parse_args(argv)
    if options.fresh:
        options.results.unlink(missing_ok=True)
    if options.again:
        report.drop_failures(options.results)
    chosen = catalogue.select(options.ops, options.family, options.database, options.shard)
    start = time.monotonic()

    def tell(result: dict[str, Any]) -> None:
        if not options.quiet and result["outcome"] in ("fail", "crash", "timeout"):
            where = f"{result['key']} {result['dtype']} {result['check']}"
            print(f"{result['outcome']} {where}: {result.get('error', '')}", flush=True)

    results = runner.run(
        chosen, options.dtypes, tuple(options.checks or catalogue.CHECKS), options.samples, options.mode, options.workers,
        options.timeout, options.results, tell,
    )  # fmt: skip
    failures, stale = exceptions.judge(results, exceptions.load())
    print(report.summary(results), f"in {time.monotonic() - start:.0f} s")
    for result in failures if options.quiet else ():
        print(f"fails: {result['key']} {result['dtype']} {result['check']}: {result.get('error', '')}")
    for result in stale:
        print(f"passes, although exceptions.toml lists it: {result['key']} {result['dtype']} {result['check']}")
    if options.report:
        report.write(runner.read(options.results), options.samples)
    return 1 if failures or stale else 0


if __name__ == "__main__":
    sys.exit(main())
