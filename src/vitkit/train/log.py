"""The record of a run: metrics.jsonl always, TensorBoard when asked, and the terminal."""

import json
import os
import time
from collections.abc import Iterator
from math import isfinite
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from vitkit.system.ranks import on_rank_0


class Log:
    """Writes one JSON line an event, and shows where the run is. Opened at a step, it forgets lines of later steps: a run
    that was killed after its last checkpoint does those steps again, and writes the same lines again.
    """

    def __init__(
        self,
        workdir: Path,
        step: int,
        total: int,
        tensorboard: bool = False,
        console: Console | None = None,
    ):
        self.console = console or Console()
        self.total = total
        self.path = workdir / "metrics.jsonl"
        past = [line for line in read_metrics(self.path) if line["step"] <= step]
        if on_rank_0():
            new = self.path.with_suffix(".new")
            new.write_text("".join(json.dumps(line) + "\n" for line in past), "utf-8")
            new.replace(self.path)
        self.evaluated = {line["step"] for line in past if line["event"] == "evaluation"}
        self.file = (self.path if on_rank_0() else Path(os.devnull)).open("a", buffering=1)
        self.board = _tensorboard(workdir, step) if tensorboard and on_rank_0() else None
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            console=self.console,
            transient=True,
            auto_refresh=self.console.is_terminal,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("step", total=total, completed=step, text="")
        self.bar.start()
        self.meter = Meter(step)

    def say(self, text: str) -> None:
        """A sentence for the person who watches."""
        self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def __call__(self, event: str, step: int, **values: float | int | str | list) -> None:
        """Keep `values` under this event and step."""
        self.file.write(json.dumps({"event": event, "step": step, **values}) + "\n")
        if event == "evaluation":
            self.evaluated.add(step)
        for name, value in values.items() if self.board else ():
            if isinstance(value, int | float):
                self.board.add_scalar(name, value, step)

    def training(self, step: int, images: int, loss: float, norm: float, lr: float) -> None:
        """A line of the training curve, with speed, the share of time spent waiting for data, and the time left."""
        speed, waiting, left = self.meter.read(step, images, self.total)
        values = {
            "loss": loss,
            "norm": norm,
            "lr": lr,
            "images_per_second": speed,
            "data_wait": waiting,
        }
        shown = {name: float(f"{value:.6g}") for name, value in values.items()}
        self(
            "training",
            step,
            **{name: value if isfinite(value) else str(value) for name, value in shown.items()},
        )
        text = (
            f"{step:>7,}/{self.total:,}  loss {loss:.4f}  lr {lr:.2e}  {speed:,.0f} images/s  "
            f"data wait {waiting:.0%}  {clock(left)} left"
        )
        self.bar.update(self.task, completed=step, text=text)
        if not self.console.is_terminal:
            self.say(text)

    def at(self, step: int) -> None:
        """Move the bar; its text waits for the next line of the log."""
        self.bar.update(self.task, completed=step)

    def evaluating(self, name: str, batches) -> Iterator:
        """The same batches, with the way through them on the bar."""
        for done, batch in enumerate(batches):
            self.bar.update(
                self.task, text=f"evaluating {name}, batch {done + 1:,} of {len(batches):,}"
            )
            yield batch

    def close(self) -> None:
        """Everything is written; the bar goes."""
        self.bar.stop()
        self.file.close()
        if self.board:
            self.board.close()


class Meter:
    """Speed since the last reading. What is not training (evaluation, checkpoints) is kept out with `pause`."""

    def __init__(self, step: int):
        self.step, self.since, self.waited, self.paused = step, time.perf_counter(), 0.0, 0.0

    def read(self, step: int, images: int, total: int) -> tuple[float, float, float]:
        """Images per second, share of the time spent waiting for data, seconds left; `images` is those of one step."""
        now = time.perf_counter()
        spent, steps = max(now - self.since - self.paused, 1e-9), step - self.step
        reading = (
            steps * images / spent,
            self.waited / spent,
            (total - step) * spent / max(steps, 1),
        )
        self.step, self.since, self.waited, self.paused = step, now, 0.0, 0.0
        return reading


def read_metrics(path: Path) -> list[dict]:
    """Every whole line of a metrics.jsonl; a last one that was cut off by a kill is left out."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return []
    lines = text.split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def last_metrics(workdir: Path) -> dict[str, float]:
    """The latest evaluation of a run, empty before the first."""
    lines = [
        line for line in read_metrics(workdir / "metrics.jsonl") if line["event"] == "evaluation"
    ]
    return (
        {name: value for name, value in lines[-1].items() if name not in ("event", "step")}
        if lines
        else {}
    )


def clock(seconds: float) -> str:
    """1:02:03, or 4:05 below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
        if minutes >= 60
        else f"{minutes}:{rest:02d}"
    )


def _tensorboard(workdir: Path, step: int):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "--tensorboard needs the extra `track`: pip install 'vitkit[track]'"
        ) from None
    return SummaryWriter(workdir / "tensorboard", purge_step=step + 1)
