"""A process that runs entries one after the other.

It reads requests from standard input, a JSON object a line: {"key", "cases": [[dtype, check], …], "samples"}. It
answers on the descriptor that standard output was when it started, a JSON object a line: {"begin": [dtype, check]}
before a case, the case's result after it, {"done": key} at the end. What operators print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def cases(key: str, dtypes: list[str] | None, wanted: tuple[str, ...]) -> list[tuple[str, str]]:
    """(dtype, check) of every check that an entry has; `errors` doesn't depend on a dtype and comes under "any"."""
    from conformance import catalogue, checks, networks

    entry = catalogue.find(key)
    module = checks if entry.database in ("op", "foreach") else networks
    found = [
        (dtype, check)
        for dtype in entry.dtypes()
        if dtypes is None or dtype in dtypes
        for check in entry.checks()
        if check in wanted and check != "errors" and module.applies(entry, dtype, check)
    ]
    if "errors" in wanted and "errors" in entry.checks():
        has = entry.info.error_inputs_func is not None if module is checks else networks.has_errors(entry)
        if has and (dtypes is None or "float32" in dtypes):
            found.append(("any", "errors"))
    return found


def run_case(key: str, dtype: str, check: str, limit: int | None) -> dict[str, Any]:
    """One case's result, with the operators that ran on the CPU on the way and the seconds it took."""
    import torchtpu
    from conformance import catalogue, checks, networks

    entry = catalogue.find(key)
    module = checks if entry.database in ("op", "foreach") else networks
    before, start = torchtpu.fallbacks(), time.perf_counter()
    result = module.run(entry, dtype, check, limit)
    after = torchtpu.fallbacks()
    result["seconds"] = round(time.perf_counter() - start, 2)
    fallbacks = sorted(name for name, count in after.items() if count != before.get(name, 0))
    if fallbacks:
        result["fallbacks"] = fallbacks
    return {"key": key, "dtype": dtype, "check": check, "limit": limit, **result}


def main() -> None:
    """Serves requests until standard input ends."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.environ.setdefault("TORCHTPU_FALLBACK", "silent")
    import torch

    import torchtpu  # noqa: F401

    torch.set_num_threads(1)
    print(json.dumps({"ready": True}), file=channel)
    for line in sys.stdin:
        request = json.loads(line)
        for dtype, check in request["cases"]:
            print(json.dumps({"begin": [dtype, check]}), file=channel)
            print(json.dumps(run_case(request["key"], dtype, check, request["samples"])), file=channel)
        print(json.dumps({"done": request["key"]}), file=channel)


if __name__ == "__main__":
    main()
