"""torchtpu.explain(): the windows that ran last, why each ended and how it ran, as text or as an HTML page."""

from __future__ import annotations

import collections
import dataclasses
import html
from pathlib import Path
from typing import Any

_WHY = {
    "optimizer step": "an optimizer's step() ended",
    "host read": "a value was read on the host (.item(), .cpu(), print, if)",
    "period": "the same operations came round again",
    "size limit": "TORCHTPU_MAX_WINDOW or TORCHTPU_MAX_WINDOW_BYTES",
    "synchronize": "torch.tpu.synchronize() or an event",
    "event": "an event was recorded",
    "mode change": "the eager mode changed",
    "thread end": "the thread that recorded it ended",
}
_HOW = {
    "hit": "its program was ready",
    "compiled": "its program was compiled first",
    "parts": "ran operation by operation: seen for the first time, or still compiling in the background",
    "failed": "raised an error",
}
_COLOURS = {"hit": "#3a7", "compiled": "#c62", "parts": "#48b", "failed": "#c33"}


@dataclasses.dataclass(frozen=True)
class Window:
    """One window that ran.

    content: a hash of its operations and wiring, the same in every process. reason: why it ended. how: "hit",
    "compiled", "parts" or "failed". start, seconds: when it was run and how long the host took, in seconds.
    lane: number of the thread that recorded it.
    """

    content: int
    operations: int
    inputs: int
    results: int
    reason: str
    how: str
    first: str
    lane: int
    start: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The last windows of Fused mode, oldest first. `str()` gives a table; `to_html(path)` writes a page."""

    windows: tuple[Window, ...]

    def __str__(self) -> str:
        if not self.windows:
            return "no window has run in Fused mode yet"
        lines = [f"{'operations':>10} {'inputs':>6} {'results':>7} {'ended by':<15} {'ran':<9} {'ms':>9}  first operation"]
        for window, times in self._grouped():
            line = (
                f"{window.operations:>10} {window.inputs:>6} {window.results:>7} {window.reason:<15} {window.how:<9} "
                f"{1000 * window.seconds:>9.3f}  {window.first}"
            )
            lines.append(line + (f"  (×{times}, last shown)" if times > 1 else ""))
        lines.append("")
        lines += [f"ended by {reason}: {_WHY[reason]}" for reason in self._distinct("reason") if reason in _WHY]
        lines += [f"ran {how}: {_HOW[how]}" for how in self._distinct("how")]
        return "\n".join(lines)

    def _grouped(self) -> list[tuple[Window, int]]:
        groups: list[tuple[Window, int]] = []
        for window in self.windows:
            before = groups[-1][0] if groups else None
            if before and (before.content, before.reason, before.how) == (window.content, window.reason, window.how):
                groups[-1] = (window, groups[-1][1] + 1)
            else:
                groups.append((window, 1))
        return groups

    def _distinct(self, field: str) -> list[str]:
        return list(collections.Counter(getattr(w, field) for w in self.windows))

    def to_html(self, path: str | Path) -> Path:
        """Writes a page with a timeline and the table, without scripts or links. Returns its path."""
        path = Path(path)
        path.write_text(self._page(), encoding="utf-8")
        return path

    def _page(self) -> str:
        bars, rows = [], []
        begin = self.windows[0].start if self.windows else 0.0
        end = max((w.start + w.seconds for w in self.windows), default=1.0)
        lanes = sorted({w.lane for w in self.windows})
        scale = 1000 / max(end - begin, 1e-9)
        for w in self.windows:
            told = f"{w.operations} operations, {w.reason}, {w.how}, {1000 * w.seconds:.3f} ms, {w.first}"
            bars.append(
                f'<rect x="{(w.start - begin) * scale:.2f}" y="{24 * lanes.index(w.lane) + 4}" '
                f'width="{max(w.seconds * scale, 0.5):.2f}" height="18" fill="{_COLOURS[w.how]}"><title>{html.escape(told)}</title></rect>'
            )
        for w, times in self._grouped():
            cells = [w.operations, w.inputs, w.results, w.reason, w.how, f"{1000 * w.seconds:.3f}", times, w.first, f"{w.content:016x}"]
            rows.append("<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in cells) + "</tr>")
        legend = " ".join(f'<span style="color:{_COLOURS[k]}">■</span> {k}: {v}.' for k, v in _HOW.items())
        head = "".join(
            f"<th>{name}</th>"
            for name in ("operations", "inputs", "results", "ended by", "ran", "ms", "times", "first operation", "content")
        )
        return (
            '<!doctype html><meta charset="utf-8"><title>TorchTPU windows</title>'
            "<style>body{font:14px sans-serif;margin:2em}td,th{padding:2px 10px;text-align:right}svg{background:#f4f4f4}</style>"
            f"<h1>Windows</h1><p>{len(self.windows)} windows in {end - begin:.3f} s. {legend}</p>"
            f'<svg width="1000" height="{24 * max(1, len(lanes)) + 4}">{"".join(bars)}</svg>'
            f"<table><tr>{head}</tr>{''.join(rows)}</table>"
        )


def explain(last: int | None = None) -> Explanation:
    """The windows that Fused mode ran last, at most 1024 (or `last`): how large, why each ended, how it ran.

    `print(torchtpu.explain())` shows them; `torchtpu.explain().to_html("windows.html")` draws them over time.
    """
    from torchtpu import _C

    found: list[dict[str, Any]] = _C._window_log()
    if last is not None:
        found = found[-last:] if last > 0 else []
    return Explanation(
        tuple(
            Window(
                w["content"], w["operations"], w["inputs"], w["results"], w["reason"], w["how"], w["first"], w["lane"],
                w["start"] / 1e9, (w["end"] - w["start"]) / 1e9,
            )
            for w in found
        )  # fmt: skip
    )
