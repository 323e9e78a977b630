"""The record of a run: metrics.jsonl always, TensorBoard when asked, and the terminal."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from vitkit.evaluate import Metric
from vitkit.evaluate.metric import number_of, plain_number
from vitkit.system.ranks import on_rank_0


class Log:
    """Writes one JSON line an event, and shows where the run is. Opened at a step, it forgets lines
    of later steps: a run that was killed after its last checkpoint does those steps again, and
    writes the same lines again.
    """

    def __init__(
        self,
        run_dir: Path,
        step: int,
        total: int,
        tensorboard: bool = False,
        console: Console | None = None,
    ):
        self.console = console or Console()
        self.total = total
        self.path = run_dir / "metrics.jsonl"
        past = [line for line in read_metrics(self.path) if line["step"] <= step]
        if on_rank_0():
            new = self.path.with_suffix(".new")
            new.write_text("".join(map(to_line, past)), "utf-8")
            new.replace(self.path)
        self.evaluated = {
            (line["step"], line["evaluator"]) for line in past if line["event"] == "evaluation"
        }
        """Which evaluators have measured at which steps, by their titles."""
        self.file = (self.path if on_rank_0() else Path(os.devnull)).open("a", buffering=1)
        self.board = _tensorboard(run_dir, step) if tensorboard and on_rank_0() else None
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
        self._write({"event": event, "step": step, **values})
        self._draw(step, {name: x for name, x in values.items() if isinstance(x, int | float)})

    def evaluation(
        self, step: int, evaluator: str, metrics: Sequence[Metric], primary: str = ""
    ) -> None:
        """Keep what an evaluator, of this title, measured; `primary` is the metric by which runs
        are compared, if it is one."""
        line = {"event": "evaluation", "step": step, "evaluator": evaluator}
        if primary:
            line["primary"] = primary
        line["metrics"] = {metric.name: metric for metric in metrics}
        self._write(line)
        self.evaluated.add((step, evaluator))
        self._draw(step, {metric.name: metric.value for metric in metrics})

    def _write(self, line: dict) -> None:
        self.file.write(to_line(line))

    def _draw(self, step: int, numbers: dict[str, float]) -> None:
        """Numbers for TensorBoard, where it is asked for."""
        if self.board:
            for name, value in numbers.items():
                self.board.add_scalar(name, value, step)

    def training(self, step: int, images: int, loss: float, norm: float, lr: float) -> None:
        """A line of the training curve, with speed, the share of time spent waiting for data, and
        the time left."""
        speed, waiting, seconds = self.meter.read(step, images, self.total)
        values = {
            "loss": loss,
            "norm": norm,
            "lr": lr,
            "images_per_second": speed,
            "data_wait": waiting,
        }
        rounded = {name: float(f"{value:.6g}") for name, value in values.items()}
        self("training", step, **rounded)
        text = (
            f"{step:>7,}/{self.total:,}  loss {loss:.4f}  lr {lr:.2e}  {speed:,.0f} images/s  "
            f"data wait {waiting:.0%}  {clock(seconds)} left"
        )
        self.bar.update(self.task, completed=step, text=text)
        if not self.console.is_terminal:
            self.say(text)

    def metrics(self, step: int, metrics: Sequence[Metric]) -> None:
        """Say what was measured, but for what is neither good nor bad, such as counts."""
        shown = [metric for metric in metrics if metric.unit.better != "neither"]
        self.say(f"step {step:,}: {', '.join(f'{each.name} {each.text()}' for each in shown)}")

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
    """Speed since the last reading. What is not training (evaluation, checkpoints) is kept out with
    `pause`."""

    def __init__(self, step: int):
        self._begin(step, time.perf_counter())

    def _begin(self, step: int, now: float) -> None:
        self.step = step
        self.since = now
        self.waited = 0.0
        """Seconds spent waiting for data, since then."""
        self.paused = 0.0
        """Seconds that were not training."""

    def read(self, step: int, images: int, total: int) -> tuple[float, float, float]:
        """Images per second, share of the time spent waiting for data, seconds left; `images` is
        those of one step."""
        now = time.perf_counter()
        steps = step - self.step
        spent = max(now - self.since - self.paused, 1e-9)
        speed = steps * images / spent
        waiting = self.waited / spent
        seconds = (total - step) * spent / max(steps, 1)
        self._begin(step, now)
        return speed, waiting, seconds


def to_line(line: dict) -> str:
    """A line of metrics.jsonl, always valid JSON: a number that is not finite is null, and "notes"
    say what it was."""
    values = {}
    notes = {}
    for name, value in line.items():
        if name == "metrics":
            value = {key: metric.to_json() for key, metric in value.items()}
        elif isinstance(value, float):
            value, note = plain_number(value)
            if note:
                notes[name] = note
        values[name] = value
    if notes:
        values["notes"] = notes
    return json.dumps(values, allow_nan=False) + "\n"


def read_metrics(path: Path) -> list[dict]:
    """Every whole line of a metrics.jsonl; a last one that was cut off by a kill is left out.

    The "metrics" of an evaluation are a dict of Metric by name; numbers that were not finite are
    NaN or infinite again.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return []
    whole_lines = text.split("\n")[:-1]
    return [_from_json(json.loads(line)) for line in whole_lines if line]


def _from_json(values: dict) -> dict:
    """The line that `to_line` wrote."""
    for name, note in values.pop("notes", {}).items():
        values[name] = number_of(values[name], note)
    if "metrics" in values:
        metrics = values["metrics"]
        values["metrics"] = {name: Metric.from_json(name, of) for name, of in metrics.items()}
    return values


def last_metrics(run_dir: Path) -> dict[str, Metric]:
    """Every metric of a run at its latest evaluation, by name; empty before the first."""
    metrics = {}
    for line in read_metrics(run_dir / "metrics.jsonl"):
        metrics |= line.get("metrics", {})
    return metrics


def primary_metric(run_dir: Path) -> Metric | None:
    """The metric by which a run is compared with others, at its latest evaluation; None where
    nothing is measured.

    It is the first metric of the recipe's first evaluator, on the last part that it measures: the
    test part where there is one.
    """
    for line in reversed(read_metrics(run_dir / "metrics.jsonl")):
        if "primary" in line:
            return line["metrics"][line["primary"]]
    return None


def clock(seconds: float) -> str:
    """1:02:03, or 4:05 below an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
    return f"{minutes}:{seconds:02d}"


def _tensorboard(run_dir: Path, step: int):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "--tensorboard needs the extra `track`: pip install 'vitkit[track]'"
        ) from None
    return SummaryWriter(run_dir / "tensorboard", purge_step=step + 1)
