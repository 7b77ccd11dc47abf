"""Hands entries to worker processes, and keeps going when one of them crashes or hangs."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from conformance import catalogue, worker

_ROOT = Path(__file__).resolve().parent.parent
_START_LIMIT = 120.0  # seconds that importing everything may take
_ENTRIES_PER_WORKER = 80  # then a fresh process: compiled programs are never dropped


class _Worker:
    """One process and the lines that it writes."""

    def __init__(self, mode: str):
        environment = {**os.environ, "TORCHTPU_EAGER_MODE": mode, "TORCHTPU_FALLBACK": "silent"}
        environment.setdefault("OMP_NUM_THREADS", "1")
        environment["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *(p for p in sys.path if p)])
        self.served = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "conformance.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, cwd=_ROOT,
        )  # fmt: skip
        self._rest = b""
        if self.read(_START_LIMIT) is None:
            self.close()
            raise RuntimeError("a conformance worker does not start; python -m conformance.worker shows why")

    def send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(request) + "\n").encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the next read tells that it has ended

    def read(self, limit: float) -> dict[str, Any] | None:
        """The next line; None when the process ended or was silent for `limit` seconds."""
        assert self._process.stdout is not None
        end = time.monotonic() + limit
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return None
            chunk = os.read(self._process.stdout.fileno(), 65536)
            if not chunk:
                return None
            self._rest += chunk
        line, self._rest = self._rest.split(b"\n", 1)
        return json.loads(line)

    def ended(self) -> str:
        """Why there was no line: "crash" with the exit status, or "timeout"."""
        try:
            status = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "timeout"
        return f"crash: the process ended with status {status}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _serve(key: str, cases: list[tuple[str, str]], box: list[_Worker | None], options: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Results of an entry's cases; a case that ends its worker is one of them."""
    left = list(cases)
    while left:
        if box[0] is None or box[0].served >= _ENTRIES_PER_WORKER:
            if box[0] is not None:
                box[0].close()
            box[0] = _Worker(options["mode"])
        process = box[0]
        process.served += 1
        process.send({"key": key, "cases": left, "samples": options["samples"]})
        while True:
            line = process.read(options["limit"])
            if line is None:
                why = process.ended()
                process.close()
                box[0] = None
                dtype, check = left.pop(0)
                yield {"key": key, "dtype": dtype, "check": check, "outcome": why.split(":")[0], "samples": 0, "error": why}
                break
            if "done" in line:
                return
            if "begin" not in line:
                left.remove((line["dtype"], line["check"]))
                yield line


def read(path: Path) -> list[dict[str, Any]]:
    """The results in a file; a last line that was cut short is left out."""
    found = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def run(
    entries: list[catalogue.Entry],
    dtypes: list[str] | None = None,
    checks: tuple[str, ...] = catalogue.CHECKS,
    samples: int | None = None,
    mode: str = "strict",
    workers: int = 1,
    limit: float = 120.0,
    results: Path | None = None,
    tell: Callable[[dict[str, Any]], None] = lambda result: None,
) -> list[dict[str, Any]]:
    """Runs the checks of the entries in `workers` processes and gives every result.

    results: a file that results are appended to; cases that it already holds are not run again, but given back.
    limit: seconds that a case may take. tell: called with each new result.
    """
    before = [r for r in (read(results) if results else []) if r.get("mode", mode) == mode]
    known = {(r["key"], r["dtype"], r["check"]) for r in before}
    jobs = []
    found = []
    for entry in entries:
        wanted = worker.cases(entry.key, dtypes, checks)
        found += [(entry.key, d, c) for d, c in wanted]
        missing = [(d, c) for d, c in wanted if (entry.key, d, c) not in known]
        if missing:
            jobs.append((entry.key, missing))
    jobs.reverse()
    lock = threading.Lock()
    fresh: list[dict[str, Any]] = []
    problems: list[BaseException] = []
    options = {"samples": samples, "mode": mode, "limit": limit}
    handle = None
    if results:
        results.parent.mkdir(parents=True, exist_ok=True)
        cut = results.exists() and results.stat().st_size and not results.read_bytes().endswith(b"\n")
        handle = results.open("a")
        if cut:  # the last run was ended in the middle of a line
            handle.write("\n")

    def work() -> None:
        box: list[_Worker | None] = [None]
        try:
            while True:
                with lock:
                    if not jobs or problems:
                        return
                    key, cases = jobs.pop()
                for result in _serve(key, cases, box, options):
                    result["mode"] = mode
                    with lock:
                        fresh.append(result)
                        if handle:
                            handle.write(json.dumps(result) + "\n")
                            handle.flush()
                        tell(result)
        except BaseException as error:
            problems.append(error)
        finally:
            if box[0] is not None:
                box[0].close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if handle:
        handle.close()
    if problems:
        raise problems[0]
    wanted_now = set(found)
    return [r for r in before if (r["key"], r["dtype"], r["check"]) in wanted_now] + fresh
