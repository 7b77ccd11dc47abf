"""What came out: a summary line, docs/conformance.md and results/*.json."""

from __future__ import annotations

import collections
import importlib.metadata
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from conformance import catalogue, exceptions, runner

_ROOT = Path(__file__).resolve().parent.parent
_BAD = ("fail", "crash", "timeout")
_TITLES = {"op": "Operators", "foreach": "Foreach operators", "module": "Modules", "optim": "Optimizers"}


def _counted(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results that are cases: where the CPU takes no sample there is nothing to judge."""
    return [r for r in results if r["outcome"] != "none"]


def _percent(passed: int, total: int) -> str:
    if passed == total:
        return "100 %"
    return f"{min(100 * passed / total, 99.99):.2f} %"  # never rounded up to 100


def summary(results: list[dict[str, Any]]) -> str:
    """One line: cases, how many pass, what happened to the others."""
    counts = collections.Counter(r["outcome"] for r in _counted(results))
    total = sum(counts.values())
    if not total:
        return "no cases"
    rest = "".join(f", {counts[o]} {word}" for o, word in zip(_BAD, ("fail", "crash", "time out")) if counts[o])
    return f"{total} cases: {counts['pass']} pass ({_percent(counts['pass'], total)}){rest}"


def drop_failures(path: Path) -> None:
    """Takes the cases that failed out of a results file, so that the next run runs them again."""
    kept = [r for r in runner.read(path) if r["outcome"] not in _BAD]
    path.write_text("".join(json.dumps(r) + "\n" for r in kept))


def _latest(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last result of each case."""
    return list({(r["mode"], r["key"], r["dtype"], r["check"]): r for r in results}.values())


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join(["---"] + ["--:"] * (len(head) - 1)) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _cell(results: list[dict[str, Any]]) -> str:
    """ "all 12", "11 of 12", or nothing."""
    if not results:
        return ""
    passed = sum(r["outcome"] == "pass" for r in results)
    return str(passed) if passed == len(results) else f"**{passed}** of {len(results)}"


def _group(results: list[dict[str, Any]], key: Any) -> dict[Any, list[dict[str, Any]]]:
    groups: dict[Any, list[dict[str, Any]]] = collections.defaultdict(list)
    for r in results:
        groups[key(r)].append(r)
    return groups


def _version(package: str) -> str:
    return importlib.metadata.version(package).split("+")[0]


def _totals(results: list[dict[str, Any]]) -> list[str]:
    rows = []
    for database, title in _TITLES.items():
        part = [r for r in results if catalogue.find(r["key"]).database == database]
        if part:
            names = _group(part, lambda r: r["key"])
            whole = sum(all(r["outcome"] == "pass" for r in cases) for cases in names.values())
            passed = sum(r["outcome"] == "pass" for r in part)
            rows.append([title, f"{whole} of {len(names)}", str(len(part)), str(passed), _percent(passed, len(part))])
    passed = sum(r["outcome"] == "pass" for r in results)
    rows.append(["**all**", "", str(len(results)), str(passed), f"**{_percent(passed, len(results))}**"])
    return _table(["", "without any failure", "cases", "pass", ""], rows)


def _by_check(results: list[dict[str, Any]]) -> list[str]:
    groups = _group(results, lambda r: (r["check"], r["dtype"]))
    dtypes = [d for d in (*catalogue.DTYPES, "any") if any(r["dtype"] == d for r in results)]
    rows = [
        [check, *(_cell(groups.get((check, dtype), [])) for dtype in dtypes)]
        for check in catalogue.CHECKS
        if any(r["check"] == check for r in results)
    ]
    return _table(["check", *dtypes], rows)


def _by_family(results: list[dict[str, Any]]) -> list[str]:
    family = {entry.key: entry.family for entry in catalogue.entries()}
    groups = _group(results, lambda r: (family[r["key"]], r["dtype"]))
    dtypes = [d for d in (*catalogue.DTYPES, "any") if any(r["dtype"] == d for r in results)]
    rows = [[f, *(_cell(groups.get((f, d), [])) for d in dtypes)] for f in sorted({f for f, _ in groups})]
    return _table(["family", *dtypes], rows)


def _fallbacks(results: list[dict[str, Any]]) -> list[str]:
    users: dict[str, set[str]] = collections.defaultdict(set)
    for r in results:
        for name in r.get("fallbacks", ()):
            users[name].add(r["key"])
    operators = {r["key"] for r in results if catalogue.find(r["key"]).database == "op"}
    falling = {key for keys in users.values() for key in keys} & operators
    lines = [
        f"{len(falling)} of {len(operators)} operators ({100 * len(falling) / max(1, len(operators)):.1f} %) reach a "
        "part that has no lowering and runs on the CPU, with any dtype in any check:",
        "",
    ]
    return lines + [f"- `{name}`: {', '.join(f'`{k}`' for k in sorted(users[name]))}" for name in sorted(users)]


def _exceptions(results: list[dict[str, Any]]) -> list[str]:
    lines = []
    left = [r for r in results if r["outcome"] in _BAD]
    for rule in exceptions.load():
        covered = [r for r in left if rule.covers(r)]
        if not covered:
            continue
        left = [r for r in left if not rule.covers(r)]
        names = sorted({r["key"] for r in covered})
        what = ", ".join(f"`{n}`" for n in names) if rule.names else f"{len(names)} operators"
        dtypes = ", ".join(d for d in (*catalogue.DTYPES, "any") if any(r["dtype"] == d for r in covered))
        checks = ", ".join(c for c in catalogue.CHECKS if any(r["check"] == c for r in covered))
        lines.append(f"- {what} ({dtypes}; {checks}; {len(covered)} cases): {rule.reason}")
    if left:
        lines += ["", "Not explained yet:", ""]
        for r in left:
            text = r.get("error", "").replace("|", "/")[:160]
            lines.append(f"- `{r['key']}` {r['dtype']} {r['check']}: {r['outcome']}, {text}")
    return lines or ["None."]


_HOW = """## How it is judged

Samples are made on the CPU and copied to the device with their strides; both compute, and results must agree in dtype,
shape, device, `requires_grad` and value.

- **forward**, **gradient** and **gradgrad** use fixed directions; gradgrad where PyTorch's database declares it.
- **inplace** also insists on the same tensor coming back, and takes the gradient through the in-place form.
- **out** writes into a tensor with gaps (strides must stay), into an empty one (must grow) and into integers.
- **noncontiguous** puts gaps between elements, **expanded** repeats the first slice with a stride of zero.
- **errors** runs the database's wrong calls: the exception must be of the CPU's type.
- Where the CPU refuses an in-place or `out=` call, the device must refuse it with the same type of exception.
- Tolerances are `torch.testing`'s for the dtype, or wider where PyTorch's database declares so for any device. A result
  outside passes only if it is as near to a 64-bit computation as twice the CPU's own error.
- Random operators are judged by dtype, shape and range here, and by their statistics in `tests/lowering`.
- A result with a free choice (signs of singular vectors) is compared through what doesn't depend on it; memory that
  PyTorch leaves uninitialised by its shape.

Every case runs in a worker process; one that ends or hangs counts as a failure.
"""


def _sample_limits(results: list[dict[str, Any]], otherwise: int | None) -> str:
    """How many samples of each case were run, by dtype where that differs."""
    dtypes: dict[int | None, set[str]] = collections.defaultdict(set)
    for r in results:
        dtypes[r.get("limit", otherwise)].add(r["dtype"])
    words = []
    for limit, names in sorted(dtypes.items(), key=lambda item: -(item[0] or 10**9)):
        count = "all samples" if limit is None else f"up to {limit} sample{'s' if limit > 1 else ''}"
        named = ", ".join(d for d in catalogue.DTYPES if d in names)
        words.append(count + (f" ({named})" if len(dtypes) > 1 else ""))
    return "; ".join(words) + ", spread evenly over the database's,"


def write(results: list[dict[str, Any]], samples: int | None) -> None:
    """Writes the page and the compact results from everything that a results file holds."""
    results = _counted(_latest(results))
    modes = _group(results, lambda r: r["mode"])
    strict = modes.get("strict", [])
    count = _sample_limits(results, samples)
    lines = [
        "# Conformance",
        "",
        f"PyTorch {_version('torch')}'s operator, module and optimizer databases on `tpu` (XLA's CPU client, JAX "
        f"{_version('jax')}), {count} of each operator against the CPU's results. A case is one operator with one dtype "
        "under one check. `make conformance` runs it; the results by case are in `conformance/results`.",
        "",
        *_totals(strict),
        "",
        "This is Strict mode. " + " ".join(
            f"{mode.capitalize()} ({', '.join(sorted({r['dtype'] for r in rows}))}): {summary(rows)}."
            for mode, rows in modes.items() if mode != "strict"
        ),
        "",
        "## By check and dtype",
        "",
        "The number of cases that pass; where some do not, bold, and of how many.",
        "",
        *_by_check(strict),
        "",
        "## By family and dtype",
        "",
        *_by_family(strict),
        "",
        "## Fallbacks to the CPU",
        "",
        *_fallbacks(strict),
        "",
        "## Exceptions",
        "",
        *_exceptions(strict),
        "",
        _HOW,
    ]
    (_ROOT / "docs" / "conformance.md").write_text("\n".join(line.rstrip() for line in "\n".join(lines).split("\n")))
    folder = _ROOT / "conformance" / "results"
    folder.mkdir(exist_ok=True)
    for mode, rows in modes.items():
        _compact(folder / f"{mode}.json", rows, samples)


def _compact(path: Path, rows: list[dict[str, Any]], samples: int | None) -> None:
    """{"torch", "jax", "samples", "cases": {operator: {"pass": {dtype: checks}, "fail": {dtype: {check: why}}}}}."""
    lines = []
    for key, cases in sorted(_group(rows, lambda r: r["key"]).items()):
        item: dict[str, Any] = {"pass": collections.defaultdict(list)}
        for r in cases:
            if r["outcome"] == "pass":
                item["pass"][r["dtype"]].append(r["check"])
            else:
                why = r["outcome"] if r["outcome"] != "fail" else r.get("error", "")[:120]
                item.setdefault("fail", {}).setdefault(r["dtype"], {})[r["check"]] = why
        item["pass"] = {d: " ".join(c) for d, c in item["pass"].items()}
        fallbacks = sorted({name for r in cases for name in r.get("fallbacks", ())})
        if fallbacks:
            item["fallbacks"] = fallbacks
        lines.append(f"{json.dumps(key)}: {json.dumps(item)}")
    head = {"torch": _version("torch"), "jax": _version("jax"), "samples": samples}
    body = ",\n".join(lines)
    path.write_text(json.dumps(head)[:-1] + ', "cases": {\n' + body + "\n}}\n")
