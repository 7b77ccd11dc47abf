"""Trains a character-level GPT on the standard library's source files. `make demo`.

The model and this training loop are plain PyTorch: another device is another --device.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
from gpt_model import GPT, GPTConfig, Text, learning_rate  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
READ_EVERY = 20  # steps between two reads of the loss: reading waits for the device


def validation_loss(model, text, device, batches=4):
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        losses = []
        for _ in range(batches):
            x, y = text.batch(8, model.config.length, generator, text.validation)
            losses.append(model(x.to(device), y.to(device)).item())
    return sum(losses) / len(losses)


def train(model, text, device, steps, batch, report):
    """The training loop; returns [(step, seconds so far, loss)]."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    history, begun = [], time.perf_counter()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        x, y = text.batch(batch, model.config.length, generator)
        loss = model(x.to(device), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % READ_EVERY == 0 or step == steps - 1:
            history.append((step, time.perf_counter() - begun, loss.item()))
            report(step + 1, history)
    return history


def tokens_per_second(history, batch_tokens):
    """Speed between the reads of the loss: [(step, tokens/s)]."""
    return [
        (s1, (s1 - s0) * batch_tokens / (t1 - t0))
        for (s0, t0, _), (s1, t1, _) in zip(history, history[1:])
        if t1 > t0
    ]


def train_with_progress(console, model, text, options):
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("training on {task.fields[device]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}  {task.fields[speed]} tokens/s"),
        TimeElapsedColumn(),
    )
    batch_tokens = options.batch * model.config.length
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=options.steps, device=options.device, loss="…", speed="…")

        def report(step, history):
            speeds = tokens_per_second(history[-10:], batch_tokens)
            speed = f"{statistics.median(s for _, s in speeds):,.0f}" if speeds else "…"
            progress.update(task, completed=step, loss=f"{history[-1][2]:.3f}", speed=speed)
            # Where nothing redraws (a log file), a line now and then tells as much.
            if not console.is_terminal and (step - 1) % (10 * READ_EVERY) == 0:
                console.print(f"step {step}: loss {history[-1][2]:.3f}, {speed} tokens/s")

        return train(model, text, options.device, options.steps, options.batch, report)


def speed_table(console, rounds):
    """Step times of this model in each mode and on PyTorch's CPU, taken in turns."""
    sys.path.insert(0, str(ROOT))
    from rich.table import Table

    from benchmarks import alternate, report, rows

    row = rows.ROWS["gpt-small"]
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else None
    with tempfile.TemporaryDirectory() as logs, console.status("measuring") as status:
        targets = ["cpu", "debug", "strict", "fused"]
        results = alternate.measure(row, targets, rounds, core, logs, status.update)
    table = Table(title=f"{row.title}: one core, {rounds} alternating rounds")
    for heading in ("", "median step", "ratio to PyTorch CPU", "first step", "programs"):
        table.add_column(heading, justify="left" if not heading else "right")
    for target in ("debug", "strict", "fused", "cpu"):
        numbers = results[target]
        if "error" in numbers:
            table.add_row(report.TITLES[target], "failed", "", "", "")
            console.print(numbers["error"], style="red", markup=False)
            continue
        ratio = f"{numbers['ratio']:.2f}" if "ratio" in numbers else ""
        step, first = f"{1e3 * numbers['step_seconds']:.1f} ms", f"{numbers['first_step_seconds']:.2f} s"
        table.add_row(report.TITLES[target], step, ratio, first, str(numbers["compiles"]))
    console.print(table)
    return results


def plot(path, history, batch_tokens, results, device):
    """Loss and speed of the training, and the step times, as one picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3 if results else 2, figsize=(13 if results else 9, 3.6), layout="constrained")
    steps, losses = [s for s, _, _ in history], [loss for _, _, loss in history]
    smooth = [statistics.mean(losses[max(0, i - 9) : i + 1]) for i in range(len(losses))]
    axes[0].plot(steps, losses, color="#2a9d5c", alpha=0.35, linewidth=0.8, label="one batch")
    axes[0].plot(steps, smooth, color="#2a9d5c", label="mean of ten")
    axes[0].legend(fontsize=8, frameon=False)
    axes[0].set(title=f"training loss on {device}", xlabel="step", ylabel="cross-entropy per character")
    speeds = tokens_per_second(history, batch_tokens)
    axes[1].plot([s for s, _ in speeds], [v for _, v in speeds], color="#4a90d9")
    axes[1].set(title="speed", xlabel="step", ylabel="tokens per second")
    axes[1].set_ylim(bottom=0)
    if results:
        from benchmarks.report import COLOURS, TITLES

        shown = [t for t in ("debug", "strict", "fused", "cpu") if "error" not in results[t]]
        values = [1e3 * results[t]["step_seconds"] for t in shown]
        bars = axes[2].barh([TITLES[t] for t in shown], values, color=[COLOURS.get(t, "#8c8c8c") for t in shown])
        axes[2].bar_label(bars, fmt=" %.1f", fontsize=8)
        axes[2].invert_yaxis()
        axes[2].set(title="step time", xlabel="ms (median, one core)")
    for a in axes:
        a.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--mode", default="fused", choices=("debug", "strict", "fused"), help="of the tpu device")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of the speed table; 0 leaves it out")
    parser.add_argument("--plot", type=Path, default=ROOT / "examples" / "output" / "train_gpt.png")
    options = parser.parse_args()

    from rich.console import Console

    console = Console()
    begun = time.perf_counter()
    if options.device.startswith("tpu"):
        import torchtpu

        torchtpu.set_eager_mode(options.mode)
        console.print(f"tpu device, {options.mode} mode, torchtpu {torchtpu.__version__}")

    torch.manual_seed(0)
    text = Text()
    model = GPT(GPTConfig(text.vocab)).to(options.device)
    count = sum(p.numel() for p in model.parameters())
    console.print(
        f"{text.files} files of Python's standard library: {len(text.train):,} characters to train on; "
        f"a GPT of {count / 1e6:.2f} M parameters"
    )
    history = train_with_progress(console, model, text, options)
    console.print(f"loss on unseen text: {validation_loss(model, text, options.device):.3f}")

    prompt = text.validation[: model.config.length]
    made = model.generate(prompt[None].to(options.device), 300)[0].tolist()
    console.rule("a sample")
    console.print(text.decode(prompt.tolist()), style="dim", end="", markup=False, highlight=False)
    console.print(text.decode(made), markup=False, highlight=False)
    console.rule()

    results = speed_table(console, options.rounds) if options.rounds else None
    plot(options.plot, history, options.batch * model.config.length, results, options.device)
    console.print(f"loss and speed: {options.plot}\nall done in {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
