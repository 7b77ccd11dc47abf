"""What was compiled, where, how long it took, and why no program that was known would do."""

from __future__ import annotations

import collections
import contextlib
import html
import json
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchtpu import config
from torchtpu.cache.difference import REMEDIES, Description, Difference, differences, environments
from torchtpu.cache.key import structure

_KEPT = 4096  # compiles that are remembered
_ALIKE = 4  # descriptions of the same operators that a new one is compared with when it is compiled
_NEAR = 32  # programs of other operators that are compared when somebody asks


class CompileForbiddenError(RuntimeError):
    """Something had to be compiled inside `torchtpu.forbid_compiles()`."""


@dataclass
class _Known:
    description: Description
    environment: Mapping[str, Any]
    number: int  # in the order of becoming known


@dataclass
class Compile:
    """One XLA compile. reason: why it could not be found, when that is known without a search."""

    name: str
    operations: int
    location: str
    seconds: float
    key: str | None
    description: Description | None
    environment: Mapping[str, Any] | None
    reason: str
    number: int


_lock = threading.RLock()
_compiles: collections.deque[Compile] = collections.deque(maxlen=_KEPT)
_known: dict[tuple[str, ...], collections.deque[_Known]] = {}
_keys: set[str | None] = set()  # of what was compiled
_causes: collections.Counter[tuple[Any, ...]] = collections.Counter()
_numbers = 0
_forbidden = 0


def note_known(description: Description, environment: Mapping[str, Any]) -> None:
    """Remembers a program that can be run, to compare later ones with."""
    global _numbers
    with _lock:
        _numbers += 1
        alike = _known.setdefault(structure(description), collections.deque(maxlen=64))
        alike.append(_Known(description, environment, _numbers))


def note(
    name: str, operations: int, location: str, seconds: float, key: str | None, description: Description | None,
    reason: str = "", environment: Mapping[str, Any] | None = None,
) -> None:
    """Adds a compile to the report, and warns when one cause has led to many."""
    global _numbers
    cause: Difference | None = None
    with _lock:
        _numbers += 1
        record = Compile(name, operations, location, seconds, key, description, environment, reason, _numbers)
        _compiles.append(record)
        if description is not None and environment is not None:
            # In a backward pass every layer has the same place: none. The forward pass tells.
            if location and key not in _keys:
                cause = _cause(description, environment)
            _keys.add(key)
            note_known(description, environment)
    if cause is not None:
        _warn(record, cause)


def _cause(description: Description, environment: Mapping[str, Any]) -> Difference | None:
    """What varies, when it is one thing without an end to its values, against the last programs of the same operators:
    cheap, and enough to count."""
    alike = list(_known.get(structure(description), ()))[-_ALIKE:]
    found = [d for d in (_all(known, description, environment) for known in alike) if d]
    nearest = min(found, key=len, default=[])
    kinds = {difference.kind for difference in nearest}
    return nearest[0] if len(kinds) == 1 and not kinds & {"dtype", "environment"} else None


def _all(known: _Known, description: Description, environment: Mapping[str, Any]) -> list[Difference]:
    found = differences(known.description, description)
    # Compiler options follow from how much data an operation has.
    outside = [d for d in environments(known.environment, environment) if not (found and d.place == ("environment", "compiler options"))]
    return [*outside, *found]


def _warn(record: Compile, difference: Difference) -> None:
    limit = config.get("TORCHTPU_RECOMPILE_WARNING")
    assert record.description is not None
    cause = (record.location, structure(record.description), difference.kind, difference.place)
    with _lock:
        _causes[cause] += 1
        count = _causes[cause]
    if limit and count == limit:
        warnings.warn(
            f"{record.name} was compiled {count} times more at {record.location} for one cause: {difference.text}. {REMEDIES[difference.kind]} "
            "torchtpu.compile_report() lists all compiles; TORCHTPU_RECOMPILE_WARNING=0 hides this.",
            RuntimeWarning,
            stacklevel=2,
        )


def _why(
    key: str | None, description: Description | None, environment: Mapping[str, Any] | None, before: int
) -> list[Difference]:
    """The differences to the nearest program that was known before number `before`, in this process or on disk."""
    if description is None or environment is None:
        return []
    wanted = structure(description)
    with _lock:
        alike = [k for k in _known.get(wanted, ()) if k.number < before]
        others = [k for s, group in _known.items() if s != wanted for k in list(group)[-1:] if k.number < before]
    if not alike and key is not None:
        alike = _on_disk(key)
    if not alike:
        alike = sorted(others, key=lambda k: -_overlap(structure(k.description), wanted))[:_NEAR]
        alike = [k for k in alike if _overlap(structure(k.description), wanted) * 2 >= len(wanted) > 1]
    found = [_all(known, description, environment) for known in alike]
    return min((d for d in found if d), key=len, default=[])


def _overlap(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    return (collections.Counter(a) & collections.Counter(b)).total()


def _on_disk(key: str) -> list[_Known]:
    """Programs of the same operators that other processes left on disk."""
    from torchtpu.cache.entry import DamagedError, decode
    from torchtpu.cache.store import store

    found = []
    for directory in store().directories.values():
        files = sorted(directory.files(key[:16]), key=lambda f: (f.key[:48] != key[:48], -f.used))
        for file in [f for f in files if f.key not in _keys][:_ALIKE]:  # what this process has compiled came later
            with contextlib.suppress(OSError, DamagedError, ValueError):
                data = directory.read(file.key)
                if data is not None:
                    entry = decode(data, file.key)
                    found.append(_Known(json.loads(entry.description), entry.environment, 0))
    return found


def _reason(found: list[Difference], given: str) -> str:
    if given:
        return given
    if not found:
        return "new: no program like it was known"
    text = "; ".join(d.text for d in found[:3])
    return text + (f"; and {len(found) - 3} more differences" if len(found) > 3 else "")


def forbidden(
    name: str, location: str, key: str | None, description: Description | None, reason: str = "",
    environment: Mapping[str, Any] | None = None,
) -> CompileForbiddenError:
    """The error of a compile inside `forbid_compiles`, with its cause."""
    found = _why(key, description, environment, _numbers + 1)
    remedy = f" {REMEDIES[found[0].kind]}" if found else ""
    where = f" at {location}" if location else ""
    return CompileForbiddenError(
        f"{name} has to be compiled{where}, and torchtpu.forbid_compiles() is on: {_reason(found, reason)}.{remedy}"
    )


def compiles_forbidden() -> bool:
    """Whether `forbid_compiles` is on."""
    return _forbidden > 0


class forbid_compiles:  # noqa: N801  (used as a function, like torch.no_grad)
    """Inside `with torchtpu.forbid_compiles():` whatever must be compiled raises CompileForbiddenError, which names the
    cause. Programs that are known already, or in the compile cache, run. It holds for all threads of the process."""

    def __enter__(self) -> None:
        global _forbidden
        with _lock:
            _forbidden += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        global _forbidden
        try:
            if kind is None:
                from torchtpu.device import synchronize

                synchronize()  # what was recorded inside runs inside
        finally:
            with _lock:
                _forbidden -= 1


def records() -> list[dict[str, Any]]:
    """Each compile since the start or the last `reset_stats()`: name, operations, location, seconds, reason, kind,
    remedy (both "" when there is no nearest program)."""
    with _lock:
        compiles = list(_compiles)
    out = []
    for c in compiles:
        found = _why(c.key, c.description, c.environment, c.number)
        out.append({
            "name": c.name,
            "operations": c.operations,
            "location": c.location,
            "seconds": round(c.seconds, 6),
            "reason": _reason(found, c.reason),
            "kind": found[0].kind if found else "",
            "remedy": REMEDIES[found[0].kind] if found else "",
            "differences": [d.text for d in found],
        })
    return out


def clear() -> None:
    """Forgets the compiles; what is known stays."""
    with _lock:
        _compiles.clear()
        _causes.clear()


def compile_report(format: str = "text") -> str:
    """All compiles of this process: what, where, how long, and why it was not found in the cache.

    format: "text", "json" or "html" (a page of its own). Raises ValueError for another.
    """
    if format not in ("text", "json", "html"):
        raise ValueError(f"unknown format {format!r}: expected 'text', 'json' or 'html'")
    from torchtpu.program import stats

    rows = records()
    loads = stats.loads()
    totals = {"compiles": len(rows), "seconds": round(sum(r["seconds"] for r in rows), 6), "loaded": loads}
    if format == "json":
        return json.dumps({**totals, "programs": rows}, indent=1)
    found = ", ".join(f"{n} from {tier}" for tier, n in loads.items()) or "none"
    head = f"{len(rows)} programs compiled in {totals['seconds']:.2f} s; found in the cache: {found}"
    return _page(head, rows) if format == "html" else _text(head, rows)


def _text(head: str, rows: list[dict[str, Any]]) -> str:
    lines = [head]
    for row in rows:
        count = f" ({row['operations']} operations)" if row["operations"] > 1 else ""
        lines.append(f"{row['seconds'] * 1e3:9.1f} ms  {row['name']}{count}" + (f"  at {row['location']}" if row["location"] else ""))
        lines.append(f"              {row['reason']}")
    return "\n".join(lines)


def _page(head: str, rows: list[dict[str, Any]]) -> str:
    cells = []
    for row in rows:
        values = (row["name"], row["operations"], f"{row['seconds'] * 1e3:.1f}", row["location"], row["reason"], row["remedy"])
        cells.append("<tr>" + "".join(f"<td>{html.escape(str(v))}</td>" for v in values) + "</tr>")
    titles = ("program", "operations", "ms", "where", "why it was compiled", "what to do")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Compiles</title><style>'
        "body{font:14px system-ui;margin:2em}table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:4px 8px;"
        "text-align:left;vertical-align:top}td:nth-child(3){text-align:right}</style>"
        f"<h1>Compiles</h1><p>{html.escape(head)}</p><table><tr>"
        + "".join(f"<th>{t}</th>" for t in titles) + "</tr>" + "".join(cells) + "</table></html>"
    )
