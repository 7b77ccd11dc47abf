"""Runs several targets of a row in turns: one process each, on one core, never two at once."""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import benchmarks.worker as worker

ROOT = Path(__file__).resolve().parent.parent
TURN_SECONDS = 0.25
WARM_UP_SECONDS = 60.0


class WorkerFailed(RuntimeError):
    """A target's process ended; the text is the end of what it printed."""


class Worker:
    """The process of one target, and what it answered."""

    def __init__(self, row, target, core, log):
        self.row, self.target = row, target
        self.log = open(log, "w+")  # noqa: SIM115  (lives as long as the process)
        command = [sys.executable, "-m", "benchmarks.worker", "--row", row.name, "--target", target]
        if core is not None:
            command += ["--core", str(core)]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=worker.settings(target),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.requests: Any = self.process.stdin
        self.answers: Any = self.process.stdout
        self.turns: list[dict] = []
        try:
            self.started = self.answer()
            self.steps = 1
            self.warm_up()
        except WorkerFailed:
            self.close()
            raise

    def answer(self):
        line = self.answers.readline()
        if not line:
            code = self.process.wait()
            self.log.seek(0)
            tail = " | ".join(self.log.read().strip().splitlines()[-3:])
            raise WorkerFailed(f"{self.row.name} on {self.target} ended with exit code {code}: {tail}")
        return json.loads(line)

    def run(self, steps):
        try:
            self.requests.write(json.dumps({"steps": steps}) + "\n")
            self.requests.flush()
        except BrokenPipeError:
            pass  # answer() says why
        return self.answer()

    def warm_up(self):
        """Run until nothing compiles any more, and choose how many steps make a turn."""
        limit, quiet, seen = time.monotonic() + WARM_UP_SECONDS, 0, None
        while quiet < 3 and time.monotonic() < limit:
            done = self.run(self.steps)
            # A window that still runs from its parts is being compiled in the background.
            now = done["compiles"], done["stats"].get("run_by_parts")
            quiet, seen = quiet + 1 if now == seen else 0, now
            per_step = done["seconds"] / self.steps
            most = 10_000 if self.row.kind == "host" else 200
            self.steps = max(2, min(most, round(TURN_SECONDS / per_step)))
        self.warm_compiles = done["compiles"]

    def turn(self):
        done = self.run(self.steps)
        self.turns.append(done)
        return done["seconds"] / self.steps

    def close(self):
        self.requests.close()
        self.process.wait()
        self.log.close()


def measure(row, targets, rounds, core, log_folder, progress=lambda text: None):
    """Step times of a row: {target: numbers}, a failed target with its error in "error"."""
    results: dict[str, dict] = {}
    workers: dict[str, Worker] = {}
    for target in targets:
        progress(f"{row.name}: starting {target}")
        try:
            workers[target] = Worker(row, target, core, Path(log_folder) / f"{row.name}-{target}.log")
        except WorkerFailed as error:
            results[target] = {"error": str(error)}
    times: dict[str, list[float]] = {target: [] for target in workers}
    for i in range(rounds):
        progress(f"{row.name}: round {i + 1} of {rounds}")
        order = list(workers)
        order = order[i % len(order) :] + order[: i % len(order)] if order else order
        for target in order:
            try:
                times[target].append(workers[target].turn())
            except WorkerFailed as error:
                results[target] = {"error": str(error)}
                workers.pop(target).close()
    for target, w in workers.items():
        w.close()
        last = w.turns[-1]
        results[target] = {
            "step_seconds": statistics.median(times[target]),
            "fastest": min(times[target]),
            "slowest": max(times[target]),
            "rounds": times[target],
            "steps_per_turn": w.steps,
            "first_step_seconds": w.started["first_step"],
            "first_step_compiles": w.started["first_compiles"],
            "losses": w.started["losses"],
            "compiles": last["compiles"],
            "compiles_after_warm_up": last["compiles"] - w.warm_compiles,
            "resident_bytes": last["resident"],
            "stats": last["stats"],
        }
        if "cpu" in workers:
            # Each round's own ratio: what disturbs the machine disturbs both.
            ratios = [a / b for a, b in zip(times[target], times["cpu"])]
            results[target]["ratio"] = statistics.median(ratios)
    return {target: results[target] for target in targets}
