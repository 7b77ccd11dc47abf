"""The benchmark's results as a table, as Markdown for the README, and as a plot."""

from pathlib import Path

TITLES = {
    "cpu": "PyTorch CPU",
    "jax": "jax.jit by hand",
    "debug": "Debug",
    "strict": "Strict",
    "fused": "Fused",
}
COLOURS = {"jax": "#8c8c8c", "debug": "#d9b44a", "strict": "#4a90d9", "fused": "#2a9d5c"}
IMAGE = "![Speed of each mode relative to PyTorch on the CPU](docs/images/speed.png)"
MARKS = ("<!-- speed-table:begin -->", "<!-- speed-table:end -->")


def unit(row):
    """Factor and name of the unit that suits the row."""
    return (1e6, "µs") if row["kind"] == "host" else (1e3, "ms")


def cell(row, target):
    """A step time and its ratio to PyTorch's CPU in the same run."""
    numbers = row["targets"].get(target)
    if numbers is None:
        return "–"
    if "error" in numbers:
        return "failed"
    factor, name = unit(row)
    text = f"{numbers['step_seconds'] * factor:.3g} {name}"
    return text if target == "cpu" or "ratio" not in numbers else f"{text} ({numbers['ratio']:.2f}×)"


def first_cell(row, target):
    """The first step's seconds, and what was compiled up to the end."""
    numbers = row["targets"].get(target)
    if numbers is None:
        return "–"
    if "error" in numbers:
        return "failed"
    text = f"{numbers['first_step_seconds']:.2f} s"
    count, seconds = numbers["compiles"], compile_seconds(numbers["stats"])
    if not count:
        return text
    return f"{text}, {count} programs" + (f" in {seconds:.1f} s" if seconds is not None else "")


def compile_seconds(stats):
    for key in ("compile_seconds", "seconds"):
        if isinstance(stats.get(key), (int, float)):
            return stats[key]
    return None


def table(results, cells=cell, corner="step time (ratio to PyTorch CPU)"):
    """Rows of strings, the first one the header."""
    targets = results["targets"]
    lines = [[corner, *(TITLES[t] for t in targets)]]
    return lines + [[row["title"], *(cells(row, t) for t in targets)] for row in results["rows"]]


def plain(lines):
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    texts = ["  ".join(c.ljust(w) for c, w in zip(line, widths)).rstrip() for line in lines]
    return "\n".join([texts[0], "-" * len(texts[0]), *texts[1:]])


def markdown(results):
    lines = table(results)
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    machine = results["machine"]
    note = (
        f"Medians of {results['rounds']} alternating rounds, each target in its own process, all on one core of "
        f"{machine['processor']}; torch {machine['torch']}, jax {machine['jax']}, {results['date']}."
    )
    return "\n".join([IMAGE, "", rows[0], "|---" * len(lines[0]) + "|", *rows[1:], "", note])


def write_into(path, results):
    """Replace what stands between the marks of a Markdown file."""
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    path.write_text(f"{before}{MARKS[0]}\n{markdown(results)}\n{MARKS[1]}{after}", encoding="utf-8")


def plot(results, path):
    """Bars of how many times PyTorch's CPU speed each target reaches, row by row."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    targets = [t for t in results["targets"] if t != "cpu"]
    rows = [r for r in results["rows"] if "ratio" in r["targets"].get("cpu", {})]
    if not targets or not rows:
        return False
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.72 * len(rows)), layout="constrained")
    height = 0.8 / len(targets)
    for i, target in enumerate(targets):
        for j, row in enumerate(rows):
            ratio = row["targets"].get(target, {}).get("ratio")
            if ratio is None:
                continue
            y = j + (i - (len(targets) - 1) / 2) * height
            label = TITLES[target] if j == 0 or target not in axes.get_legend_handles_labels()[1] else None
            speed = 1 / ratio
            # On a logarithmic axis a bar's length means something only from the line at 1.
            axes.barh(y, speed - 1, height * 0.9, left=1, color=COLOURS[target], label=label)
            side = "left" if speed >= 1 else "right"
            axes.text(speed, y, f" {speed:.2f} ", va="center", ha=side, fontsize=7)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(rows)), [r["title"] for r in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.xaxis.set_major_locator(LogLocator(2))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.set_xlabel("speed relative to PyTorch on the CPU: right of the line is faster")
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles))
    figure.legend(unique.values(), unique.keys(), fontsize=8, loc="outside upper center", ncols=len(unique))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True
